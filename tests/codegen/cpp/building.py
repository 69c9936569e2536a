"""Tasks made by hand: a small writer of nodes that keeps shapes, for tests of the C++ generator."""

from __future__ import annotations

from collections.abc import Sequence

from kforge_dynamo.records.task import Const, Extent, InputRole, InputSpec, Node, Stride, Task, ValueSpec
from kforge_dynamo.semantics.table import OPS, Kind

BOOLEAN = frozenset({"eq", "ne", "lt", "le", "gt", "ge", "logical_and", "logical_or", "logical_xor", "logical_not",
                     "isnan", "isinf", "isfinite", "any", "all"})  # fmt: skip


class Building:
    """Inputs first, then nodes; every method returns the number of the value it adds."""

    def __init__(self, axes: tuple[str, ...] = ("m",), col_axes: tuple[str, ...] = ()) -> None:
        self.axes, self.col_axes = axes, col_axes
        self.inputs: list[InputSpec] = []
        self.nodes: list[Node] = []

    def input(
        self,
        cols: Sequence[Extent],
        *,
        rows: Sequence[Extent] | None = None,
        dtype: str = "float32",
        role: InputRole = InputRole.EXTRA,
        strides: Sequence[Stride] | None = None,
    ) -> int:
        assert not self.nodes, "inputs come before nodes"
        spec = ValueSpec(dtype, tuple(self.axes if rows is None else rows), tuple(cols))
        given = tuple(strides) if strides is not None else row_major(spec)
        self.inputs.append(InputSpec(spec, given, role))
        return len(self.inputs) - 1

    def fixed(self, cols: Sequence[Extent], **rest: object) -> int:
        """An input that varies by no row."""
        return self.input(cols, rows=(1,) * len(self.axes), **rest)  # type: ignore[arg-type]

    def linear(self, k: Extent, n: int, *, bias: bool = True, dtype: str = "float32", weight: str = "nk", **attrs: float) -> int:
        """Inputs x, w (and a bias) and their product. `weight` is "nk" (as in a linear layer) or "kn"."""
        lhs = self.input((k,), dtype=dtype, role=InputRole.LHS)
        rows = (1,) * len(self.axes)
        strides: tuple[Stride, ...] = (1, "dense") if weight == "nk" else ("dense", 1)
        rhs = self.input((k, n), rows=rows, dtype=dtype, role=InputRole.RHS, strides=(0,) * len(rows) + strides)
        args = (lhs, rhs, self.fixed((n,), dtype=dtype)) if bias else (lhs, rhs)
        return self.gemm(args, n, dtype, **attrs)

    def gemm(self, args: tuple[int, ...], n: int, dtype: str = "float32", alpha: float = 1.0, beta: float = 1.0) -> int:
        return self._put(Node("gemm", args, (("alpha", alpha), ("beta", beta)), ValueSpec(dtype, self.axes, (n,))))

    def value(self, number: int) -> ValueSpec:
        count = len(self.inputs)
        return self.inputs[number].value if number < count else self.nodes[number - count].out

    def op(self, name: str, *args: int | float | bool, dtype: str | None = None) -> int:
        """A pointwise node; Python numbers that are floats or bools become constants, integers are values."""
        operands = tuple(Const(arg) if isinstance(arg, bool | float) else arg for arg in args)
        specs = [self.value(arg) for arg in operands if isinstance(arg, int)]
        rows = tuple(_join(extents) for extents in zip(*(spec.rows for spec in specs), strict=True))
        cols = tuple(_join(extents) for extents in zip(*(spec.cols for spec in specs), strict=True))
        found = "bool" if name in BOOLEAN else specs[-1].dtype
        return self._put(Node(name, operands, (), ValueSpec(dtype or found, rows, cols)))

    def reduce(self, name: str, x: int, axes: tuple[int, ...] | str, *, correction: float | None = None) -> int:
        spec = self.value(x)
        rows, cols = spec.rows, spec.cols
        if axes == "rows":
            rows = (1,) * len(rows)
        else:
            cols = tuple(1 if i in axes else extent for i, extent in enumerate(cols))
        dtype = "bool" if name in BOOLEAN else "int64" if name in ("argmax", "argmin") else spec.dtype
        attrs: tuple[tuple[str, object], ...] = (("axes", axes),)
        if name == "var":
            attrs += (("correction", 1.0 if correction is None else correction),)
        return self._put(Node(name, (x,), attrs, ValueSpec(dtype, rows, cols)))  # type: ignore[arg-type]

    def reshape(self, x: int, *cols: int) -> int:
        return self._put(Node("reshape", (x,), (), ValueSpec(self.value(x).dtype, self.value(x).rows, cols)))

    def expand(self, x: int, *cols: int) -> int:
        return self._put(Node("expand", (x,), (), ValueSpec(self.value(x).dtype, self.value(x).rows, cols)))

    def slice(self, x: int, axis: int, start: int, stop: int, step: int = 1) -> int:
        spec = self.value(x)
        cols = list(spec.cols)
        cols[axis] = len(range(cols[axis])[start:stop:step])  # type: ignore[arg-type,call-overload]
        attrs = (("axis", axis), ("start", start), ("step", step), ("stop", stop))
        return self._put(Node("slice", (x,), attrs, ValueSpec(spec.dtype, spec.rows, tuple(cols))))

    def task(self, *outputs: int) -> Task:
        return Task(self.axes, self.col_axes, tuple(self.inputs), tuple(self.nodes), outputs)

    def _put(self, node: Node) -> int:
        assert OPS[node.op].kind in Kind
        self.nodes.append(node)
        return len(self.inputs) + len(self.nodes) - 1


def row_major(spec: ValueSpec) -> tuple[Stride, ...]:
    """Stride classes of a dense tensor of this shape."""
    strides: list[Stride] = []
    inner = True
    for extent in reversed(spec.shape):
        strides.insert(0, 0 if extent == 1 else 1 if inner else "dense")
        inner = inner and extent == 1
    return tuple(strides)


def _join(extents: Sequence[Extent]) -> Extent:
    return next((extent for extent in extents if extent != 1), 1)
