"""What a programming model does for kforge: build a candidate, load it, launch it."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol, runtime_checkable

import torch

from kforge_dynamo.records.candidate import Buffer, Candidate
from kforge_dynamo.records.expression import compile_sizes
from kforge_dynamo.records.profile import Capture, Profile
from kforge_dynamo.records.target import Target
from kforge_dynamo.records.task import Task

RawDims = tuple[tuple[int | None, ...], ...]
"""For each task input and each dimension of its `rows + cols`: the dimension of the tensor that is really passed whose
stride it has, None where the stride is 0. A kernel reads strides from the tensor it is given."""


Bound = Callable[..., bool]
"""A launcher for one set of sizes and strides: `bound(*inputs, *outputs)` runs the candidate. False, with nothing started,
where an address or the current device is not what it was made for. Sizes and strides are the caller's promise."""


class Launcher(Protocol):
    """Runs a loaded candidate once, on the current stream, without synchronising."""

    def __call__(self, inputs: Sequence[torch.Tensor], outputs: Sequence[torch.Tensor], sizes: Sequence[int]) -> None:
        """Fills `outputs` (dense, allocated by the caller). `sizes` has one integer an axis of the task, in order."""


@runtime_checkable
class Bindable(Protocol):
    """A launcher that can do ahead of all calls what does not change between them."""

    def bind(self, sizes: Sequence[int], strides: Sequence[Sequence[int]], device: torch.device) -> Bound | None:
        """For inputs with these strides, as they will be passed; None where every call has to go the launcher's own way.

        Raises: BuildError where a kernel does not compile for them.
        """


@dataclass(frozen=True, slots=True)
class Prepared:
    """A launcher in two. `pack(inputs, copies, sizes)` fills `copies`, one tensor of one dimension for each of `buffers`, from
    the inputs `weights` alone; `rest(inputs, [*outputs, *copies], sizes)` is a call without that."""

    pack: Launcher
    rest: Launcher
    buffers: tuple[Buffer, ...]
    weights: tuple[int, ...]

    def copies(self, device: torch.device) -> list[torch.Tensor]:
        """Fresh memory for the buffers, zeroed where they say so."""
        return memory_of(self.buffers, device)


@runtime_checkable
class Preparing(Protocol):
    """A launcher whose plan may prepare weights."""

    def prepared(self) -> Prepared | None:
        """The launcher in two; None where the plan prepares nothing that may outlive a call. Cheap after the first time."""


@dataclass(frozen=True, slots=True)
class Proven:
    """A launcher that leaves out what it prepares of weights in calls that find them unchanged, on the device.

    `run(inputs, [*outputs, *copies, *notes], sizes)` is a call: `copies` and `notes` are one tensor of one dimension for each
    buffer, the same in all calls that are to share what is prepared. `notes` are zeroed before the first and then belong to
    the launches; with zeroed ones a call prepares everything, whatever `copies` hold. Calls that share them follow one
    another on the device, from the first launch of each to its last. `weights` are the inputs that are looked at.
    """

    run: Launcher
    copies: tuple[Buffer, ...]
    notes: tuple[Buffer, ...]
    weights: tuple[int, ...]

    def memory(self, device: torch.device) -> list[torch.Tensor]:
        """Fresh memory for all buffers."""
        return memory_of((*self.copies, *self.notes), device)


@runtime_checkable
class Proving(Protocol):
    """A launcher whose plan may prepare weights, and can check on the device whether they have changed."""

    def proven(self) -> Proven | None:
        """The launcher in that form; None where the plan has no such one. Cheap after the first time."""


def memory_of(buffers: Sequence[Buffer], device: torch.device) -> list[torch.Tensor]:
    """Fresh memory for buffers whose lengths are numbers, zeroed where they say so."""
    lengths = compile_sizes([buffer.elements for buffer in buffers], ())()
    return [
        (torch.zeros if buffer.zeroed else torch.empty)(length, dtype=getattr(torch, buffer.dtype), device=device)
        for buffer, length in zip(buffers, lengths, strict=True)
    ]


class Language(Protocol):
    """One programming model.

    Where a launch runs nothing of torch's, an attribute `device_code` that is true says so: then the judge traps torch's
    operations inside launches.
    """

    name: str

    def missing(self, target: Target) -> str | None:
        """What keeps this language from `target` here, as a sentence with the next step; None when nothing does."""

    def build(self, candidate: Candidate, task: Task, target: Target, folder: Path) -> Path:
        """Compiles into `folder` (idempotent; safe when two processes build the same) and returns the artifact.

        Raises: BuildError with the compiler's words.
        """

    def load(self, artifact: Path, candidate: Candidate, task: Task, raw_dims: RawDims) -> Launcher:
        """The launcher of a built candidate. All that can be done before a call is done here."""

    def toolchain(self) -> str:
        """Name and version of what compiles, for provenance."""


@runtime_checkable
class Describing(Protocol):
    """A language whose compiler says something of its kernels. `launcher` is one that `load` made and that has run."""

    def facts(self, artifact: Path, launcher: Launcher) -> Profile:
        """What is cheap to know of every kernel that runs: `kernels` and `notes` of the profile."""

    def remarks(self, candidate: Candidate, target: Target, launcher: Launcher, folder: Path) -> Capture:
        """What the compiler says when it is asked once more, at the cost of a compile."""


Point = tuple[tuple[int, ...], tuple[tuple[int, ...], ...]]
"""Sizes of the axes, and the strides of each input as it will be passed."""


@runtime_checkable
class Ahead(Protocol):
    """A language that can compile a candidate in another process, without its device, before it is needed."""

    def compile_ahead(self, candidate: Candidate, task: Task, target: Target, folder: Path, point: Point) -> None:
        """Leaves what the candidate's first launch at `point` would compile where that launch finds it.

        For a process of its own, which cannot launch anything afterwards. Raises: GuardrailError, BuildError.
        """


def canonical_dims(task: Task) -> RawDims:
    """The `RawDims` of tensors that come in the shape of their spec."""
    return tuple(tuple(range(len(item.value.shape))) for item in task.inputs)
