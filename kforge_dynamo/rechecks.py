"""Winners that were made elsewhere or with other software: verified here before they are believed, tried first as seeds.

A winner of a shared layer under `verify="on-load"` is judged as the last stage of a search judges, without timing: it was
timed on a device of this very name. One that fails is refused for good; one that could not be judged is not used this time.
A winner of older software is judged and timed again, and stays where it still wins. What won on a relative of this device
(same vendor, near generation) is what the search here tries first.
"""

from __future__ import annotations

import functools
import itertools
import time
from collections.abc import Iterable

from kforge_dynamo.errors import KforgeError
from kforge_dynamo.evaluation import Evaluator, Order
from kforge_dynamo.forge import Bench, Context, shortfall
from kforge_dynamo.forge import Miss as Region
from kforge_dynamo.languages.table import LANGUAGES
from kforge_dynamo.records.assignment import Assignment
from kforge_dynamo.records.candidate import Candidate
from kforge_dynamo.records.codec import digest, to_text
from kforge_dynamo.records.outcome import CacheKey, Provenance, Status, Winner
from kforge_dynamo.records.target import Target
from kforge_dynamo.store import Found, Miss, Store, key_of
from kforge_dynamo.targets import generation, provenance

_VERIFY_S = 120.0
_MOST_SEEDS = 3
_INCONCLUSIVE = (Status.TIMEOUT, Status.UNSTABLE_TIMING, Status.NOT_TESTABLE, Status.COMPILE_ERROR)
"""Verdicts about this machine and this moment rather than about the kernel."""


def made_now(target: Target, language: str) -> Provenance | None:
    """What an entry in `language` would be made with now; None where it cannot be used."""
    if language not in LANGUAGES or LANGUAGES[language].missing(target) is not None:
        return None
    return provenance(language, LANGUAGES[language].toolchain(), target)


def known(store: Store, assignment: Assignment, target: Target) -> tuple[Found | None, Miss]:
    """What the store answers for `assignment` now, and how the nearest winner differs."""
    key = key_of(assignment.task, target, assignment.numerics)
    found = store.lookup(key, assignment.sizes, functools.partial(made_now, target))
    return found, store.explain_miss(key, assignment.sizes)


def verify(store: Store, found: Found, assignment: Assignment, evaluator: Evaluator, mode: str) -> str | None:
    """Judges the winner in `found` for `assignment`: None where it passed and is the user's own now, else why it is not used."""
    winner = found.winner
    assert winner is not None
    whole = Assignment(assignment.title, assignment.device, assignment.task, assignment.sizes, winner.domain, assignment.numerics)
    try:
        verdict = evaluator.judge(whole, winner.trial.candidate, Order("final", False, _VERIFY_S, mode)).verdict
    except KforgeError as error:
        return f"it could not be verified: {error}"
    if verdict.passed:
        store.put_winner(winner)
        return None
    reason = f"it did not pass here: {verdict.status.value}, {verdict.where}: {' '.join(verdict.evidence.split())[:200]}"
    if verdict.status not in _INCONCLUSIVE:
        store.refuse(winner, reason)
    return reason


def prove_again(miss: Region, bench: Bench, winner: Winner, budget_s: float) -> Winner | None:
    """`winner`, judged and timed with the software of now; None where it is no winner any more."""
    started = time.monotonic()
    for stage in ("search", "final"):  # the cheap one first: a kernel that is wrong now fails there
        left_s = max(1.0, budget_s - (time.monotonic() - started))
        trial = bench.evaluate(miss, winner.trial.candidate, stage, left_s)
        if not trial.verdict.passed or not trial.timings:
            return None
    if shortfall(trial.timings, Context(False, 0, miss.regime), bench.target) is not None:
        return None
    return Winner(miss.key, to_text(miss.task), miss.domain, trial, bench.provenance(trial.candidate.language))


def seeds(store: Store, key: CacheKey, sizes: tuple[int, ...], target: Target) -> tuple[Candidate, ...]:
    """What to try first for `key`: kernels that won on relatives of `target`, those for these sizes before others."""
    own = generation(target.name, target.arch)
    if own is None:
        return ()
    found: Iterable[Winner] = store.relatives(key, lambda name: generation(name) == own)
    ranked = sorted(itertools.islice(found, 64), key=lambda winner: not winner.domain.holds(sizes))
    distinct = {digest(winner.trial.candidate): winner.trial.candidate for winner in ranked}
    return tuple(distinct.values())[:_MOST_SEEDS]
