"""`Profile`: what is known of how a kernel uses its device. Every number has a unit in its name; unknown is None, never 0."""

from __future__ import annotations

from dataclasses import dataclass

MOST_SPANS = 64
"""Spans of a timeline that are kept; a capture says in its notes how many there were."""


@dataclass(frozen=True, slots=True)
class Roofline:
    """The least work of a task against a device's ceilings.

    `flops` counts 2 M N K for each product that has to be made, `moved_bytes` every input and output once. `time_us` is the
    candidate's median. `flop_ceiling` (flop/s, for the dtype of the product) and `byte_ceiling` (byte/s) are what the device
    can reach at most; `flop_source` and `byte_source` say where they stand.
    """

    flops: int
    moved_bytes: int
    time_us: float | None
    flop_ceiling: float | None
    flop_source: str
    byte_ceiling: float | None
    byte_source: str
    method: str

    @property
    def intensity(self) -> float:
        """Operations a byte."""
        return self.flops / max(1, self.moved_bytes)

    @property
    def flop_rate(self) -> float | None:
        """Achieved flop/s."""
        return self.flops / self.time_us * 1e6 if self.time_us else None

    @property
    def byte_rate(self) -> float | None:
        """Achieved byte/s, of the bytes that must move."""
        return self.moved_bytes / self.time_us * 1e6 if self.time_us else None

    @property
    def flop_share(self) -> float | None:
        """Achieved over the ceiling of operations, 1.0 at the roofline."""
        return self.flop_rate / self.flop_ceiling if self.flop_rate is not None and self.flop_ceiling else None

    @property
    def byte_share(self) -> float | None:
        """Achieved over the ceiling of bytes, 1.0 at the roofline."""
        return self.byte_rate / self.byte_ceiling if self.byte_rate is not None and self.byte_ceiling else None

    @property
    def bound(self) -> str | None:
        """ "compute" or "memory", by which of the two least times is longer; None where a ceiling is unknown."""
        if not self.flop_ceiling or not self.byte_ceiling:
            return None
        return "compute" if self.flops / self.flop_ceiling >= self.moved_bytes / self.byte_ceiling else "memory"


@dataclass(frozen=True, slots=True)
class Limit:
    """How many blocks one resource allows on a multiprocessor at once."""

    resource: str
    blocks: int


@dataclass(frozen=True, slots=True)
class Occupancy:
    """Blocks and warps (waves) that a multiprocessor holds at once, of at most `most_warps`; `formula` and `source` say how.

    `limits` holds what each resource alone would allow, the tightest first.
    """

    blocks: int
    warps: int
    most_warps: int
    limits: tuple[Limit, ...]
    formula: str
    source: str

    @property
    def share(self) -> float:
        """Resident warps over the most there can be."""
        return self.warps / self.most_warps


@dataclass(frozen=True, slots=True)
class KernelFacts:
    """What a compiler says of one kernel, without running it; `instrument` names who said it.

    `threads` are those of a block. `registers` are 32-bit ones of a thread; `spilled_bytes` what a thread stores for lack of
    registers, `local_bytes` its private memory (spills and arrays). `shared_bytes` is the block's memory on chip. For a CPU:
    `vector_bits` is the widest vector register of the hottest loop, `fma` the fused multiply-adds and `instructions` all
    instructions in one turn of it, `stack_moves` the vector loads and stores of the stack there (spills).
    """

    name: str
    instrument: str
    threads: int | None = None
    registers: int | None = None
    spilled_bytes: int | None = None
    local_bytes: int | None = None
    shared_bytes: int | None = None
    vector_bits: int | None = None
    fma: int | None = None
    instructions: int | None = None
    stack_moves: int | None = None
    occupancy: Occupancy | None = None


@dataclass(frozen=True, slots=True)
class Metric:
    """One measured number: `name` as the instrument has it, or a plain one; `kernel` where it belongs to one kernel."""

    name: str
    value: float
    unit: str
    kernel: str | None = None


@dataclass(frozen=True, slots=True)
class Span:
    """One piece of a timeline; `start_us` counts from the first span, `lane` is the stream or thread."""

    name: str
    lane: str
    start_us: float
    duration_us: float


@dataclass(frozen=True, slots=True)
class Capture:
    """What one instrument saw: `method` is the command or the way it was used.

    `stalls` are reasons why warps wait, the largest share first (unit "%" of issue slots, or "cycles" an instruction).
    """

    instrument: str
    method: str
    metrics: tuple[Metric, ...] = ()
    stalls: tuple[Metric, ...] = ()
    spans: tuple[Span, ...] = ()
    notes: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class Picture:
    """A picture for a model that can see: of an instrument that only shows a screen. The file stays where it is."""

    path: str
    mime: str
    file_bytes: int
    sha256: str


@dataclass(frozen=True, slots=True)
class Profile:
    """All that is known of one candidate's run on one device. `notes` say what was asked and could not be had, and why."""

    roofline: Roofline | None = None
    kernels: tuple[KernelFacts, ...] = ()
    captures: tuple[Capture, ...] = ()
    pictures: tuple[Picture, ...] = ()
    notes: tuple[str, ...] = ()
