"""What each pass over the rows computes, and what has to outlive it.

A reduction over the rows ends a pass. Values that vary by row and are read in a later pass are kept whole (`kept`);
values that vary by no row are computed once between the passes (`once`).
"""

from __future__ import annotations

from dataclasses import dataclass, field

from kforge_dynamo.codegen.cpp.program import Inexpressible, Program, over_rows, partial
from kforge_dynamo.records.task import Const
from kforge_dynamo.semantics.table import OPS, Kind


@dataclass(slots=True)
class Phase:
    """One pass: `targets` are the values that vary by row and must be stored in it; `reduced` those whose columns are
    reduced over the rows at its end; `once` the values without rows that are computed before it."""

    targets: list[int] = field(default_factory=list)
    reduced: list[int] = field(default_factory=list)
    reductions: list[int] = field(default_factory=list)
    once: list[int] = field(default_factory=list)


@dataclass(frozen=True, slots=True)
class Phases:
    """The passes in order, the values kept whole between them, and the number of the last set of `once` values."""

    phases: tuple[Phase, ...]
    kept: tuple[int, ...]


def phases_of(program: Program) -> Phases:
    """Divides `program`. Raises: Inexpressible."""
    phases = [Phase() for _ in range(program.phase_count)]
    for number in program.outputs:
        if partial(program.spec(number).rows):
            raise Inexpressible("an output varies along some row axes only")
        if program.varies(number):
            _add(phases[program.phases[number]].targets, number)
    for number in program.numbers():
        node = program.node(number)
        if node is not None and over_rows(node):
            phase = phases[program.phases[number] - 1]
            phase.reductions.append(number)
            _add(phase.reduced, _argument(program, number))
            _add(phase.targets, _argument(program, number))
    kept: list[int] = []
    once: set[int] = {number for number in program.outputs if not program.varies(number)}
    for index in reversed(range(len(phases))):
        found, invariant = _demand(program, phases[index].targets, index)
        once |= invariant
        for number in found:
            _add(kept, number)
            _add(phases[program.phases[number]].targets, number)
    for number in sorted(once):
        node = program.node(number)
        if node is None or not over_rows(node) or number in program.outputs:
            phases[program.phases[number]].once.append(number)
    return Phases(tuple(phases), tuple(sorted(kept)))


def _add(numbers: list[int], number: int) -> None:
    if number not in numbers:
        numbers.append(number)


def _argument(program: Program, number: int) -> int:
    node = program.node(number)
    assert node is not None and isinstance(node.args[0], int)
    return node.args[0]


def _is_view(program: Program, number: int) -> bool:
    node = program.node(number)
    return node is not None and node.op in OPS and OPS[node.op].kind is Kind.VIEW


def _demand(program: Program, targets: list[int], phase: int) -> tuple[list[int], set[int]]:
    """Values of earlier passes that this pass reads, and values without rows that it reads."""
    kept: list[int] = []
    invariant: set[int] = set()
    seen: set[int] = set()
    stack = [(number, True) for number in targets]
    while stack:
        number, is_target = stack.pop()
        if number in seen and not is_target:
            continue
        seen.add(number)
        node = program.node(number)
        if node is None:
            continue
        if not program.varies(number) and not _is_view(program, number):
            invariant.add(number)
        elif program.phases[number] < phase and not is_target and not _is_view(program, number):
            _add(kept, number)
        elif node.op != "product":
            stack.extend((arg, False) for arg in node.args if not isinstance(arg, Const))
    return kept, invariant
