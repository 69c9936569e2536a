"""A post-grad graph into regions: every GEMM with the epilogue that can be computed where its product is.

The graph is only read. Private torch API: none here; `meta["val"]` of every node is what Inductor's post-grad passes see.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence

import torch
import torch.fx

from kforge_dynamo.errors import RecordError
from kforge_dynamo.lowering.anchors import Anchor, find_anchors, is_product, seed
from kforge_dynamo.lowering.bases import view_chain
from kforge_dynamo.lowering.bind import bind
from kforge_dynamo.lowering.calls import makes_size, name_of
from kforge_dynamo.lowering.canonical import canonical
from kforge_dynamo.lowering.constants import constant_of
from kforge_dynamo.lowering.growth import Graph, Growth, closes_cycle, grow, is_twin, remove, settle
from kforge_dynamo.lowering.measure import facts_of
from kforge_dynamo.lowering.producers import producers_to_pull
from kforge_dynamo.lowering.refusal import Refused
from kforge_dynamo.lowering.regions import Partition, Region
from kforge_dynamo.lowering.scope import Value
from kforge_dynamo.lowering.shrink import LEVELS, Refuse, shrink
from kforge_dynamo.lowering.sizes import Size, hints_of
from kforge_dynamo.lowering.translate import is_view, refuse_kind, translate
from kforge_dynamo.lowering.twins import twins_of
from kforge_dynamo.records.region import Reason, Rejection

__all__ = ["Partition", "Region", "partition"]


def partition(graph: torch.fx.Graph, device_kinds: Collection[str] = ("cpu", "cuda"), refuse: Refuse | None = None) -> Partition:
    """The regions of a functional ATen graph whose nodes carry `meta["val"]`, for products on devices of these kinds.

    Later anchors grow first, so that a node which joins two products lands where both are available. A region that
    `refuse` has a reason against gives up reductions over rows, then all reductions, then its epilogue, until it passes
    or nothing is left to give up. Every call is in a region's `nodes` or `absorbed`, or has a rejection. Nothing in the
    graph changes and no guard is added.
    """
    order = Graph(tuple(graph.nodes))
    refusals: dict[torch.fx.Node, Refused] = {}
    growths = _grow_all(order, device_kinds, refusals)
    hints = hints_of(_examples(order.nodes))
    taken = {node for growth in growths for node in growth.replaced}
    regions = []
    for growth in sorted(growths, key=lambda item: order.order[item.anchor.node]):
        try:
            region = _accepted(order, growth, taken, hints, refuse)
        except (Refused, RecordError) as error:
            sentence = f"its region is no well-formed task ({error}); please report the graph"
            refusals[growth.anchor.node] = Refused(Reason.INTERNAL, sentence)
            continue
        regions.append(region)
        taken.update(region.nodes)
        for node, refused in growth.refusals.items():
            refusals.setdefault(node, refused)
    return Partition(tuple(regions), _rejections(order, regions, refusals))


def _examples(nodes: Sequence[torch.fx.Node]) -> list[object]:
    found: list[object] = []
    for node in nodes:
        example = node.meta.get("val")
        found.extend(example if isinstance(example, tuple | list) else (example,))
    return found


def _grow_all(graph: Graph, device_kinds: Collection[str], refusals: dict[torch.fx.Node, Refused]) -> list[Growth]:
    twins = twins_of(graph, [node for node in graph.nodes if is_product(node)])
    growths: list[Growth] = []
    taken: dict[torch.fx.Node, Sequence[torch.fx.Node]] = {}
    for node in reversed(graph.nodes):
        if not is_product(node) or node in taken:
            continue
        free = [twin for twin in twins.get(node, ()) if twin not in taken]
        try:
            growth = _grow_one(graph, find_anchors(node, device_kinds), free, taken)
        except Refused as refused:
            refusals[node] = refused
            continue
        growths.append(growth)
        taken.update(dict.fromkeys(growth.replaced, growth.replaced))
    return growths


def _grow_one(
    graph: Graph,
    anchors: Sequence[Anchor],
    twins: Sequence[torch.fx.Node],
    taken: Mapping[torch.fx.Node, Sequence[torch.fx.Node]],
) -> Growth:
    """The region of the first way to see the anchor that leaves a product which can be returned."""
    growth = grow(graph, anchors[0], twins if anchors[0].result is anchors[0].node else (), taken)
    while settle(graph, growth):
        if not closes_cycle(graph, growth, _distinct(taken)):
            return growth
        last = growth.members[-1]
        remove(graph, growth, last, Refused(Reason.NOT_CONVEX, "with it, this region and another would need each other first"))
    if len(anchors) > 1:
        return _grow_one(graph, anchors[1:], twins, taken)
    raise growth.refusals.get(anchors[0].result, Refused(Reason.UNSUPPORTED_LAYOUT, "its product cannot be returned"))


def _distinct(taken: Mapping[torch.fx.Node, Sequence[torch.fx.Node]]) -> list[Sequence[torch.fx.Node]]:
    return list({id(nodes): nodes for nodes in taken.values()}.values())


def _accepted(
    graph: Graph, growth: Growth, taken: set[torch.fx.Node], hints: Mapping[Size, int], refuse: Refuse | None
) -> Region:
    """The largest version of the region that `refuse` lets pass, the smallest if it lets none."""
    region = _finish(graph, growth, taken, hints)
    for level in LEVELS if refuse is not None else ():
        reason = refuse(region.task, region.device) if refuse is not None else None
        if reason is None:
            break
        try:
            smaller = shrink(graph, growth, level, reason)
        except Refused:
            break  # the product alone cannot be returned: the last version stands, and its lookup says why it has no winner
        if smaller:
            region = _finish(graph, growth, taken, hints)
    return region


def _finish(graph: Graph, growth: Growth, taken: set[torch.fx.Node], hints: Mapping[Size, int]) -> Region:
    """The region with its task, translated afresh now that members and outputs are known."""
    pulled = producers_to_pull(graph, growth, taken)
    if pulled:
        try:
            return _region(graph, growth, pulled, hints)
        except Refused:
            pass  # a producer that cannot be computed inside stays outside: the region without it was translated before
    return _region(graph, growth, frozenset(), hints)


def _region(graph: Graph, growth: Growth, pulled: frozenset[torch.fx.Node], hints: Mapping[Size, int]) -> Region:
    anchor = growth.anchor
    scope = seed(anchor, pulled)
    for node in growth.members:
        if node in anchor.replaced:
            continue
        if is_twin(growth, node):
            scope.bound[node] = scope.bound[anchor.result]
        else:
            scope.commit(node, translate(scope, node))
    numbers: list[int] = []
    for node in growth.outputs:
        value = scope.bound[node]
        assert isinstance(value, Value)  # settle has looked
        numbers.append(scope.draft.duplicate(value.number) if value.number in numbers else value.number)
    found = canonical(scope.draft, numbers, anchor.shape[:-1])
    binding = bind(found, growth.outputs, hints)
    nodes = graph.sorted({*growth.replaced, *pulled})
    return Region(
        anchor=anchor.node,
        task=found.task,
        binding=binding,
        nodes=tuple(nodes),
        absorbed=tuple(graph.sorted(_read_through(nodes, growth) - {feed.node for feed in binding.feeds})),
        outputs=tuple(growth.outputs),
        facts=facts_of(found, growth, hints),
    )


def _read_through(nodes: Sequence[torch.fx.Node], growth: Growth) -> set[torch.fx.Node]:
    """Views, paddings and constants between the region and what it is fed."""
    inside = {*nodes, *growth.members}
    found = set(growth.anchor.pads)
    for source in {source for node in (*nodes, *found) for source in node.all_input_nodes if source not in inside}:
        if constant_of(source) is not None:
            found.add(source)
        found.update(list(view_chain(source))[:-1])
    return found


def _rejections(graph: Graph, regions: Sequence[Region], refusals: Mapping[torch.fx.Node, Refused]) -> tuple[Rejection, ...]:
    placed = {node for region in regions for node in (*region.nodes, *region.absorbed)}
    rejections = []
    for node in graph.nodes:
        if node.op == "call_function" and node not in placed:
            refused = refusals.get(node) or _reason_far_away(node)
            rejections.append(Rejection(node.name, name_of(node), refused.reason, refused.sentence))
    return tuple(rejections)


def _reason_far_away(node: torch.fx.Node) -> Refused:
    """Why a node that no region met is in none."""
    if is_view(node):
        return Refused(Reason.NO_ANCHOR, "a view or a copy for a node outside; it stays with Inductor")
    if makes_size(node):
        return Refused(Reason.NO_ANCHOR, "it computes a size")
    try:
        refuse_kind(node)
    except Refused as refused:
        return refused
    return Refused(Reason.NO_ANCHOR, "no product of this graph reaches it through ops that a region can hold")
