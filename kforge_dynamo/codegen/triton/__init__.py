"""The built-in generator for GPUs: a task and a schedule become Triton kernels and the plan that launches them.

`stages` divides a task: the kernel of the product (`product`, its operands by `operands`, its end by `epilogue`) does what a
tile holds, `columns` joins statistics over the rows, `rows` finishes what needs a whole row. All of them write a task's
values with `compose`, from the expressions of `expressions` and the states of `reductions`; `scope` and `forms` say which
columns of one value stand at which columns of another. `space` and `model` choose schedules.
"""

from __future__ import annotations

from collections.abc import Sequence

from kforge_dynamo.codegen.triton.schedule import Schedule
from kforge_dynamo.codegen.triton.space import emitted, gain_us, neighbours, rejects, space
from kforge_dynamo.codegen.triton.tiles import product_of
from kforge_dynamo.records.candidate import Candidate
from kforge_dynamo.records.target import Numerics, Target
from kforge_dynamo.records.task import Task
from kforge_dynamo.semantics.algebra import fold

__all__ = ["Schedule", "emit", "gain_us", "neighbours", "prepares", "proves", "rejects", "space"]


def prepares(task: Task) -> bool:
    """Whether a kernel may prepare weights ahead of all else: fp32 operands are split, reductions move into the right one."""
    product = product_of(task)
    return product is not None and (task.value(product.rhs).dtype == "float32" or fold(task) is not None)


def proves(task: Task) -> bool:
    """Whether a kernel may leave out what it prepares of weights where a device has found them unchanged: a weight that is split
    is. What is folded is not: to look at a weight costs as much as to add it up."""
    product = product_of(task)
    return product is not None and task.value(product.rhs).dtype == "float32" and not task.value(product.rhs).varies_by_row


def emit(task: Task, schedule: Schedule, sizes: Sequence[int], target: Target, numerics: Numerics) -> Candidate:
    """The candidate of a schedule of `space` or `neighbours`; the same for all sizes and all promises that allow its scheme, but
    for how it is told that a copy of a weight is still right."""
    return emitted(task, schedule, target, numerics.proven)
