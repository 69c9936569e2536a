"""Which launch computes what: in the tile of the product, over the columns, or over the rows afterwards."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import cast

from kforge_dynamo.codegen.triton.expressions import FLOATS, HALVES
from kforge_dynamo.codegen.triton.forms import Unsupported
from kforge_dynamo.codegen.triton.schedule import Schedule
from kforge_dynamo.codegen.triton.scope import columns_of, node_of, value_args
from kforge_dynamo.codegen.triton.tiles import Product, Reach
from kforge_dynamo.records.task import Node, Task, ValueSpec
from kforge_dynamo.semantics.table import OPS, Kind


@dataclass(frozen=True, slots=True)
class RowPartial:
    """A reduction over the row of which each tile leaves a state. `node` is the reduction itself, or for a sum of
    exponentials `expsum` over what is exponentiated, less the value `shift` that is known only afterwards. A maximum whose
    state is part of that of an `expsum` leaves none itself and names the latter in `within`."""

    number: int
    node: Node
    shift: int | None = None
    within: int | None = None


@dataclass(frozen=True, slots=True)
class Stages:
    """Positions of the outputs by the launch that writes them; the states that tiles leave; and the value `kept` in memory
    for the launch over the rows. With `raw` the bare product is kept instead, in as many parts as K was split."""

    tile_outputs: tuple[int, ...]
    row_outputs: tuple[int, ...]
    column_outputs: tuple[int, ...]
    row_partials: tuple[RowPartial, ...]
    column_partials: tuple[int, ...]
    kept: int | None
    raw: bool


def stages_of(task: Task, product: Product | None, schedule: Schedule) -> Stages:
    """Divides the task. Raises: Unsupported."""
    varying = [position for position, number in enumerate(task.outputs) if task.value(number).varies_by_row]
    fixed = tuple(position for position in range(len(task.outputs)) if position not in varying)
    if product is None:
        return Stages((), tuple(varying), fixed, (), (), None, False)
    reach = Reach(task, product, schedule)
    statistics = _statistics(task, reach)
    if schedule.split > 1:
        if statistics:
            raise Unsupported("a split K leaves no whole tile for a statistic over the rows")
        return Stages((), tuple(varying), fixed, (), (), None, True)
    tile = tuple(p for p in varying if reach.depends(task.outputs[p]) and reach.holds(task.outputs[p]))
    rest = tuple(p for p in varying if p not in tile)
    targets = [task.outputs[position] for position in rest]
    partials = _Partials(task, reach).of(targets) if schedule.reduce == "partials" else None
    kept = None if partials is not None else _kept(task, reach, product, targets)
    return Stages(tile, rest, fixed, partials or (), statistics, kept, False)


def _statistics(task: Task, reach: Reach) -> tuple[int, ...]:
    found = []
    for offset, node in enumerate(task.nodes):
        if OPS[node.op].kind is not Kind.REDUCTION or node.attr("axes") != "rows":
            continue
        if node.op in ("argmax", "argmin"):
            raise Unsupported(f"{node.op} over the rows has no Triton form")
        if not reach.holds(cast(int, node.args[0])):
            raise Unsupported("a statistic over the rows is taken of values that a tile of the product does not hold")
        found.append(offset + len(task.inputs))
    return tuple(found)


def _kept(task: Task, reach: Reach, product: Product, targets: list[int]) -> int | None:
    """The one value of the tile that the rest follows from, the product where there are several, None for none."""
    frontier: set[int] = set()

    def stop(number: int) -> bool:
        if reach.depends(number) and reach.holds(number):
            frontier.add(number)
            return True
        return is_statistic(task, number)

    walk(task, targets, stop)
    if not frontier:
        return None
    kept = frontier.pop() if len(frontier) == 1 else product.number
    node = node_of(task, kept)
    while node is not None and node.op == "convert" and task.value(cast(int, node.args[0])).dtype in HALVES:
        kept = cast(int, node.args[0])  # a widening loses nothing, and the narrow value takes half the memory
        node = node_of(task, kept)
    return kept


def walk(task: Task, targets: list[int], stop: Callable[[int], bool]) -> None:
    """Visits what the targets are computed from, each value once; `stop` is asked at each, and ends the way there."""
    pending, seen = list(targets), set[int]()
    while pending:
        number = pending.pop()
        if number in seen:
            continue
        seen.add(number)
        if stop(number):
            continue
        node = node_of(task, number)
        if node is not None:
            pending.extend(value_args(node))


def is_statistic(task: Task, number: int) -> bool:
    """Whether the value is a reduction over the rows."""
    node = node_of(task, number)
    return node is not None and OPS[node.op].kind is Kind.REDUCTION and node.attr("axes") == "rows"


class _Partials:
    """Finds the reductions whose states make the product itself unnecessary."""

    def __init__(self, task: Task, reach: Reach) -> None:
        self._task, self._reach = task, reach

    def of(self, targets: list[int]) -> tuple[RowPartial, ...] | None:
        """The states that the targets follow from, None where they need more."""
        found: dict[int, RowPartial] = {}
        pending, seen = list(targets), set[int]()
        while pending:
            number = pending.pop()
            if number in seen or not self._reach.depends(number):
                continue
            seen.add(number)
            partial = self._partial(number)
            node = node_of(self._task, number)
            if partial is not None:
                found[number] = partial
                pending.extend([partial.shift] if partial.shift is not None else [])
            elif node is None or self._needs_row(number, node):
                return None
            else:
                pending.extend(value_args(node))
        return tuple(_shared(found[number], found) for number in sorted(found)) if found else None

    def _needs_row(self, number: int, node: Node) -> bool:
        """Whether the value is one of the tile, or a reduction that states cannot give."""
        if self._reach.holds(number) or is_statistic(self._task, number):
            return True
        return OPS[node.op].kind is Kind.REDUCTION and columns_of(self._task, cast(int, node.args[0])) > 1

    def _partial(self, number: int) -> RowPartial | None:
        node = node_of(self._task, number)
        if node is None or OPS[node.op].kind is not Kind.REDUCTION or node.attr("axes") == "rows":
            return None
        if columns_of(self._task, number) != 1 or self._reach.holds(number):
            return None
        if self._reach.holds(cast(int, node.args[0])):
            return RowPartial(number, node) if self._reach.leaves_state(node) else None
        return self._shifted(number, node)

    def _shifted(self, number: int, node: Node) -> RowPartial | None:
        """`sum(exp(x - m))` with x in the tile and m one value a row that follows later."""
        exponential = node_of(self._task, cast(int, node.args[0]))
        if node.op != "sum" or exponential is None or exponential.op != "exp" or node.out.dtype not in FLOATS:
            return None
        difference = node_of(self._task, cast(int, exponential.args[0]))
        if difference is None or difference.op != "sub" or not all(isinstance(arg, int) for arg in difference.args):
            return None
        x, shift = cast(tuple[int, int], difference.args)
        if not self._reach.holds(x) or columns_of(self._task, shift) != 1 or self._task.value(x).cols != exponential.out.cols:
            return None
        out = ValueSpec("float32", node.out.rows, node.out.cols)
        stand_in = Node("expsum", (x,), node.attrs, out)
        return RowPartial(number, stand_in, shift) if self._reach.leaves_state(stand_in) else None


def _shared(partial: RowPartial, found: dict[int, RowPartial]) -> RowPartial:
    for other in found.values():
        same = other.node.args == partial.node.args and other.node.attr("axes") == partial.node.attr("axes")
        if partial.node.op == "amax" and other.node.op == "expsum" and same:
            return replace(partial, within=other.number)
    return partial
