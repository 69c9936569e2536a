"""A task and a schedule become a candidate: source of all kernels, and the plan that launches them."""

from __future__ import annotations

from dataclasses import replace

from kforge_dynamo.codegen.triton.columns import column_kernels
from kforge_dynamo.codegen.triton.copies import copies_of, split_kernel
from kforge_dynamo.codegen.triton.expressions import REGISTER
from kforge_dynamo.codegen.triton.forms import Unsupported
from kforge_dynamo.codegen.triton.kernel import Kernel
from kforge_dynamo.codegen.triton.prelude import used_by
from kforge_dynamo.codegen.triton.product import ProductKernel
from kforge_dynamo.codegen.triton.rows import row_kernels
from kforge_dynamo.codegen.triton.schedule import Schedule
from kforge_dynamo.codegen.triton.schemes import scheme_of
from kforge_dynamo.codegen.triton.stages import stages_of
from kforge_dynamo.codegen.triton.tiles import product_of
from kforge_dynamo.records.candidate import Candidate, LaunchPlan
from kforge_dynamo.records.codec import to_text
from kforge_dynamo.records.target import Target
from kforge_dynamo.records.task import Task

AUTHOR = "builtin-triton"
_HEADER = "import triton\nimport triton.language as tl\n"


def candidate(task: Task, schedule: Schedule, target: Target) -> Candidate:
    """The kernels of `task` by `schedule`. Raises: Unsupported with the reason why there are none."""
    kernels = _kernels(task, schedule, target.units)
    body = "\n\n".join(kernel.source for kernel in kernels)
    source = "\n\n".join(part for part in (_HEADER, used_by(body), body) if part)
    buffers = tuple({buffer.name: buffer for kernel in kernels for buffer in kernel.buffers}.values())
    plan = LaunchPlan(buffers, tuple(kernel.launch for kernel in kernels))
    return Candidate("triton", source, plan, to_text(schedule), schedule.scheme, AUTHOR)


def _kernels(task: Task, schedule: Schedule, units: int) -> list[Kernel]:
    for node in task.nodes:
        if node.out.dtype not in REGISTER:
            raise Unsupported(f"{node.op} gives {node.out.dtype}, which has no Triton form here")
    product = product_of(task)
    stages = stages_of(task, product, schedule)
    kernels = []
    if product is not None:
        kernels += [split_kernel(task, product, copy) for copy in copies_of(task, product, schedule)]
        kernels.append(ProductKernel(task, product, schedule, stages, units).kernel())
        if scheme_of(schedule.scheme).redone:
            # parts of K are cut at multiples of its block, so a split keeps it; else a smaller one compiles in half the time
            exact = replace(schedule, stages=2, block_k=schedule.block_k if schedule.split > 1 else 16)
            again = ProductKernel(task, product, exact, stages, units, exact=True).kernel()
            kernels.append(replace(again, buffers=()))
    kernels += column_kernels(task, product, schedule, stages)
    return [*kernels, *row_kernels(task, product, schedule, stages)]
