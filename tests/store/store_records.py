"""Records for the store's tests, and work done in another process."""

from __future__ import annotations

import os
from collections.abc import Callable

from kforge_dynamo.records.candidate import Buffer, Candidate, Launch, LaunchPlan
from kforge_dynamo.records.outcome import (
    CacheKey,
    Measurement,
    Provenance,
    Standing,
    State,
    Status,
    Terms,
    Timings,
    Trial,
    Verdict,
    Winner,
)
from kforge_dynamo.records.task import AxisRange, Domain
from kforge_dynamo.store import close_stores

KEY = CacheKey("a" * 64, "Some CPU avx512 2 threads", "b" * 64, 1)
MADE_WITH = Provenance("2.13.0", "cpp", "g++ 12.2", "none", "0.1.0", "2026-01-01T00:00:00+00:00")
NOBODY = 65534


def domain(*ranges: tuple[int, int]) -> Domain:
    """One range an axis: m, then n."""
    return Domain(tuple(AxisRange(name, low, high) for name, (low, high) in zip("mn", ranges, strict=False)))


def candidate(source: str = "void kforge_entry() {}") -> Candidate:
    plan = LaunchPlan((Buffer("scratch", "float32", "m*4"),), (Launch("kforge_entry", ("1",), ("in:0", "out:0", "size:m")),))
    return Candidate("cpp", source, plan, "{}", "ieee", "builtin")


def winner(
    *ranges: tuple[int, int], source: str = "void kforge_entry() {}", key: CacheKey = KEY, made: Provenance = MADE_WITH
) -> Winner:
    samples = Measurement((10.25, 10.5, 11.0, 10.75), "wall")
    trial = Trial(
        candidate(source),
        Verdict(Status.PASSED, 1.25, 3.0e-7, "output 0, normal, row 3", ""),
        (Timings("wall", "default", samples, Measurement((20.0, 21.0), "wall"), None),),
    )
    return Winner(key, '{"row_axes":["m"]}', domain(*(ranges or ((1, 64),))), trial, made)


def standing(
    *ranges: tuple[int, int], state: State = State.NO_WINNER, budget_s: float = 10.0, generator: str = "builtin 1"
) -> Standing:
    terms = Terms(generator, ("cpp",), budget_s, 12) if state is State.NO_WINNER else None
    return Standing(KEY, domain(*(ranges or ((1, 64),))), state, "slower than Inductor", terms, 0.9)


def in_a_child(work: Callable[[], None], nobody: bool = False) -> int:
    """Runs `work` in a fork, as another user if asked (the caller must be root for that); 0 when it raised nothing."""
    child = os.fork()
    if child == 0:
        code = 1
        try:
            if nobody:
                os.setgroups([])
                os.setgid(NOBODY)
                os.setuid(NOBODY)
            close_stores()
            work()
            code = 0
        finally:
            os._exit(code)
    return os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
