"""The C++ text of the matrix product, for each way of computing it."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import cast

from kforge_dynamo.codegen.cpp.cells import POINTERS
from kforge_dynamo.codegen.cpp.memory import Memory, batch_axes, row_step, step_of
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


def operands_of(task: Task) -> Operands:
    """The product of `task`, which has one."""
    anchor = task.anchor
    assert anchor is not None
    lhs, rhs = (cast(int, arg) for arg in anchor.args[:2])
    left, right = task.inputs[lhs], task.inputs[rhs]
    rows = len(right.value.rows)
    k, n = right.value.cols
    return Operands(
        lhs,
        rhs,
        cast(int, n),
        k,
        POINTERS[left.value.dtype],
        row_step(task, lhs).text,
        step_of(left, lhs, rows).text,
        step_of(right, rhs, rows).text,
        step_of(right, rhs, rows + 1).text,
        batch_axes(task),
    )


@dataclass(frozen=True, slots=True)
class ProductText:
    """`functions` define `product_block(c, o, first, count, p, pitch, t)`; `before` runs in the entry, ahead of the team.

    `whole` says that `before` computes everything, and `product_block` is not there.
    """

    functions: str
    before: tuple[str, ...]
    whole: bool


def product_text(task: Task, schedule: Schedule, memory: Memory, whole: str) -> ProductText:
    """The product of `task` by `schedule`; `whole` is where a product computed at once lies (C++, pitch N)."""
    it = operands_of(task)
    shape = f"{{{it.lhs_row}, {it.lhs_k}}}, c.in{it.rhs} + c.start(o, {it.rhs}), {{{it.rhs_k}, {it.rhs_n}}}"
    left = f"c.in{it.lhs} + c.start(o, {it.lhs})"
    text = (TEXT / "library.h").read_text()
    if schedule.product == "library_whole":
        call = f"library_product({left}, {shape}, c.rows, {it.n}, {it.k_text}, {whole} + o * c.rows * {it.n}, {it.n});"
        return ProductText(text, ("for (long o = 0; o < c.outer; ++o)", call), True)
    function = f"""
static void product_block(const Call& c, long o, long first, long count, float* p, long pitch, int t) {{
  (void)t;
  library_product({left} + first * {it.lhs_row}, {shape}, count, {it.n}, {it.k_text}, p, pitch);
}}
"""
    return ProductText(text + function, (), False)
