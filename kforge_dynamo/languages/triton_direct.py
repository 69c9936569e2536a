"""A plan's launches for one set of sizes and strides as one straight-line function that calls Triton's C launcher.

What `CompiledKernel.run` does in Python at every launch is done here once: metadata is read, the grid, integers, constants and
the launcher are constants of a function that is written for the plan, and each tensor descriptor is encoded once an address.
What is left to a call are the pointers, one allocation where the plan has buffers, and one C call a launch.

Private API of Triton, read in 3.6.0 and 3.7.1, in this file only (`unsupported` names what is not as expected, and the plan
then goes through `CompiledKernel.run`): that `run` is a `backends.nvidia.driver.CudaLauncher`, whose `launch` in 3.6 takes
`(x, y, z, stream, function, cooperative, pdl, global_scratch, profile_scratch, metadata, launch_metadata, enter, exit, *args)`
and in 3.7 `(x, y, z, stream, function, cooperative, pdl, metadata, launch_metadata, enter, exit, global_scratch,
profile_scratch, arg_annotations, kernel_signature, args)`. Around a kernel with descriptors it is a closure over `launcher`,
`tensordesc_indices` and `tensordesc_meta`, which replaces each descriptor by `make_tensordesc_arg(descriptor, meta)`.

Private torch API, read in torch 2.11.0, 2.13.0 and 2.14.1: `torch._C._cuda_getDevice`, which Triton's driver calls as well.
"""

from __future__ import annotations

import importlib
import inspect
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch

from kforge_dynamo.languages.allocation import Allocate, allocator
from kforge_dynamo.languages.base import Bound

ALIGNMENT_BYTES = 16
"""Triton specialises pointers on multiples of this. Source: triton/runtime/jit.py, 3.6 and 3.7."""
_KNOWN = ("3.6.", "3.7.")
_MOST_DESCRIPTORS = 256
"""Addresses a descriptor is remembered for; the allocator hands the same ones out again and again."""


@dataclass(frozen=True, slots=True)
class Described:
    """A two-dimensional view at pointer `number`: rows, columns and pitch in elements, and the block."""

    number: int
    rows: int
    columns: int
    pitch: int
    block: tuple[int, int]


@dataclass(frozen=True, slots=True)
class Pointer:
    """A pointer by its number: inputs, then outputs, then buffers."""

    number: int


Argument = int | Described | Pointer
"""What a kernel is passed at a place."""


@dataclass(frozen=True, slots=True)
class Started:
    """One launch: the compiled kernel, its grid, its arguments in order, and the values of its compile-time parameters."""

    kernel: Any
    grid: tuple[int, int, int]
    arguments: tuple[Argument, ...]
    tail: tuple[Any, ...]


@dataclass(frozen=True, slots=True)
class Slab:
    """Scratch of one call: `total` bytes, of which the first `zeroed` are set to zero; `offsets` in bytes of the buffers, which
    are the pointers behind inputs and outputs."""

    total: int
    offsets: tuple[int, ...]
    zeroed: int


@dataclass(frozen=True, slots=True)
class Host:
    """What a call needs of the device: its index, the index of the current one, its stream, and memory."""

    device: int
    current: Callable[[], int]
    stream: Callable[[int], int]
    allocate: Allocate

    @classmethod
    def of(cls, device: int, stream: Callable[[int], int]) -> Host:
        """The CUDA device with this index."""
        return cls(device, torch._C._cuda_getDevice, stream, allocator(torch.device("cuda", device)))


def unsupported(kernel: Any) -> str | None:
    """Why a compiled kernel cannot be started by this file; None when it can."""
    version = str(importlib.import_module("triton").__version__)
    if not version.startswith(_KNOWN):
        return f"Triton {version} is none of {', '.join(_KNOWN)}"
    run = kernel.run
    if type(run).__module__ != "triton.backends.nvidia.driver" or type(run).__name__ != "CudaLauncher":
        return f"its launcher is {type(run).__name__}"
    if run.global_scratch_size or run.profile_scratch_size:
        return "it needs scratch memory of Triton's"
    return None


class _Descriptors:
    """The expanded arguments of one descriptor, by address."""

    def __init__(self, view: Described, encode: Callable[[int, Described], tuple[Any, ...]]) -> None:
        self._view, self._encode = view, encode
        self._made: dict[int, tuple[Any, ...]] = {}
        self.at = self._made.get

    def make(self, pointer: int) -> tuple[Any, ...]:
        """Encodes it for an address that is new."""
        if len(self._made) >= _MOST_DESCRIPTORS:
            self._made.clear()
        self._made[pointer] = made = self._encode(pointer, self._view)
        return made


@dataclass(slots=True)
class _Text:
    """The function being written: its lines, and the objects that its names stand for."""

    lines: list[str] = field(default_factory=list)
    names: dict[str, Any] = field(default_factory=dict)

    def name(self, value: Any) -> str:
        """A name for an object."""
        made = f"v{len(self.names)}"
        self.names[made] = value
        return made

    def function(self, tensors: int) -> Bound:
        """The function of that many tensors. Its text holds names made here, integers, and nothing from outside."""
        arguments = ", ".join(f"t{number}" for number in range(tensors))
        text = "\n    ".join([f"def bound({arguments}):", *self.lines, "return True\n"])
        exec(compile(text, "<kforge launches>", "exec"), self.names)
        made: Bound = self.names["bound"]
        return made


def bind(started: Sequence[Started], slab: Slab, tensors: int, host: Host) -> Bound:
    """The function that starts all of `started`, for `tensors` inputs and outputs."""
    text = _Text()
    pointers = [f"p{number}" for number in range(tensors)]
    text.lines += [f"p{number} = t{number}.data_ptr()" for number in range(tensors)]
    text.lines.append(f"if ({' | '.join(pointers)}) % {ALIGNMENT_BYTES} or {text.name(host.current)}() != {host.device}:")
    text.lines.append("    return False")
    if slab.total:
        memory = f"{text.name(host.allocate)}(({slab.total},), (1,), {text.name(torch.uint8)})"
        text.lines += [f"slab = {memory}", "start = slab.data_ptr()"]
        if slab.zeroed:
            text.lines.append("slab.zero_()" if slab.zeroed == slab.total else f"slab[:{slab.zeroed}].zero_()")
        for offset in slab.offsets:
            text.lines.append(f"p{len(pointers)} = start + {offset}")
            pointers.append(f"p{len(pointers)}")
    text.lines.append(f"stream = {text.name(host.stream)}({host.device})")
    for item in started:
        _write_launch(text, item)
    return text.function(tensors)


def _write_launch(text: _Text, item: Started) -> None:
    launcher = item.kernel.run
    raw, encoders = _opened(launcher.launch)
    arguments = []
    for place, argument in enumerate(item.arguments):
        if isinstance(argument, Described):
            made = _Descriptors(argument, encoders[place])
            local, pointer = f"d{len(text.lines)}", f"p{argument.number}"
            text.lines.append(f"{local} = {text.name(made.at)}({pointer}) or {text.name(made.make)}({pointer})")
            arguments.append(f"*{local}")
        elif isinstance(argument, Pointer):
            arguments.append(f"p{argument.number}")
        else:
            arguments.append(str(int(argument)))
    arguments += [text.name(value) for value in item.tail]
    kernel = item.kernel
    grid = ", ".join(str(int(extent)) for extent in item.grid)
    head = f"{grid}, stream, {text.name(kernel.function)}, {bool(launcher.launch_cooperative_grid)}, {bool(launcher.launch_pdl)}"
    metadata = text.name(kernel.packed_metadata)
    if hasattr(launcher, "kernel_signature"):
        fixed = f"{text.name(launcher.arg_annotations)}, {text.name(launcher.kernel_signature)}"
        rest = f"{metadata}, None, None, None, None, None, {fixed}, ({', '.join(arguments)},)"
    else:
        rest = f"None, None, {metadata}, None, None, None, {', '.join(arguments)}"
    text.lines.append(f"{text.name(raw)}({head}, {rest})")


@dataclass(frozen=True, slots=True)
class _Address:
    address: int

    def data_ptr(self) -> int:
        return self.address


@dataclass(frozen=True, slots=True)
class Descriptor:
    """What a compiled kernel reads of a tensor descriptor; it keeps no tensor alive."""

    base: _Address
    shape: list[int]
    strides: list[int]
    block_shape: list[int]
    padding: str = "zero"
    round_f32_to_tf32: bool = False

    @classmethod
    def at(cls, pointer: int, view: Described) -> Descriptor:
        """The view at an address."""
        return cls(_Address(pointer), [view.rows, view.columns], [view.pitch, 1], list(view.block))


def _opened(launch: Any) -> tuple[Any, dict[int, Callable[[int, Described], tuple[Any, ...]]]]:
    """The C launcher, and for each place of a descriptor what expands one as Triton would at every launch."""
    if not inspect.isfunction(launch):
        return launch, {}
    around = inspect.getclosurevars(launch).nonlocals
    expand = importlib.import_module("triton.backends.nvidia.driver").make_tensordesc_arg

    def encoder(meta: Any) -> Callable[[int, Described], tuple[Any, ...]]:
        def encode(pointer: int, view: Described) -> tuple[Any, ...]:
            expanded = expand(Descriptor.at(pointer, view), meta)
            return tuple(pointer if isinstance(item, _Address) else item for item in expanded)

        return encode

    places = sorted(around["tensordesc_indices"])
    return around["launcher"], {place: encoder(meta) for place, meta in zip(places, around["tensordesc_meta"], strict=True)}
