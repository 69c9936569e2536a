"""Run as a program: every input and output ends where the next page is forbidden, then starts where the one before is."""

from __future__ import annotations

import ctypes
import mmap
from collections.abc import Sequence

import torch

from kforge_dynamo.codegen.cpp import Schedule
from kforge_dynamo.records.task import Task
from kforge_dynamo.semantics.evaluate import dtype_of, shape_of
from tests.codegen.cpp.building import Building
from tests.codegen.cpp.running import judge, launcher
from tests.codegen.cpp.test_columns import batch_norm
from tests.codegen.cpp.test_epilogues import gelu, group_norm, softmax

PAGE = mmap.PAGESIZE
SEED = 20261130
LIBC = ctypes.CDLL(None, use_errno=True)
SCHEDULES = (
    Schedule("own", 24, 0, "columns", 8, 2, 64),
    Schedule("own", 24, 48, "columns", 8, 3, 64, fresh=True),
    Schedule("own", 40, 0, "rows", 6, 2, 64),
    Schedule("own", 40, 48, "rows", 6, 1, 64),
    Schedule("dot", 12, 24, "", 4),
    Schedule("library", 24),
)
kept: list[mmap.mmap] = []


def fenced(shape: Sequence[int], strides: Sequence[int], dtype: torch.dtype, at_end: bool) -> torch.Tensor:
    """A tensor whose last (or first) byte touches a page that may not be read or written."""
    reach = 1 + sum((extent - 1) * stride for extent, stride in zip(shape, strides, strict=True))
    size = reach * dtype.itemsize
    pages = -(-size // PAGE)
    memory = mmap.mmap(-1, (pages + 2) * PAGE)
    kept.append(memory)
    address = ctypes.addressof(ctypes.c_char.from_buffer(memory))
    for start in (address, address + (pages + 1) * PAGE):
        assert LIBC.mprotect(ctypes.c_void_p(start), PAGE, 0) == 0
    offset = PAGE + (pages * PAGE - size if at_end else 0)
    return torch.frombuffer(memory, dtype=dtype, count=reach, offset=offset).as_strided(shape, strides)


def tasks() -> list[tuple[Task, str]]:
    found = []
    for dtype, weight in (("float32", "nk"), ("float32", "kn"), ("bfloat16", "nk"), ("bfloat16", "kn")):
        b = Building()
        mask, row = b.input((37,), dtype="bool"), b.input((1,))
        x = b.linear(45, 37, dtype=dtype, weight=weight)
        x = b.op("convert", x, dtype="float32") if dtype != "float32" else x
        y = b.op("where", mask, softmax(b, gelu(b, x)), row)
        found.append((b.task(y, b.reduce("argmax", x, (0,)), b.op("convert", y, dtype="float16")), weight))
    b = Building()
    x = b.linear(45, 36)
    found.append((b.task(group_norm(b, batch_norm(b, x)[0], 6), b.reshape(b.slice(x, 0, 1, 36, 5), 7)), "nk"))
    return found


def main() -> None:
    torch.set_num_threads(2)
    torch.manual_seed(SEED)
    for task, weight in tasks():
        for schedule in SCHEDULES:
            if schedule.product == "dot" and weight == "kn":
                continue
            launch = launcher(task, schedule)
            for m in (1, 29):
                for at_end in (True, False):
                    run(task, launch, m, at_end)


def run(task: Task, launch, m: int, at_end: bool) -> None:
    sizes = {"m": m}
    inputs = []
    for item in task.inputs:
        shape = [int(extent) for extent in shape_of(item.value.shape, sizes)]
        strides = torch.empty(shape).stride()
        if item.role.value == "rhs" and item.strides[-1] != 1:
            strides = (shape[1] * shape[2], 1, shape[1])
        tensor = fenced(shape, strides, dtype_of(item.value.dtype), at_end)
        values = torch.randn(shape) / (shape[1] ** 0.5 if item.role.value == "rhs" else 1.0)
        tensor.copy_(values > 0.5 if tensor.dtype == torch.bool else values)
        inputs.append(tensor)
    outputs = []
    for number in task.outputs:
        shape = [int(extent) for extent in shape_of(task.value(number).shape, sizes)]
        outputs.append(fenced(shape, torch.empty(shape).stride(), dtype_of(task.value(number).dtype), at_end))
    launch(inputs, outputs, (m,))
    # eager rounds a half-precision product before the rest of the epilogue looks at it
    half = any(item.value.dtype == "bfloat16" for item in task.inputs)
    judge(task, sizes, inputs, outputs, share=0.85 if half else 0.99, room=16.0 if m == 1 else 1.0)


if __name__ == "__main__":
    main()
