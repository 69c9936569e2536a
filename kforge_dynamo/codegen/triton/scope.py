"""Which values of a task share column axes, and where each finds its columns on them."""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import dataclass
from itertools import pairwise
from typing import cast

from kforge_dynamo.codegen.triton.forms import ZERO, Access, Refine, Unsupported, flatten, identity, numbers, split
from kforge_dynamo.records.task import Node, Task
from kforge_dynamo.semantics.table import OPS, Kind


@dataclass(frozen=True, slots=True)
class Scope:
    """Column axes, outermost first, and the `naturals`: the access of each value that lives on them.

    A value with as many columns as the axes hold together covers them in row-major order; what reductions and reshapes
    make of it follows. A value without a natural access can still be reached by the access its consumer asks for.
    """

    extents: tuple[int, ...]
    naturals: dict[int, Access]

    @property
    def columns(self) -> int:
        """Elements of a row."""
        return math.prod(self.extents)


EMPTY = Scope((), {})
"""For kernels that see one value a row only."""


def columns_of(task: Task, number: int) -> int:
    """Elements in a row of the value. Raises: Unsupported for a symbolic extent."""
    return math.prod(numbers(task.value(number).cols))


def node_of(task: Task, number: int) -> Node | None:
    """The node that computes the value, None for an input."""
    return None if number < len(task.inputs) else task.nodes[number - len(task.inputs)]


def value_args(node: Node) -> tuple[int, ...]:
    """The operands that are values."""
    return tuple(arg for arg in node.args if isinstance(arg, int))


def is_symbolic(task: Task, number: int) -> bool:
    """Whether an extent inside a row is an axis (a symbolic K)."""
    return any(isinstance(extent, str) for extent in task.value(number).cols)


def components(task: Task) -> dict[int, int]:
    """For each value with more than one column the smallest value it shares axes with; slices start anew."""
    parent: dict[int, int] = {}

    def root(number: int) -> int:
        while parent[number] != number:
            number = parent[number]
        return number

    total = len(task.inputs) + len(task.nodes)
    for number in range(total):
        if is_symbolic(task, number) or columns_of(task, number) == 1:
            continue
        parent[number] = number
        node = node_of(task, number)
        if node is None or node.op in ("gemm", "slice"):
            continue
        for arg in value_args(node):
            if arg in parent:
                first, second = sorted((root(arg), root(number)))
                parent[second] = first
    return {number: root(number) for number in parent}


def scope_of(task: Task, members: Iterable[int]) -> Scope:
    """The scope of one component. Raises: Unsupported when its shapes have no common refinement."""
    ordered = sorted(members)
    columns = max(columns_of(task, number) for number in ordered)
    extents = _common_axes(task, ordered, columns)
    while True:
        try:
            return Scope(extents, _naturals(task, ordered, columns, extents))
        except Refine as cut:
            outer = extents[cut.axis] // cut.inner
            extents = (*extents[: cut.axis], outer, cut.inner, *extents[cut.axis + 1 :])


def _common_axes(task: Task, members: list[int], columns: int) -> tuple[int, ...]:
    """The coarsest axes at whose boundaries every shape of the full size can be cut."""
    boundaries = {1, columns}
    for number in members:
        cols = numbers(task.value(number).cols)
        if math.prod(cols) == columns:
            boundaries |= {math.prod(cols[position:]) for position in range(len(cols))}
    ordered = sorted(boundaries)
    for small, large in pairwise(ordered):
        if large % small:
            raise Unsupported(f"a row of {columns} is seen in groups of {small} and of {large}, which do not nest")
    return tuple(large // small for small, large in pairwise(ordered))[::-1]


def _naturals(task: Task, members: list[int], columns: int, extents: tuple[int, ...]) -> dict[int, Access]:
    found: dict[int, Access] = {}
    for number in members:
        cols = numbers(task.value(number).cols)
        if math.prod(cols) == columns:
            found[number] = identity(cols, extents)
            continue
        node = node_of(task, number)
        access = None if node is None else _derived(task, node, cols, found, extents)
        if access is not None:
            found[number] = access
    return found


def _derived(task: Task, node: Node, cols: tuple[int, ...], found: dict[int, Access], extents: tuple[int, ...]) -> Access | None:
    kind = OPS[node.op].kind
    args = [arg for arg in value_args(node) if arg in found]
    if not args:
        return None
    if kind is Kind.REDUCTION:
        if node.attr("axes") == "rows":
            return found[args[0]]
        reduced = cast(tuple[int, ...], node.attr("axes"))
        return tuple(ZERO if position in reduced else form for position, form in enumerate(found[args[0]]))
    if node.op == "reshape":
        return split(flatten(found[args[0]], numbers(task.value(args[0]).cols)), cols, extents)
    if kind is Kind.POINTWISE:
        return _joined(task, args, cols, found)
    return None


def _joined(task: Task, args: list[int], cols: tuple[int, ...], found: dict[int, Access]) -> Access | None:
    forms = []
    for position, extent in enumerate(cols):
        candidates = [found[arg][position] for arg in args if numbers(task.value(arg).cols)[position] == extent]
        if extent > 1 and not candidates:
            return None
        forms.append(candidates[0] if extent > 1 else ZERO)
    return tuple(forms)
