"""`Request`: one question to the sandbox's worker. The answer is a `Trial`."""

from __future__ import annotations

from dataclasses import dataclass

from kforge_dynamo.records.candidate import Candidate
from kforge_dynamo.records.target import Numerics, Target
from kforge_dynamo.records.task import Domain, Task

STAGES = ("search", "final")


@dataclass(frozen=True, slots=True)
class Request:
    """Check `candidate` for `task`, and time it at `sizes` when `time` is set.

    `domain` holds the sizes it must be right for; `stage` is "search" (one seed a class, `sizes` alone, short timing) or
    "final" (five seeds, the whole domain, at least 15 samples). `mode` is the user's `torch.compile` mode ("default" where
    none was given) and `inductor` a JSON object of the Inductor options the user set: the baseline is compiled with both.
    Builds go below `artifact_folder`. `deadline_s` is what the worker should spend at most; `memory_bytes` caps the
    memory of the device, None where only what is free counts. `profile` names instruments to run on a candidate that passed
    (see `sandbox.profile`); what a compiler says of it is part of its profile without being asked for.
    """

    task: Task
    sizes: tuple[int, ...]
    domain: Domain
    candidate: Candidate
    target: Target
    numerics: Numerics
    mode: str
    inductor: str
    stage: str
    artifact_folder: str
    time: bool
    deadline_s: float
    memory_bytes: int | None
    profile: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        if self.stage not in STAGES:
            raise ValueError(f"stage: expected one of {STAGES}, found {self.stage!r}")
        if not self.domain.holds(self.sizes):
            raise ValueError(f"sizes {self.sizes} lie outside the domain {self.domain}")
