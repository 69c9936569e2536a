"""A task and a schedule become a candidate: source of all kernels, and the plan that launches them."""

from __future__ import annotations

from kforge_dynamo.codegen.triton.copies import PROOF
from kforge_dynamo.codegen.triton.folded import folded_kernels
from kforge_dynamo.codegen.triton.launches import kernels_of
from kforge_dynamo.codegen.triton.prelude import used_by
from kforge_dynamo.codegen.triton.schedule import Schedule
from kforge_dynamo.records.candidate import Candidate, LaunchPlan
from kforge_dynamo.records.codec import to_text
from kforge_dynamo.records.target import Target
from kforge_dynamo.records.task import Task

AUTHOR = "builtin-triton"
_HEADER = "import triton\nimport triton.language as tl\n"


def candidate(task: Task, schedule: Schedule, target: Target, proven: bool = False) -> Candidate:
    """The kernels of `task` by `schedule`; with `proven` such that a copy of a weight is not made again where it is known to be
    right still. What is folded is a sum over the weight, which costs no more than to look whether it has changed.

    Raises: Unsupported with the reason why there are none.
    """
    units = target.units
    kernels = folded_kernels(task, schedule, units) if schedule.fold else kernels_of(task, schedule, units, proven)
    body = "\n\n".join(kernel.source for kernel in kernels)
    source = "\n\n".join(part for part in (_HEADER, used_by(body), body) if part)
    buffers = tuple({buffer.name: buffer for kernel in kernels for buffer in kernel.buffers}.values())
    plan = LaunchPlan(buffers, tuple(kernel.launch for kernel in kernels), proof=PROOF.name if PROOF in buffers else "")
    return Candidate("triton", source, plan, to_text(schedule), schedule.scheme, AUTHOR)
