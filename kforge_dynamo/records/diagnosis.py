"""What limits a right kernel and what to change about it: `Diagnosis`; what was learnt of it for other tasks: `Lesson`."""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum


class Limit(Enum):
    """What a kernel's time is spent on."""

    MEMORY = "memory"
    COMPUTE = "compute"
    LATENCY = "latency"
    LAUNCH = "launch"
    OCCUPANCY = "occupancy"
    SPILLS = "spills"
    EPILOGUE = "epilogue"
    SCRATCH = "scratch"
    NEAR_FLOOR = "near_floor"
    UNKNOWN = "unknown"


@dataclass(frozen=True, slots=True)
class Change:
    """One change of the code. `gain` is the predicted ratio of the time before over the time after (1.25: a fifth less)."""

    what: str
    why: str
    gain: float


@dataclass(frozen=True, slots=True)
class Diagnosis:
    """The limit, the numbers that show it, and one to three changes, the largest predicted gain first. `author` is "rules" or
    the model that refined them."""

    limit: Limit
    evidence: tuple[str, ...]
    changes: tuple[Change, ...]
    author: str


@dataclass(frozen=True, slots=True)
class Lesson:
    """What one change did to one kernel: `gain` is the measured ratio of times, None where the result was not right, and
    `outcome` then says how it failed.

    `ops`, `dtype` and `scale` (the binary logarithms of the sizes of the product) describe the task, `kind` and `arch` the
    target. `task` is the task's digest, `created` the day.
    """

    task: str
    ops: tuple[str, ...]
    dtype: str
    scale: tuple[int, ...]
    kind: str
    arch: str
    language: str
    limit: Limit
    what: str
    gain: float | None
    outcome: str
    created: str
