"""Cheap nodes before a region that are computed inside it: what only the region reads need not pass through memory."""

from __future__ import annotations

import torch.fx

from kforge_dynamo.lowering.bases import view_chain
from kforge_dynamo.lowering.calls import inductor_fuses, tensor_of
from kforge_dynamo.lowering.constants import constant_of
from kforge_dynamo.lowering.growth import Graph, Growth
from kforge_dynamo.lowering.translate import is_pointwise


def producers_to_pull(graph: Graph, growth: Growth, taken: set[torch.fx.Node]) -> frozenset[torch.fx.Node]:
    """Pointwise nodes outside every region that are read by this region's members alone and whose own operands lie in
    memory anyway: graph inputs, results of regions and of nodes that Inductor does not fuse."""
    found = _candidates(graph, growth, taken)
    while True:
        inside = {*growth.replaced, *found}
        kept = {
            node
            for node in found
            if all(user in inside for user in node.users) and all(_in_memory(source, found, taken) for source in _tensors(node))
        }
        if kept == found:
            return frozenset(found)
        found = kept


def _tensors(node: torch.fx.Node) -> list[torch.fx.Node]:
    return [source for source in node.all_input_nodes if tensor_of(source) is not None and constant_of(source) is None]


def _candidates(graph: Graph, growth: Growth, taken: set[torch.fx.Node]) -> set[torch.fx.Node]:
    """Pointwise nodes from which pointwise nodes lead into the region, all of whose readers are such or members."""
    anchor = growth.anchor
    operands = {anchor.lhs, anchor.rhs}
    members = set(growth.replaced)
    found: set[torch.fx.Node] = set()
    stack = [source for node in growth.replaced for source in node.all_input_nodes]
    while stack:
        node = stack.pop()
        free = node not in found and node not in members and node not in operands and node not in taken
        if not free or node.op != "call_function" or not is_pointwise(node):
            continue
        if graph.epoch[node] == graph.epoch[anchor.node] and all(user in members or user in found for user in node.users):
            found.add(node)
            stack.extend(node.all_input_nodes)
    return found


def _in_memory(node: torch.fx.Node, pulled: set[torch.fx.Node], taken: set[torch.fx.Node]) -> bool:
    """Whether reading the node inside the region adds no tensor that would not be written without it."""
    if node in pulled:
        return True
    *_, base = view_chain(node)
    return base.op in ("placeholder", "get_attr") or base in taken or not inductor_fuses(base)
