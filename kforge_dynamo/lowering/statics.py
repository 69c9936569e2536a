"""Which inputs of a region are weights, or views of weights."""

from __future__ import annotations

from collections.abc import Set

import torch.fx

from kforge_dynamo.lowering.bases import base_of
from kforge_dynamo.lowering.calls import name_of
from kforge_dynamo.lowering.regions import Region

_PARTS = ("aten.slice.Tensor", "aten.select.int", "aten.as_strided.default")
"""Views that begin elsewhere in the tensor they are of."""


def weight_inputs(region: Region, weights: Set[torch.fx.Node]) -> tuple[int, ...]:
    """The numbers of the inputs that do not vary by row, where each of them shows one of `weights`; else none."""
    fixed = [number for number, item in enumerate(region.task.inputs) if not item.value.varies_by_row]
    shown = [_shown(region.binding.feeds[number].node) for number in fixed]
    return tuple(fixed) if fixed and all(node in weights for node in shown) else ()


def _shown(node: torch.fx.Node) -> torch.fx.Node:
    node = base_of(node)
    while name_of(node) in _PARTS and isinstance(node.args[0], torch.fx.Node):
        node = base_of(node.args[0])
    return node
