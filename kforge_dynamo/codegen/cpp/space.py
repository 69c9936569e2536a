"""The schedules worth measuring, best guess first."""

from __future__ import annotations

from collections.abc import Sequence

from kforge_dynamo.codegen.cpp.schedule import Schedule
from kforge_dynamo.records.target import Numerics, Target
from kforge_dynamo.records.task import Task


def space(task: Task, sizes: Sequence[int], target: Target, numerics: Numerics) -> list[Schedule]:
    """The schedules of `task`, best guess first."""
    if task.anchor is None:
        return [Schedule("none", rows) for rows in (32, 8, 128)]
    found = [Schedule("library", rows) for rows in (128, 64, 256)] + [Schedule("library_whole", 32)]
    found += [
        Schedule("own", 64, 0, "columns", 8, 2, 256),
        Schedule("own", 64, 64, "columns", 14, 2, 256),
        Schedule("own", 128, 0, "rows", 14, 2, 256),
    ]
    found += [
        Schedule("own", 128, 56, "rows", 14, 2, 256),
        Schedule("own", 16, 56, "rows", 14, 1, 256, True),
        Schedule("dot", 16, 64, "", 4),
        Schedule("dot", 8, 0, "", 8),
    ]
    return found


def neighbours(schedule: Schedule, task: Task, sizes: Sequence[int], target: Target, numerics: Numerics) -> list[Schedule]:
    """Schedules one step away from `schedule`."""
    return [Schedule(schedule.product, rows) for rows in (schedule.rows * 2, schedule.rows // 2) if 4 <= rows <= 1024]


def gain_us(task: Task, sizes: Sequence[int], target: Target) -> float:
    """Estimated time saved a call."""
    return 1.0
