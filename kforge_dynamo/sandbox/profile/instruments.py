"""The table of instruments: what each tells, where it runs, what it needs."""

from __future__ import annotations

import shutil
from dataclasses import dataclass

from kforge_dynamo.records.target import Target


@dataclass(frozen=True, slots=True)
class Instrument:
    """`program` is what must be in PATH, `kinds` the devices it is for (torch's types); with `inside` it runs in the worker
    beside the candidate, otherwise a program of its own is started under it."""

    name: str
    tells: str
    kinds: tuple[str, ...]
    program: str | None
    inside: bool

    def missing(self, target: Target) -> str | None:
        """Why it cannot be used for `target` here, in one sentence; None when it can."""
        if target.kind not in self.kinds:
            return f"{self.name} is for {' and '.join(self.kinds)}, the target is {target.kind}"
        if self.name in ("ncu", "nsys") and target.vendor != "nvidia":
            return f"{self.name} is for GPUs of NVIDIA, the target's vendor is {target.vendor}"
        if self.program is not None and shutil.which(self.program) is None:
            return f"{self.program} is not in PATH"
        return None


INSTRUMENTS = (
    Instrument("compiler", "loops left scalar (g++, clang), spills and warnings (ptxas)", ("cpu", "cuda"), None, True),
    Instrument("torch", "kernels, gaps and host time by torch's profiler", ("cpu", "cuda"), None, True),
    Instrument("perf", "cycles, instructions, cache misses of the process", ("cpu",), "perf", False),
    Instrument("ncu", "throughput, stalls, hit rates and occupancy of each kernel", ("cuda",), "ncu", False),
    Instrument("nsys", "timeline, gaps, launch overhead", ("cuda",), "nsys", False),
)
"""What a request may name. Registers, spills, shared memory, occupancy, hot loops and the roofline need no name: they are in
every profile."""

BY_NAME = {instrument.name: instrument for instrument in INSTRUMENTS}
