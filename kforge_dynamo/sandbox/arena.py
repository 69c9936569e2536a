"""Memory that the judge and a runner share, and tensors in it. The judge copies in and out: no tensor of its own lies here.

A tensor travels with the whole block of memory around it, so guards and gaps are what the kernel sees, and what it did to them
comes back. Blocks keep their alignment to 512 bytes.
"""

from __future__ import annotations

import fcntl
import mmap
import os
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TypedDict

import torch

_ALIGN_BYTES = 512
_LEAST_BYTES = 1 << 20


class Where(TypedDict):
    """A tensor in the arena: its block from `block` on, `bytes` long, and the tensor `start` bytes into it."""

    block: int
    bytes: int
    start: int
    dtype: str
    shape: list[int]
    strides: list[int]


@dataclass(frozen=True, slots=True)
class Loan:
    """A block that was copied in, and where it lies."""

    block: torch.Tensor
    offset: int


class Arena:
    """Bytes behind one descriptor, mapped by whoever has it. `grow` only ever makes it larger."""

    def __init__(self, descriptor: int) -> None:
        self.descriptor = descriptor
        self._whole = torch.empty(0, dtype=torch.uint8)

    @classmethod
    def fresh(cls) -> Arena:
        """A new one; sealed, so that the other side cannot shrink it under a reader. Raises: OSError."""
        descriptor = os.memfd_create("kforge", os.MFD_CLOEXEC | os.MFD_ALLOW_SEALING)
        found = cls(descriptor)
        found.grow(_LEAST_BYTES)
        fcntl.fcntl(descriptor, fcntl.F_ADD_SEALS, fcntl.F_SEAL_SHRINK)
        return found

    def grow(self, size: int) -> None:
        """At least `size` bytes from now on."""
        if size > os.fstat(self.descriptor).st_size:
            os.ftruncate(self.descriptor, -(-size // mmap.PAGESIZE) * mmap.PAGESIZE)

    def bytes(self, size: int) -> torch.Tensor:
        """At least the first `size` bytes as a tensor."""
        if self._whole.numel() < size:
            self._whole = torch.empty(0, dtype=torch.uint8)
            length = os.fstat(self.descriptor).st_size
            self._whole = torch.frombuffer(mmap.mmap(self.descriptor, length), dtype=torch.uint8)
        return self._whole

    def close(self) -> None:
        """Gives the descriptor back; the mapping goes with its last tensor."""
        self._whole = torch.empty(0, dtype=torch.uint8)
        os.close(self.descriptor)


def block_of(tensor: torch.Tensor) -> torch.Tensor:
    """The whole memory behind a tensor, as bytes."""
    return torch.empty(0, dtype=torch.uint8).set_(tensor.untyped_storage())


def lay_out(tensors: Sequence[torch.Tensor], first: int) -> tuple[list[Where], list[Loan], int]:
    """Where each tensor goes from byte `first` on, the blocks to copy (each once), and the byte after the last."""
    loans: dict[int, Loan] = {}
    places: list[Where] = []
    for tensor in tensors:
        block = block_of(tensor)
        address = block.data_ptr()
        if address not in loans:
            offset = first + (address - first) % _ALIGN_BYTES
            loans[address] = Loan(block, offset)
            first = offset + block.numel()
        places.append(
            Where(
                block=loans[address].offset,
                bytes=block.numel(),
                start=int(tensor.storage_offset()) * tensor.element_size(),
                dtype=str(tensor.dtype).removeprefix("torch."),
                shape=list(tensor.shape),
                strides=list(tensor.stride()),
            )
        )
    return places, list(loans.values()), first


def tensor_at(whole: torch.Tensor, where: Where) -> torch.Tensor:
    """The tensor that lies there."""
    dtype = getattr(torch, where["dtype"])
    size = torch.empty((), dtype=dtype).element_size()
    block = whole[where["block"] + where["start"] : where["block"] + where["bytes"]]
    return block[: block.numel() // size * size].view(dtype).as_strided(where["shape"], where["strides"])


def private_copy(whole: torch.Tensor, where: Where) -> torch.Tensor:
    """The tensor that lies there, in memory of this process of the same alignment."""
    memory = torch.empty(where["bytes"] + _ALIGN_BYTES, dtype=torch.uint8)
    first = (where["block"] - memory.data_ptr()) % _ALIGN_BYTES
    memory[first : first + where["bytes"]].copy_(whole[where["block"] : where["block"] + where["bytes"]])
    return tensor_at(memory, Where({**where, "block": first}))
