"""Where tensors of a check lie: fresh memory, the strides of the spec, and guard zones on both sides."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch

from kforge_dynamo.records.task import InputSpec, Stride

_GUARD_BYTES = 4096
_ALIGN_BYTES = 512  # what torch's CUDA allocator gives; its CPU allocator gives 64
TIMED_PAD = 8  # elements of gap in a pitch when timing: rows stay aligned to 16 bytes
CANARY = 0xFF  # as a float of any width a NaN, so a kernel that reads beyond its input computes NaN
SECOND_CANARY = 0x7B  # as a float 1e36 (fp16: 6e4): what a second launch finds in its outputs


@dataclass(frozen=True, slots=True)
class Placed:
    """`tensor` is what the kernel gets, `memory` the whole block of bytes around it, `pristine` its content before the call."""

    tensor: torch.Tensor
    memory: torch.Tensor
    pristine: torch.Tensor

    def untouched(self) -> bool:
        """Whether no byte of the block has changed."""
        return torch.equal(self.memory, self.pristine)

    def data_untouched(self) -> bool:
        """Whether the tensor's own bytes are unchanged (guards and gaps aside)."""
        start = int(self.tensor.storage_offset()) * self.tensor.element_size()
        before = _viewed(self.pristine, self.tensor.dtype, self.tensor.shape, self.tensor.stride(), start)
        return torch.equal(_bits(before), _bits(self.tensor))


def _bits(tensor: torch.Tensor) -> torch.Tensor:
    widths = {1: torch.uint8, 2: torch.int16, 4: torch.int32, 8: torch.int64}
    return tensor.contiguous().view(widths[tensor.element_size()])


def same_bits(left: torch.Tensor, right: torch.Tensor) -> bool:
    """Whether two tensors of one shape and dtype agree bit for bit (NaN equals itself)."""
    return torch.equal(_bits(left), _bits(right))


def strides_of(item: InputSpec, shape: Sequence[int], pad: int) -> tuple[int, ...]:
    """Strides in elements of an input of `shape`: a "pitch" is the dense stride plus `pad`, at least one element."""
    strides = [0] * len(shape)
    order = sorted(range(len(shape)), key=lambda dim: (item.strides[dim] != 1, -dim))
    reach = 1  # elements that the dimensions so far span
    for dim in order:
        kind: Stride = item.strides[dim]
        if kind == 0:
            continue
        step = reach + max(pad, 1) if kind == "pitch" else reach
        strides[dim] = 1 if kind == 1 else step
        reach = strides[dim] * max(shape[dim], 1)
    return tuple(strides)


def place(values: torch.Tensor, item: InputSpec, shape: Sequence[int], pad: int) -> Placed:
    """A copy of `values` (drawn shape) as a tensor of `shape` with the strides of `item`, in fresh memory."""
    strides = strides_of(item, shape, pad)
    memory, start = _block(values.dtype, shape, strides, values.device)
    memory.fill_(CANARY)
    drawn = tuple(1 if stride == 0 else extent for extent, stride in zip(shape, strides, strict=True))
    _viewed(memory, values.dtype, drawn, strides, start).copy_(values.expand(drawn) if values.numel() else values.reshape(drawn))
    tensor = _viewed(memory, values.dtype, shape, strides, start)
    return Placed(tensor, memory, memory.clone())


def blank(dtype: torch.dtype, shape: Sequence[int], device: torch.device, canary: int) -> Placed:
    """A dense output of `shape` whose every byte, guards included, is `canary` (a bool's own bytes 1 or 0)."""
    strides = torch.empty(tuple(shape), device="meta").stride()
    memory, start = _block(dtype, shape, strides, device)
    memory.fill_(canary)
    tensor = _viewed(memory, dtype, shape, strides, start)
    if dtype is torch.bool:
        tensor.fill_(canary == CANARY)
    return Placed(tensor, memory, memory.clone())


def guards_intact(placed: Placed) -> bool:
    """Whether the bytes around a dense tensor are as they were."""
    size = placed.tensor.element_size()
    start = int(placed.tensor.storage_offset()) * size
    stop = start + placed.tensor.numel() * size
    head = torch.equal(placed.memory[:start], placed.pristine[:start])
    return head and torch.equal(placed.memory[stop:], placed.pristine[stop:])


def _block(dtype: torch.dtype, shape: Sequence[int], strides: Sequence[int], device: torch.device) -> tuple[torch.Tensor, int]:
    size = torch.empty((), dtype=dtype).element_size()
    span = 1 + sum((extent - 1) * stride for extent, stride in zip(shape, strides, strict=True)) if 0 not in shape else 0
    row_bytes = (shape[-1] if shape else 1) * size
    guard = -(-max(_GUARD_BYTES, min(row_bytes, 1 << 16)) // _ALIGN_BYTES) * _ALIGN_BYTES
    body = -(-span * size // 8) * 8
    memory = torch.empty(guard + _ALIGN_BYTES + body + guard, dtype=torch.uint8, device=device)
    start = guard + (-(memory.data_ptr() + guard)) % _ALIGN_BYTES
    return memory, start


def _viewed(memory: torch.Tensor, dtype: torch.dtype, shape: Sequence[int], strides: Sequence[int], start: int) -> torch.Tensor:
    size = torch.empty((), dtype=dtype).element_size()
    whole = memory[: memory.numel() // size * size].view(dtype)
    return whole.as_strided(tuple(shape), tuple(strides), start // size)
