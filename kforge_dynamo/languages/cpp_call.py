"""The call path of a C++ kernel: everything that does not change between calls is laid out once.

A call fills one block of 64-bit integers (pointers, sizes, strides) and enters the library; ctypes releases the GIL there.
Blocks and scratch memory are taken from lists and put back (both atomic), so threads never share one while it is in use.
"""

from __future__ import annotations

import ctypes
import struct
from collections.abc import Callable, Sequence
from typing import Any

import torch

from kforge_dynamo.languages.base import Launcher, RawDims
from kforge_dynamo.records.candidate import Buffer, LaunchPlan
from kforge_dynamo.records.expression import compile_sizes
from kforge_dynamo.records.task import InputSpec, Task

_ALIGNMENT = 4096
_BYTES = {"float32": 4, "float64": 8, "float16": 2, "bfloat16": 2, "int64": 8, "int32": 4, "int8": 1, "uint8": 1, "bool": 1}
_spare: list[tuple[int, int, torch.Tensor]] = []
"""Scratch memory that no call is using: aligned address, bytes, and the tensor that owns it. Shared by all kernels."""


class _Block:
    """The integers of one call, and ctypes pointers to their parts."""

    def __init__(self, inputs: int, outputs: int, buffers: int, sizes: int, strides: Sequence[int]) -> None:
        counts = (inputs, outputs, buffers, sizes, len(strides))
        self.memory = (ctypes.c_int64 * max(1, sum(counts)))()
        base = ctypes.addressof(self.memory)
        starts = [8 * sum(counts[:i]) for i in range(5)]
        self.pointers = tuple(ctypes.c_void_p(base + start) for start in starts)
        for offset, stride in enumerate(strides):
            self.memory[starts[4] // 8 + offset] = stride
        self.sizes: tuple[int, ...] | None = None
        self.offsets: tuple[int, ...] = ()
        self.need = 0


def prepare(entry: Any, plan: LaunchPlan, task: Task, raw_dims: RawDims) -> Launcher:
    """A launcher for the C function `entry`. Raises: RecordError for a size expression that is none."""
    entry.argtypes = [ctypes.c_void_p] * 5 + [ctypes.c_int]
    entry.restype = None
    reads, writes, buffers, axes = len(task.inputs), len(task.outputs), len(plan.buffers), len(task.axes)
    fixed, read = _strides(task, raw_dims)
    layout = _layout(plan.buffers, task)
    zeroed = [i for i, buffer in enumerate(plan.buffers) if buffer.zeroed]
    pack_io = struct.Struct(f"={reads + writes}q").pack_into
    pack_sizes, sizes_at = struct.Struct(f"={axes}q").pack_into, 8 * (reads + writes + buffers)
    pack_buffers, buffers_at = struct.Struct(f"={buffers}q").pack_into, 8 * (reads + writes)
    strides_at = reads + writes + buffers + axes
    threads = torch.get_num_threads
    blocks: list[_Block] = []

    def launch(inputs: Sequence[torch.Tensor], outputs: Sequence[torch.Tensor], sizes: Sequence[int]) -> None:
        block = blocks.pop() if blocks else _Block(reads, writes, buffers, axes, fixed)
        memory = block.memory
        pack_io(memory, 0, *[x.data_ptr() for x in inputs], *[x.data_ptr() for x in outputs])
        for slot, index, dimension in read:
            memory[strides_at + slot] = inputs[index].stride(dimension)
        if block.sizes != sizes:
            block.sizes = tuple(sizes)
            pack_sizes(memory, sizes_at, *sizes)
            block.offsets, block.need = layout(*sizes)
        if not buffers:
            entry(*block.pointers, threads())
        else:
            scratch = _scratch(block.need)
            base = scratch[0]
            pack_buffers(memory, buffers_at, *[base + offset for offset in block.offsets])
            for index in zeroed:
                end = block.offsets[index + 1] if index + 1 < buffers else block.need
                ctypes.memset(base + block.offsets[index], 0, end - block.offsets[index])
            entry(*block.pointers, threads())
            _spare.append(scratch)
        blocks.append(block)

    return launch


def _scratch(need: int) -> tuple[int, int, torch.Tensor]:
    """Memory of at least `need` bytes that nobody else uses."""
    try:
        found = _spare.pop()
    except IndexError:
        found = None
    if found is not None and found[1] >= need:
        return found
    owner = torch.empty(need + _ALIGNMENT, dtype=torch.uint8)
    address = -(-owner.data_ptr() // _ALIGNMENT) * _ALIGNMENT
    return address, need, owner


def _layout(buffers: Sequence[Buffer], task: Task) -> Callable[..., tuple[tuple[int, ...], int]]:
    """A function of the sizes: each buffer's offset in bytes, and the bytes of all."""
    elements = compile_sizes([buffer.elements for buffer in buffers], task.axes)
    widths = [_BYTES[buffer.dtype] for buffer in buffers]

    def layout(*sizes: int) -> tuple[tuple[int, ...], int]:
        offsets, total = [], 0
        for count, width in zip(elements(*sizes), widths, strict=True):
            offsets.append(total)
            total += -(-count * width // 64) * 64
        return tuple(offsets), total

    return layout


def _strides(task: Task, raw_dims: RawDims) -> tuple[list[int], list[tuple[int, int, int]]]:
    """All strides as far as they are known, and (slot, input, dimension of its tensor) of those to read at each call."""
    fixed: list[int] = []
    read: list[tuple[int, int, int]] = []
    for index, (item, dims) in enumerate(zip(task.inputs, raw_dims, strict=True)):
        for position, dim in enumerate(dims):
            known = 0 if dim is None else _known(item, position)
            if known is None and dim is not None:
                read.append((len(fixed), index, dim))
            fixed.append(known or 0)
    return fixed, read


def _known(item: InputSpec, position: int) -> int | None:
    """The stride where its class alone tells it."""
    kind = item.strides[position]
    if isinstance(kind, int):
        return kind
    units = [d for d, other in enumerate(item.strides) if other == 1]
    others = [d for d, other in enumerate(item.strides) if other not in (0, 1)]
    if kind == "dense" and others == [position] and len(units) == 1:
        extent = item.value.shape[units[0]]
        return extent if isinstance(extent, int) else None
    return None
