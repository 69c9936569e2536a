"""The C++ text that computes one row: stages in order, with the row scratch that lies between them."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

from kforge_dynamo.codegen.cpp.cells import EXACT, Cell, Resolver, Root, Use
from kforge_dynamo.codegen.cpp.expressions import Fold, pointwise
from kforge_dynamo.codegen.cpp.layout import dense
from kforge_dynamo.codegen.cpp.nest import VECTORS, Nest, Places, Sink, operand_texts, variable
from kforge_dynamo.codegen.cpp.program import Program
from kforge_dynamo.codegen.cpp.stages import RowPlan, stages_of

_BYTES = {"f": 4, "b": 1, "i": 8}


@dataclass(frozen=True, slots=True)
class RowText:
    """`lines` compute one row; they use `scratch`, a float pointer with `scratch_floats` elements.

    With `ranged` they compute the columns from `c0` to `c1` only: a multiple of the vector width apart, or up to the end.
    """

    lines: tuple[str, ...]
    scratch_floats: int
    ranged: bool


def plan_rows(program: Program, roots: Mapping[int, Root], targets: Iterable[int]) -> RowPlan:
    """The stages that compute `targets` from `roots`. Raises: Inexpressible."""
    resolver = Resolver(program, roots)
    resolver.run(targets)
    return stages_of(resolver)


def write_rows(plan: RowPlan, sinks: Mapping[int, Sequence[Sink]], lanes: int, ranged: bool) -> RowText:
    """The statements of `plan`; `sinks` says where each target goes; `ranged` allows a range of columns where one pass does all.

    Raises: Inexpressible.
    """
    ranged = ranged and plan.single_pass
    cells = plan.resolver.cells
    goes = {plan.resolver.copies.get(number, number): list(found) for number, found in sinks.items()}
    memory = dict(plan.resolver.roots)
    lines: list[str] = []
    used = 0
    for number in sorted(plan.in_memory):
        cell, ctype = cells[number], EXACT[cells[number].kind]
        exact = next((sink for sink in goes.get(number, ()) if sink.ctype == ctype), None)
        if exact is None:
            exact = Sink(f"m{abs(number)}{'c' if number < 0 else ''}", ctype)
            lines.append(f"{ctype}* const {exact.pointer} = ({ctype}*)(scratch + {used});")
            used += -(-cell.size * _BYTES[cell.kind] // 64) * 16
            goes.setdefault(number, []).append(exact)
        memory[number] = Root(exact.pointer, ctype, dense(cell.size))
    places = Places(cells, memory, goes, lanes)
    for stage in plan.stages:
        if stage.is_scalar:
            for cell in stage.cells:
                lines += _single(cell, places)
        else:
            lines += Nest(stage, places, ranged).write()
    return RowText(tuple(lines), used, ranged)


def _single(cell: Cell, places: Places) -> list[str]:
    """A cell over a single element: the same value in all lanes."""
    read = {i: _same(arg, places) for i, arg in enumerate(cell.args) if isinstance(arg, Use)}
    if not cell.is_reduction:
        value = pointwise(cell, operand_texts(cell, read))
    else:
        fold = Fold(cell)
        value = "set1l(0)" if fold.is_index else fold.operand(read[0])
    name = variable(cell.number)
    stores = [f"store<1>({sink.pointer}, {name});" for sink in places.sinks.get(cell.number, ())]
    return [f"const {VECTORS[cell.kind]} {name} = {value};", *stores]


def _same(use: Use, places: Places) -> str:
    source = places.cells.get(use.source)
    if source is not None and source.size == 1:
        return variable(use.source)
    return f"every({places.memory[use.source].pointer} + {use.layout.offset})"
