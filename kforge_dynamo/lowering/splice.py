"""Puts a call of a winner in a region's place. Before: the region's nodes; after: one `kforge::run` and its items."""

from __future__ import annotations

import operator
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import torch
from torch import fx

from kforge_dynamo.lowering.regions import Feed, Region
from kforge_dynamo.lowering.sizes import SymSize
from kforge_dynamo.lowering.symbols import SizeNodes

_COPIED = ("stack_trace", "seq_nr", "nn_module_stack", "mutation_region_id")


def splice(
    graph: fx.Graph,
    op: torch._ops.OpOverload,
    site: str,
    region: Region,
    sizes: Sequence[SymSize],
    moved: dict[fx.Node, fx.Node],
) -> None:
    """Replaces the outputs of `region` by those of `site`, and erases the nodes that then have no user.

    `moved` tells which values of the graph earlier splices have replaced by which, and gets those that this one replaces.

    The call stands behind the last of its inputs and of the region's outputs, so the graph may be out of order afterwards,
    but never cyclic, because a region is convex: sort it (`inductor.sort`) when all regions are placed. New nodes carry the
    metadata Inductor reads: values, eager inputs (so that strides are enforced), and the anchor's origin.
    Raises: LookupError when a symbolic size cannot be read from the graph; the graph is then unchanged but for size nodes.
    """
    outputs = region.outputs
    values = [output.meta["val"] for output in outputs]
    feeds = [replace(feed, node=moved.get(feed.node, feed.node)) for feed in region.binding.feeds]
    place = _place(graph, [feed.node for feed in feeds], outputs)
    with graph.inserting_before(place):
        known = SizeNodes(graph, place)
        passed = [known.of(size) for size in sizes]
        shapes = [known.of(extent) for value in values for extent in value.shape]
        inputs = [_fed(graph, feed, known) for feed in feeds]
        call = graph.call_function(op, (site, inputs, passed, shapes))
        items = [graph.call_function(operator.getitem, (call, index)) for index in range(len(outputs))]
    call.meta.update({name: region.anchor.meta[name] for name in _COPIED if name in region.anchor.meta})
    call.meta["val"] = values
    call.meta["eager_input_vals"] = _eager_values(call.args)
    for item, output, value in zip(items, outputs, values, strict=True):
        item.meta.update({name: output.meta[name] for name in _COPIED if name in output.meta})
        item.meta["val"] = value
        output.replace_all_uses_with(item)
        moved[output] = item
    for node in reversed((*region.absorbed, *region.nodes)):
        if not node.users:
            graph.erase_node(node)


def fed_strides(region: Region) -> tuple[tuple[int, ...], ...] | None:
    """The strides of the tensors that a call is passed, which `inductor` freezes; None where one is symbolic."""
    found = []
    for feed in region.binding.feeds:
        value = feed.node.meta["val"]
        strides = (value if feed.view is None else value.view(tuple(feed.view))).stride()
        if not all(isinstance(stride, int) for stride in strides):
            return None
        found.append(tuple(strides))
    return tuple(found)


def _fed(graph: fx.Graph, feed: Feed, known: SizeNodes) -> fx.Node:
    """The value passed for an input: the feed's node, or a view of it in the shape whose strides the kernel reads."""
    if feed.view is None:
        return feed.node
    shape = [known.of(size) for size in feed.view]
    seen = graph.call_function(torch.ops.aten.reshape.default, (feed.node, shape))
    seen.meta["val"] = feed.node.meta["val"].view(tuple(feed.view))
    return seen


def _place(graph: fx.Graph, inputs: Sequence[fx.Node], outputs: Sequence[fx.Node]) -> fx.Node:
    order = {node: index for index, node in enumerate(graph.nodes)}
    place: fx.Node = max([*inputs, *outputs], key=lambda node: order[node]).next
    return place


def _eager_values(args: tuple[Any, ...]) -> tuple[tuple[Any, ...], dict[str, Any]]:
    return fx.map_arg(args, lambda node: node.meta["val"]), {}
