"""Search, evaluate, store: from a region without an answer to a winner, or to a stored reason why there is none."""

from __future__ import annotations

import logging
import math
import threading
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Protocol, runtime_checkable

from kforge_dynamo.agents.generator import Foreseeing, Generator
from kforge_dynamo.agents.search import Clock, Problem, SearchResult, search
from kforge_dynamo.records.candidate import Candidate
from kforge_dynamo.records.codec import to_text
from kforge_dynamo.records.outcome import (
    CacheKey,
    Provenance,
    Standing,
    State,
    Terms,
    Timings,
    Trial,
    Verdict,
    Winner,
    compare,
)
from kforge_dynamo.records.pairs import won
from kforge_dynamo.records.target import Numerics, Target
from kforge_dynamo.records.task import Domain, Task
from kforge_dynamo.semantics.cost import least_flops, moved_bytes

Answer = Winner | Standing
Evaluate = Callable[["Miss", Candidate, str, float], Trial]
"""Evaluates a candidate of a miss at a stage ("search", "final") within so many seconds."""

Search = Callable[[Problem, Generator, Callable[[Candidate, str, float], Trial], Clock], SearchResult]
"""Searches a winner of a problem, starting from a generator, within a clock's time."""

_log = logging.getLogger("kforge")
_WORDS = 300


@dataclass(frozen=True, slots=True)
class Miss:
    """A region that has no answer yet."""

    key: CacheKey
    task: Task
    sizes: tuple[int, ...]
    domain: Domain
    title: str
    regime: str


@runtime_checkable
class Expecting(Protocol):
    """An `Evaluate` that can use the time to know which candidates of a miss come next."""

    def expect(self, miss: Miss, candidates: Sequence[Candidate]) -> None:
        """They will probably be evaluated soon."""


@dataclass(frozen=True, slots=True)
class _ForMiss:
    """`agents.search.Evaluate` for one miss."""

    evaluate: Evaluate
    miss: Miss

    def __call__(self, candidate: Candidate, stage: str, seconds: float) -> Trial:
        return self.evaluate(self.miss, candidate, stage, seconds)

    def expect(self, candidates: Sequence[Candidate]) -> None:
        if isinstance(self.evaluate, Expecting):
            self.evaluate.expect(self.miss, candidates)


@dataclass(frozen=True, slots=True)
class Context:
    """What the graph around a region says about the worth of a splice.

    With `fused_consumer` a node behind the region would have been fused by Inductor with the region's own epilogue, so the
    epilogue is nearly free there: a winner must then beat the bare GEMM plus the traffic it removes (`removed_bytes`). A
    winner is stored when it beats the region as it stands; each graph decides for itself by its own context.
    `regime` is "wall", or "replay" where the graph runs as a CUDA graph.
    """

    fused_consumer: bool
    removed_bytes: int
    regime: str


class Purse:
    """The search time of one process, in seconds, shared by all graphs and threads."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._spent_s = 0.0

    def left_s(self, budget_s: float) -> float:
        """What is left of a budget of `budget_s`."""
        with self._lock:
            return max(0.0, budget_s - self._spent_s)

    def spend(self, seconds: float) -> None:
        """Takes `seconds` out."""
        with self._lock:
            self._spent_s += seconds


PURSE = Purse()


def shortfall(timings: Sequence[Timings], context: Context, target: Target) -> str | None:
    """Why a right kernel is no winner here, in one sentence with its numbers; None when it wins.

    It wins if it takes less than the limit by 1 % and by more than the uncertainty of the comparison (`outcome.compare`: round by
    round of the run in which both were timed). The limit is Inductor's time for the region; with a fused consumer also the
    bare GEMM's time plus the time of the removed traffic.
    """
    timing = next((item for item in timings if item.regime == context.regime), None)
    if timing is None:
        return f"it was not timed in the regime {context.regime!r} of this graph"
    limits = [(timing.region, 0.0, "Inductor's region")]
    if context.fused_consumer and timing.anchor is not None:
        bytes_per_s = target.peak("memory_bytes_per_s")
        saved_us = context.removed_bytes / bytes_per_s * 1e6 if bytes_per_s else 0.0
        limits.append((timing.anchor, saved_us, "the bare GEMM, whose epilogue Inductor fuses further on,"))
    for rival, added_us, name in sorted(limits, key=lambda item: item[0].median_us + item[1]):
        found = compare(timing.candidate, rival, added_us)
        if not won(found):
            times = f"{timing.candidate.median_us:.1f} us against {rival.median_us + added_us:.1f} us of {name}"
            rounds = f" in {found.pairs} rounds" if found.pairs else ""
            between = f"{found.value:.3f} of it, 95 %: {found.low:.3f} to {found.high:.3f}{rounds}"
            return f"the fastest right kernel took {times} ({between})"
    return None


def floor_us(task: Task, sizes: tuple[int, ...], target: Target) -> float | None:
    """The roofline's time: the larger of operations over the peak of their dtype and bytes over the memory's; None when
    neither peak is known. Where the reduction over the product's columns can be done to an operand first, that product counts.
    For fp32 the fastest unit that any allowed scheme could use counts, so it is a true floor."""
    times = []
    peaks = [peak.value for peak in target.peaks if peak.name.endswith("_flops")]
    if peaks:
        times.append(least_flops(task, sizes) / max(peaks) * 1e6)
    bandwidth = target.peak("memory_bytes_per_s")
    if bandwidth:
        times.append(moved_bytes(task, sizes) / bandwidth * 1e6)
    return max(times, default=None)


@dataclass(frozen=True, slots=True)
class Bench:
    """What a search needs beside the miss."""

    target: Target
    numerics: Numerics
    generator: Generator
    evaluate: Evaluate
    provenance: Callable[[str], Provenance]
    search: Search = search
    """`agents.search.search`, or the agents' loop in its place."""


def settle(miss: Miss, bench: Bench, budget_s: float, seeds: Sequence[Candidate] = ()) -> tuple[Answer, SearchResult]:
    """Searches a winner of `miss` for at most `budget_s`; `seeds` are tried first. Returns what should be stored."""
    floor = floor_us(miss.task, miss.sizes, bench.target)
    problem = Problem(miss.task, miss.sizes, bench.target, bench.numerics, floor, miss.title, miss.domain)

    evaluate = _ForMiss(bench.evaluate, miss)
    generator = _Seeded(bench.generator, tuple(seeds)) if seeds else bench.generator
    result = bench.search(problem, generator, evaluate, Clock(budget_s, time.monotonic))
    return _answer(miss, bench, result, budget_s), result


def _answer(miss: Miss, bench: Bench, result: SearchResult, budget_s: float) -> Answer:
    best = result.best
    if best is not None:
        reason = shortfall(best.timings, Context(False, 0, miss.regime), bench.target)
        if reason is None:
            lean = replace(best, profile=None)  # it helps a search, and would grow every entry
            return Winner(miss.key, to_text(miss.task), miss.domain, lean, bench.provenance(best.candidate.language))
    elif result.untestable is not None:
        reason = f"not testable: {result.untestable}"
    else:
        reason = _nothing_right(result.trials)
    spent_s = math.inf if result.exhausted or result.untestable is not None else budget_s
    terms = Terms(bench.generator.version, bench.generator.languages(bench.target), spent_s, len(result.trials))
    speedup = best.timings[0].speedup if best is not None and best.timings else None
    finished = best is not None or result.exhausted or result.untestable is not None
    state = State.NO_WINNER if finished else State.NOT_SEARCHED
    return Standing(miss.key, miss.domain, state, reason, terms, speedup)


def _nothing_right(trials: Sequence[Trial]) -> str:
    if not trials:
        return "the budget ended before a candidate was tried"
    verdict: Verdict = trials[-1].verdict
    return f"none of {len(trials)} candidates passed; the last was {verdict.status.value}: {_end(verdict.evidence)}"


def _end(evidence: str) -> str:
    """The last words of a verdict: of a traceback or a compiler's output, the error."""
    words = " ".join(evidence.split())
    return words if len(words) <= _WORDS else f"... {words[-_WORDS:]}"


class _Seeded:
    """A generator that first proposes given candidates: stale winners, siblings' winners."""

    def __init__(self, inner: Generator, seeds: tuple[Candidate, ...]) -> None:
        self._inner = inner
        self._seeds = seeds
        self.name, self.version = inner.name, inner.version

    def languages(self, target: Target) -> tuple[str, ...]:
        return self._inner.languages(target)

    def rejects(self, task: Task, target: Target) -> str | None:
        return self._inner.rejects(task, target)

    def gain_us(self, task: Task, sizes: Sequence[int], target: Target) -> float:
        return self._inner.gain_us(task, sizes, target)

    def propose(
        self, task: Task, sizes: Sequence[int], target: Target, numerics: Numerics, history: Sequence[Trial], count: int
    ) -> Sequence[Candidate]:
        if not history:
            return self._seeds
        return self._inner.propose(task, sizes, target, numerics, history, count)

    def foresee(
        self, task: Task, sizes: Sequence[int], target: Target, numerics: Numerics, history: Sequence[Trial], count: int
    ) -> Sequence[Candidate]:
        if not isinstance(self._inner, Foreseeing):
            return ()
        later = self._inner.foresee(task, sizes, target, numerics, history, count)
        return later if history else (*self._seeds, *later)
