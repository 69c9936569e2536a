"""Reductions over the rows: partial results of each block, merged in a fixed order after the pass."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from kforge_dynamo.codegen.cpp.memory import Memory
from kforge_dynamo.codegen.cpp.phases import Phases
from kforge_dynamo.codegen.cpp.program import Program
from kforge_dynamo.records.task import Task


@dataclass(frozen=True, slots=True)
class Columns:
    """Writes `columns_P` (partials of a block) and `merge_P` (all blocks, for a range of columns) of each pass."""

    task: Task
    program: Program
    phases: Phases
    memory: Memory
    block_rows: int
    units: int

    def argument(self, number: int) -> int:
        """The value that reduction `number` reduces."""
        node = self.program.node(number)
        assert node is not None and isinstance(node.args[0], int)
        return node.args[0]

    def private(self, index: int) -> list[int]:
        """Values whose block of rows is kept by the thread for the column pass, because nobody else stores it exactly."""
        found = []
        for number in self.phases.phases[index].reduced:
            exact = self.program.spec(number).dtype == "float32" and number in self.program.outputs
            if number not in self.phases.kept and not exact and number != self.program.product:
                found.append(number)
        return found

    def place(self, number: int) -> tuple[str, str]:
        """Where a block of the value lies after the rows are done, and its pitch: C++."""
        size = self.program.size(number)
        if number in self.phases.kept:
            return f"c.kept{number} + flat * {size}", str(size)
        if self.program.spec(number).dtype == "float32" and number in self.program.outputs:
            return f"c.out{self.program.outputs.index(number)} + flat * {size}", str(size)
        if number == self.program.product:
            return "product", "pitch"
        return f"columns{number}", str(size)

    def parts(self, number: int) -> Sequence[str]:
        """The partial results that a reduction needs."""
        node = self.program.node(number)
        assert node is not None
        return {"amax": ("high",), "amin": ("low",), "var": ("sum", "rest", "square")}.get(node.op, ("sum", "rest"))

    def functions(self, index: int) -> list[str]:
        """The two functions of pass `index`; none where it reduces no columns."""
        phase = self.phases.phases[index]
        if not phase.reductions:
            return []
        block, merge = [], []
        for number in phase.reduced:
            size = self.program.size(number)
            names: dict[str, str] = {}
            for reduction in phase.reductions:
                if self.argument(reduction) == number:
                    names |= {part: f"part{number}_{part}" for part in self.parts(reduction)}
            for name in names.values():
                self.memory.add(name, f"{self._block_bound()} * {size}")
            place, pitch = self.place(number)
            given = ", ".join(
                f"c.{names[p]} + b * {size}" if p in names else "nullptr" for p in ("sum", "rest", "square", "high", "low")
            )
            block.append(f"column_parts({place}, {pitch}, count, {size}, {given});")
        for reduction in phase.reductions:
            merge.append(self._merge(reduction))
        extra = "".join(f", const float* columns{number}" for number in self.private(index))
        head = f"static void columns_{index}(const Call& c, long b, long o, long first, long count, const float* product"
        head += f", long pitch{extra})"
        lines = ["const long flat = o * c.rows + first; (void)flat; (void)product; (void)pitch;", *block]
        return [
            head + " {\n" + "\n".join(lines) + "\n}\n",
            f"static void merge_{index}(const Call& c, int t, int team) {{\n" + "\n".join(merge) + "\n}\n",
        ]

    def _merge(self, reduction: int) -> str:
        node = self.program.node(reduction)
        assert node is not None
        number = self.argument(reduction)
        size = self.program.size(number)
        stat = self.memory.add(f"stat{reduction}", str(size))
        span = f"({size} * t / team), ({size} * (t + 1) / team)"
        if node.op == "var":
            free = float(node.attr("correction"))  # type: ignore[arg-type]
            return (
                f"merge_var(c, c.part{number}_sum, c.part{number}_rest, c.part{number}_square, {stat}, {size}, {span}, {free!r});"
            )
        if node.op in ("sum", "mean"):
            scale = "(double)(c.rows * c.outer)" if node.op == "mean" else "1.0"
            return f"merge_sum(c, c.part{number}_sum, c.part{number}_rest, {stat}, {size}, {span}, {scale});"
        part, word = ("high", "max_") if node.op == "amax" else ("low", "min_")
        step = f"[](float a, float b) {{ return {word}(a, b); }}"
        return f"merge_extreme(c, c.part{number}_{part}, {stat}, {size}, {span}, {step});"

    def _block_bound(self) -> str:
        """No call has more blocks: full blocks of each outer index, or one a thread."""
        *outer, inner = self.task.row_axes
        return " * ".join([*outer, f"(cdiv({inner}, {self.block_rows}) + {self.units})"])
