"""ATen's views: the same value in another shape, or a part of its columns."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import torch
import torch.fx

from kforge_dynamo.lowering.calls import arguments, name_of, tensor_of
from kforge_dynamo.lowering.refusal import Refused
from kforge_dynamo.lowering.scope import Bound, Scope, Value
from kforge_dynamo.lowering.sizes import Size, is_dense, product, same, size_of, sizes_of, strides_of
from kforge_dynamo.lowering.space import Col, Layout, Row, Tag, is_one, permuted, reshaped
from kforge_dynamo.records.region import Reason

ViewRule = Callable[[Scope, Value, torch.fx.Node], Bound]


def _shape_of(node: torch.fx.Node) -> tuple[Size, ...]:
    tensor = tensor_of(node)
    if tensor is None:
        raise Refused(Reason.UNSUPPORTED_LAYOUT, f"{name_of(node)} does not return one plain tensor")
    return sizes_of(tensor)


def _reshape(scope: Scope, value: Value, node: torch.fx.Node) -> Bound:
    return in_shape(scope, value, _shape_of(node))


def in_shape(scope: Scope, value: Value, sizes: Sequence[Size]) -> Value:
    """`value` in the row-major shape `sizes`. Raises: Refused where rows and columns mix."""
    layout = reshaped(value.layout, sizes)
    return Value(scope.emit.reshape(value.number, layout.cols), layout)


def _permute(scope: Scope, value: Value, node: torch.fx.Node) -> Bound:
    rank = len(value.layout.sizes)
    args = arguments(node)
    order = list(range(rank))
    if name_of(node) == "aten.permute.default":
        order = [index % rank for index in args["dims"]]
    elif name_of(node) == "aten.transpose.int" and rank:
        a, b = args["dim0"] % rank, args["dim1"] % rank
        order[a], order[b] = order[b], order[a]
    else:
        order.reverse()
    return Value(value.number, permuted(value.layout, order))


def _expand(scope: Scope, value: Value, node: torch.fx.Node) -> Bound:
    sizes = _shape_of(node)
    old = value.layout
    shift = len(sizes) - len(old.sizes)
    if all(index >= shift and same(size, old.sizes[index - shift]) for index, size in enumerate(sizes) if not is_one(size)):
        return in_shape(scope, value, sizes)
    cols, tags = list(old.cols), list(old.tags)
    for index, size in enumerate(sizes[shift:]):
        if is_one(old.sizes[index]) and not is_one(size):
            tag = tags[index]
            if not isinstance(tag, Col):
                raise Refused(Reason.CROSSES_ROWS, "the expand repeats rows of the product")
            cols[tag.index] = size
    if any(not is_one(size) for size in sizes[:shift]):
        raise Refused(Reason.CROSSES_ROWS, "the expand repeats the product along a new dimension")
    leading: tuple[Tag, ...] = (None,) * shift
    return Value(scope.emit.expand(value.number, cols), Layout(sizes, (*leading, *tags), tuple(cols)))


def _as_strided(scope: Scope, value: Value, node: torch.fx.Node) -> Bound:
    """Absolute strides mean a reshape only where the traced source and the result are both dense."""
    source, shown = tensor_of(node.args[0]), tensor_of(node)
    offset = arguments(node)["storage_offset"]
    dense = (
        source is not None
        and shown is not None
        and is_dense(sizes_of(source), strides_of(source))
        and is_dense(sizes_of(shown), strides_of(shown))
        and same(product(sizes_of(source)), product(sizes_of(shown)))
        and same(size_of(source.storage_offset()), 0)
        and (offset is None or offset == 0)
    )
    if not dense:
        raise Refused(Reason.UNSUPPORTED_LAYOUT, "as_strided reads its tensor in another order than a reshape would")
    return in_shape(scope, value, _shape_of(node))


def _column(value: Value, dim: int, what: str) -> tuple[int, int]:
    """`(dimension, column)` for a dimension that must be a column of the value."""
    if not value.layout.sizes:
        raise Refused(Reason.NOT_EXPRESSIBLE, f"{what} of a scalar")
    dim %= len(value.layout.sizes)
    tag = value.layout.tags[dim]
    if isinstance(tag, Col):
        return dim, tag.index
    if isinstance(tag, Row):
        raise Refused(Reason.CROSSES_ROWS, f"{what} takes a part of the product's rows")
    raise Refused(Reason.NOT_EXPRESSIBLE, f"{what} along a dimension of extent 1")


def part(scope: Scope, value: Value, dim: int, start: int, stop: int, step: int = 1) -> Value:
    """`value` restricted to `start:stop:step` along a dimension of the graph tensor. Raises: Refused for rows."""
    dim, column = _column(value, dim, "the slice")
    number = scope.emit.slice(value.number, column, start, stop, step)
    sizes = list(value.layout.sizes)
    sizes[dim] = len(range(start, stop, step))
    cols = tuple(int(extent) for extent in scope.draft.extents(number))
    return Value(number, Layout(tuple(sizes), value.layout.tags, cols))


def _slice(scope: Scope, value: Value, node: torch.fx.Node) -> Bound:
    args = arguments(node)
    dim = args["dim"] % len(value.layout.sizes)
    size = value.layout.sizes[dim]
    if same(_shape_of(node)[dim], size) and args["step"] == 1:
        return value
    _column(value, dim, "the slice")
    bounds = (0 if args["start"] is None else args["start"], size if args["end"] is None else args["end"], args["step"])
    if not all(isinstance(bound, int) for bound in bounds):
        raise Refused(Reason.SYMBOLIC_SIZE, "the slice has symbolic bounds")
    start, stop, step = slice(*bounds).indices(size)
    if stop <= start:
        raise Refused(Reason.EMPTY, "the slice is empty")
    return part(scope, value, dim, start, stop, step)


def _select(scope: Scope, value: Value, node: torch.fx.Node) -> Bound:
    args = arguments(node)
    dim = args["dim"] % len(value.layout.sizes)
    if not isinstance(args["index"], int):
        raise Refused(Reason.SYMBOLIC_SIZE, "the index is symbolic")
    if is_one(value.layout.sizes[dim]):
        return _without(scope, value, dim)
    _column(value, dim, "the selection")
    index = args["index"] % value.layout.sizes[dim]
    return _without(scope, part(scope, value, dim, index, index + 1), dim)


def _without(scope: Scope, value: Value, dim: int) -> Value:
    """`value` without a dimension of extent 1."""
    return in_shape(scope, value, value.layout.sizes[:dim] + value.layout.sizes[dim + 1 :])


def _split(scope: Scope, value: Value, node: torch.fx.Node) -> Bound:
    args = arguments(node)
    dim, column = _column(value, args["dim"], "the split")
    extent = value.layout.cols[column]
    lengths = args.get("split_sizes") or args["split_size"]
    if isinstance(lengths, int):
        lengths = [min(lengths, extent - start) for start in range(0, extent, lengths)]
    if not all(isinstance(length, int) and length > 0 for length in lengths):
        raise Refused(Reason.SYMBOLIC_SIZE, "the split has symbolic or empty parts")
    parts: list[Value] = []
    start = 0
    for length in lengths:
        parts.append(part(scope, value, dim, start, start + length))
        start += length
    return tuple(parts)


def _unbind(scope: Scope, value: Value, node: torch.fx.Node) -> Bound:
    dim, column = _column(value, arguments(node)["dim"], "the unbind")
    extent = value.layout.cols[column]
    return tuple(_without(scope, part(scope, value, dim, index, index + 1), dim) for index in range(extent))


VIEWS: dict[str, ViewRule] = {
    "aten.reshape.default": _reshape,
    "aten.view.default": _reshape,
    "aten._unsafe_view.default": _reshape,
    "aten.unsqueeze.default": _reshape,
    "aten.squeeze.default": _reshape,
    "aten.squeeze.dim": _reshape,
    "aten.squeeze.dims": _reshape,
    "aten.expand.default": _expand,
    "aten.as_strided.default": _as_strided,
    "aten.permute.default": _permute,
    "aten.transpose.int": _permute,
    "aten.t.default": _permute,
    "aten.slice.Tensor": _slice,
    "aten.select.int": _select,
    "aten.split.Tensor": _split,
    "aten.split_with_sizes.default": _split,
    "aten.unbind.int": _unbind,
}
"""By the op's full name."""
