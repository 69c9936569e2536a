"""The regions of a running job as a file of JSON lines, for `kforge warm --recorded`.

A line is `{"format": "kforge-recorded-1", "count": 2, "regime": "wall", "task": {...}}`: how often a compiled graph had the
region, how it is launched, and a task file's object (`records.assignment`). Each process adds whole lines with one write
each, so several ranks may share a file on a local disk; a line that was cut off by a crash is left out when the file is read.
"""

from __future__ import annotations

import json
import os
from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

from kforge_dynamo.errors import RecordError, StoreError
from kforge_dynamo.records.assignment import Assignment, read_task, task_text
from kforge_dynamo.records.codec import digest
from kforge_dynamo.store.notes import say_once

FORMAT = "kforge-recorded-1"
_MOST_BYTES = 1 << 30


@dataclass(frozen=True, slots=True)
class Recorded:
    """A region that was met `count` times in compiled graphs, in the regime "wall" or "replay"."""

    assignment: Assignment
    regime: str
    count: int


def append(path: Path, met: Iterable[tuple[Assignment, str]]) -> None:
    """Adds regions, each with its regime, in one line a kind. What cannot be written is said once and lost."""
    counts: Counter[tuple[Assignment, str]] = Counter(met)
    lines = []
    for (assignment, regime), count in counts.items():
        task = json.loads(task_text(assignment))
        lines.append(json.dumps({"format": FORMAT, "count": count, "regime": regime, "task": task}, separators=(",", ":")))
    try:
        handle = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600)
        try:
            for line in lines:
                os.write(handle, line.encode() + b"\n")
        finally:
            os.close(handle)
    except OSError as error:
        say_once(f"the regions of this process cannot be recorded in {path} ({error.strerror or error}); set KFORGE_RECORD anew")


def read(path: Path) -> tuple[list[Recorded], int]:
    """The regions in a file, each once with its counts added, the most frequent first; and how many lines were no region.

    Raises: StoreError where there is no such file, or nothing in it.
    """
    try:
        if path.stat().st_size > _MOST_BYTES:
            raise StoreError(f"{path} has more than {_MOST_BYTES >> 20} MiB; it was not written by KFORGE_RECORD")
        lines = path.read_text(encoding="utf-8", errors="replace").splitlines()
    except OSError as error:
        raise StoreError(f"{path} cannot be read ({error.strerror}); KFORGE_RECORD={path} makes it while a job runs") from error
    counts: Counter[tuple[str, str]] = Counter()
    known: dict[tuple[str, str], Assignment] = {}
    damaged = 0
    for line in lines:
        found = _line(line)
        if found is None:
            damaged += 1
            continue
        name = (digest(found.assignment), found.regime)
        known[name] = found.assignment
        counts[name] += found.count
    if not known:
        raise StoreError(f"{path} holds no region; KFORGE_RECORD={path} adds those of a job that compiles with kforge")
    return [Recorded(known[name], name[1], count) for name, count in counts.most_common()], damaged


def _line(text: str) -> Recorded | None:
    try:
        data = json.loads(text)
        if data["format"] != FORMAT or type(data["count"]) is not int or data["regime"] not in ("wall", "replay"):
            return None
        return Recorded(read_task(json.dumps(data["task"]), "a line"), data["regime"], data["count"])
    except (ValueError, KeyError, TypeError, RecursionError, RecordError):
        return None
