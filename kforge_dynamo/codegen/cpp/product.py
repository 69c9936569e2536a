"""The C++ text of the matrix product, for each way of computing it."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import cast

from kforge_dynamo.codegen.cpp.cells import POINTERS
from kforge_dynamo.codegen.cpp.memory import Memory, batch_axes, row_step, step_of
from kforge_dynamo.codegen.cpp.program import Inexpressible
from kforge_dynamo.codegen.cpp.schedule import Schedule
from kforge_dynamo.records.task import Extent, Task

TEXT = Path(__file__).parent / "text"


@dataclass(frozen=True, slots=True)
class Operands:
    """The facts of a task's product: inputs' numbers, sizes, C++ element type, and strides as C++ expressions."""

    lhs: int
    rhs: int
    n: int
    k: Extent
    ctype: str
    lhs_row: str
    lhs_k: str
    rhs_k: str
    rhs_n: str
    batch: int

    @property
    def k_text(self) -> str:
        """K as a C++ expression."""
        return str(self.k) if isinstance(self.k, int) else "c.k"

    @property
    def depth(self) -> str:
        """Lanes along k, as a size expression."""
        if isinstance(self.k, int):
            return str(-(-self.k // 2) if self.ctype == "duo" else self.k)
        return f"cdiv({self.k}, 2)" if self.ctype == "duo" else self.k

    @property
    def left(self) -> str:
        """The start of the left operand's rows of outer index `o`."""
        return f"(const {self.ctype}*)c.in{self.lhs} + c.start(o, {self.lhs})"

    @property
    def right(self) -> str:
        """The start of the right operand of outer index `o`."""
        return f"(const {self.ctype}*)c.in{self.rhs} + c.start(o, {self.rhs})"


def operands_of(task: Task) -> Operands:
    """The product of `task`, which has one."""
    anchor = task.anchor
    assert anchor is not None
    lhs, rhs = (cast(int, arg) for arg in anchor.args[:2])
    left, right = task.inputs[lhs], task.inputs[rhs]
    rows = len(right.value.rows)
    k, n = right.value.cols
    # along a single number any stride will do
    lhs_k, rhs_k = ("1", "1") if k == 1 else (step_of(left, lhs, rows).text, step_of(right, rhs, rows).text)
    return Operands(
        lhs,
        rhs,
        cast(int, n),
        k,
        POINTERS[left.value.dtype],
        row_step(task, lhs).text,
        lhs_k,
        rhs_k,
        step_of(right, rhs, rows + 1).text,
        batch_axes(task),
    )


@dataclass(slots=True)
class ProductText:
    """`item` is the body of `product_item(c, o, first, count, c0, width, p, pitch, exact, own)`: the product's rows `first`
    to `first + count` and columns `c0` to `c0 + width`, stored at `p`; with `exact` nothing beside them is written.

    `before` runs in the entry ahead of the team, `team` is run by all threads first. `whole`: `before` does everything.
    `own` is the thread's memory of `own_floats` floats. `texts` names the fixed texts it is built on.
    """

    texts: tuple[str, ...]
    item: list[str] = field(default_factory=list)
    before: list[str] = field(default_factory=list)
    team: list[str] = field(default_factory=list)
    own_floats: int = 0
    whole: bool = False

    def function(self) -> str:
        """`product_item`, where there is one."""
        if not self.item:
            return ""
        head = (
            "static void product_item(const Call& c, long o, long first, long count, long c0, long width, float* p, long pitch, "
        )
        body = "\n".join(["(void)own; (void)exact;", *self.item])
        return f"{head}bool exact, float* own) {{\n{body}\n}}\n"


def product_text(task: Task, schedule: Schedule, memory: Memory, whole: str, lanes: int, pairs: bool) -> ProductText:
    """The product of `task` by `schedule`; `whole` is where a product computed at once lies (C++, pitch N).

    `pairs` says that the target multiplies bfloat16 numbers two at a time.

    Raises: Inexpressible where this way of computing does not serve the task.
    """
    it = operands_of(task)
    if it.ctype == "bf16" and pairs and not schedule.product.startswith("library"):
        it = replace(it, ctype="duo")
    if schedule.product == "own":
        return _own(task, it, schedule, memory, lanes)
    if schedule.product == "dot":
        return _dot(it, schedule, lanes)
    if it.ctype == "f16":
        raise Inexpressible("torch's library has no float16 product")
    shape = f"{{{it.lhs_row}, {it.lhs_k}}}"
    strides = f"{{{it.rhs_k}, {it.rhs_n}}}"
    text = ProductText(("library.h",))
    if schedule.product == "library_whole":
        call = f"library_product({it.left}, {shape}, {it.right}, {strides}, c.rows, {it.n}, {it.k_text}, "
        text.before = ["for (long o = 0; o < c.outer; ++o)", f"{call}{whole} + o * c.rows * {it.n}, {it.n});"]
        text.whole = True
    else:
        text.item = [
            f"library_product({it.left} + first * {it.lhs_row}, {shape}, {it.right} + c0 * {it.rhs_n}, {strides}, count, width, "
            f"{it.k_text}, p, pitch);"
        ]
    return text


def granule(schedule: Schedule, lanes: int) -> int:
    """What the rows of a unit are a multiple of: whole tiles, whole panels."""
    if schedule.product != "own":
        return 1
    return schedule.mr if schedule.side == "columns" else schedule.nv * lanes


def _dot(it: Operands, schedule: Schedule, lanes: int) -> ProductText:
    if it.lhs_k != "1" or it.rhs_k != "1":
        raise Inexpressible("an operand does not lie along k")
    if schedule.mr > lanes:
        raise Inexpressible(f"{schedule.mr} rows at a time in vectors of {lanes}")
    strip = max(lanes, min(256, 65536 // (it.k if isinstance(it.k, int) else 4096) // lanes * lanes))
    call = f"dot_product<{schedule.mr}, {strip}>({it.left} + first * {it.lhs_row}, {it.lhs_row}, "
    call += f"{it.right} + c0 * {it.rhs_n}, {it.rhs_n}, count, width, {it.k_text}, p, pitch);"
    return ProductText(("gemm.h", "dot.h"), [call])


def _own(task: Task, it: Operands, schedule: Schedule, memory: Memory, lanes: int) -> ProductText:
    panel = schedule.nv * lanes
    text = ProductText(("gemm.h",))
    text.own_floats = _copies(schedule, panel)
    tile = f"{schedule.mr}, {schedule.nv}, {schedule.kc}"
    if schedule.side == "rows":
        return _rows_side(text, task, it, schedule, memory, panel, tile)
    rows = f"{it.left} + first * {it.lhs_row}, {it.lhs_row}, {it.lhs_k}, count, {it.k_text}, p, pitch, exact, own"
    if schedule.fresh or it.batch:
        fresh = f"own + {text.own_floats}"
        text.own_floats += _rounded(schedule.cols if 0 < schedule.cols < it.n else it.n, panel) * schedule.kc
        side = f"{it.right} + c0 * {it.rhs_n}, {it.rhs_n}, {it.rhs_k}, width"
        text.item.append(f"multiply_fresh<{tile}>({fresh}, {side}, {rows});")
        return text
    packed, padded = _pack_together(text, task, it, schedule, memory, panel)
    text.item.append(f"multiply_packed<{tile}>({packed}, {padded}, c0, width, {rows});")
    return text


def _rows_side(
    text: ProductText, task: Task, it: Operands, schedule: Schedule, memory: Memory, panel: int, tile: str
) -> ProductText:
    if it.batch == 0 and 0 < schedule.cols < it.n:
        packed, padded = _pack_together(text, task, it, schedule, memory, panel)
        return _turned(text, it, schedule, panel, f"multiply_packed<{tile}>({packed}, {padded}, first, count, ")
    if not isinstance(it.k, int):
        raise Inexpressible("a symbolic K with an operand packed by each thread")
    packed = f"own + {text.own_floats}"
    text.own_floats += _rounded(schedule.rows, panel) * int(it.depth)
    padded = f"((count + {panel - 1}) / {panel} * {panel})"
    source = f"{it.left} + first * {it.lhs_row}, {it.lhs_row}, {it.lhs_k}, count, {it.k}, 0, {padded} / {panel}"
    text.item.append(f"pack_panels<{schedule.nv}, {schedule.kc}>({packed}, {source});")
    return _turned(text, it, schedule, panel, f"multiply_packed<{tile}>({packed}, {padded}, 0, count, ")


def _turned(text: ProductText, it: Operands, schedule: Schedule, panel: int, call: str) -> ProductText:
    """Rows along vectors: tiles come out transposed, in strips of columns that stay in the cache until they are turned."""
    strip = 8 * schedule.mr
    pitch = _rounded(schedule.rows, panel) + 16
    turned = f"own + {text.own_floats}"
    text.own_floats += strip * pitch
    text.item += [
        f"for (long s = 0; s < width; s += {strip}) {{",
        f"const long n = width - s < {strip} ? width - s : {strip};",
        f"{call}{it.right} + (c0 + s) * {it.rhs_n}, {it.rhs_n}, {it.rhs_k}, n, {it.k_text}, {turned}, {pitch}, false, own);",
        f"turn(p + s, pitch, {turned}, {pitch}, n, count);",
        "}",
    ]
    return text


def _copies(schedule: Schedule, panel: int) -> int:
    """Floats of the scalar side's two copies and of a tile at the edge."""
    return _rounded(2 * schedule.mr * (schedule.kc + 16) + schedule.mr * panel, 16)


def _pack_together(
    text: ProductText, task: Task, it: Operands, schedule: Schedule, memory: Memory, panel: int
) -> tuple[str, str]:
    """All threads pack one side for everybody; returns where it lies and how many lines it has."""
    depth = f"(({it.k_text} + 1) / 2)" if it.ctype == "duo" else it.k_text
    if schedule.side == "columns":
        padded = str(_rounded(it.n, panel))
        memory.add("packed", f"{padded} * {it.depth}")
        line, step, count, source, outer = it.rhs_n, it.rhs_k, str(it.n), it.right, "1"
        offset = "0"
    else:
        padded = f"((c.rows + {panel - 1}) / {panel} * {panel})"
        rows = " * ".join([*task.row_axes[:-1], f"({task.row_axes[-1]} + {panel})"])
        memory.add("packed", f"{rows} * {it.depth}")
        line, step, count, source, outer = it.lhs_row, it.lhs_k, "c.rows", it.left, "c.outer"
        offset = f"o * {padded} * {depth}"
    text.team = [
        f"for (long o = 0; o < {outer}; ++o) {{",
        f"const long panels = {padded} / {panel};",
        f"pack_panels<{schedule.nv}, {schedule.kc}>(c.packed + {offset}, {source}, {line}, {step}, {count}, {it.k_text}, "
        "panels * t / team, panels * (t + 1) / team);",
        "}",
        "barrier();",
    ]
    return f"c.packed + {offset}", padded


def _rounded(count: int, unit: int) -> int:
    return -(-count // unit) * unit
