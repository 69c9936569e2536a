"""How a task's inputs are fed from the graph: the deepest tensor whose own strides a kernel can read."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import torch
import torch.fx

from kforge_dynamo.lowering.bases import view_chain
from kforge_dynamo.lowering.canonical import Canonical, Input
from kforge_dynamo.lowering.regions import AxisSize, Binding, Feed
from kforge_dynamo.lowering.sizes import Size, SymSize, hint, product, same, sizes_of, strides_of, to_sym
from kforge_dynamo.lowering.space import is_one


def bind(found: Canonical, outputs: Sequence[torch.fx.Node], hints: Mapping[Size, int]) -> Binding:
    """The binding of a canonical task whose outputs are these graph nodes."""
    feeds = tuple(_feed(item, hints) for item in found.inputs)
    axes = tuple(
        AxisSize(axis, *_axis_size(axis, size, found, feeds, hints))
        for axis, size in zip(found.task.axes, found.sizes, strict=True)
    )
    return Binding(feeds, axes, tuple(tuple(node.meta["val"].shape) for node in outputs))


def _feed(item: Input, hints: Mapping[Size, int]) -> Feed:
    chain = list(view_chain(item.leaf.node))
    for node in reversed(chain):
        dims = _matching_dims(item.dims, node.meta["val"])
        if dims is not None:
            return Feed(node, None, dims)
    tensor = item.leaf.node.meta["val"]
    shape = tuple(to_sym(size, tensor.shape, hints) for size, _ in item.dims)
    dims = tuple(None if is_one(size) or same(stride, 0) else index for index, (size, stride) in enumerate(item.dims))
    return Feed(item.leaf.node, shape, dims)


def _matching_dims(dims: Sequence[tuple[Size, Size]], tensor: torch.Tensor) -> tuple[int | None, ...] | None:
    """For each (extent, stride) a dimension of the tensor that has this stride; None if one has no such dimension.

    Same memory, same offset: the address of an element depends on the strides alone, so any dimension of equal stride
    serves; one of equal extent is preferred.
    """
    available = [(dim, size, stride) for dim, (size, stride) in enumerate(zip(sizes_of(tensor), strides_of(tensor), strict=True))]
    result: list[int | None] = []
    for size, stride in dims:
        if is_one(size) or same(stride, 0):
            result.append(None)
            continue
        fitting = [(dim, extent) for dim, extent, other in available if not is_one(extent) and same(other, stride)]
        if not fitting:
            return None
        result.append(next((dim for dim, extent in fitting if same(extent, size)), fitting[-1][0]))
    return tuple(result)


def _axis_size(
    axis: str, size: Size, found: Canonical, feeds: Sequence[Feed], hints: Mapping[Size, int]
) -> tuple[SymSize, int | None, tuple[tuple[int, int], ...]]:
    example = [value for item in found.inputs for value in item.leaf.node.meta["val"].shape]
    factors: tuple[tuple[int, int], ...] = ()
    for number, feed in enumerate(feeds):
        shape = found.task.inputs[number].value.shape
        position = shape.index(axis) if axis in shape else None
        dim = None if position is None else feed.dims[position]
        if dim is not None:
            factors = _factors(size, number, feed, dim, hints)
        if factors:
            break
    return to_sym(size, example, hints), hint(size, hints), factors


def _factors(size: Size, number: int, feed: Feed, dim: int, hints: Mapping[Size, int]) -> tuple[tuple[int, int], ...]:
    """Dimensions of the fed tensor, from `dim` outwards, whose extents multiply to `size`."""
    if feed.view is not None:
        return ((number, dim),)
    tensor = feed.node.meta["val"]
    sizes, strides = sizes_of(tensor), strides_of(tensor)
    taken = [dim]
    while not same(product(sizes[index] for index in taken), size):
        last = taken[-1]
        stride = product((strides[last], sizes[last]))
        outer = [
            index
            for index in range(len(sizes))
            if index not in taken and not is_one(sizes[index]) and same(strides[index], stride)
        ]
        if not outer:
            return ()
        taken.append(outer[0])
    return tuple((number, index) for index in reversed(taken))
