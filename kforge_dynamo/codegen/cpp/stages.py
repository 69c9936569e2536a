"""Which cells share a loop: stages in order, each over one domain, and what has to lie in memory between them."""

from __future__ import annotations

import itertools
from collections.abc import Iterable
from dataclasses import dataclass, field

from kforge_dynamo.codegen.cpp.cells import Cell, Resolver
from kforge_dynamo.codegen.cpp.layout import chain


@dataclass(slots=True)
class Stage:
    """One loop nest over `span` elements; `cells` in order of evaluation, `cuts` where the linear index is split."""

    span: int
    cells: list[Cell] = field(default_factory=list)
    cuts: frozenset[int] = frozenset()
    runs: tuple[tuple[int, bool], ...] | None = None

    def fits(self, cell: Cell) -> bool:
        """Whether the cell can be evaluated in this loop nest."""
        if cell.span != self.span or not chain(self.cuts | cell.cuts, self.span):
            return False
        return not cell.is_reduction or self.runs in (None, cell.runs)

    def take(self, cell: Cell) -> None:
        """Adds a cell that fits."""
        self.cells.append(cell)
        self.cuts |= cell.cuts
        if cell.is_reduction:
            self.runs = cell.runs

    @property
    def is_scalar(self) -> bool:
        """Whether it computes single values, kept in registers."""
        return self.span == 1

    @property
    def dims(self) -> tuple[tuple[int, bool], ...]:
        """The loops, outermost first: (extent, reduced)."""
        edges = [*sorted(self.cuts | {1}), self.span]
        found: list[tuple[int, bool]] = []
        for low, high in itertools.pairwise(edges):
            if high > low:
                found.insert(0, (high // low, self._reduced(low)))
        return tuple(found)

    def _reduced(self, low: int) -> bool:
        """Whether the digit that starts at the suffix product `low` belongs to a reduced run."""
        total = 1
        for extent, reduced in reversed(self.runs or ()):
            if total <= low < total * extent:
                return reduced
            total *= extent
        return False


@dataclass(frozen=True, slots=True)
class RowPlan:
    """Stages in order, the cells that need memory (written by a stage, read by a later one), and the resolver's maps."""

    stages: tuple[Stage, ...]
    in_memory: frozenset[int]
    resolver: Resolver

    @property
    def single_pass(self) -> bool:
        """Whether one uncut loop does everything, so that it may run over any range of columns; or there is nothing to do."""
        if not self.stages:
            return True
        if len(self.stages) != 1 or self.in_memory:
            return False
        (stage,) = self.stages
        return not stage.cuts and stage.runs is None and not stage.is_scalar


def stages_of(resolver: Resolver) -> RowPlan:
    """Places every cell of `resolver` in the earliest loop it fits, then moves pointwise cells down to their first reader."""
    order = list(_ordered(resolver.cells))
    stages: list[Stage] = []
    where: dict[int, int] = {}
    for cell in order:
        first = _earliest(cell, resolver, where)
        index = next((i for i in range(first, len(stages)) if stages[i].fits(cell)), len(stages))
        if index == len(stages):
            stages.append(Stage(cell.span))
        stages[index].take(cell)
        where[cell.number] = index
    _sink(order, resolver, stages, where)
    stages, where = _rebuilt(order, stages, where)
    return RowPlan(tuple(stages), _in_memory(resolver, where, order), resolver)


def _ordered(cells: dict[int, Cell]) -> Iterable[Cell]:
    """Cells after the cells they read; copies made late by the resolver have no place of their own in the order."""
    done: set[int] = set()

    def visit(number: int) -> Iterable[Cell]:
        if number in done:
            return
        done.add(number)
        for use in cells[number].uses:
            if use.source in cells:
                yield from visit(use.source)
        yield cells[number]

    for number in cells:
        yield from visit(number)


def _inline(cell: Cell, source: Cell, dense: bool, forced: set[int]) -> bool:
    """Whether `cell` can read `source` in the same loop iteration."""
    return dense and not source.is_reduction and source.span == cell.span and source.number not in forced


def _earliest(cell: Cell, resolver: Resolver, where: dict[int, int]) -> int:
    first = 0
    for use in cell.uses:
        source = resolver.cells.get(use.source)
        if source is not None:
            same = _inline(cell, source, use.layout.is_dense, resolver.forced)
            first = max(first, where[source.number] + (0 if same else 1))
    return first


def _sink(order: list[Cell], resolver: Resolver, stages: list[Stage], where: dict[int, int]) -> None:
    """A pointwise cell that nobody reads in its own loop moves to its first reader's: less to keep in memory."""
    readers: dict[int, list[tuple[Cell, bool]]] = {}
    for cell in order:
        for use in cell.uses:
            readers.setdefault(use.source, []).append((cell, use.layout.is_dense))
    for cell in reversed(order):
        found = readers.get(cell.number, [])
        if cell.is_reduction or not found or cell.number in resolver.forced:
            continue
        nearest = min(where[reader.number] for reader, _ in found)
        near = [item for item in found if where[item[0].number] == nearest]
        if nearest == where[cell.number] or not all(_inline(r, cell, d, resolver.forced) for r, d in near):
            continue
        if stages[nearest].fits(cell):
            where[cell.number] = nearest
            stages[nearest].take(cell)


def _rebuilt(order: list[Cell], stages: list[Stage], where: dict[int, int]) -> tuple[list[Stage], dict[int, int]]:
    """Stages with their cells in order of evaluation, empty ones dropped."""
    fresh = [Stage(stage.span) for stage in stages]
    for cell in order:
        fresh[where[cell.number]].take(cell)
    kept = [index for index, stage in enumerate(fresh) if stage.cells]
    names = {old: new for new, old in enumerate(kept)}
    return [fresh[index] for index in kept], {number: names[index] for number, index in where.items()}


def _in_memory(resolver: Resolver, where: dict[int, int], order: list[Cell]) -> frozenset[int]:
    found: set[int] = set()
    for cell in order:
        for use in cell.uses:
            source = resolver.cells.get(use.source)
            if source is not None and where[source.number] != where[cell.number] and source.size > 1:
                found.add(source.number)
    return frozenset(found)
