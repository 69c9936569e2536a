"""What writing a kernel gives."""

from __future__ import annotations

from dataclasses import dataclass

from kforge_dynamo.records.candidate import Buffer, Launch


@dataclass(frozen=True, slots=True)
class Kernel:
    """A kernel's source, how it is launched, and the buffers it fills."""

    source: str
    launch: Launch
    buffers: tuple[Buffer, ...]
