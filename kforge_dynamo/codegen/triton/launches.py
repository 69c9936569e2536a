"""The kernels of a task by a schedule, in the order of their launches."""

from __future__ import annotations

from dataclasses import replace

from kforge_dynamo.codegen.triton.columns import column_kernels
from kforge_dynamo.codegen.triton.copies import copies_of, scaled_by_sample, split_kernel
from kforge_dynamo.codegen.triton.expressions import REGISTER
from kforge_dynamo.codegen.triton.forms import Unsupported
from kforge_dynamo.codegen.triton.kernel import Kernel
from kforge_dynamo.codegen.triton.product import ProductKernel
from kforge_dynamo.codegen.triton.rows import row_kernels
from kforge_dynamo.codegen.triton.samples import sample_kernel
from kforge_dynamo.codegen.triton.schedule import Schedule
from kforge_dynamo.codegen.triton.schemes import scheme_of
from kforge_dynamo.codegen.triton.stages import stages_of
from kforge_dynamo.codegen.triton.tiles import product_of
from kforge_dynamo.records.task import Task


def kernels_of(task: Task, schedule: Schedule, units: int, proven: bool = False) -> list[Kernel]:
    """All of them, for a device of `units` multiprocessors; `proven`: a copy of a weight is made only where that is not known to
    be needless. Raises: Unsupported."""
    for node in task.nodes:
        if node.out.dtype not in REGISTER:
            raise Unsupported(f"{node.op} gives {node.out.dtype}, which has no Triton form here")
    product = product_of(task)
    stages = stages_of(task, product, schedule)
    kernels = []
    if product is not None:
        watching = units if proven and not task.value(product.rhs).varies_by_row else 0
        kernels += [
            split_kernel(task, product, copy, watching if copy.side == "right" else 0)
            for copy in copies_of(task, product, schedule)
        ]
        kernels += [sample_kernel(task, product, copy) for copy in scaled_by_sample(task, product, schedule)]
        kernels.append(ProductKernel(task, product, schedule, stages, units).kernel())
        if scheme_of(schedule.scheme).redone:
            # parts of K are cut at multiples of its block, so a split keeps it; else a smaller one compiles in half the time
            exact = replace(schedule, stages=2, block_k=schedule.block_k if schedule.split > 1 else 16)
            again = ProductKernel(task, product, exact, stages, units, exact=True).kernel()
            kernels.append(replace(again, buffers=()))
    kernels += column_kernels(task, product, schedule, stages)
    return [*kernels, *row_kernels(task, product, schedule, stages)]


def kernels_of_lost_rows(task: Task, schedule: Schedule, units: int) -> list[Kernel]:
    """Kernels that write the outputs of those rows alone that the buffer `lost` marks, by `ieee` products.

    Raises: Unsupported.
    """
    product = product_of(task)
    stages = stages_of(task, product, schedule)
    if product is None or stages.column_partials or stages.column_outputs or schedule.split > 1:
        raise Unsupported("rows are done again alone only where they do not depend on each other")
    again = ProductKernel(task, product, schedule, stages, units, exact=True, lost=True).kernel()
    return [again, *row_kernels(task, product, schedule, stages, lost=True)]
