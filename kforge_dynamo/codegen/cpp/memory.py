"""Names in the C++ source: the call's record, strides, and where inputs, buffers and outputs lie for a row."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

from kforge_dynamo.codegen.cpp.cells import EXACT, POINTERS, Root
from kforge_dynamo.codegen.cpp.layout import Step, dense, of_strides
from kforge_dynamo.codegen.cpp.program import Program
from kforge_dynamo.records.candidate import Buffer
from kforge_dynamo.records.task import InputSpec, Task


def step_of(item: InputSpec, index: int, dimension: int) -> Step:
    """The stride of dimension `dimension` of input `index`: a number where the class tells it, else the call's field."""
    kind = item.strides[dimension]
    if kind in (0, 1):
        return Step(int(kind))
    if kind == "dense":
        units = [d for d, other in enumerate(item.strides) if other == 1]
        others = [d for d, other in enumerate(item.strides) if other not in (0, 1)]
        extent = item.value.shape[units[0]] if len(units) == 1 else None
        if others == [dimension] and isinstance(extent, int):
            return Step(extent)
    return Step(1, f"c.s{index}_{dimension}")


@dataclass(slots=True)
class Memory:
    """Collects the buffers of a kernel; every one is a float pointer `c.NAME`."""

    task: Task
    program: Program
    buffers: list[Buffer] = field(default_factory=list)

    @property
    def row_count(self) -> str:
        """The number of rows, as a size expression."""
        return " * ".join(self.task.row_axes)

    def add(self, name: str, elements: str) -> str:
        """A buffer of floats; returns the C++ expression of its pointer."""
        if all(buffer.name != name for buffer in self.buffers):
            self.buffers.append(Buffer(name, "float32", elements))
        return f"c.{name}"

    def row_floats(self, number: int) -> int:
        """Floats that hold one row of a value exactly."""
        width = {"f": 4, "b": 1, "i": 8}[self.program.kind(number)]
        return -(-self.program.size(number) * width // 4)

    def input_root(self, index: int) -> Root:
        """An input, its row's start in the local `in{index}`."""
        item = self.task.inputs[index]
        rows = len(item.value.rows)
        steps = [step_of(item, index, rows + d) for d in range(len(item.value.cols))]
        extents = [extent for extent in item.value.cols if isinstance(extent, int)]
        return Root(f"in{index}", POINTERS[item.value.dtype], of_strides(extents, steps))

    def kept_root(self, number: int) -> Root:
        """A value kept whole between passes, its row's start in the local `x{number}`."""
        return Root(f"x{number}", EXACT[self.program.kind(number)], dense(self.program.size(number)))

    def once_root(self, number: int) -> Root:
        """A value without rows, computed before."""
        return Root(f"once{number}", EXACT[self.program.kind(number)], dense(self.program.size(number)))

    def bind_inputs(self, numbers: Sequence[int]) -> tuple[list[str], list[str]]:
        """Locals for the rows of inputs: before a loop over `r` that knows `o` and `first`, and inside it."""
        before, inside = [], []
        for index in numbers:
            spec = self.task.inputs[index].value
            ctype = POINTERS[spec.dtype]
            if not spec.varies_by_row:
                before.append(f"const {ctype}* const in{index} = c.in{index};")
                continue
            step = row_step(self.task, index).text
            before.append(f"const {ctype}* const start{index} = c.in{index} + c.start(o, {index}) + first * {step};")
            inside.append(f"const {ctype}* const in{index} = start{index} + r * {step};")
        return before, inside


def row_step(task: Task, index: int) -> Step:
    """The stride of the innermost row axis of an input."""
    item = task.inputs[index]
    last = len(item.value.rows) - 1
    return Step(0) if item.value.rows[last] == 1 else step_of(item, index, last)


CALL = """
struct Call {
  %(fields)s
  const int64_t* strides;
  long size[%(axes)d];     // of the row axes
  long lead;               // leading row axes that are no part of `rows`
  long rows, outer;
  long block, per_outer, blocks;         // of rows, in passes over rows
  long tile_rows, tiles_per_outer, items; // of the product, columns inside
  int threads;
  long* counters;
  // elements from the start of an input to outer index `o`
  long start(long o, int input) const {
    static const int first[] = {%(firsts)s};
    static const unsigned varies[] = {%(varies)s};
    long offset = 0;
    for (long d = lead - 1; d >= 0; --d) {
      if (varies[input] >> d & 1) offset += o %% size[d] * strides[first[input] + d];
      o /= size[d];
    }
    return offset;
  }
  long next(int phase) const { return __atomic_fetch_add(counters + 8 * phase, 1, __ATOMIC_RELAXED); }
};
"""


def call_struct(task: Task, memory: Memory, k_extent: str) -> str:
    """The record that every function of the kernel takes."""
    fields = [f"const {POINTERS[item.value.dtype]}* in{i};" for i, item in enumerate(task.inputs)]
    fields += [f"{POINTERS[task.value(n).dtype]}* out{i};" for i, n in enumerate(task.outputs)]
    fields += [f"float* {buffer.name};" for buffer in memory.buffers]
    fields += [f"long s{i}_{d};" for i, item in enumerate(task.inputs) for d in range(len(item.strides))]
    fields.append(f"long k;  // {k_extent}")
    firsts, varies, total = [], [], 0
    for item in task.inputs:
        firsts.append(str(total))
        varies.append(str(sum(1 << d for d, extent in enumerate(item.value.rows) if extent != 1)))
        total += len(item.strides)
    return CALL % {
        "fields": "\n  ".join(fields),
        "axes": len(task.row_axes),
        "firsts": ", ".join(firsts) or "0",
        "varies": ", ".join(varies) or "0",
    }


def fill_call(task: Task, memory: Memory) -> list[str]:
    """Statements of the entry that fill the record `c`, collapsing row axes that lie evenly behind each other."""
    lines = [f"c.in{i} = (const {POINTERS[item.value.dtype]}*)inputs[{i}];" for i, item in enumerate(task.inputs)]
    lines += [f"c.out{i} = ({POINTERS[task.value(n).dtype]}*)outputs[{i}];" for i, n in enumerate(task.outputs)]
    lines += [f"c.{buffer.name} = (float*)buffers[{i}];" for i, buffer in enumerate(memory.buffers)]
    total = 0
    for i, item in enumerate(task.inputs):
        lines += [f"c.s{i}_{d} = strides[{total + d}];" for d in range(len(item.strides))]
        total += len(item.strides)
    count = len(task.row_axes)
    lines += ["c.strides = strides;"]
    lines += [f"c.size[{d}] = sizes[{d}];" for d in range(count)]
    lines += [f"c.lead = {count - 1}; c.rows = sizes[{count - 1}];"]
    batch = batch_axes(task)
    if count > 1:
        conditions = []
        for i, item in enumerate(task.inputs):
            if item.value.varies_by_row and not is_rhs(task, i):
                conditions.append(_even(item, i, count))
        joined = " && ".join(["true", *conditions])
        lines.append(f"while (c.lead > {batch}) {{")
        lines.append("const long d = c.lead - 1; const bool alone = c.size[d] == 1;")
        lines.append(f"if (!(alone || ({joined}))) break;")
        lines.append("c.rows *= c.size[d]; --c.lead; }")
    lines.append("c.outer = 1; for (long d = 0; d < c.lead; ++d) c.outer *= c.size[d];")
    return lines


def _even(item: InputSpec, index: int, count: int) -> str:
    """Whether rows of axis `d` continue those of the axes after it: C++."""
    table = ", ".join(f"c.s{index}_{d}" if extent != 1 else "0" for d, extent in enumerate(item.value.rows))
    return f"[&] {{ const long s[] = {{{table}}}; return s[d] == c.rows * s[{count - 1}]; }}()"


def batch_axes(task: Task) -> int:
    """How many leading row axes the right operand of the product varies along."""
    anchor = task.anchor
    if anchor is None or not isinstance(anchor.args[1], int):
        return 0
    return sum(extent != 1 for extent in task.value(anchor.args[1]).rows)


def is_rhs(task: Task, index: int) -> bool:
    """Whether the input is the right operand of the product."""
    anchor = task.anchor
    return anchor is not None and anchor.args[1] == index
