"""The whole C++ source of a candidate: text that never changes, the passes, the product, the team's work, the entry."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from kforge_dynamo.codegen.cpp.memory import Memory, call_struct, fill_call
from kforge_dynamo.codegen.cpp.passes import Passes
from kforge_dynamo.codegen.cpp.phases import Phases, phases_of
from kforge_dynamo.codegen.cpp.product import TEXT, ProductText, operands_of, product_text
from kforge_dynamo.codegen.cpp.program import Program, program_of
from kforge_dynamo.codegen.cpp.schedule import Schedule
from kforge_dynamo.records.candidate import Buffer, Launch, LaunchPlan
from kforge_dynamo.records.target import Target
from kforge_dynamo.records.task import Task

LANES = {"avx512": 16, "avx2": 8}
"""Floats in a vector register by architecture; any other gets 4."""


@dataclass(frozen=True, slots=True)
class Written:
    """A source with its plan."""

    source: str
    plan: LaunchPlan


def lanes_of(target: Target) -> int:
    """Floats in a vector register of the target."""
    return LANES.get(target.arch, 4)


def write(task: Task, schedule: Schedule, target: Target) -> Written:
    """The source and plan of `task` by `schedule`. Raises: Inexpressible."""
    program = program_of(task)
    return _Source(task, program, phases_of(program), schedule, target).write()


class _Source:
    """Puts one source together."""

    def __init__(self, task: Task, program: Program, phases: Phases, schedule: Schedule, target: Target) -> None:
        self.task, self.program, self.phases, self.schedule, self.target = task, program, phases, schedule, target
        self.memory = Memory(task, program)
        self.units = max(1, target.units)
        self.passes = Passes(task, program, phases, self.memory, lanes_of(target), schedule.rows, self.units)

    def write(self) -> Written:
        product_in = self._product_home()
        self.passes.write(product_in)
        whole = self._whole(product_in)
        product = product_text(self.task, self.schedule, self.memory, whole) if self.program.product is not None else None
        scratch = max((text.scratch_floats for text in self.passes.texts), default=0)
        self.per_thread = self._thread_layout(scratch, product, product_in)
        if self.per_thread:
            self.memory.add("team", f"{self.units} * {self.per_thread}")
        k = "no product" if product is None else f"K = {operands_of(self.task).k}"
        parts = [
            f"#define W {lanes_of(self.target)}",
            (TEXT / "vector.h").read_text(),
            (TEXT / "math.h").read_text(),
            call_struct(self.task, self.memory, k),
            (TEXT / "columns.h").read_text() if any(phase.reductions for phase in self.phases.phases) else "",
            *([product.functions] if product is not None else []),
            *self.passes.functions,
            self._work(product, product_in, whole),
            self._entry(product),
        ]
        library = self.schedule.product.startswith("library")
        buffers = tuple(Buffer(b.name, b.dtype, b.elements, b.zeroed) for b in self.memory.buffers)
        args = tuple(f"in:{i}" for i in range(len(self.task.inputs))) + tuple(f"out:{i}" for i in range(len(self.task.outputs)))
        launch = Launch("kforge_entry", ("1",), args + tuple(f"buf:{b.name}" for b in buffers))
        return Written("\n".join(parts), LaunchPlan(buffers, (launch,), library=library))

    def _product_home(self) -> int | None:
        """The product's own number where it is written straight to where it is wanted: an fp32 output, or kept whole."""
        product = self.program.product
        if product is None:
            return None
        wanted = product in self.phases.kept or product in self.program.outputs
        return product if wanted else None

    def _whole(self, product_in: int | None) -> str:
        """Where the whole product lies, C++; empty where only blocks of it exist at a time."""
        if product_in is not None:
            if product_in in self.phases.kept:
                return f"c.kept{product_in}"
            return f"c.out{self.program.outputs.index(product_in)}"
        if self.schedule.product == "library_whole":
            assert self.program.product is not None
            return self.memory.add("whole", f"{self.memory.row_count} * {self.program.size(self.program.product)}")
        return ""

    def _thread_layout(self, scratch: int, product: ProductText | None, product_in: int | None) -> int:
        """Floats of scratch a thread: row scratch, blocks for column passes, the product's block."""
        self.offsets = {"scratch": 0}
        total = -(-scratch // 16) * 16
        for index in range(len(self.phases.phases)):
            for number in self.passes.columns.private(index):
                self.offsets[f"columns{number}"] = total
                total += -(-self.schedule.rows * self.program.size(number) // 16) * 16
        if product is not None and product_in is None and not product.whole:
            self.offsets["product"] = total
            total += self.schedule.rows * self._pitch()
        return -(-total // 1024) * 1024 + 16 if total else 0

    def _pitch(self) -> int:
        """Elements between rows of a private product block: no multiple of a page, so that rows fall into different sets."""
        assert self.program.product is not None
        return -(-self.program.size(self.program.product) // 16) * 16 + 16

    def _work(self, product: ProductText | None, product_in: int | None, whole: str) -> str:
        lines = ["static void work(const Call& c, int t, int team) {", "(void)t; (void)team;"]
        if self.per_thread:
            lines.append(f"float* const own = c.team + t * {self.per_thread}l;")
        lines.append(f"float* const scratch = {'own' if self.per_thread else 'nullptr'}; (void)scratch;")
        last = max((i for i, phase in enumerate(self.phases.phases) if phase.targets or phase.once), default=0)
        for index in range(last + 1):
            lines += self._pass(index, product, product_in, whole)
        return "\n".join([*lines, "}\n"])

    def _pass(self, index: int, product: ProductText | None, product_in: int | None, whole: str) -> Sequence[str]:
        phase = self.phases.phases[index]
        lines = []
        if index > 0:
            lines += [f"if (t == 0) once_{index}(c);", "barrier();"] if phase.once else []
        if not phase.targets:
            return lines
        private = self.passes.columns.private(index)
        lines.append(f"for (long b = c.next({index}); b < c.blocks; b = c.next({index})) {{")
        lines.append("const long o = b / c.per_outer, first = b % c.per_outer * c.block;")
        lines.append("const long count = c.rows - first < c.block ? c.rows - first : c.block;")
        at, pitch = self._product_place(index, product, whole)
        lines.append(f"float* const product = {at}; const long pitch = {pitch}; (void)product; (void)pitch;")
        if index == 0 and product is not None and not product.whole:
            lines.append("product_block(c, o, first, count, product, pitch, t);")
        columns = "".join(f", own + {self.offsets[f'columns{number}']}" for number in private)
        n = self.program.size(self.program.product) if self.program.product is not None else self._columns(index)
        lines.append(f"rows_{index}(c, o, first, count, product, pitch, 0, {n}, scratch{columns});")
        if phase.reductions:
            lines.append(f"columns_{index}(c, b, o, first, count, product, pitch{columns});")
        lines.append("}")
        if index + 1 < len(self.phases.phases):
            lines += ["barrier();", f"merge_{index}(c, t, team);", "barrier();"]
        return lines

    def _columns(self, index: int) -> int:
        return max((self.program.size(number) for number in self.phases.phases[index].targets), default=1)

    def _product_place(self, index: int, product: ProductText | None, whole: str) -> tuple[str, str]:
        if product is None or (index > 0 and not whole):
            return "nullptr", "0"
        assert self.program.product is not None
        n = self.program.size(self.program.product)
        if whole:
            return f"{whole} + (o * c.rows + first) * {n}", str(n)
        return f"own + {self.offsets['product']}", str(self._pitch())

    def _entry(self, product: ProductText | None) -> str:
        phases = len(self.phases.phases)
        lines = ['extern "C" __attribute__((visibility("default"))) void kforge_entry(void* const* inputs, void* const* outputs,',
                 "    void* const* buffers, const int64_t* sizes, const int64_t* strides, int threads) {",
                 "(void)inputs; (void)outputs; (void)buffers; (void)sizes; (void)strides;", "Call c = {};"]  # fmt: skip
        lines += fill_call(self.task, self.memory)
        k = self.task.axes.index("k") if "k" in self.task.col_axes else None
        lines += [] if k is None else [f"c.k = sizes[{k}];"]
        lines += [
            f"c.threads = threads < {self.units} ? threads : {self.units};",
            f"long counters[{8 * phases}] = {{}}; c.counters = counters;",
            "const long share = (c.threads + c.outer - 1) / (c.outer > 0 ? c.outer : 1);",
            "const long even = (c.rows + share - 1) / (share > 0 ? share : 1);",
            f"c.block = even < {self.schedule.rows} ? (even > 0 ? even : 1) : {self.schedule.rows};",
            "c.per_outer = (c.rows + c.block - 1) / c.block; c.blocks = c.per_outer * c.outer;",
        ]
        lines += ["once_0(c);"] if self.phases.phases[0].once else []
        lines += [*(product.before if product is not None else ()), "run(c);", "}\n"]
        return RUN + "\n".join(lines)


RUN = """
static void run(const Call& c) {
  if (c.threads <= 1) return work(c, 0, 1);   // no team: safe in a forked child
#pragma omp parallel num_threads(c.threads)
  work(c, omp_get_thread_num(), omp_get_num_threads());
}
"""
