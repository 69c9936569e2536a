"""`Target`: the device a kernel is for. `Numerics`: the settings that change results."""

from __future__ import annotations

from dataclasses import dataclass, field

from kforge_dynamo.records.codec import LATER


@dataclass(frozen=True, slots=True)
class Peak:
    """One ceiling of a device; `source` says where the number comes from (a datasheet, a measurement)."""

    name: str
    value: float
    unit: str
    source: str


@dataclass(frozen=True, slots=True)
class Target:
    """A device: `kind` is torch's device type ("cpu", "cuda"), `name` goes into keys (on a CPU with ISA and thread count).

    `arch` is "avx512", "avx2", "sse2", "neon", "sm_90", "gfx942"...; `units` counts cores in use or multiprocessors;
    `features` are what generators ask for ("bf16_dot", "tma", "fma", ...).
    """

    kind: str
    vendor: str
    name: str
    arch: str
    units: int
    shared_bytes: int | None
    memory_bytes: int | None
    features: tuple[str, ...]
    peaks: tuple[Peak, ...]

    def peak(self, name: str) -> float | None:
        """The ceiling called `name`, None where it is unknown."""
        return next((peak.value for peak in self.peaks if peak.name == name), None)


@dataclass(frozen=True, slots=True)
class Numerics:
    """`fp32` is what fp32 GEMM operands are promised: "highest", "strict", "high", "medium" or "mixed" (design of precision).

    `kept` and `proven` are no promises of results but of the call: what launches prepare of weights is kept between calls, and
    a time is taken without those launches (`kept`), or with a device's check that the weights have not changed (`proven`). The
    others are torch's flags as they stood when the graph was compiled.
    """

    fp32: str
    fp16_reduced: bool
    bf16_reduced: bool
    deterministic: bool
    kept: bool = field(default=False, metadata=LATER)
    proven: bool = field(default=False, metadata=LATER)
