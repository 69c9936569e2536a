"""A region's nodes: grown from its anchor, then settled so that every output is one that a kernel can return."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field

import torch.fx

from kforge_dynamo.lowering.anchors import Anchor, seed
from kforge_dynamo.lowering.calls import inductor_fuses, is_barrier, name_of, tensor_of
from kforge_dynamo.lowering.refusal import Refused
from kforge_dynamo.lowering.scope import Scope, Value
from kforge_dynamo.lowering.sizes import is_dense, sizes_of, strides_of
from kforge_dynamo.lowering.space import in_order
from kforge_dynamo.lowering.translate import is_view, refuse_kind, translate
from kforge_dynamo.records.region import Reason


@dataclass(slots=True)
class Graph:
    """What growth asks of a graph: the order of its nodes, what each reads, and how many barriers (writes to memory) lie
    before it."""

    nodes: tuple[torch.fx.Node, ...]
    order: dict[torch.fx.Node, int] = field(default_factory=dict)
    epoch: dict[torch.fx.Node, int] = field(default_factory=dict)
    sources: dict[torch.fx.Node, tuple[torch.fx.Node, ...]] = field(default_factory=dict)

    def __post_init__(self) -> None:
        epoch = 0
        for index, node in enumerate(self.nodes):
            epoch += is_barrier(node)
            self.order[node] = index
            self.epoch[node] = epoch
            self.sources[node] = tuple(node.all_input_nodes)

    def sorted(self, nodes: Iterable[torch.fx.Node]) -> list[torch.fx.Node]:
        """In graph order."""
        return sorted(nodes, key=self.order.__getitem__)


@dataclass(slots=True)
class Growth:
    """A region in the making: `members` in graph order, and why their neighbours stayed out.

    `kept` are members that also stay in the graph because something outside reads them: views, which cost nothing.
    """

    anchor: Anchor
    scope: Scope
    members: list[torch.fx.Node]
    refusals: dict[torch.fx.Node, Refused]
    kept: set[torch.fx.Node] = field(default_factory=set)
    outputs: list[torch.fx.Node] = field(default_factory=list)

    @property
    def replaced(self) -> list[torch.fx.Node]:
        """The nodes that leave the graph."""
        return [node for node in self.members if node not in self.kept]


def grow(
    graph: Graph, anchor: Anchor, twins: Sequence[torch.fx.Node], taken: Mapping[torch.fx.Node, Sequence[torch.fx.Node]]
) -> Growth:
    """The region that grows from `anchor`: a node joins if it can be expressed, reads a member, and none of its inputs
    depends on the region through a node outside.

    `twins` are other nodes that compute the same product; `taken` has the members of earlier regions by node.
    Raises: Refused when the anchor itself cannot be expressed.
    """
    scope = seed(anchor, frozenset())
    growth = Growth(anchor, scope, [], {})
    inside = {*anchor.replaced, *twins}
    scope.bound.update(dict.fromkeys(twins, scope.bound[anchor.result]))
    after: set[torch.fx.Node] = set()
    index = min(graph.order[node] for node in inside)
    limit = _last_user(graph, inside)
    while index < limit:
        index += 1
        node = graph.nodes[index]
        if node in inside:
            continue
        sources = graph.sources[node]
        reads = not inside.isdisjoint(sources)
        if not reads and after.isdisjoint(sources):
            continue
        if not reads or node in taken:
            after.update(taken.get(node, (node,)))
            continue
        refused = _join(graph, growth, node, next((source for source in sources if source in after), None))
        if refused is None:
            inside.add(node)
            limit = max(limit, _last_user(graph, [node]))
        else:
            after.add(node)
            growth.refusals[node] = refused
    growth.members = graph.sorted(inside)
    return growth


def _last_user(graph: Graph, nodes: Iterable[torch.fx.Node]) -> int:
    return max((graph.order[user] for node in nodes for user in node.users), default=0)


def _join(graph: Graph, growth: Growth, node: torch.fx.Node, blocking: torch.fx.Node | None) -> Refused | None:
    """Takes `node` in, or says why not; `blocking` is an operand that depends on the region through nodes outside."""
    if blocking is not None:
        return Refused(Reason.NOT_CONVEX, f"its operand {blocking} needs the region's result first")
    if node.op != "call_function":
        return Refused(Reason.NOT_EXPRESSIBLE, "the graph returns it")
    try:
        refuse_kind(node)
        if graph.epoch[node] != graph.epoch[growth.anchor.node]:
            return Refused(Reason.MUTATION, f"between the product and {name_of(node)} lies a write to memory")
        growth.scope.commit(node, translate(growth.scope, node))
    except Refused as refused:
        return refused
    return None


def settle(graph: Graph, growth: Growth) -> bool:
    """Removes members until what the outside reads are tensors that a kernel returns; False when the anchor falls too."""
    while growth.anchor.result in growth.members:
        _choose_outputs(growth)
        if not growth.outputs:
            growth.refusals[growth.anchor.result] = Refused(Reason.NO_ANCHOR, "nothing reads what is computed from it")
            return False
        unfit = next(((node, why) for node in growth.outputs if (why := _unfit(growth, node)) is not None), None)
        if unfit is None:
            return True
        remove(graph, growth, *unfit)
    return False


def _choose_outputs(growth: Growth) -> None:
    members = set(growth.members)
    fixed = {*growth.anchor.replaced, *_returned_twin(growth, members)}
    kept: set[torch.fx.Node] = set()
    for node in reversed(growth.members):
        outside = any(user not in members or user in kept for user in node.users)
        if node not in fixed and _passes_through(growth, node) and outside:
            kept.add(node)
    growth.kept = kept
    growth.outputs = [
        node for node in growth.members if node not in kept and any(user not in members or user in kept for user in node.users)
    ]


def _returned_twin(growth: Growth, members: set[torch.fx.Node]) -> list[torch.fx.Node]:
    """The one other node of the same product that may return it: where the anchor itself has no reader outside."""
    if any(user not in members for user in growth.anchor.result.users):
        return []
    twins = [node for node in growth.members if is_twin(growth, node)]
    return [node for node in twins if any(user not in members for user in node.users)][:1]


def is_twin(growth: Growth, node: torch.fx.Node) -> bool:
    """Whether the member is another node that computes the anchor's product."""
    return node is not growth.anchor.node and name_of(node) == name_of(growth.anchor.node)


def _passes_through(growth: Growth, node: torch.fx.Node) -> bool:
    """Whether the node shows a value that another member holds already."""
    if is_view(node):
        return True
    value = growth.scope.value(node)
    if value is None:
        return False
    sources = [growth.scope.value(source) for source in node.all_input_nodes]
    shared = len(sources) == 1 and any(source is not None and source.number == value.number for source in sources)
    return shared or is_twin(growth, node)


def _unfit(growth: Growth, node: torch.fx.Node) -> Refused | None:
    """Why a member cannot be an output, None if it can."""
    value = growth.scope.bound.get(node)
    tensor = tensor_of(node)
    if not isinstance(value, Value) or tensor is None:
        return Refused(Reason.NOT_EXPRESSIBLE, f"{name_of(node)} would be an output of the region and is not one tensor")
    if not is_dense(sizes_of(tensor), strides_of(tensor)):
        return Refused(Reason.UNSUPPORTED_LAYOUT, f"{name_of(node)} would be an output and is not row-major in the graph")
    if not in_order(value.layout):
        return Refused(Reason.CROSSES_ROWS, f"{name_of(node)} would be an output with columns of the product before its rows")
    if _widens_for_others(growth, node):
        return Refused(Reason.NOT_EXPRESSIBLE, "a widening conversion for a node outside, cheaper where that node is computed")
    return None


def _widens_for_others(growth: Growth, node: torch.fx.Node) -> bool:
    """A conversion to fp32 at the region's end, read only by nodes that Inductor computes in registers anyway."""
    value = growth.scope.value(node)
    if value is None or node is growth.anchor.result or growth.scope.draft.as_step(value.number, "convert") is None:
        return False
    inside = set(growth.replaced)
    fused, others = readers(node, inside)
    widens = growth.scope.draft.dtype(value.number) == "float32"
    return widens and fused and not others and not any(user in inside for user in node.users)


def readers(node: torch.fx.Node, inside: set[torch.fx.Node]) -> tuple[bool, bool]:
    """Whether nodes of Inductor's own kernels read an output, and whether anything else does; views are looked through."""
    fused = others = False
    stack, seen = [node], {node}
    while stack:
        for user in stack.pop().users:
            if user in inside or user in seen:
                continue
            seen.add(user)
            if is_view(user):
                stack.append(user)
            elif inductor_fuses(user):
                fused = True
            else:
                others = True
    return fused, others


def remove(graph: Graph, growth: Growth, node: torch.fx.Node, why: Refused) -> None:
    """Takes `node` and the members that depend on it out."""
    gone = {node}
    for member in growth.members:
        if any(source in gone for source in member.all_input_nodes):
            gone.add(member)
    growth.members = [member for member in growth.members if member not in gone]
    growth.refusals[node] = why
    for member in gone - {node}:
        growth.refusals[member] = Refused(Reason.NOT_CONVEX, f"it reads {node}, which stays outside: {why.sentence}")


def closes_cycle(graph: Graph, growth: Growth, others: Sequence[Sequence[torch.fx.Node]]) -> bool:
    """Whether a path leads from the region back into it once all regions are single nodes."""
    inside = set(growth.members)
    members = growth.replaced
    inputs = {source for node in members for source in node.all_input_nodes if source not in inside}
    limit = max((graph.order[node] for node in inputs), default=-1)
    spans = [(min(map(graph.order.__getitem__, other)), max(map(graph.order.__getitem__, other)), other) for other in others]
    home = {node: other for _, _, other in spans for node in other}
    while (wider := max([limit, *(high for low, high, _ in spans if low <= limit)])) > limit:
        limit = wider
    stack = [user for node in growth.members for user in node.users if user not in inside]
    seen: set[torch.fx.Node] = set()
    while stack:
        node = stack.pop()
        if node in seen or graph.order[node] > limit:
            continue
        unit = home.get(node, (node,))
        if any(item in inputs for item in unit):
            return True
        seen.update(unit)
        stack.extend(user for item in unit for user in item.users if user not in seen)
    return False
