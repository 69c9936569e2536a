"""Does a check fit into memory? Asked before anything is allocated."""

from __future__ import annotations

import math
from collections.abc import Sequence
from pathlib import Path

import torch

from kforge_dynamo.records.candidate import LaunchPlan
from kforge_dynamo.records.expression import compile_sizes
from kforge_dynamo.records.task import Task
from kforge_dynamo.sandbox.bench import CACHE_BYTES
from kforge_dynamo.sandbox.dissect import row_local
from kforge_dynamo.sandbox.rows import BLOCK_BYTES, MOST_ELEMENTS, is_sampled, value_bytes
from kforge_dynamo.semantics.evaluate import dtype_of, shape_of

_MEMINFO = Path("/proc/meminfo")


def region_bytes(task: Task, sizes: Sequence[int]) -> int:
    """Bytes of the region's inputs and outputs."""
    axes = dict(zip(task.axes, sizes, strict=True))
    numbers = (*range(len(task.inputs)), *task.outputs)
    return sum(_bytes(task, number, axes) for number in numbers)


def input_bytes(task: Task, sizes: Sequence[int], numbers: Sequence[int]) -> int:
    """Bytes of these inputs."""
    axes = dict(zip(task.axes, sizes, strict=True))
    return sum(_bytes(task, number, axes) for number in numbers)


def needed_bytes(task: Task, sizes: Sequence[int]) -> int:
    """What checking needs at most at one time.

    Three copies of inputs and outputs (guarded, pristine, the second launch), and in fp64 the oracle, the error and the
    draws of e0 (sampled rows only where the product is large), beside blocks of intermediate values.
    """
    axes = dict(zip(task.axes, sizes, strict=True))
    outputs = sum(math.prod(int(extent) for extent in shape_of(task.value(number).shape, axes)) for number in task.outputs)
    values = value_bytes(task, axes, 8)
    wide = values + 8 * 6 * outputs
    if row_local(task):
        sampled = is_sampled(task, sizes, MOST_ELEMENTS)
        wide = BLOCK_BYTES + (0 if sampled else 8 * 6 * outputs + _widest_product(task, axes) * 16)
    return 3 * region_bytes(task, sizes) + min(wide, values + 8 * 6 * outputs) + CACHE_BYTES // 4


def scratch_bytes(plan: LaunchPlan, task: Task, sizes: Sequence[int]) -> int:
    """Bytes of the scratch memory of one call: split copies of operands are as large as the operands themselves."""
    elements = compile_sizes([buffer.elements for buffer in plan.buffers], task.axes)(*sizes)
    return sum(count * dtype_of(buffer.dtype).itemsize for buffer, count in zip(plan.buffers, elements, strict=True))


def shortage(task: Task, sizes: Sequence[int], device: torch.device, cap_bytes: int | None, scratch: int = 0) -> str | None:
    """Why the check is not even tried, in one sentence with its numbers; None when it fits, beside a call's `scratch` bytes."""
    needed, free = needed_bytes(task, sizes) + scratch, free_bytes(device)
    if cap_bytes is not None:
        free = cap_bytes if free is None else min(free, cap_bytes)
    if free is None or needed <= free:
        return None
    words = f"{needed >> 20} MiB of {device.type} memory, {free >> 20} MiB are free"
    if scratch:
        words += f" ({scratch >> 20} MiB is the kernel's scratch memory)"
    return f"not searched (memory): checking at sizes {tuple(sizes)} needs {words}"


def free_bytes(device: torch.device) -> int | None:
    """Free memory of the device, None where the system does not say."""
    if device.type == "cuda":
        return int(torch.cuda.mem_get_info(device)[0])
    try:
        lines = _MEMINFO.read_text().splitlines()
    except OSError:
        return None
    found = next((line.split()[1] for line in lines if line.startswith("MemAvailable:")), None)
    return None if found is None else int(found) << 10


def _bytes(task: Task, number: int, axes: dict[str, int]) -> int:
    spec = task.value(number)
    size = torch.empty((), dtype=dtype_of(spec.dtype)).element_size()
    return size * math.prod(int(extent) for extent in shape_of(spec.shape, axes))


def _widest_product(task: Task, axes: dict[str, int]) -> int:
    return max((math.prod(int(e) for e in shape_of(node.out.shape, axes)) for node in task.nodes if node.op == "gemm"), default=0)
