"""ATen's reductions: over columns, over all rows, or over both."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from kforge_dynamo.lowering.calls import dtype_name
from kforge_dynamo.lowering.refusal import Refused
from kforge_dynamo.lowering.scope import Bound, Scope, Value
from kforge_dynamo.lowering.space import Col, Layout, Row, Tag
from kforge_dynamo.lowering.spec import FLOATS
from kforge_dynamo.records.region import Reason

Args = Mapping[str, Any]
ReductionRule = Callable[[Scope, Value, Args], Bound]


@dataclass(frozen=True, slots=True)
class Over:
    """What a reduction of a graph tensor reduces: these columns, and the rows or not; and the layout that remains."""

    axes: tuple[int, ...]
    rows: bool
    layout: Layout


def over(value: Value, dims: object, keepdim: bool) -> Over:
    """Which rows and columns the dimensions `dims` (None or empty: all) are. Raises: Refused for a part of the rows."""
    layout = value.layout
    rank = len(layout.sizes)
    listed = [dims] if isinstance(dims, int) else list(dims) if isinstance(dims, Sequence) else []
    reduced = sorted({dim % rank for dim in listed}) if listed and rank else list(range(rank))  # a scalar has a dimension 0, too
    tags = [layout.tags[dim] for dim in reduced]
    rows = [tag for tag in tags if isinstance(tag, Row)]
    if rows and len(rows) != len(layout.rows):
        raise Refused(Reason.CROSSES_ROWS, "it reduces a part of the product's row axes and keeps the others")
    axes = tuple(sorted(tag.index for tag in tags if isinstance(tag, Col)))
    cols = tuple(1 if index in axes else extent for index, extent in enumerate(layout.cols))
    kept: list[Tag] = []
    sizes: list[Any] = []
    for dim, (tag, size) in enumerate(zip(layout.tags, layout.sizes, strict=True)):
        if dim not in reduced:
            kept.append(tag)
            sizes.append(size)
        elif keepdim:
            kept.append(None if isinstance(tag, Row) else tag)
            sizes.append(1)
    return Over(axes, bool(rows), Layout(tuple(sizes), tuple(kept), cols))


def reduced(scope: Scope, op: str, number: int, where: Over) -> int:
    """`op` over columns, then over rows, which is the same as over both at once for sums, means, extrema, any and all."""
    if where.axes:
        number = scope.emit.reduce(op, number, where.axes)
    if where.rows:
        number = scope.emit.reduce_rows(op, number)
    if not where.axes and not where.rows and op in ("sum", "mean"):
        return scope.emit("add", number, 0.0)  # torch's sum of a single -0.0 is 0.0
    return number


def _number(scope: Scope, value: Value, args: Args) -> int:
    """The operand in the dtype the sum is asked in."""
    dtype = args.get("dtype")
    number = value.number
    if dtype is not None and dtype_name(dtype) in FLOATS and scope.draft.dtype(number) in FLOATS:
        number = scope.emit.convert(number, dtype_name(dtype))
    elif dtype is not None and dtype_name(dtype) != scope.draft.dtype(number):
        raise Refused(Reason.UNSUPPORTED_DTYPE, f"a reduction of {scope.draft.dtype(number)} into {dtype_name(dtype)}")
    return number


def _floating(scope: Scope, number: int, op: str) -> None:
    if scope.draft.dtype(number) not in FLOATS:
        raise Refused(Reason.UNSUPPORTED_DTYPE, f"{op} of {scope.draft.dtype(number)} is left to Inductor")


def _plain(op: str) -> ReductionRule:
    def rule(scope: Scope, value: Value, args: Args) -> Bound:
        where = over(value, args.get("dim"), bool(args.get("keepdim")))
        number = _number(scope, value, args)
        _floating(scope, number, op)
        return Value(reduced(scope, op, number, where), where.layout)

    return rule


def _truth(op: str) -> ReductionRule:
    def rule(scope: Scope, value: Value, args: Args) -> Bound:
        where = over(value, args.get("dim"), bool(args.get("keepdim")))
        number = value.number
        if scope.draft.dtype(number) in FLOATS:
            number = scope.emit("ne", number, 0.0)
        return Value(reduced(scope, op, number, where), where.layout)

    return rule


def _single_column(value: Value, args: Args, op: str) -> Over:
    dim = args["dim"]
    if not isinstance(dim, int):
        raise Refused(Reason.NOT_EXPRESSIBLE, f"{op} without a dimension counts rows and columns together")
    where = over(value, dim, bool(args.get("keepdim")))
    if where.rows or len(where.axes) != 1:
        raise Refused(Reason.CROSSES_ROWS, f"{op} finds an index along rows of the product")
    return where


def _index(op: str) -> ReductionRule:
    def rule(scope: Scope, value: Value, args: Args) -> Bound:
        _floating(scope, value.number, op)
        where = _single_column(value, args, op)
        return Value(scope.emit.reduce(op, value.number, where.axes, "int64"), where.layout)

    return rule


def _with_index(op: str, index_op: str) -> ReductionRule:
    """`max.dim`: the extreme value, and the index of the first element that has it."""

    def rule(scope: Scope, value: Value, args: Args) -> Bound:
        _floating(scope, value.number, op)
        where = _single_column(value, args, op)
        values = Value(scope.emit.reduce(op, value.number, where.axes), where.layout)
        return values, Value(scope.emit.reduce(index_op, value.number, where.axes, "int64"), where.layout)

    return rule


def _variance(scope: Scope, value: Value, args: Args) -> Value:
    _floating(scope, value.number, "var")
    where = over(value, args["dim"], bool(args["keepdim"]))
    correction = 1.0 if args["correction"] is None else args["correction"]
    if not isinstance(correction, int | float):
        raise Refused(Reason.SYMBOLIC_SIZE, "the correction of the variance is symbolic")
    if where.rows == bool(where.axes):
        raise Refused(Reason.NOT_EXPRESSIBLE, "a variance is over columns or over all rows, not over both or neither")
    if where.rows:
        number = scope.emit.reduce_rows("var", value.number, correction=float(correction))
    else:
        number = scope.emit.reduce("var", value.number, where.axes, correction=float(correction))
    return Value(number, where.layout)


def _variance_and_mean(scope: Scope, value: Value, args: Args) -> Bound:
    where = over(value, args["dim"], bool(args["keepdim"]))
    return _variance(scope, value, args), Value(reduced(scope, "mean", value.number, where), where.layout)


def _online_softmax(scope: Scope, value: Value, args: Args) -> Bound:
    """Both results keep the dimension: the maximum, and the sum of `exp(x - maximum)`."""
    _floating(scope, value.number, "softmax")
    where = over(value, args["dim"], True)
    if where.rows or not where.axes:
        raise Refused(Reason.CROSSES_ROWS, "a softmax along rows of the product")
    peak = scope.emit.reduce("amax", value.number, where.axes)
    total = scope.emit.reduce("sum", scope.emit("exp", scope.emit("sub", value.number, peak)), where.axes)
    return Value(peak, where.layout), Value(total, where.layout)


def logsumexp(scope: Scope, number: int, axes: Sequence[int]) -> int:
    """`log(sum(exp(x)))` with an infinite maximum left out of the shift, as torch decomposes it."""
    e = scope.emit
    peak = e.reduce("amax", number, axes)
    shift = e("where", e("eq", e("abs", peak), math.inf), 0.0, peak)
    return e("add", e("log", e.reduce("sum", e("exp", e("sub", number, shift)), axes)), shift)


def _logsumexp(scope: Scope, value: Value, args: Args) -> Bound:
    _floating(scope, value.number, "logsumexp")
    where = over(value, args["dim"], bool(args["keepdim"]))
    if where.rows or not where.axes:
        raise Refused(Reason.CROSSES_ROWS, "a logsumexp along rows of the product")
    return Value(logsumexp(scope, value.number, where.axes), where.layout)


REDUCTIONS: dict[str, ReductionRule] = {
    **dict.fromkeys(("aten.sum.dim_IntList", "aten.sum.default"), _plain("sum")),
    **dict.fromkeys(("aten.mean.dim", "aten.mean.default"), _plain("mean")),
    **dict.fromkeys(("aten.amax.default", "aten.max.default"), _plain("amax")),
    **dict.fromkeys(("aten.amin.default", "aten.min.default"), _plain("amin")),
    **dict.fromkeys(("aten.any.default", "aten.any.dim", "aten.any.dims"), _truth("any")),
    **dict.fromkeys(("aten.all.default", "aten.all.dim", "aten.all.dims"), _truth("all")),
    "aten.argmax.default": _index("argmax"),
    "aten.argmin.default": _index("argmin"),
    "aten.max.dim": _with_index("amax", "argmax"),
    "aten.min.dim": _with_index("amin", "argmin"),
    "aten.var.correction": _variance,
    "aten.var_mean.correction": _variance_and_mean,
    "prims.prepare_softmax_online.default": _online_softmax,
    "aten.logsumexp.default": _logsumexp,
}
"""By the op's full name."""
