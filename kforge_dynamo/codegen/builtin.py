"""The built-in generator: schedules of the C++ and Triton rooms, in the order a cheap model and the results so far suggest."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import MISSING, fields
from types import ModuleType
from typing import Any

from kforge_dynamo.codegen import cpp, triton
from kforge_dynamo.records.candidate import Candidate
from kforge_dynamo.records.codec import digest, plain
from kforge_dynamo.records.outcome import Status, Trial
from kforge_dynamo.records.target import Numerics, Target
from kforge_dynamo.records.task import Task

_ROOMS: dict[str, ModuleType] = {"cpp": cpp, "triton": triton}
_FIRST = 8  # schedules of the space that are measured before the best one's neighbours


class BuiltinGenerator:
    """Needs no key and no network; implements `agents.generator.Generator`."""

    name = "builtin"
    version = "2"

    def __init__(self, allowed: Sequence[str] = ("cpp", "triton")) -> None:
        self._allowed = tuple(allowed)

    def languages(self, target: Target) -> tuple[str, ...]:
        """C++ for CPUs, Triton for GPUs."""
        wanted = "cpp" if target.kind == "cpu" else "triton"
        return (wanted,) if wanted in self._allowed else ()

    def rejects(self, task: Task, target: Target) -> str | None:
        """The sentence of the last room that refuses, None when one accepts."""
        sentence: str | None = f"no language of {self._allowed} writes for {target.kind}"
        for language in self.languages(target):
            sentence = _ROOMS[language].rejects(task, target)
            if sentence is None:
                return None
        return sentence

    def gain_us(self, task: Task, sizes: Sequence[int], target: Target) -> float:
        """The largest estimate of any room."""
        return max((float(_ROOMS[name].gain_us(task, sizes, target)) for name in self.languages(target)), default=0.0)

    def prepares(self, task: Task, target: Target) -> bool:
        """Whether a kernel for `task` may start with launches that read nothing but weights."""
        return any(bool(_ROOMS[name].prepares(task)) for name in self.languages(target))

    def proves(self, task: Task, target: Target) -> bool:
        """Whether a kernel for `task` may leave that out in calls that find the weights unchanged, on the device."""
        return any(bool(_ROOMS[name].proves(task)) for name in self.languages(target))

    def propose(
        self,
        task: Task,
        sizes: Sequence[int],
        target: Target,
        numerics: Numerics,
        history: Sequence[Trial],
        count: int,
    ) -> Sequence[Candidate]:
        """First the best of each room's space, then neighbours of the fastest right one, then the rest of the space."""
        tried = {digest(trial.candidate) for trial in history}
        rooms = [_ROOMS[name] for name in self.languages(target) if _ROOMS[name].rejects(task, target) is None]
        found: list[Candidate] = []
        for room in rooms:
            space = room.space(task, sizes, target, numerics)
            schedules = [*space[:_FIRST], *_near(room, task, sizes, target, numerics, history), *space[_FIRST:]]
            too_large, inexact = _too_large(history), _inexact(history)
            later = [schedule for schedule in schedules if any(_longer_chain(schedule, other) for other in inexact)]
            behind = set(later)
            for schedule in (*(item for item in schedules if item not in behind), *later):
                if any(_at_least(schedule, other) for other in too_large):
                    continue
                candidate = room.emit(task, schedule, sizes, target, numerics)
                if digest(candidate) not in tried:
                    tried.add(digest(candidate))
                    found.append(candidate)
                if len(found) >= count:
                    return found
        return found

    foresee = propose
    """See `agents.generator.Foreseeing`: proposing costs nothing here."""


def _too_large(history: Sequence[Trial]) -> list[dict[str, object]]:
    """The schedules that needed more of the device (shared memory, registers) than it has."""
    failed = [trial for trial in history if trial.verdict.status in (Status.RUNTIME_ERROR, Status.COMPILE_ERROR)]
    texts = [trial.candidate.schedule for trial in failed if "out of resource" in trial.verdict.evidence.lower()]
    return [json.loads(text) for text in texts if text]


def _inexact(history: Sequence[Trial]) -> list[dict[str, object]]:
    """The schedules whose sums were not exact enough."""
    texts = [trial.candidate.schedule for trial in history if trial.verdict.status is Status.INACCURATE]
    return [json.loads(text) for text in texts if text]


_SAME_SUMS = ("scheme", "copies", "together", "fold")


def _longer_chain(schedule: Any, other: dict[str, object]) -> bool:
    """Whether `schedule` adds the same products as `other` in chains as long or longer before it promotes them: its error is
    hardly smaller. Such schedules are tried last."""
    if not hasattr(schedule, "promote"):
        return False
    known = {field.name: plain(field.default) for field in fields(schedule) if field.default is not MISSING} | other
    if any(plain(getattr(schedule, name)) != known[name] for name in _SAME_SUMS):
        return False
    mine, theirs = int(schedule.promote), int(str(known["promote"]))
    return mine == 0 or (theirs != 0 and mine >= theirs)


def _at_least(schedule: Any, other: dict[str, object]) -> bool:
    """Whether `schedule` is `other`, or has only larger numbers in its place: then it needs at least as much. A field that the
    text of `other` leaves out has its default."""
    defaults = {field.name: plain(field.default) for field in fields(schedule) if field.default is not MISSING}
    return all(
        mine >= theirs if isinstance(mine, int) and isinstance(theirs, int) and not isinstance(mine, bool) else mine == theirs
        for mine, theirs in ((plain(getattr(schedule, name, None)), value) for name, value in (defaults | other).items())
    )


def _near(
    room: ModuleType, task: Task, sizes: Sequence[int], target: Target, numerics: Numerics, history: Sequence[Trial]
) -> list[object]:
    """Schedules next to the fastest right one, once the first of the space are measured."""
    timed = [trial for trial in history if trial.verdict.passed and trial.timings]
    if len(history) < _FIRST or not timed:
        return []
    best = min(timed, key=lambda trial: trial.timings[0].candidate.median_us)
    space = room.space(task, sizes, target, numerics)
    known = {room.emit(task, schedule, sizes, target, numerics).schedule: schedule for schedule in space}
    schedule = known.get(best.candidate.schedule)
    return list(room.neighbours(schedule, task, sizes, target, numerics)) if schedule is not None else []
