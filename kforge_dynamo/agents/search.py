"""The search for a winner of one task: propose, evaluate, keep what is right and fastest, stop in time."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Protocol, runtime_checkable

from kforge_dynamo.agents.generator import Foreseeing, Generator
from kforge_dynamo.records.candidate import Candidate
from kforge_dynamo.records.codec import digest
from kforge_dynamo.records.outcome import Status, Trial
from kforge_dynamo.records.target import Numerics, Target
from kforge_dynamo.records.task import Domain, Task

Evaluate = Callable[[Candidate, str, float], Trial]
"""Evaluates a candidate at the stage "search" or "final" within so many seconds."""


@runtime_checkable
class Expecting(Protocol):
    """An `Evaluate` that can use the time to know which candidates come next."""

    def expect(self, candidates: Sequence[Candidate]) -> None:
        """They will probably be evaluated soon, in this order."""


_BATCH = 4
_FORESEEN = 12
_FINALISTS = 3
_FINAL_COST = 2.0  # a final trial repeats the checks with five seeds and takes more samples
_FINAL_LEAST_S = 10.0  # what was kept back is too little where the machine has got other work meanwhile
_LATER_COST = 0.15  # the first trial also computes the oracle and compiles the baseline
_ROOFLINE_SHARE = 0.95


@dataclass(frozen=True, slots=True)
class Problem:
    """What is searched for: a task at sizes, for a target, under numerics. `floor_us` is the roofline's time, if known; `domain`
    the sizes to be right for, None for `sizes` alone."""

    task: Task
    sizes: tuple[int, ...]
    target: Target
    numerics: Numerics
    floor_us: float | None
    title: str = ""
    domain: Domain | None = None


@dataclass(frozen=True, slots=True)
class SearchResult:
    """`best` passed the final stage; `exhausted` when the generator had no more to propose within the time.

    `untestable` is the judge's sentence when no candidate of this task can be judged.
    """

    trials: tuple[Trial, ...]
    best: Trial | None
    exhausted: bool
    untestable: str | None
    elapsed_s: float


class Clock:
    """Time left of a budget in seconds; `now` is passed in so that tests need no waiting."""

    def __init__(self, budget_s: float, now: Callable[[], float]) -> None:
        self._now = now
        self._start = now()
        self._budget_s = budget_s

    @property
    def elapsed_s(self) -> float:
        """Seconds since the start."""
        return self._now() - self._start

    @property
    def left_s(self) -> float:
        """Seconds until the budget is spent, never negative."""
        return max(0.0, self._budget_s - self.elapsed_s)


def search(problem: Problem, generator: Generator, evaluate: Evaluate, clock: Clock) -> SearchResult:
    """Proposes and evaluates until the budget, the roofline or the generator's ideas are used up.

    Time for the final stage of the best is kept back, so a search that found something right can always finish it.
    """
    found = explore(problem, generator, evaluate, clock)
    if found.untestable is not None:
        return found
    return finish(found, evaluate, clock)


def explore(problem: Problem, generator: Generator, evaluate: Evaluate, clock: Clock) -> SearchResult:
    """`search` without the final stage: its result has no best yet."""
    history: list[Trial] = []
    exhausted = False
    usual_s = 0.0
    while not exhausted and not _near_roofline(problem, history):
        batch = generator.propose(problem.task, problem.sizes, problem.target, problem.numerics, tuple(history), _BATCH)
        exhausted = not batch
        _announce(problem, generator, evaluate, history, batch)
        for candidate in batch:
            if history and clock.left_s < usual_s * (1.0 + _FINAL_COST * bool(passed(history))):
                return SearchResult(tuple(history), None, False, None, clock.elapsed_s)
            before = clock.elapsed_s
            trial = evaluate(candidate, "search", clock.left_s)
            history.append(trial)
            usual_s = (clock.elapsed_s - before) * (1.0 if len(history) > 1 else _LATER_COST)
            if trial.verdict.status is Status.NOT_TESTABLE:
                return SearchResult(tuple(history), None, True, trial.verdict.evidence, clock.elapsed_s)
    return SearchResult(tuple(history), None, exhausted, None, clock.elapsed_s)


def _announce(
    problem: Problem, generator: Generator, evaluate: Evaluate, history: Sequence[Trial], batch: Sequence[Candidate]
) -> None:
    """Tells who evaluates what comes next: a compiler may run beside the checks of another candidate."""
    if not batch or not isinstance(evaluate, Expecting):
        return
    later: Sequence[Candidate] = ()
    if isinstance(generator, Foreseeing):
        later = generator.foresee(problem.task, problem.sizes, problem.target, problem.numerics, tuple(history), _FORESEEN)
    known = {digest(candidate) for candidate in batch}
    evaluate.expect([*batch, *[candidate for candidate in later if digest(candidate) not in known]])


def finish(found: SearchResult, evaluate: Evaluate, clock: Clock) -> SearchResult:
    """The final stage of the fastest few, until one passes it; `_FINAL_LEAST_S` for them where less is left of the budget."""
    history = list(found.trials)
    best: Trial | None = None
    end_s = clock.elapsed_s + max(clock.left_s, _FINAL_LEAST_S)
    for trial in passed(history)[:_FINALISTS]:
        final = evaluate(trial.candidate, "final", max(end_s - clock.elapsed_s, 1.0))
        history.append(final)
        if final.verdict.passed and final.timings:
            best = final
            break
    return SearchResult(tuple(history), best, found.exhausted, None, clock.elapsed_s)


def candidate_us(trial: Trial) -> float:
    """The median time of a trial that was timed, infinity otherwise (for ordering only)."""
    return min((timing.candidate.median_us for timing in trial.timings), default=float("inf"))


def passed(history: Sequence[Trial]) -> list[Trial]:
    """The trials that passed and were timed, the fastest first."""
    return sorted((trial for trial in history if trial.verdict.passed and trial.timings), key=candidate_us)


def _near_roofline(problem: Problem, history: Sequence[Trial]) -> bool:
    best = passed(history)
    if not best or problem.floor_us is None:
        return False
    return candidate_us(best[0]) * _ROOFLINE_SHARE <= problem.floor_us
