"""Smaller versions of a region, for when no generator takes the whole of it."""

from __future__ import annotations

from collections.abc import Callable

import torch
import torch.fx

from kforge_dynamo.lowering.draft import Step
from kforge_dynamo.lowering.growth import Graph, Growth, remove, settle
from kforge_dynamo.lowering.refusal import Refused
from kforge_dynamo.records.region import Reason
from kforge_dynamo.records.task import Task
from kforge_dynamo.semantics.table import OPS, Kind

Refuse = Callable[[Task, torch.device], str | None]
"""Why nobody writes a kernel for this task on this device, None where somebody does."""

Level = Callable[[Step], bool]

LEVELS: tuple[Level, ...] = (
    lambda step: OPS[step.op].kind is Kind.REDUCTION and dict(step.attrs)["axes"] == "rows",
    lambda step: OPS[step.op].kind is Kind.REDUCTION,
    lambda step: True,
)
"""What is given up, one after the other: reductions over rows, all reductions, the whole epilogue."""


def shrink(graph: Graph, growth: Growth, level: Level, reason: str) -> bool:
    """Takes out the members that compute a step of `level`, with what depends on them; False where nothing was to take out.

    Raises: Refused when what is left cannot return its product.
    """
    fixed = {*growth.anchor.replaced}
    found = [node for node in growth.members if node not in fixed and _computes(growth, node, level)]
    for node in found:
        if node in growth.members:
            remove(graph, growth, node, Refused(Reason.NOT_EXPRESSIBLE, f"no generator takes the region with it: {reason}"))
    if found and not settle(graph, growth):
        raise growth.refusals[growth.anchor.result]
    return bool(found)


def _computes(growth: Growth, node: torch.fx.Node, level: Level) -> bool:
    """Whether the node's own part of the draft, down to the values it reads, holds such a step."""
    bound = growth.scope.bound[node]
    values = bound if isinstance(bound, tuple) else (bound,)
    known = {number for source in node.all_input_nodes for number in _numbers(growth, source)}
    stack = [value.number for value in values if value is not None]
    while stack:
        number = stack.pop()
        step = growth.scope.draft.values[number]
        if number in known or not isinstance(step, Step) or step.op == "gemm":
            continue
        if level(step):
            return True
        stack.extend(arg for arg in step.args if isinstance(arg, int))
    return False


def _numbers(growth: Growth, node: torch.fx.Node) -> list[int]:
    bound = growth.scope.bound.get(node)
    values = bound if isinstance(bound, tuple) else (bound,)
    return [value.number for value in values if value is not None]
