"""Which threads a launch started, and what it left in the memory of its own library: what no output shows.

A new thread inherits the name of the thread that started it. So the launching thread carries a name of its own during a launch,
and threads of that name are the candidate's, whatever else this process does meanwhile (Inductor compiles in another thread).
On systems without /proc nothing is known and nothing is said.
"""

from __future__ import annotations

import contextlib
import ctypes
import hashlib
import threading
from pathlib import Path

from kforge_dynamo.records.outcome import Status, Verdict

_TASKS = Path("/proc/self/task")
_MAPS = Path("/proc/self/maps")
_NAME = "kforge-launch"


class Watch:
    """Encloses launches in this thread."""

    def __init__(self) -> None:
        self._own = _TASKS / str(threading.get_native_id()) / "comm"
        self._before = ""

    def __enter__(self) -> Watch:
        with contextlib.suppress(OSError):
            self._before = self._own.read_text().strip()
            self._own.write_text(_NAME)
        return self

    def __exit__(self, *_: object) -> None:
        with contextlib.suppress(OSError):
            self._own.write_text(self._before or "python")

    def fault(self, threads: int, where: str) -> Verdict | None:
        """More threads than a team of `threads` needs beside the one that called."""
        started = sum(_name_of(task) == _NAME for task in _TASKS.glob("*/comm"))
        if started <= max(threads, 1) - 1:
            return None
        words = f"{started} threads that launches started are there, a team of {threads} needs {threads - 1} [rule threads]"
        return Verdict(Status.REJECTED, None, None, where, words)


def _name_of(task: Path) -> str:
    try:
        return task.read_text().strip()
    except OSError:  # it ended meanwhile
        return ""


def written_memory(folder: str) -> str:
    """A digest of all memory of the libraries loaded from `folder` that can be written, and of what lies directly behind (their
    zeroed data)."""
    digest, end, root = hashlib.sha256(), None, f"{Path(folder).resolve()}/"
    if not folder:
        return ""
    try:
        lines = _MAPS.read_text().splitlines()
    except OSError:
        return ""
    for line in lines:
        span, flags, _, _, inode, *name = line.split(maxsplit=5)
        start, stop = (int(part, 16) for part in span.split("-"))
        mine = bool(name) and name[0].startswith(root)
        behind = not name and inode == "0" and start == end
        end = stop if mine or behind else None
        if (mine or behind) and flags.startswith("rw"):
            digest.update(ctypes.string_at(start, stop - start))
    return digest.hexdigest()
