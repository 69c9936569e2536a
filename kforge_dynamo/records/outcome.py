"""What came of a candidate: `Verdict`, `Measurement`, `Trial`; and what goes to disk: `Winner`, `Standing`."""

from __future__ import annotations

import math
import statistics
from dataclasses import dataclass, field
from enum import Enum

from kforge_dynamo.records.candidate import Candidate
from kforge_dynamo.records.codec import LATER
from kforge_dynamo.records.pairs import USUAL, Interval, median_interval, numbers_of
from kforge_dynamo.records.profile import Profile
from kforge_dynamo.records.task import Domain


class Status(Enum):
    """How the check of a candidate ended."""

    PASSED = "passed"
    COMPILE_ERROR = "compile_error"
    RUNTIME_ERROR = "runtime_error"
    WRONG_SHAPE = "wrong_shape"
    WRONG_DTYPE = "wrong_dtype"
    WRONG_STRIDE = "wrong_stride"
    INACCURATE = "inaccurate"
    NON_DETERMINISTIC = "non_deterministic"
    INPUT_CHANGED = "input_changed"
    STRAY_WRITE = "stray_write"
    TOO_FAST = "too_fast"
    UNSTABLE_TIMING = "unstable_timing"
    TIMEOUT = "timeout"
    REJECTED = "rejected"
    NOT_TESTABLE = "not_testable"


@dataclass(frozen=True, slots=True)
class Verdict:
    """`error_ratio` is the worst error over what the gate allows a faithful kernel (1.0 is eager's own error e0); `where`
    names output, input class and position of the worst; `evidence` is text for the next proposal and for people."""

    status: Status
    error_ratio: float | None
    e0: float | None
    where: str
    evidence: str

    @property
    def passed(self) -> bool:
        """Whether the candidate may become a winner."""
        return self.status is Status.PASSED


@dataclass(frozen=True, slots=True)
class Measurement:
    """All samples of one timing, in microseconds, and how they were taken; `rounds` says in which rounds of an interleaved
    run, as ranges ("0-4,6-30"), and is empty where that was not kept."""

    samples_us: tuple[float, ...]
    method: str
    rounds: str = field(default="", metadata=LATER)

    def __post_init__(self) -> None:
        if not self.samples_us:
            raise ValueError("a measurement needs at least one sample; not measured is None")
        if self.rounds:
            numbers_of(self.rounds, len(self.samples_us))

    @property
    def by_round(self) -> dict[int, float]:
        """The samples by the number of their round; empty where the rounds are not known."""
        return dict(zip(numbers_of(self.rounds, len(self.samples_us)), self.samples_us, strict=True)) if self.rounds else {}

    @property
    def median_us(self) -> float:
        """Median of the samples."""
        return statistics.median(self.samples_us)

    @property
    def uncertainty_us(self) -> float:
        """How far the median may lie from that of very many samples: 1.57 spreads over the root of their number.

        Two medians that differ by more than both together differ at about the 95 % level.
        Source: McGill, Tukey and Larsen, Variations of box plots, The American Statistician 32 (1978).
        """
        return 1.57 * self.spread_us / math.sqrt(len(self.samples_us))

    @property
    def spread_us(self) -> float:
        """Distance between the 25th and the 75th percentile; 0 for fewer than four samples."""
        if len(self.samples_us) < 4:
            return 0.0
        low, _, high = statistics.quantiles(self.samples_us, n=4)
        return high - low


def compare(over: Measurement, under: Measurement, added_us: float = 0.0, sure: float = USUAL) -> Interval:
    """`over` as a share of `under` plus `added_us`: the median over the rounds in which both were sampled.

    Where too few such rounds are known the medians are compared instead, by the uncertainty of both (about 95 %).
    """
    mine, other = over.by_round, under.by_round
    found = median_interval([mine[number] / (other[number] + added_us) for number in mine if number in other], sure)
    if found is not None:
        return found
    limit_us = under.median_us + added_us
    share, noise = over.median_us / limit_us, math.hypot(over.uncertainty_us, under.uncertainty_us) / limit_us
    return Interval(share, share - noise, share + noise, 0)


@dataclass(frozen=True, slots=True)
class Timings:
    """One interleaved run: the candidate, Inductor's version of the region, the bare GEMM.

    `regime` is "wall" (host clock around calls) or "replay" (device graph); `mode` the torch.compile mode of the baseline.
    """

    regime: str
    mode: str
    candidate: Measurement
    region: Measurement
    anchor: Measurement | None

    @property
    def speedup(self) -> float:
        """Inductor's region over the candidate; see `compare`."""
        return 1.0 / compare(self.candidate, self.region).value


@dataclass(frozen=True, slots=True)
class Trial:
    """A candidate with its verdict; timings and a profile only where the verdict passed."""

    candidate: Candidate
    verdict: Verdict
    timings: tuple[Timings, ...]
    profile: Profile | None = field(default=None, metadata=LATER)

    def __post_init__(self) -> None:
        if (self.timings or self.profile is not None) and not self.verdict.passed:
            carried = "timings" if self.timings else "a profile"
            raise ValueError(f"a trial that ended {self.verdict.status.value} cannot carry {carried}")


@dataclass(frozen=True, slots=True)
class Provenance:
    """Where and with what an entry was made. A mismatch makes the entry a seed, not a hit."""

    torch: str
    language: str
    compiler: str
    driver: str
    kforge: str
    created: str


@dataclass(frozen=True, slots=True)
class CacheKey:
    """Identity of an entry: the task's digest, the device's name, the numerics' digest, the schema's number."""

    task: str
    device: str
    numerics: str
    schema: int


@dataclass(frozen=True, slots=True)
class Authentication:
    """Who vouches for an entry: `method` is "hmac-sha256" (user cache) or "manifest" (shipped layer)."""

    method: str
    key_id: str
    tag: str


@dataclass(frozen=True, slots=True)
class Winner:
    """A trial that goes to disk. `task` is the task's text, so that an entry explains itself."""

    key: CacheKey
    task: str
    domain: Domain
    trial: Trial
    provenance: Provenance


class State(Enum):
    """What the store knows of a key and sizes."""

    WINNER = "winner"
    NO_WINNER = "no_winner"
    NOT_SEARCHED = "not_searched"
    STALE = "stale"


@dataclass(frozen=True, slots=True)
class Terms:
    """Under what a search found nothing: more budget, a newer generator or another language searches again.

    `budget_s` is infinite where the search ended because there was nothing left to try."""

    generator: str
    languages: tuple[str, ...]
    budget_s: float
    candidates: int


@dataclass(frozen=True, slots=True)
class Standing:
    """A stored answer without a kernel: NO_WINNER with its terms and best trial's words, or NOT_SEARCHED with the reason."""

    key: CacheKey
    domain: Domain
    state: State
    reason: str
    terms: Terms | None
    best_speedup: float | None
