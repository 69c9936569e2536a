"""Launches of a plan's kernels with little Python: the first call of a set of sizes and strides goes through Triton's own
entry, later ones through the function that `triton_direct` writes for it, or by the compiled kernel where that has none.

Private API of Triton, read in 3.6.0 and 3.7.1, here and in `triton_direct` only: `JITFunction.__getitem__` returns the
`CompiledKernel`, and so does `JITFunction.warmup`, which starts nothing;
`CompiledKernel.run(grid_x, grid_y, grid_z, stream, function, packed_metadata, launch_metadata, enter_hook, exit_hook, *args)`
takes all parameters in the order of the signature, compile-time ones included, and integers where it wants pointers; a
tensor descriptor is anything with `base.data_ptr()`, `shape`, `strides`, `padding` and (3.7) `round_f32_to_tf32`.
A compiled kernel holds for arguments of the same specialisation: the same types, pointers that are multiples of 16 (others
take Triton's entry), integers that are equal (the frames here are kept by value). Profiler hooks of Triton are not called.
"""

from __future__ import annotations

import contextlib
import importlib
from collections.abc import Sequence
from dataclasses import dataclass
from types import ModuleType
from typing import Any

import torch

from kforge_dynamo.errors import BuildError
from kforge_dynamo.languages import triton_direct as direct
from kforge_dynamo.languages.base import Bound, Prepared, Proven, RawDims
from kforge_dynamo.languages.triton_proof import watched
from kforge_dynamo.records.candidate import Launch, LaunchPlan
from kforge_dynamo.records.expression import compile_sizes
from kforge_dynamo.records.prepack import fault, halves
from kforge_dynamo.records.task import Task

_ALIGNMENT = 256
_MOST_FRAMES = 512
"""Sets of sizes and strides that a launcher remembers before it starts over (a dynamic axis may bring many)."""


def is_interpreted() -> bool:
    """Whether Triton runs kernels in its interpreter, on CPU tensors."""
    return bool(importlib.import_module("triton").knobs.runtime.interpret)


def active_driver() -> Any:
    """Triton's driver for the GPUs of this process. Raises: RuntimeError where there is none."""
    return importlib.import_module("triton").runtime.driver.active


@dataclass(slots=True)
class _Step:
    """One launch for one set of sizes and strides. `arguments` as `triton_direct` takes them; `compiled` once it is known."""

    function: Any
    grid: tuple[int, int, int]
    arguments: list[direct.Argument]
    names: dict[str, Any]
    tail: list[Any]
    options: dict[str, int]
    compiled: Any = None


@dataclass(slots=True)
class _Frame:
    """All launches for one set of sizes and strides. `places` are each buffer's offset in bytes, elements and dtype.

    `bound` starts them; None until all are compiled, and then `tried` tells whether there will be one.
    """

    steps: list[_Step]
    places: list[tuple[int, int, torch.dtype]]
    slab: direct.Slab
    bound: Bound | None = None
    tried: bool = False


class TritonLauncher:
    """Runs a plan. Works under CUDA graph capture once it has run for the same sizes and strides before: the first run
    compiles and loads."""

    def __init__(
        self, module: ModuleType, plan: LaunchPlan, task: Task, raw_dims: RawDims, outputs: Sequence[str] | None = None
    ) -> None:
        """`outputs` are the dtypes of what `plan` takes for outputs where those are not the task's."""
        self._module, self._plan, self._task, self._raw = module, plan, task, raw_dims
        self._writes = [task.value(number).dtype for number in task.outputs] if outputs is None else list(outputs)
        self._halves: Prepared | None = None
        self._proven: Proven | None = None
        self._halved = self._watched = outputs is not None
        self._functions = [getattr(module, launch.kernel) for launch in plan.launches]
        self._inputs = len(task.inputs)
        self._outputs = len(self._writes)
        self._buffer_names = [buffer.name for buffer in plan.buffers]
        self._lengths = compile_sizes([buffer.elements for buffer in plan.buffers], task.axes)
        self._grids = [compile_sizes(launch.grid, task.axes) for launch in plan.launches]
        self._strides = _strides_read(plan, task, raw_dims)
        self._frames: dict[tuple[int, ...], _Frame] = {}
        self._interpreted = is_interpreted()
        self._driver: Any = None if self._interpreted else active_driver()

    def __call__(self, inputs: Sequence[torch.Tensor], outputs: Sequence[torch.Tensor], sizes: Sequence[int]) -> None:
        """See `languages.base.Launcher`. Raises: BuildError on a first call whose kernels do not compile or fit."""
        device = None if self._interpreted else outputs[0].get_device()
        strides = [inputs[number].stride(dimension) for number, dimension in self._strides]
        frame = self._remembered((-1 if device is None else device, *sizes, *strides), sizes, strides)
        if frame.bound is not None and frame.bound(*inputs, *outputs):
            return
        if device is None or self._driver.get_current_device() == device:
            self._run(frame, inputs, outputs, device)
            return
        with torch.cuda.device(device):
            self._run(frame, inputs, outputs, device)

    def bind(self, sizes: Sequence[int], strides: Sequence[Sequence[int]], device: torch.device) -> Bound | None:
        """Compiles and loads; None in the interpreter and where `triton_direct` does not know the launcher.

        Raises: BuildError.
        """
        if self._interpreted or device.index is None:
            return None
        self.prepare(sizes, strides, device)
        read = [strides[number][dimension] for number, dimension in self._strides]
        frame = self._remembered((device.index, *sizes, *read), sizes, read)
        with torch.cuda.device(device):
            self._settle(frame, device.index)
        return frame.bound

    def prepare(self, sizes: Sequence[int], strides: Sequence[Sequence[int]], device: torch.device) -> None:
        """Compiles, without running anything, for inputs with these strides (as they will be passed) at 16-byte addresses.

        Any process may do it: the call that comes later finds the result in Triton's disk cache. On the device "cpu" nothing
        of a GPU is needed (see `triton_offline`). Raises: BuildError.
        """
        read = [strides[number][dimension] for number, dimension in self._strides]
        frame = self._remembered((-1 if device.index is None else device.index, *sizes, *read), sizes, read)
        dtypes = [spec.value.dtype for spec in self._task.inputs]
        dtypes += self._writes
        dtypes += [buffer.dtype for buffer in self._plan.buffers]
        tensors = [torch.empty(16, dtype=getattr(torch, dtype), device=device) for dtype in dtypes]
        with torch.cuda.device(device) if device.type == "cuda" else contextlib.nullcontext():
            for step in frame.steps:
                step.compiled = _compile(step, _arguments(step, tensors))

    def prepared(self) -> Prepared | None:
        """See `languages.base.Preparing`."""
        if not self._halved:
            self._halved = True
            found = halves(self._plan, self._outputs)
            if found is not None and fault(self._plan, self._task) is None:
                kept = [buffer.dtype for buffer in found.kept]
                pack = TritonLauncher(self._module, found.pack, self._task, self._raw, kept)
                rest = TritonLauncher(self._module, found.rest, self._task, self._raw, [*self._writes, *kept])
                self._halves = Prepared(pack, rest, found.kept, self._plan.packed_inputs)
        return self._halves

    def proven(self) -> Proven | None:
        """See `languages.base.Proving`."""
        if not self._watched:
            self._watched = True
            found = watched(self._plan, self._task)
            if found is not None:
                dtypes = [buffer.dtype for buffer in (*found.copies, *found.notes)]
                run = TritonLauncher(self._module, found.plan, self._task, self._raw, [*self._writes, *dtypes])
                self._proven = Proven(run, found.copies, found.notes, self._plan.packed_inputs)
        return self._proven

    def compiled(self) -> list[tuple[str, Any]]:
        """The kernels compiled so far with their names, each once; empty before the first call at 16-byte addresses."""
        found: dict[int, tuple[str, Any]] = {}
        for frame in self._frames.values():
            for step in frame.steps:
                if step.compiled is not None:
                    found.setdefault(id(step.compiled), (step.function.__name__, step.compiled))
        return list(found.values())

    def _remembered(self, key: tuple[int, ...], sizes: Sequence[int], strides: Sequence[int]) -> _Frame:
        frame = self._frames.get(key)
        if frame is None:
            frame = self._frame(sizes, strides)
            if len(self._frames) >= _MOST_FRAMES:
                self._frames.clear()
            self._frames[key] = frame
        return frame

    def _run(self, frame: _Frame, inputs: Sequence[torch.Tensor], outputs: Sequence[torch.Tensor], device: int | None) -> None:
        memory = torch.empty(frame.slab.total, dtype=torch.uint8, device=outputs[0].device) if frame.slab.total else None
        if memory is not None and frame.slab.zeroed:
            memory[: frame.slab.zeroed].zero_()
        pointers = [tensor.data_ptr() for tensor in (*inputs, *outputs)]
        if memory is not None:
            start = memory.data_ptr()
            pointers += [start + offset for offset in frame.slab.offsets]
        merged = 0
        for pointer in pointers:
            merged |= pointer
        known = device is not None and merged % direct.ALIGNMENT_BYTES == 0
        stream = self._driver.get_current_stream(device) if known else None
        for step in frame.steps:
            if known and step.compiled is not None:
                _launch_compiled(step, pointers, stream)
            else:
                tensors = [*inputs, *outputs, *[self._view(memory, item) for item in frame.places]]
                _launch_first(step, tensors, known)
        if known and not frame.tried and device is not None:
            self._settle(frame, device)

    def _settle(self, frame: _Frame, device: int) -> None:
        """Writes the frame's function, now that its kernels are compiled."""
        frame.tried = True
        if any(step.compiled is None or direct.unsupported(step.compiled) is not None for step in frame.steps):
            return
        started = [direct.Started(step.compiled, step.grid, tuple(step.arguments), tuple(step.tail)) for step in frame.steps]
        host = direct.Host.of(device, self._driver.get_current_stream)
        frame.bound = direct.bind(started, frame.slab, self._inputs + self._outputs, host)

    def _view(self, memory: torch.Tensor | None, place: tuple[int, int, torch.dtype]) -> torch.Tensor:
        assert memory is not None
        offset, elements, dtype = place
        return memory[offset : offset + elements * dtype.itemsize].view(dtype)

    def _frame(self, sizes: Sequence[int], strides: Sequence[int]) -> _Frame:
        known = dict(zip(self._strides, strides, strict=True))
        steps = [self._step(number, launch, sizes, known) for number, launch in enumerate(self._plan.launches)]
        lengths = self._lengths(*sizes)
        places: dict[int, tuple[int, int, torch.dtype]] = {}
        total = zeroed = 0
        buffers = self._plan.buffers
        for number in sorted(range(len(buffers)), key=lambda number: not buffers[number].zeroed):  # zeros are one range
            dtype: torch.dtype = getattr(torch, buffers[number].dtype)
            places[number] = (total, lengths[number], dtype)
            total += -(-lengths[number] * dtype.itemsize // _ALIGNMENT) * _ALIGNMENT
            zeroed = total if buffers[number].zeroed else zeroed
        ordered = [places[number] for number in range(len(buffers))]
        return _Frame(steps, ordered, direct.Slab(total, tuple(offset for offset, _, _ in ordered), zeroed))

    def _step(self, number: int, launch: Launch, sizes: Sequence[int], strides: dict[tuple[int, int], int]) -> _Step:
        x, y, z = (*self._grids[number](*sizes), 1, 1)[:3]
        function = self._functions[number]
        constants = dict(launch.constants)
        options = {"num_warps": launch.num_warps, "num_stages": launch.num_stages}
        tail = [constants[name] for name in function.arg_names[len(launch.args) :]]
        arguments = [self._argument(argument, sizes, strides) for argument in launch.args]
        return _Step(function, (x, y, z), arguments, constants, tail, options)

    def _argument(self, argument: str, sizes: Sequence[int], strides: dict[tuple[int, int], int]) -> direct.Argument:
        kind, *rest = argument.split(":")
        if kind in ("in", "out", "buf"):
            return direct.Pointer(self._pointer(kind, rest[0]))
        if kind == "size":
            return compile_sizes([rest[0]], self._task.axes)(*sizes)[0]
        if kind == "stride":
            raw = self._raw[int(rest[0])][int(rest[1])]
            return 0 if raw is None else strides[(int(rest[0]), raw)]
        rows, columns, pitch, first, second = compile_sizes(rest[2:], self._task.axes)(*sizes)
        if rest[0] == "in":
            self._check_view(int(rest[1]), rows, columns, pitch, strides)
        return direct.Described(self._pointer(rest[0], rest[1]), rows, columns, pitch, (first, second))

    def _check_view(self, number: int, rows: int, columns: int, pitch: int, strides: dict[tuple[int, int], int]) -> None:
        """Raises: BuildError where an input is not the matrix that a descriptor says it is."""
        raws = [self._raw[number][dimension] for dimension in _varying(self._task, number)]
        found = [0 if raw is None else strides[(number, raw)] for raw in raws]
        varying = sorted({stride for stride in found if stride > 1})
        if rows > 1 and columns > 1 and varying != ([pitch] if pitch > 1 else []):
            raise BuildError(f"input {number}: a descriptor takes it with a pitch of {pitch}, and it has the strides {found}")

    def _pointer(self, kind: str, which: str) -> int:
        """The number of a pointer among inputs, outputs and buffers."""
        if kind == "in":
            return int(which)
        return self._inputs + (int(which) if kind == "out" else self._outputs + self._buffer_names.index(which))


def _varying(task: Task, number: int) -> list[int]:
    """Dimensions of an input whose extent is not 1."""
    return [dimension for dimension, extent in enumerate(task.inputs[number].value.shape) if extent != 1]


def _strides_read(plan: LaunchPlan, task: Task, raw_dims: RawDims) -> list[tuple[int, int]]:
    """Inputs and dimensions of the tensors passed whose strides a launch reads or relies on, each once."""
    found: dict[tuple[int, int], None] = {}
    for argument in (argument for launch in plan.launches for argument in launch.args):
        kind, *rest = argument.split(":")
        if kind == "stride":
            dimensions = [int(rest[1])]
        elif kind == "desc" and rest[0] == "in":
            rest = rest[1:]
            dimensions = _varying(task, int(rest[0]))
        else:
            continue
        for dimension in dimensions:
            raw = raw_dims[int(rest[0])][dimension]
            if raw is not None:
                found[(int(rest[0]), raw)] = None
    return list(found)


def _launch_compiled(step: _Step, pointers: Sequence[int], stream: Any) -> None:
    arguments: list[Any] = []
    for argument in step.arguments:
        if isinstance(argument, direct.Described):
            arguments.append(direct.Descriptor.at(pointers[argument.number], argument))
        else:
            arguments.append(pointers[argument.number] if isinstance(argument, direct.Pointer) else argument)
    kernel = step.compiled
    kernel.run(*step.grid, stream, kernel.function, kernel.packed_metadata, None, None, None, *arguments, *step.tail)


def _launch_first(step: _Step, tensors: Sequence[torch.Tensor], keep: bool) -> None:
    """Triton's own way; with `keep` the compiled kernel is used directly from now on."""
    arguments = _arguments(step, tensors)
    if not is_interpreted():  # compiling apart from launching tells a compiler's RuntimeError from one of the device
        _compile(step, arguments)
    errors = _compile_errors()
    try:
        kernel = step.function[step.grid](*arguments, **step.names, **step.options)
    except errors as error:
        raise BuildError(f"{step.function.__name__}: {type(error).__name__}: {error}") from error
    if keep:
        step.compiled = kernel


def _arguments(step: _Step, tensors: Sequence[torch.Tensor]) -> list[Any]:
    found: list[Any] = []
    for argument in step.arguments:
        if isinstance(argument, direct.Described):
            found.append(_checked_descriptor(tensors[argument.number], argument))
        else:
            found.append(tensors[argument.number] if isinstance(argument, direct.Pointer) else argument)
    return found


def _compile(step: _Step, arguments: Sequence[Any]) -> Any:
    """The compiled kernel."""
    broader: tuple[type[Exception], ...] = (*_compile_errors(), RuntimeError)
    try:
        return step.function.warmup(*arguments, grid=step.grid, **step.names, **step.options)
    except broader as error:
        raise BuildError(f"{step.function.__name__}: {type(error).__name__}: {error}") from error


def _checked_descriptor(tensor: torch.Tensor, view: direct.Described) -> Any:
    """Raises: BuildError where the hardware cannot take it."""
    if tensor.data_ptr() % 16 or view.pitch * tensor.element_size() % 16:
        raise BuildError(
            f"a tensor descriptor needs an address and a pitch of 16-byte multiples, found a pitch of {view.pitch} elements at "
            f"an address that is {tensor.data_ptr() % 16} over; use a schedule that loads by pointers"
        )
    descriptors = importlib.import_module("triton.tools.tensor_descriptor")
    return descriptors.TensorDescriptor(tensor, [view.rows, view.columns], [view.pitch, 1], list(view.block))


def _compile_errors() -> tuple[type[Exception], ...]:
    compiler, runtime = importlib.import_module("triton.compiler.errors"), importlib.import_module("triton.runtime.errors")
    return (compiler.CompilationError, runtime.OutOfResources, runtime.PTXASError)
