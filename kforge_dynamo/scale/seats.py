"""A seat: one evaluator that owns one device. The one here runs the sandbox's worker on this machine."""

from __future__ import annotations

import dataclasses
import tempfile
from dataclasses import dataclass
from typing import Protocol

import torch

from kforge_dynamo.errors import LostError, ToolchainError
from kforge_dynamo.evaluation import GRACE_S
from kforge_dynamo.languages.table import LANGUAGES
from kforge_dynamo.records.outcome import Trial
from kforge_dynamo.records.request import Request
from kforge_dynamo.records.target import Target
from kforge_dynamo.sandbox.worker import Worker
from kforge_dynamo.settings import worker_environment
from kforge_dynamo.targets import detect, provenance, unknown_reason


@dataclass(frozen=True, slots=True)
class Place:
    """Where a seat is: its device, and the software that its kernels are made with, one text a language that works there."""

    target: Target
    software: tuple[str, ...]


class Seat(Protocol):
    """An evaluator. One thread at a time asks it."""

    name: str
    place: Place

    def evaluate(self, request: Request) -> Trial:
        """The trial. What a kernel does to its process is a verdict. Raises: LostError when the evaluator itself is gone."""

    def close(self) -> None:
        """Ends it. It is not asked again."""


def place_of(device: torch.device) -> Place:
    """What a seat on `device` of this machine is. Raises: ToolchainError for a device that kforge does not know."""
    target = detect(device)
    if target is None:
        raise ToolchainError(unknown_reason(device) or f"kforge does not know the device {device}")
    software = []
    for name, language in sorted(LANGUAGES.items()):
        if not language.missing(target):
            made = provenance(name, language.toolchain(), target)
            software.append(f"{name}: torch {made.torch}, {made.compiler}, driver {made.driver}, kforge {made.kforge}")
    return Place(target, tuple(software))


class LocalSeat:
    """A worker process on a device of this machine; it is started anew when a kernel ends it."""

    def __init__(self, device: str) -> None:
        self.name = device
        self.place = place_of(torch.device(device))
        self._worker = Worker(worker_environment, device, torch.get_num_threads())
        self._folder = tempfile.TemporaryDirectory(prefix="kforge-trials-", ignore_cleanup_errors=True)

    def evaluate(self, request: Request) -> Trial:
        """See `Seat`."""
        here = dataclasses.replace(request, artifact_folder=self._folder.name)
        try:
            return self._worker.evaluate(here, request.deadline_s + GRACE_S)
        except LostError:
            raise
        except ToolchainError as error:
            raise LostError(f"{self.name}: {error}") from error

    def close(self) -> None:
        """See `Seat`."""
        self._worker.close()
        self._folder.cleanup()


def local_seats(device: str) -> list[LocalSeat]:
    """A seat for every device of this kind on this machine: each GPU; the CPU once, since two would share its cores.

    Raises: ToolchainError where there is none.
    """
    if device == "cpu":
        return [LocalSeat("cpu")]
    count = torch.cuda.device_count() if device == "cuda" else 0
    if not count:
        raise ToolchainError(f"there is no device {device!r} here; kforge doctor shows those there are")
    return [LocalSeat(f"{device}:{index}") for index in range(count)]
