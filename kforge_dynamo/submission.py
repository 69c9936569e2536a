"""A kernel that a person or another program wrote for a task: judged as a search's last stage judges, and kept where it wins."""

from __future__ import annotations

import math
from dataclasses import dataclass, replace

from kforge_dynamo.evaluation import Evaluator, Order
from kforge_dynamo.forge import Context, shortfall
from kforge_dynamo.languages.table import LANGUAGES
from kforge_dynamo.rechecks import known
from kforge_dynamo.records.assignment import Assignment
from kforge_dynamo.records.candidate import Candidate
from kforge_dynamo.records.codec import to_text
from kforge_dynamo.records.outcome import Timings, Trial, Winner, compare
from kforge_dynamo.records.pairs import MEANINGFUL
from kforge_dynamo.records.target import Target
from kforge_dynamo.store import Store, key_of
from kforge_dynamo.targets import provenance


@dataclass(frozen=True, slots=True)
class Submission:
    """What became of a kernel: its trial, whether it is stored now, and why in one sentence."""

    trial: Trial
    stored: bool
    reason: str


def submit(
    assignment: Assignment, candidate: Candidate, evaluator: Evaluator, target: Target, store: Store, seconds: float, mode: str
) -> Submission:
    """Judges `candidate` with all seeds and sizes, and keeps it where it beats Inductor's version of the task and the stored
    winner, which is timed again here. `seconds` bounds each judgement, `mode` is the baseline's.

    Raises: ToolchainError without a worker.
    """
    trial = evaluator.judge(assignment, candidate, Order("final", True, seconds, mode))
    if not trial.verdict.passed:
        where = f" at {trial.verdict.where}" if trial.verdict.where else ""
        return Submission(trial, False, f"not stored: {trial.verdict.status.value}{where}")
    slow = [shortfall(trial.timings, Context(False, 0, item.regime), target) for item in trial.timings]
    if None not in slow:
        return Submission(trial, False, f"not stored: {slow[0] if slow else 'it was not timed'}")
    found, _ = known(store, assignment, target)
    present = found.winner if found is not None else None
    if present is not None and _same(present.trial.candidate, candidate):
        return Submission(trial, True, f"it is the stored winner already, {trial.timings[0].speedup:.2f}x of Inductor's region")
    if present is not None:
        rival = evaluator.judge(assignment, present.trial.candidate, Order("search", True, seconds, mode))
        if rival.timings and not faster(trial.timings[0], rival.timings[0]):
            words = f"{trial.timings[0].speedup:.2f}x of Inductor's region, the stored winner {rival.timings[0].speedup:.2f}x"
            return Submission(trial, False, f"not stored: it takes {words}, measured now")
    made = provenance(candidate.language, LANGUAGES[candidate.language].toolchain(), target)
    key = key_of(assignment.task, target, assignment.numerics)
    lean = replace(trial, profile=None)
    on_disk = store.put_winner(Winner(key, to_text(assignment.task), assignment.domain, lean, made))
    words = f"stored as the winner: {trial.timings[0].speedup:.2f}x of Inductor's region"
    return Submission(trial, True, words if on_disk else f"{words}, for this process alone: no folder could be written")


def faster(mine: Timings, other: Timings) -> bool:
    """Whether `mine` is faster than `other` by 1 % and by more than the uncertainty of both runs; each counts by its ratio to
    Inductor's region of its own run, as two runs may have met another load."""
    runs = [compare(run.candidate, run.region) for run in (mine, other)]
    return runs[1].value / runs[0].value > 1.0 + max(MEANINGFUL, math.hypot(*(found.share for found in runs)))


def _same(one: Candidate, other: Candidate) -> bool:
    return (one.language, one.source, one.plan) == (other.language, other.source, other.plan)
