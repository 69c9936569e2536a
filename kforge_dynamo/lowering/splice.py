"""Puts a call of a winner in a region's place. Before: the region's nodes; after: one `kforge::run` and its items."""

from __future__ import annotations

import operator
from collections.abc import Sequence
from typing import Any

import torch
from torch import fx

from kforge_dynamo.lowering.symbols import SizeNodes

_COPIED = ("stack_trace", "seq_nr", "nn_module_stack", "mutation_region_id")


def splice(
    graph: fx.Graph,
    op: torch._ops.OpOverload,
    site: str,
    nodes: Sequence[fx.Node],
    inputs: Sequence[fx.Node],
    sizes: Sequence[int | torch.SymInt],
    outputs: Sequence[fx.Node],
) -> None:
    """Replaces `outputs` by the outputs of `site` and erases what then has no user among `nodes`.

    The call stands behind the last of its inputs and of the region's outputs, so the graph may be out of order afterwards,
    but never cyclic, because a region is convex: sort it (`inductor.sort`) when all regions are placed. New nodes carry the
    metadata Inductor reads: values, eager inputs (so that strides are enforced), and the anchor's origin.
    Raises: LookupError when a symbolic size cannot be read from the graph; the graph is then unchanged but for size nodes.
    """
    values = [output.meta["val"] for output in outputs]
    place = _place(graph, inputs, outputs)
    with graph.inserting_before(place):
        known = SizeNodes(graph, place)
        passed = [known.of(size) for size in sizes]
        shapes = [known.of(extent) for value in values for extent in value.shape]
        call = graph.call_function(op, (site, list(inputs), passed, shapes))
        items = [graph.call_function(operator.getitem, (call, index)) for index in range(len(outputs))]
    call.meta.update({name: nodes[0].meta[name] for name in _COPIED if name in nodes[0].meta})
    call.meta["val"] = values
    call.meta["eager_input_vals"] = _eager_values(call.args)
    for item, output, value in zip(items, outputs, values, strict=True):
        item.meta.update({name: output.meta[name] for name in _COPIED if name in output.meta})
        item.meta["val"] = value
        output.replace_all_uses_with(item)
    for node in reversed(nodes):
        if not node.users:
            graph.erase_node(node)


def _place(graph: fx.Graph, inputs: Sequence[fx.Node], outputs: Sequence[fx.Node]) -> fx.Node:
    order = {node: index for index, node in enumerate(graph.nodes)}
    place: fx.Node = max([*inputs, *outputs], key=lambda node: order[node]).next
    return place


def _eager_values(args: tuple[Any, ...]) -> tuple[tuple[Any, ...], dict[str, Any]]:
    return fx.map_arg(args, lambda node: node.meta["val"]), {}
