"""Builds operations of the op table into a draft; drops what is exact to drop."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from kforge_dynamo.lowering.draft import Attrs, Draft, Step
from kforge_dynamo.lowering.refusal import Refused
from kforge_dynamo.lowering.sizes import Size
from kforge_dynamo.lowering.space import is_one
from kforge_dynamo.lowering.spec import COMPARISONS, FLOATS, PREDICATES
from kforge_dynamo.records.region import Reason
from kforge_dynamo.records.task import Const, Operand

Arg = Operand | float
"""A value's number (int), a `Const`, or a Python float, which becomes a `Const`."""

_KEEPS_ONE = ("amax", "amin", "any", "all")
"""Reductions that return a single element unchanged. `sum` and `mean` do not: torch's sum of -0.0 is 0.0."""


class Emit:
    """The operations, as functions that return the number of their result; operands have equal numbers of columns."""

    def __init__(self, draft: Draft) -> None:
        self.draft = draft

    def __call__(self, op: str, *args: Arg) -> int:
        """A pointwise `op`. Raises: Refused where every operand is a constant or dtypes do not fit."""
        numbers = [arg for arg in args if isinstance(arg, int)]
        if not numbers:
            raise Refused(Reason.NOT_EXPRESSIBLE, f"{op} of constants alone is left to Inductor")
        typed = [number for number in numbers if self.draft.dtype(number) != "bool"] or numbers
        dtypes = {self.draft.dtype(number) for number in typed}
        if len(dtypes) != 1:
            raise Refused(Reason.UNSUPPORTED_DTYPE, f"{op} on operands of {' and '.join(sorted(dtypes))}")
        dtype = dtypes.pop()
        operands = tuple(arg if isinstance(arg, int) else _typed(arg, dtype) for arg in args)
        kept = self._unchanged(op, operands)
        if kept is not None:
            return kept
        result = "bool" if op in COMPARISONS or op in PREDICATES else dtype
        return self._step(op, operands, (), result, _broadcast([self.draft.extents(number) for number in numbers]))

    def convert(self, x: int, dtype: str) -> int:
        """`x` in another dtype; narrowing is a rounding. A widening that is undone at once is dropped."""
        if self.draft.dtype(x) == dtype:
            return x
        inner = self.draft.as_step(x, "convert")
        if inner is not None and self.draft.dtype(x) == "float32" and isinstance(inner.args[0], int):
            source = inner.args[0]
            if self.draft.dtype(source) == dtype and dtype in FLOATS:
                return source
        return self._step("convert", (x,), (), dtype, self.draft.extents(x))

    def reduce(self, op: str, x: int, axes: Sequence[int], dtype: str | None = None, **attrs: Any) -> int:
        """`op` over these positions in the columns of `x`, which stay with extent 1."""
        extents = self.draft.extents(x)
        if all(is_one(extents[axis]) for axis in axes):
            if op in _KEEPS_ONE:
                return x
            if op in ("sum", "mean"):
                return self("add", x, 0.0)
        result = tuple(1 if index in axes else extent for index, extent in enumerate(extents))
        named = _sorted(axes=tuple(sorted(axes)), **attrs)
        return self._step(op, (x,), named, dtype or self.draft.dtype(x), result)

    def reduce_rows(self, op: str, x: int, **attrs: Any) -> int:
        """`op` over all row axes."""
        named = _sorted(axes="rows", **attrs)
        extents = self.draft.extents(x)
        step = Step(op, (x,), named, self.draft.dtype(x), frozenset(), False, extents)
        return self.draft.step(step)

    def reshape(self, x: int, cols: Sequence[int]) -> int:
        """The columns of `x` in row-major order as `cols`."""
        while (inner := self.draft.as_step(x, "reshape")) is not None and isinstance(inner.args[0], int):
            x = inner.args[0]
        if self.draft.extents(x) == tuple(cols):
            return x
        return self._step("reshape", (x,), (), self.draft.dtype(x), tuple(cols))

    def slice(self, x: int, axis: int, start: int, stop: int, step: int = 1) -> int:
        """Columns `start:stop:step` along `axis`."""
        extents = list(self.draft.extents(x))
        if (start, stop, step) == (0, extents[axis], 1):
            return x
        extents[axis] = len(range(start, stop, step))
        attrs = _sorted(axis=axis, start=start, stop=stop, step=step)
        return self._step("slice", (x,), attrs, self.draft.dtype(x), tuple(extents))

    def expand(self, x: int, cols: Sequence[int]) -> int:
        """Columns of extent 1 repeated."""
        if self.draft.extents(x) == tuple(cols):
            return x
        return self._step("expand", (x,), (), self.draft.dtype(x), tuple(cols))

    def gemm(self, lhs: int, rhs: int, bias: int | None, alpha: float, beta: float, n: Size) -> int:
        """`alpha * lhs @ rhs + beta * bias`."""
        args = (lhs, rhs) if bias is None else (lhs, rhs, bias)
        return self._step("gemm", args, _sorted(alpha=alpha, beta=beta), self.draft.dtype(lhs), (n,))

    def _step(self, op: str, args: tuple[Operand, ...], attrs: Attrs, dtype: str, extents: Sequence[Size]) -> int:
        numbers = [arg for arg in args if isinstance(arg, int)]
        rows = frozenset().union(*(self.draft.rows(number) for number in numbers))
        unit = any(self.draft.unit_rows(number) for number in numbers)
        return self.draft.step(Step(op, args, attrs, dtype, rows, unit, tuple(extents)))

    def _unchanged(self, op: str, args: tuple[Operand, ...]) -> int | None:
        """The operand that `op` returns bit for bit, whatever its value; None when there is none."""
        if op == "where":
            return args[1] if args[1] == args[2] and isinstance(args[1], int) else None
        if op == "logical_not":
            inner = self.draft.as_step(args[0], "logical_not") if isinstance(args[0], int) else None
            return inner.args[0] if inner is not None and isinstance(inner.args[0], int) else None
        if len(args) != 2:
            return None
        x, y = args
        if op == "mul" and isinstance(y, int) and _is(x, "1.0"):
            return y
        neutral = {"mul": "1.0", "div": "1.0", "pow": "1.0", "sub": "0.0", "add": "-0.0"}.get(op)
        return x if neutral is not None and isinstance(x, int) and _is(y, neutral) else None


def _is(operand: Operand, text: str) -> bool:
    return isinstance(operand, Const) and isinstance(operand.value, float) and repr(operand.value) == text


def _typed(arg: Const | float, dtype: str) -> Const:
    value = arg.value if isinstance(arg, Const) else arg
    if dtype in FLOATS:
        return Const(float(value))
    if dtype == "bool":
        return Const(bool(value))
    return Const(value)


def _sorted(**attrs: Any) -> Attrs:
    return tuple(sorted(attrs.items()))


def _broadcast(extents: Sequence[Sequence[Size]]) -> tuple[Size, ...]:
    result: list[Size] = []
    for column in zip(*extents, strict=True):
        result.append(next((extent for extent in column if not is_one(extent)), 1))
    return tuple(result)
