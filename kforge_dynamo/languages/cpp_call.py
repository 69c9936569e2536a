"""The call path of a C++ kernel: everything that does not change between calls is laid out once.

A call fills one block of 64-bit integers (pointers, threads, sizes, strides) and enters the library; ctypes releases the GIL
there. Blocks and scratch memory are taken from lists and put back (both atomic), so threads never share one that is in use.
"""

from __future__ import annotations

import ctypes
import struct
from collections.abc import Callable, Sequence
from dataclasses import replace

import torch

from kforge_dynamo.errors import RecordError
from kforge_dynamo.languages.base import Bound, Prepared, RawDims
from kforge_dynamo.records.candidate import Buffer, LaunchPlan
from kforge_dynamo.records.expression import compile_sizes
from kforge_dynamo.records.prepack import fault, halves
from kforge_dynamo.records.task import InputSpec, Task

ENTRY = "kforge_entry"
"""The function that a C++ candidate defines; its arguments are in order inputs, outputs, buffers, sizes, strides, threads."""
PACK = "kforge_pack"
"""A second one, with the same arguments, where weights are prepared ahead of it."""
_ALIGNMENT = 4096
_KEPT_BYTES = 1 << 18
"""A kernel's scratch up to this size stays with its block; larger scratch is shared by all kernels."""
_BYTES = {"float32": 4, "float64": 8, "float16": 2, "bfloat16": 2, "int64": 8, "int32": 4, "int8": 1, "uint8": 1, "bool": 1}


class _Scratch:
    """Memory at `address`, aligned to a page, of `size` bytes."""

    __slots__ = ("address", "owner", "size")

    def __init__(self, size: int) -> None:
        self.owner = torch.empty(size + _ALIGNMENT, dtype=torch.uint8)
        self.address = -(-self.owner.data_ptr() // _ALIGNMENT) * _ALIGNMENT
        self.size = size


_spare: list[_Scratch] = []
"""Large scratch that no call is using."""


class _Block:
    """The integers of one call: inputs, outputs, threads, buffers, sizes, strides; and what the last call left in them."""

    __slots__ = ("arguments", "memory", "need", "offsets", "scratch", "sizes")

    def __init__(self, counts: Sequence[int], strides: Sequence[int]) -> None:
        reads, writes, buffers, axes = counts
        self.memory = (ctypes.c_int64 * (reads + writes + 1 + buffers + axes + max(1, len(strides))))()
        base = ctypes.addressof(self.memory)
        starts = (0, reads, reads + writes + 1, reads + writes + 1 + buffers, reads + writes + 1 + buffers + axes)
        self.arguments = tuple(ctypes.c_void_p(base + 8 * start) for start in starts)
        self.memory[starts[4] : starts[4] + len(strides)] = list(strides)
        self.sizes: tuple[int, ...] | None = None
        self.offsets: tuple[int, ...] = ()
        self.need = 0
        self.scratch: _Scratch | None = None


def check_entry(plan: LaunchPlan) -> None:
    """Raises: RecordError where a plan is not one launch of the one entry, behind one that prepares weights if there is any."""
    if [launch.kernel for launch in plan.launches] != [PACK] * bool(plan.prepack) + [ENTRY]:
        found = [launch.kernel for launch in plan.launches]
        raise RecordError(f"a C++ plan launches {ENTRY} once, this one launches {found[:3] or 'nothing'}")


def prepare(library: ctypes.CDLL, plan: LaunchPlan, task: Task, raw_dims: RawDims) -> CppLauncher:
    """A launcher for the library's `kforge_entry`. Raises: RecordError for a size expression that is none, AttributeError."""
    return CppLauncher(library, plan, task, raw_dims)


class CppLauncher:
    """See `languages.base.Launcher` and `Bindable`. Threads may call it at once."""

    def __init__(self, library: ctypes.CDLL, plan: LaunchPlan, task: Task, raw_dims: RawDims) -> None:
        self._whole = (library, plan, task, raw_dims)
        self._counts = (len(task.inputs), len(task.outputs), len(plan.buffers), len(task.axes))
        self._fixed, read = _strides(task, raw_dims)
        self._read = [(sum(self._counts) + 1 + slot, index, dimension) for slot, index, dimension in read]
        self._pack = struct.Struct(f"={self._counts[0] + self._counts[1] + 1}q").pack_into
        self._settle = _settle(plan, task, self._counts)
        self._enter = _enter(library, self._counts, bool(plan.prepack))
        self._fill = _fill(plan, self._counts)
        self._scratched, self._zeroed = bool(plan.buffers), any(buffer.zeroed for buffer in plan.buffers)
        self._blocks: list[_Block] = []

    def __call__(self, inputs: Sequence[torch.Tensor], outputs: Sequence[torch.Tensor], sizes: Sequence[int]) -> None:
        """Strides and sizes are read anew."""
        block = _spared(self._blocks) or _Block(self._counts, self._fixed)
        memory = block.memory
        pointers = [tensor.data_ptr() for tensor in (*inputs, *outputs)]
        self._pack(memory, 0, *pointers, torch.get_num_threads())
        for slot, index, dimension in self._read:
            memory[slot] = inputs[index].stride(dimension)
        if block.sizes != (now := tuple(sizes)):
            self._settle(block, now)
        if not self._scratched or (block.scratch is not None and not self._zeroed):
            self._enter(block.arguments)
        else:
            self._fill(block, self._enter)
        self._blocks.append(block)

    def bind(self, sizes: Sequence[int], strides: Sequence[Sequence[int]], device: torch.device) -> Bound:
        """All but the pointers, the number of threads and shared scratch is laid out."""
        del device

        def made() -> _Block:
            return self._made(sizes, strides)

        blocks, pack, enter, threads = [made()], self._pack, self._enter, torch.get_num_threads
        put = blocks.append
        if self._scratched and (blocks[0].scratch is None or self._zeroed):
            fill = self._fill

            def bound_with_scratch(*tensors: torch.Tensor) -> bool:
                block = _spared(blocks) or made()
                pack(block.memory, 0, *[tensor.data_ptr() for tensor in tensors], threads())
                fill(block, enter)
                put(block)
                return True

            return bound_with_scratch

        def bound(*tensors: torch.Tensor) -> bool:
            block = _spared(blocks) or made()
            pack(block.memory, 0, *[tensor.data_ptr() for tensor in tensors], threads())
            enter(block.arguments)
            put(block)
            return True

        return bound

    def _made(self, sizes: Sequence[int], strides: Sequence[Sequence[int]]) -> _Block:
        block = _Block(self._counts, self._fixed)
        for slot, index, dimension in self._read:
            block.memory[slot] = strides[index][dimension]
        self._settle(block, tuple(sizes))
        return block

    def prepared(self) -> Prepared | None:
        """See `languages.base.Preparing`."""
        library, plan, task, raw_dims = self._whole
        found = halves(plan, len(task.outputs))
        if found is None or fault(plan, task) is not None:
            return None
        kept = [buffer.name for buffer in found.kept]
        pack = CppHalf(library, _scratch_of(plan, found.pack), task, raw_dims, PACK, kept, plan.packed_inputs)
        rest = CppHalf(library, _scratch_of(plan, found.rest), task, raw_dims, ENTRY, kept, range(len(task.inputs)))
        return Prepared(pack, rest, found.kept, plan.packed_inputs)


class CppHalf(CppLauncher):
    """One function of a library that has two. Behind its outputs it is passed the buffers `kept`; the one that prepares weights
    is passed nothing else, and of the inputs those `seen` alone."""

    def __init__(
        self,
        library: ctypes.CDLL,
        plan: LaunchPlan,
        task: Task,
        raw_dims: RawDims,
        function: str,
        kept: Sequence[str],
        seen: Sequence[int],
    ) -> None:
        super().__init__(library, plan, task, raw_dims)
        self._function = getattr(library, function)
        self._function.argtypes, self._function.restype = [ctypes.c_void_p] * 5 + [ctypes.c_int], None
        reads, writes, _, _ = self._counts
        names = [buffer.name for buffer in plan.buffers]
        self._slots = [reads + writes + 1 + names.index(name) for name in kept]
        self._unseen = [number for number in range(reads) if number not in seen]
        self._absent = (0,) * writes if function == PACK else ()
        self._own = reads + writes - len(self._absent)

    def __call__(self, inputs: Sequence[torch.Tensor], outputs: Sequence[torch.Tensor], sizes: Sequence[int]) -> None:
        """Strides and sizes are read anew."""
        self._start(self._made(sizes, [tensor.stride() for tensor in inputs]), (*inputs, *outputs))

    def bind(self, sizes: Sequence[int], strides: Sequence[Sequence[int]], device: torch.device) -> Bound:
        """All but the pointers, the number of threads and shared scratch is laid out."""
        del device
        blocks = [self._made(sizes, strides)]

        def bound(*tensors: torch.Tensor) -> bool:
            block = _spared(blocks) or self._made(sizes, strides)
            self._start(block, tensors)
            blocks.append(block)
            return True

        return bound

    def prepared(self) -> None:
        """A half has no halves."""

    def _start(self, block: _Block, tensors: Sequence[torch.Tensor]) -> None:
        pointers = [tensor.data_ptr() for tensor in tensors]
        for number in self._unseen:
            pointers[number] = 0
        threads = torch.get_num_threads()
        self._pack(block.memory, 0, *pointers[: self._own], *self._absent, threads)

        def enter(arguments: tuple[ctypes.c_void_p, ...]) -> None:
            for slot, pointer in zip(self._slots, pointers[self._own :], strict=True):
                block.memory[slot] = pointer
            self._function(*arguments, threads)

        if block.scratch is not None and not self._zeroed:
            enter(block.arguments)
        else:
            self._fill(block, enter)


def _scratch_of(plan: LaunchPlan, half: LaunchPlan) -> LaunchPlan:
    """`plan` with memory for the buffers that the half alone uses."""
    own = {buffer.name for buffer in half.buffers}
    buffers = (buffer if buffer.name in own else replace(buffer, elements="0", zeroed=False) for buffer in plan.buffers)
    return replace(plan, buffers=tuple(buffers))


def _spared(blocks: list[_Block]) -> _Block | None:
    """A block that no call is using. Another thread may take the last one at any moment."""
    try:
        return blocks.pop()
    except IndexError:
        return None


def _enter(library: ctypes.CDLL, counts: Sequence[int], packs: bool) -> Callable[[tuple[ctypes.c_void_p, ...]], object]:
    """Enters the library by its `kforge_call`, which unpacks the block itself, or else by its entry."""
    entries = [library.kforge_pack, library.kforge_entry] if packs else [library.kforge_entry]
    for entry in entries:
        entry.argtypes, entry.restype = [ctypes.c_void_p] * 5 + [ctypes.c_int], None
    at = counts[0] + counts[1]
    try:
        call = library.kforge_call
    except AttributeError:

        def enter(arguments: tuple[ctypes.c_void_p, ...]) -> None:
            threads = ctypes.c_int64.from_address((arguments[0].value or 0) + 8 * at).value
            for entry in entries:
                entry(*arguments, threads)

        return enter
    call.restype = None  # with no argument types given, ctypes passes the pointer object as it is
    return lambda arguments: call(arguments[0])


def _settle(plan: LaunchPlan, task: Task, counts: Sequence[int]) -> Callable[[_Block, tuple[int, ...]], None]:
    """Writes new sizes into a block, and lays the buffers out for them."""
    layout = _layout(plan.buffers, task)
    reads, writes, buffers, _ = counts
    at = reads + writes + 1 + buffers

    def settle(block: _Block, sizes: tuple[int, ...]) -> None:
        block.memory[at : at + len(sizes)] = list(sizes)
        block.offsets, block.need = layout(*sizes)
        block.scratch = None
        if buffers and block.need <= _KEPT_BYTES:
            block.scratch = _Scratch(block.need)
            _point(block, block.scratch, at - buffers)
        block.sizes = sizes

    return settle


def _point(block: _Block, scratch: _Scratch, at: int) -> None:
    for slot, offset in enumerate(block.offsets, at):
        block.memory[slot] = scratch.address + offset


def _fill(plan: LaunchPlan, counts: Sequence[int]) -> Callable[[_Block, Callable[[tuple[ctypes.c_void_p, ...]], object]], None]:
    """Runs a block whose scratch is shared or has to be zeroed first."""
    at = counts[0] + counts[1] + 1
    zeroed = [index for index, buffer in enumerate(plan.buffers) if buffer.zeroed]

    def fill(block: _Block, enter: Callable[[tuple[ctypes.c_void_p, ...]], object]) -> None:
        scratch = block.scratch
        if scratch is None:
            scratch = _taken(block.need)
            _point(block, scratch, at)
        for index in zeroed:
            end = (*block.offsets, block.need)[index + 1]
            ctypes.memset(scratch.address + block.offsets[index], 0, end - block.offsets[index])
        enter(block.arguments)
        if scratch is not block.scratch:
            _spare.append(scratch)

    return fill


def _taken(need: int) -> _Scratch:
    """Memory of at least `need` bytes that nobody else uses."""
    try:
        found = _spare.pop()
    except IndexError:
        return _Scratch(need)
    return found if found.size >= need else _Scratch(need)


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
