"""The whole C++ source of a candidate: text that never changes, the passes, the product, the team's work, the entry."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from kforge_dynamo.codegen.cpp.memory import Memory, call_struct, fill_call
from kforge_dynamo.codegen.cpp.passes import Passes
from kforge_dynamo.codegen.cpp.phases import Phases, phases_of
from kforge_dynamo.codegen.cpp.product import TEXT, ProductText, granule, operands_of, product_text
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


@dataclass(frozen=True, slots=True)
class Part:
    """One program: the fixed texts it needs (files of `text/`), its own text with a function `entry` that takes `PARAMETERS`, and
    the buffers that it takes, in order."""

    texts: tuple[str, ...]
    body: str
    buffers: tuple[Buffer, ...]


def write(task: Task, schedule: Schedule, target: Target) -> Written:
    """The source and plan of `task` by `schedule`. Raises: Inexpressible."""
    found = part(task, schedule, target)
    launch = Launch("kforge_entry", ("1",), arguments(task, found.buffers))
    plan = LaunchPlan(found.buffers, (launch,), library=schedule.product.startswith("library"))
    return Written("\n".join([opening(found.texts, target), found.body, doors(task, len(found.buffers))]), plan)


def part(task: Task, schedule: Schedule, target: Target) -> Part:
    """The program of `task` by `schedule`. Raises: Inexpressible."""
    program = program_of(task)
    return _Source(task, program, phases_of(program), schedule, target).write()


def arguments(task: Task, buffers: Sequence[Buffer]) -> tuple[str, ...]:
    """What a launch passes: inputs, outputs, buffers."""
    inputs, outputs = range(len(task.inputs)), range(len(task.outputs))
    return (*(f"in:{i}" for i in inputs), *(f"out:{i}" for i in outputs), *(f"buf:{buffer.name}" for buffer in buffers))


def opening(texts: Sequence[str], target: Target) -> str:
    """The fixed texts, each once."""
    return "\n".join([f"#define W {lanes_of(target)}", *((TEXT / name).read_text() for name in dict.fromkeys(texts))])


PARAMETERS = (
    "(void* const* inputs, void* const* outputs, void* const* buffers, const int64_t* sizes, const int64_t* strides, int threads)"
)


def doors(task: Task, buffers: int, packs: bool = False) -> str:
    """The two ways in: the entry, and one for a caller that keeps its arguments in one block: inputs, outputs, threads, buffers,
    sizes, strides. With `packs` the function `pack` goes ahead of `entry`: in the block's way, and as a door of its own."""
    reads, writes = len(task.inputs), len(task.outputs)
    at = reads + writes + 1
    places = f"(void* const*)b, (void* const*)(b + {reads}), (void* const*)(b + {at}), b + {at + buffers}, "
    places += f"b + {at + buffers + len(task.axes)}, (int)b[{at - 1}]"
    seen = 'extern "C" __attribute__((visibility("default"))) void'
    passed = "(inputs, outputs, buffers, sizes, strides, threads); }"
    first = f"pack({places}); " if packs else ""
    return (
        (f"{seen} kforge_pack{PARAMETERS} {{ pack{passed}\n" if packs else "")
        + f"{seen} kforge_entry{PARAMETERS} {{ entry{passed}\n"
        + f"{seen} kforge_call(const int64_t* b) {{ {first}entry({places}); }}\n"
    )


def one_range(task: Task, lanes: int) -> bool:
    """Whether the epilogue is one loop over columns, so that it can follow any range of them. Raises: Inexpressible."""
    program = program_of(task)
    phases = phases_of(program)
    passes = Passes(task, program, phases, Memory(task, program), lanes, 1, 1)
    passes.write()
    return passes.texts[0].ranged and not phases.phases[0].reductions


class _Source:
    """Puts one source together."""

    def __init__(self, task: Task, program: Program, phases: Phases, schedule: Schedule, target: Target) -> None:
        self.task, self.program, self.phases, self.schedule, self.target = task, program, phases, schedule, target
        self.lanes = lanes_of(target)
        self.memory = Memory(task, program)
        self.units = max(1, target.units)
        self.rows = -(-schedule.rows // granule(schedule, self.lanes)) * granule(schedule, self.lanes)
        self.passes = Passes(task, program, phases, self.memory, self.lanes, self.rows, self.units)
        self.product: ProductText | None = None
        self.whole = ""
        self.offsets: dict[str, int] = {}

    def write(self) -> Part:
        home = self._product_home()
        self.passes.write()
        n = self.n
        # whole vectors, and whole panels where columns are packed: a unit that is not the last ends where a panel ends
        unit = self.lanes * max(1, self.schedule.nv)
        width = min(n, -(-self.schedule.cols // unit) * unit) if self.schedule.cols else n
        whole_rows = width >= n or (self.passes.texts[0].ranged and not self.phases.phases[0].reductions)
        whole_product = self.schedule.product == "library_whole"
        self.phased = self.program.product is not None and not whole_product and (self.schedule.phased or not whole_rows)
        self.width = width
        self.whole = self._whole(home)
        if self.program.product is not None:
            pairs = self.lanes == 16 and "avx512_bf16" in self.target.features
            self.product = product_text(self.task, self.schedule, self.memory, self.whole, self.lanes, pairs)
        self.per_thread = self._thread_layout()
        if self.per_thread:
            self.memory.add("team", f"{self.units} * {self.per_thread}")
        texts = ("vector.h", "math.h", *(self.product.texts if self.product is not None else ()))
        return Part(texts, "\n".join(self._parts()), tuple(self.memory.buffers))

    @property
    def n(self) -> int:
        """Columns of the product, or of the widest target where there is none."""
        if self.program.product is not None:
            return self.program.size(self.program.product)
        return max((self.program.size(number) for number in self.phases.phases[0].targets), default=1)

    def _parts(self) -> list[str]:
        k = "no product" if self.product is None else f"K = {operands_of(self.task).k}"
        reduces = any(phase.reductions for phase in self.phases.phases)
        return [
            call_struct(self.task, self.memory, k),
            (TEXT / "columns.h").read_text() if reduces else "",
            self.product.function() if self.product is not None else "",
            *self.passes.functions,
            self._work(),
            self._entry(),
        ]

    def _product_home(self) -> int | None:
        """The product's own number where it is written straight to where it is wanted: an fp32 output, or kept whole."""
        product = self.program.product
        if product is None:
            return None
        wanted = product in self.phases.kept or product in self.program.outputs
        return product if wanted else None

    def _whole(self, home: int | None) -> str:
        """Where the whole product lies, C++; empty where only blocks of it exist at a time."""
        if home is not None:
            return f"c.kept{home}" if home in self.phases.kept else f"c.out{self.program.outputs.index(home)}"
        if self.phased or self.schedule.product == "library_whole":
            return self.memory.add("whole", f"{self.memory.row_count} * {self.n}")
        return ""

    def _thread_layout(self) -> int:
        """Floats of memory a thread: row scratch, the product's own, blocks for column passes, the product's block."""
        total = 0
        wanted = {"scratch": max((text.scratch_floats for text in self.passes.texts), default=0)}
        if self.product is not None:
            wanted["work"] = self.product.own_floats
        for index in range(len(self.phases.phases)):
            for number in self.passes.columns.private(index):
                wanted[f"columns{number}"] = self.rows * self.program.size(number)
        if self.product is not None and not self.whole:
            wanted["product"] = self.rows * self._pitch()
        for name, floats in wanted.items():
            self.offsets[name] = total
            total += -(-floats // 16) * 16
        return -(-total // 1024) * 1024 + 16 if total else 0

    def _pitch(self) -> int:
        """Elements between rows of a private product block: no multiple of a page, so that rows fall into different sets."""
        unit = max(self.lanes, self.schedule.nv * self.lanes)
        return -(-self.width // unit) * unit + 16

    def _work(self) -> str:
        lines = ["static void work(const Call& c, int t, int team) {", "(void)t; (void)team;"]
        lines.append(f"float* const own = {f'c.team + t * {self.per_thread}l' if self.per_thread else 'nullptr'};")
        lines.append("float* const scratch = own; (void)scratch;")
        lines += self.product.team if self.product is not None else []
        if self.phased:
            lines += [*self._items(len(self.phases.phases)), self._product_call(self.whole), "}", "barrier();"]
        last = max((i for i, phase in enumerate(self.phases.phases) if phase.targets or phase.once), default=0)
        for index in range(last + 1):
            lines += self._pass(index)
        return "\n".join([*lines, "}\n"])

    def _items(self, counter: int) -> list[str]:
        """Opens the loop over units of the product."""
        across = -(-self.n // self.width)
        return [
            f"for (long b = c.next({counter}); b < c.items; b = c.next({counter})) {{",
            f"const long row = b / {across}, c0 = b % {across} * {self.width};",
            f"const long width = {self.n} - c0 < {self.width} ? {self.n} - c0 : {self.width};",
            "const long o = row / c.tiles_per_outer, first = row % c.tiles_per_outer * c.tile_rows;",
            "const long count = c.rows - first < c.tile_rows ? c.rows - first : c.tile_rows;",
        ]

    def _product_call(self, whole: str) -> str:
        own = f"own + {self.offsets['work']}"
        if whole:
            at = f"{whole} + (o * c.rows + first) * {self.n} + c0, {self.n}, true"
        else:
            at = f"own + {self.offsets['product']}, {self._pitch()}, false"
        return f"product_item(c, o, first, count, c0, width, {at}, {own});"

    def _pass(self, index: int) -> list[str]:
        phase = self.phases.phases[index]
        lines = [f"if (t == 0) once_{index}(c);", "barrier();"] if index > 0 and phase.once else []
        if not phase.targets:
            return lines
        private = "".join(f", own + {self.offsets[f'columns{number}']}" for number in self.passes.columns.private(index))
        fused = index == 0 and self.product is not None and not self.product.whole and not self.phased
        if fused:
            lines += [*self._items(index), self._product_call(self.whole)]
        else:
            lines.append(f"for (long b = c.next({index}); b < c.blocks; b = c.next({index})) {{")
            lines.append("const long o = b / c.per_outer, first = b % c.per_outer * c.block;")
            lines.append("const long count = c.rows - first < c.block ? c.rows - first : c.block;")
            lines.append(f"const long c0 = 0, width = {self.n if index == 0 else 0}; (void)width;")
        at, pitch = self._product_place(index)
        lines.append(f"const float* const product = {at}; const long pitch = {pitch}; (void)product; (void)pitch;")
        lines.append(f"rows_{index}(c, o, first, count, product, pitch, c0, c0 + {self._range(index)}, scratch{private});")
        if phase.reductions:
            lines.append(f"columns_{index}(c, b, o, first, count, product, pitch{private});")
        lines.append("}")
        if index + 1 < len(self.phases.phases):
            lines += ["barrier();", f"merge_{index}(c, t, team);", "barrier();"]
        return lines

    def _range(self, index: int) -> str:
        """Columns that a pass with a range goes over."""
        if index == 0:
            return "width"
        return str(max((self.program.size(number) for number in self.phases.phases[index].targets), default=1))

    def _product_place(self, index: int) -> tuple[str, str]:
        """Where the row pass finds column 0 of the block's first row, and the pitch."""
        if self.product is None or (index > 0 and not self.whole):
            return "nullptr", "0"
        if self.whole:
            return f"{self.whole} + (o * c.rows + first) * {self.n}", str(self.n)
        return f"own + {self.offsets['product']} - c0", str(self._pitch())

    def _entry(self) -> str:
        counters = len(self.phases.phases) + 1
        lines = [f"static void entry{PARAMETERS} {{", "(void)inputs; (void)outputs; (void)buffers; (void)sizes; (void)strides;"]
        lines.append("Call c = {};")
        lines += fill_call(self.task, self.memory)
        k = self.task.axes.index("k") if "k" in self.task.col_axes else None
        lines += [] if k is None else [f"c.k = sizes[{k}];"]
        across = -(-self.n // self.width)
        lines += [
            f"c.threads = useful(threads < {self.units} ? threads : {self.units}, {self._work_text()});",
            f"long counters[{8 * counters}] = {{}}; c.counters = counters;",
            f"c.tile_rows = share(c, {self.rows}, {across}, {granule(self.schedule, self.lanes)});",
            "c.tiles_per_outer = (c.rows + c.tile_rows - 1) / c.tile_rows;",
            f"c.items = c.tiles_per_outer * c.outer * {across};",
            f"c.block = {'c.tile_rows' if not self.phased else f'share(c, {self.rows}, 1, 1)'};",
            "c.per_outer = (c.rows + c.block - 1) / c.block; c.blocks = c.per_outer * c.outer;",
        ]
        lines += ["once_0(c);"] if self.phases.phases[0].once else []
        lines += [*(self.product.before if self.product is not None else ()), "run(c);", "}\n"]
        return RUN + "\n".join(lines)

    def _work_text(self) -> str:
        """Additions and multiplications of a call, roughly: the product, and 8 for each node and element of the epilogue."""
        depth = "0.0" if self.product is None else f"2.0 * {operands_of(self.task).k_text}"
        return f"(double)c.rows * c.outer * {self.n} * ({depth} + {8 * len(self.program.nodes)}.0)"


RUN = """
// A thread is worth its start only with enough to do: about the time that a team needs to meet.
static int useful(int threads, double work) {
  const double most = 1 + work / 2.5e5;
  return threads < most ? threads : (int)most;
}
// Rows of a unit: at most `most`, a multiple of `granule`, and few enough that every thread gets a unit.
static long share(const Call& c, long most, long across, long granule) {
  const long units = c.outer * across > 0 ? c.outer * across : 1, parts = (c.threads + units - 1) / units;
  long even = (c.rows + parts - 1) / (parts > 0 ? parts : 1);
  even = (even + granule - 1) / granule * granule;
  return even < 1 ? 1 : even < most ? even : most;
}
static void run(const Call& c) {
  if (c.threads <= 1) return work(c, 0, 1);   // no team: safe in a forked child
#if defined(_OPENMP)
#pragma omp parallel num_threads(c.threads)
  work(c, omp_get_thread_num(), omp_get_num_threads());
#else
  auto body = [](void* call) { work(*(const Call*)call, omp_get_thread_num(), omp_get_num_threads()); };
  GOMP_parallel(body, (void*)&c, (unsigned)c.threads, 0);
#endif
}
"""
