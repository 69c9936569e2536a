"""Memory across tasks: lessons drawn from a run's trials, and those of the past that fit a new task (after KernelBlaster)."""

from __future__ import annotations

import math
from collections.abc import Sequence

from kforge_dynamo.agents.parsing import plain_line
from kforge_dynamo.agents.search import Problem
from kforge_dynamo.agents.strategies import Attempt, State
from kforge_dynamo.records.codec import digest
from kforge_dynamo.records.diagnosis import Lesson, Limit
from kforge_dynamo.records.task import Task

MOST_SHOWN = 6
MOST_KEPT = 6
_WHAT = 120
_LEAST_CHANGE = 0.03  # a gain or loss under 3 % teaches nothing


def features(task: Task, sizes: Sequence[int]) -> tuple[tuple[str, ...], str, tuple[int, ...]]:
    """What a task is alike by: its ops, the dtype of its product, the binary logarithms of rows, K and N."""
    ops = tuple(sorted({node.op for node in task.nodes}))
    anchor = task.anchor
    if anchor is None:
        return ops, task.inputs[0].value.dtype if task.inputs else "", tuple(_log(size) for size in sizes)
    depth = task.value(anchor.args[0]).cols[-1] if isinstance(anchor.args[0], int) else 0
    axes = dict(zip(task.axes, sizes, strict=True))
    extents = (math.prod(axes[axis] for axis in task.row_axes), depth, anchor.out.cols[-1])
    return ops, anchor.out.dtype, tuple(_log(axes[item] if isinstance(item, str) else item) for item in extents)


def distil(problem: Problem, state: State, day: str) -> list[Lesson]:
    """The most telling changes of a run: the largest gains, the largest losses, and one of each kind of failure."""
    ops, dtype, scale = features(problem.task, problem.sizes)

    def lesson(item: Attempt, gain: float | None, outcome: str) -> Lesson:
        parent = state.attempts[item.move.parent] if item.move.parent is not None else item
        limit = parent.diagnosis.limit if parent.diagnosis is not None else Limit.UNKNOWN
        what = plain_line(item.idea or (item.change.what if item.change is not None else item.move.kind), _WHAT)
        language = item.candidate.language if item.candidate is not None else ""
        kind, arch = problem.target.kind, problem.target.arch
        return Lesson(digest(problem.task), ops, dtype, scale, kind, arch, language, limit, what, gain, outcome, day)

    measured = [
        (gain, item) for item in state.attempts if (gain := state.gain(item)) is not None and abs(gain - 1) > _LEAST_CHANGE
    ]
    measured.sort(key=lambda pair: -abs(math.log(pair[0])))
    lessons = [lesson(item, gain, "faster" if gain > 1 else "slower") for gain, item in measured[: MOST_KEPT - 2]]
    failed: dict[str, Attempt] = {}
    for item in state.attempts:
        if item.trial is not None and not item.trial.verdict.passed and item.move.kind in ("optimise", "combine"):
            failed.setdefault(item.trial.verdict.status.value, item)
    lessons += [lesson(item, None, status) for status, item in failed.items()]
    return lessons[:MOST_KEPT]


def nearest(lessons: Sequence[Lesson], problem: Problem, most: int = MOST_SHOWN) -> list[Lesson]:
    """The lessons that fit the task and the target best; none of another kind of device. Equal ones are told once."""
    ops, dtype, scale = features(problem.task, problem.sizes)

    def distance(item: Lesson) -> float:
        union = set(ops) | set(item.ops)
        unlike = 1.0 - len(set(ops) & set(item.ops)) / max(1, len(union))
        far = sum(abs(a - b) for a, b in zip(scale, item.scale, strict=False)) / 10.0 + (len(scale) != len(item.scale))
        small = 0.3 if item.gain is None else 0.3 / (1.0 + 4.0 * abs(math.log(item.gain)))
        return 2.0 * unlike + far + (item.dtype != dtype) + (item.arch != problem.target.arch) + small

    fitting = [item for item in lessons if item.kind == problem.target.kind]
    chosen: dict[tuple[str, str], Lesson] = {}
    for item in sorted(fitting, key=lambda item: (distance(item), item.created, item.what)):
        chosen.setdefault((item.what, item.outcome), item)
    return list(chosen.values())[:most]


def lines(lessons: Sequence[Lesson]) -> tuple[str, ...]:
    """Lessons as lines of a prompt."""
    return tuple(_line(item) for item in lessons)


def _line(item: Lesson) -> str:
    found = f"{item.gain:.2f}x" if item.gain is not None else item.outcome.replace("_", " ")
    size = "x".join(str(1 << power) for power in item.scale)
    limit = item.limit.value.replace("_", " ")
    return f"{plain_line(item.what, _WHAT)}: {found} (limit {limit}, {item.language}, {item.dtype} about {size}, {item.arch})"


def _log(size: int) -> int:
    return round(math.log2(max(1, size)))
