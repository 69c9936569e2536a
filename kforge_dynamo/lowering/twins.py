"""Products that a graph computes twice: inference graphs are not free of common subexpressions."""

from __future__ import annotations

from collections.abc import Hashable, Sequence

import torch
import torch.fx

from kforge_dynamo.lowering.calls import is_barrier, is_random
from kforge_dynamo.lowering.growth import Graph


def twins_of(graph: Graph, products: Sequence[torch.fx.Node]) -> dict[torch.fx.Node, list[torch.fx.Node]]:
    """For each product node the other product nodes that compute the same value."""
    numbers: dict[torch.fx.Node, int] = {}
    known: dict[Hashable, int] = {}
    for node in graph.nodes:
        key = _key(graph, node, numbers)
        numbers[node] = known.setdefault(key, len(known))
    groups: dict[int, list[torch.fx.Node]] = {}
    for node in products:
        groups.setdefault(numbers[node], []).append(node)
    return {node: [other for other in group if other is not node] for group in groups.values() for node in group}


def _key(graph: Graph, node: torch.fx.Node, numbers: dict[torch.fx.Node, int]) -> Hashable:
    """Equal for nodes that call the same operator on equal values with no write to memory between them."""
    pure = node.op == "call_function" and not is_random(node) and not is_barrier(node)
    if not pure or not (isinstance(node.target, torch._ops.OpOverload)):
        return node
    try:
        key = (node.target, graph.epoch[node], _frozen(node.args, numbers), _frozen(tuple(node.kwargs.items()), numbers))
        hash(key)
    except TypeError:
        return node  # an argument without a hash: the node equals itself alone
    return key


def _frozen(value: object, numbers: dict[torch.fx.Node, int]) -> Hashable:
    if isinstance(value, torch.fx.Node):
        return ("value", numbers[value])
    if isinstance(value, tuple | list):
        return tuple(_frozen(item, numbers) for item in value)
    return (type(value).__name__, value)
