"""What moving a region into one kernel reads, writes and computes, for the cost model."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

import torch
import torch.fx

from kforge_dynamo.lowering.canonical import Canonical
from kforge_dynamo.lowering.growth import Growth, readers
from kforge_dynamo.lowering.regions import Facts
from kforge_dynamo.lowering.sizes import Size, hint, is_static, product, sizes_of
from kforge_dynamo.records.task import InputRole


def facts_of(found: Canonical, growth: Growth, hints: Mapping[Size, int]) -> Facts:
    """The facts of a region: each input read once, each output written once."""
    inputs = [
        _bytes(item.leaf.node.meta["val"], [size for size, stride in item.dims if not _is_zero(stride)]) for item in found.inputs
    ]
    extras = [size for item, size in zip(found.inputs, inputs, strict=True) if item.leaf.role is InputRole.EXTRA]
    product_node = growth.anchor.result.meta["val"]
    saved = _total([_bytes(product_node, growth.anchor.shape), *extras])
    written: Size = 0
    fused_consumer = False
    for node in growth.outputs:
        count = _bytes(node.meta["val"], sizes_of(node.meta["val"]))
        fused, others = readers(node, set(growth.members) - growth.kept)
        written = written + count
        saved = saved + (count if others else 0) - (count if fused else 0)
        fused_consumer = fused_consumer or fused
    flop = product((2, *growth.anchor.shape, growth.anchor.inner))
    return Facts(
        bytes_read=hint(_total(inputs), hints),
        bytes_written=hint(written, hints),
        flop=hint(flop, hints),
        fused_consumer=fused_consumer,
        removed_bytes=hint(saved, hints),
    )


def _bytes(tensor: torch.Tensor, sizes: Iterable[Size]) -> Size:
    return product((tensor.element_size(), *sizes))


def _total(sizes: Iterable[Size]) -> Size:
    total: Size = 0
    for size in sizes:
        total = total + size
    return total


def _is_zero(stride: Size) -> bool:
    return is_static(stride) and stride == 0
