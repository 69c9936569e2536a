"""Sizes read from a computed tensor, read from the graph's inputs instead.

`sym_size(product, 0)` makes a product that nobody else needs an output of its region, for the sake of a number that an input
of the graph has as well.
"""

from __future__ import annotations

import torch
import torch.fx

from kforge_dynamo.lowering.calls import name_of
from kforge_dynamo.lowering.symbols import SizeNodes

_READS = ("aten.sym_size.int", "aten.sym_numel.default", "aten.sym_stride.int")


def free_sizes(graph: torch.fx.Graph) -> int:
    """Rewrites in place and returns how many nodes changed. Before and after, every node computes the same value."""
    changed = 0
    for node in list(graph.nodes):
        if name_of(node) not in _READS or not node.users:
            continue
        source, size = node.args[0], node.meta.get("val")
        if not isinstance(source, torch.fx.Node) or source.op != "call_function" or not isinstance(size, torch.SymInt):
            continue
        changed += _replaced(graph, node, size)
    return changed


def _replaced(graph: torch.fx.Graph, node: torch.fx.Node, size: torch.SymInt) -> bool:
    inputs = [item for item in graph.nodes if item.op == "placeholder"]
    place = inputs[-1].next if inputs else node
    with graph.inserting_before(place):
        try:
            found = SizeNodes(graph, place).of(size)
        except LookupError:
            return False  # a size that depends on data: only the tensor has it
    node.replace_all_uses_with(found)  # type: ignore[arg-type]  # a number where the size turned out to be one
    graph.erase_node(node)
    return True
