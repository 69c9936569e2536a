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
from kforge_dynamo.records.candidate import Candidate
from kforge_dynamo.records.target import Numerics, Target
from kforge_dynamo.records.task import Task

__all__ = ["Schedule", "emit", "gain_us", "neighbours", "rejects", "space"]


def emit(task: Task, schedule: Schedule, sizes: Sequence[int], target: Target, numerics: Numerics) -> Candidate:
    """The candidate of a schedule of `space` or `neighbours`; the same for all sizes and all promises that allow its scheme."""
    return emitted(task, schedule, target)
