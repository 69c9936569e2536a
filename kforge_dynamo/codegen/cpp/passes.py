"""One C++ source from a program: passes over blocks of rows, what is computed between them, and the entry."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from kforge_dynamo.codegen.cpp.cells import EXACT, POINTERS, Root
from kforge_dynamo.codegen.cpp.columns import Columns
from kforge_dynamo.codegen.cpp.memory import Memory
from kforge_dynamo.codegen.cpp.nest import Sink
from kforge_dynamo.codegen.cpp.phases import Phases
from kforge_dynamo.codegen.cpp.program import Program, over_rows
from kforge_dynamo.codegen.cpp.rows import RowText, plan_rows, write_rows
from kforge_dynamo.records.task import Task


@dataclass(slots=True)
class Passes:
    """Writes the functions of all passes: `once_P`, `rows_P` and `columns_P` for each pass P."""

    task: Task
    program: Program
    phases: Phases
    memory: Memory
    lanes: int
    block_rows: int
    units: int
    texts: list[RowText] = field(default_factory=list)
    functions: list[str] = field(default_factory=list)
    columns: Columns = field(init=False)

    def write(self) -> None:
        """Fills `functions` and `texts`. A product that is kept or returned is expected to be written there, not to a block."""
        self.columns = Columns(self.task, self.program, self.phases, self.memory, self.block_rows, self.units)
        for number in self.phases.kept:
            self.memory.add(f"kept{number}", f"{self.memory.row_count} * {self.memory.row_floats(number)}")
        for index in range(len(self.phases.phases)):
            self._once(index)
            self._rows(index)
            self.functions += self.columns.functions(index)

    def _stats(self, index: int) -> dict[int, Root]:
        """Results of reductions over the rows that are there before pass `index`."""
        found = {}
        for phase in self.phases.phases[:index]:
            for number in phase.reductions:
                found[number] = Root(f"stat{number}", "float", self.memory.once_root(number).layout)
        return found

    def _once_values(self, count: int) -> list[int]:
        values = [number for phase in self.phases.phases[:count] for number in phase.once]
        return [n for n in values if (node := self.program.node(n)) is not None and not over_rows(node)]

    def _locals(self, stats: Mapping[int, Root], once: Sequence[int]) -> list[str]:
        lines = [f"const float* const stat{number} = c.stat{number};" for number in stats]
        for number in once:
            ctype = EXACT[self.program.kind(number)]
            lines.append(f"{ctype}* const once{number} = ({ctype}*)c.once{number};")
        return lines

    def _once(self, index: int) -> None:
        """Values that vary by no row, computed by one thread before pass `index`."""
        numbers = self.phases.phases[index].once
        roots = self._stats(index)
        roots |= {i: self.memory.input_root(i) for i in range(len(self.task.inputs)) if self._is_static_input(i)}
        before = self._once_values(index)
        roots |= {number: self.memory.once_root(number) for number in before}
        sinks: dict[int, list[Sink]] = {}
        for number in numbers:
            sinks[number] = self._outputs(number)
            if number not in roots and number >= len(self.task.inputs):
                self.memory.add(f"once{number}", str(self.memory.row_floats(number)))
                sinks[number].append(Sink(f"once{number}", EXACT[self.program.kind(number)]))
        text = write_rows(plan_rows(self.program, roots, numbers), sinks, self.lanes, ranged=False)
        scratch = self.memory.add(f"once_scratch{index}", str(text.scratch_floats)) if text.scratch_floats else "nullptr"
        used = [i for i in roots if i < len(self.task.inputs)]
        bind, _ = self.memory.bind_inputs(used)
        lines = [*bind, *self._locals(self._stats(index), [*before, *self._stored_once(numbers, roots)])]
        lines += [f"auto* const out{i} = c.out{i};" for i in range(len(self.task.outputs))]
        body = [f"float* const scratch = {scratch}; (void)scratch;", *lines, *text.lines]
        self.functions.append(_function(f"static void once_{index}(const Call& c)", body if numbers else []))

    def _stored_once(self, numbers: Sequence[int], roots: Mapping[int, Root]) -> list[int]:
        return [number for number in numbers if number not in roots and number >= len(self.task.inputs)]

    def _is_static_input(self, index: int) -> bool:
        spec = self.task.inputs[index].value
        return not spec.varies_by_row and all(isinstance(extent, int) for extent in spec.cols)

    def _outputs(self, number: int) -> list[Sink]:
        return [
            Sink(f"out{i}", POINTERS[self.program.spec(number).dtype])
            for i, output in enumerate(self.program.outputs)
            if output == number
        ]

    def _rows(self, index: int) -> None:
        phase = self.phases.phases[index]
        inputs = [i for i, item in enumerate(self.task.inputs) if all(isinstance(e, int) for e in item.value.cols)]
        once = self._once_values(index + 1)
        stats = self._stats(index)
        roots = {i: self.memory.input_root(i) for i in inputs} | stats
        roots |= {number: self.memory.once_root(number) for number in once}
        earlier = [number for number in self.phases.kept if self.program.phases[number] < index]
        roots |= {number: self.memory.kept_root(number) for number in earlier}
        product = self.program.product
        if product is not None and product not in roots:
            roots[product] = Root("p", "float", self.memory.once_root(product).layout)
        sinks = {number: self._sinks(number, index) for number in phase.targets}
        if index == 0 and product in sinks:
            # where the product was written to, or would be kept for the column pass, it need not be copied
            home = f"y{product}" if product in self.phases.kept else f"out{self._first_output(product)}"
            sinks[product] = [sink for sink in sinks[product] if sink.pointer not in (home, f"z{product}")]
        sinks = {number: found for number, found in sinks.items() if found}
        targets = list(sinks)
        text = write_rows(plan_rows(self.program, roots, targets), sinks, self.lanes, ranged=True)
        self.texts.append(text)
        self.functions.append(self._row_function(index, text, earlier, stats, once, targets))

    def _first_output(self, number: int) -> int | None:
        return self.program.outputs.index(number) if number in self.program.outputs else None

    def _sinks(self, number: int, index: int) -> list[Sink]:
        found = self._outputs(number)
        kind = EXACT[self.program.kind(number)]
        if number in self.phases.kept:
            found.append(Sink(f"y{number}", kind))
        elif number in self.phases.phases[index].reduced and all(sink.ctype != kind for sink in found):
            found.append(Sink(f"z{number}", kind))
        return found

    def _row_function(
        self,
        index: int,
        text: RowText,
        earlier: Sequence[int],
        stats: Mapping[int, Root],
        once: Sequence[int],
        targets: Sequence[int],
    ) -> str:
        inputs = [i for i, item in enumerate(self.task.inputs) if all(isinstance(e, int) for e in item.value.cols)]
        before, inside = self.memory.bind_inputs(inputs)
        for i, number in enumerate(self.program.outputs):
            if number in targets:
                inside.append(f"auto* const out{i} = c.out{i} + flat * {self.program.size(number)};")
        for number in earlier:
            ctype = EXACT[self.program.kind(number)]
            inside.append(
                f"const {ctype}* const x{number} = ({ctype}*)(c.kept{number} + flat * {self.memory.row_floats(number)});"
            )
        for number in targets:
            ctype = EXACT[self.program.kind(number)]
            if number in self.phases.kept:
                place = f"c.kept{number} + flat * {self.memory.row_floats(number)}"
                inside.append(f"{ctype}* const y{number} = ({ctype}*)({place});")
            elif number in self.columns.private(index):
                inside.append(f"{ctype}* const z{number} = columns{number} + r * {self.program.size(number)};")
        extra = "".join(f", float* columns{number}" for number in self.columns.private(index))
        head = (
            f"static void rows_{index}(const Call& c, long o, long first, long count, const float* product, long pitch, "
            f"long c0, long c1, float* scratch{extra})"
        )
        loop = ["for (long r = 0; r < count; ++r) {", "const long flat = o * c.rows + first + r; (void)flat;"]
        loop += ["const float* const p = product + r * pitch; (void)p;", *inside, *text.lines, "}"]
        body = ["(void)c0; (void)c1; (void)scratch;", *before, *self._locals(stats, once), *loop]
        return _function(head, body if targets else [])


def _function(head: str, body: Sequence[str]) -> str:
    return head + " {\n" + "\n".join(body) + "\n}\n"
