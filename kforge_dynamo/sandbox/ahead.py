"""Processes that compile candidates before they are judged: a compiler takes longer than all checks together, and on one core.

They are forked before the judge has a device, hold none, and leave what they made in the compilers' own caches. Nothing
depends on them: what they did not do, or did for other sizes, the judge does itself.
"""

from __future__ import annotations

import contextlib
import json
import os
import queue
import threading
import time
from collections.abc import Mapping, Sequence
from pathlib import Path

from kforge_dynamo.languages.base import Ahead, Language, Point
from kforge_dynamo.records.codec import digest, from_text, to_text
from kforge_dynamo.records.request import Request
from kforge_dynamo.sandbox.confine import confine_judge
from kforge_dynamo.sandbox.forks import fork
from kforge_dynamo.sandbox.inputs import full_shape
from kforge_dynamo.sandbox.layout import TIMED_PAD, strides_of
from kforge_dynamo.sandbox.pipes import line
from kforge_dynamo.sandbox.points import further_points
from kforge_dynamo.settings import sandbox_without

_MOST = 8
_SPARE = 2  # cores that the judge, Inductor and the user's process keep
_FINAL_PADS = (TIMED_PAD, 1, 64)  # pitches of each kind that a compiler may tell from one another
_PATIENCE_S = 3.0
_Job = tuple[int, int, str, str, Point]
"""Whether it is only foreseen, its number, the candidate's key, the request and the point."""


def compilers_wanted() -> int:
    """How many of this machine's cores may compile beside the judge."""
    return max(1, min(_MOST, len(os.sched_getaffinity(0)) - _SPARE))


def points_of(request: Request) -> list[Point]:
    """What a request's checks will launch at, in their order, as far as compilers tell them apart."""
    pitched = any("pitch" in item.strides for item in request.task.inputs)
    pads = _FINAL_PADS if request.stage == "final" and pitched else (TIMED_PAD,)
    further = further_points(request.domain, request.sizes, request.candidate) if request.stage == "final" else ()
    found = [(request.sizes, pad) for pad in pads] + [(sizes, TIMED_PAD) for sizes in further]
    return [(sizes, _strides(request, sizes, pad)) for sizes, pad in found]


def _strides(request: Request, sizes: Sequence[int], pad: int) -> tuple[tuple[int, ...], ...]:
    axes = dict(zip(request.task.axes, sizes, strict=True))
    return tuple(strides_of(item, full_shape(item, axes), pad) for item in request.task.inputs)


class Compilers:
    """A pool of such processes for a device of `kind`. Made by a program that has one thread and no device yet."""

    def __init__(self, languages: Mapping[str, Language], kind: str, count: int | None = None) -> None:
        self._languages = languages
        self._jobs: queue.PriorityQueue[_Job] = queue.PriorityQueue()
        self._open: dict[str, int] = {}
        self._known: dict[str, int] = {}
        self._begun: set[str] = set()
        self._count = 0
        self._changed = threading.Condition()
        self._alive = 0
        ends = [_Child.fork(languages, kind) for _ in range(compilers_wanted() if count is None else count)]
        for child in ends:  # threads only when all forks are made
            self._alive += 1
            threading.Thread(target=self._serve, args=(child,), daemon=True).start()

    def expect(self, requests: Sequence[Request], foreseen: bool = True) -> None:
        """Compiles these soon, each point of each request once; what is asked for goes before what is only foreseen."""
        for request in requests:
            if not isinstance(self._languages.get(request.candidate.language), Ahead):
                continue
            text, key = to_text(request), _key(request)
            for point in points_of(request):
                name = f"{key}:{point}"
                with self._changed:
                    known = self._known.get(name)
                    if known is not None and (known <= foreseen or name in self._begun):
                        continue
                    if known is None:
                        self._open[key] = self._open.get(key, 0) + 1
                    self._known[name] = int(foreseen)
                    self._count += 1
                    number = self._count
                self._jobs.put((int(foreseen), number, key, text, point))

    def wait(self, request: Request, seconds: float, patience_s: float = _PATIENCE_S) -> None:
        """Until what the stage "search" of this candidate needs is compiled, or nobody compiles it, or `seconds` are over; where
        it is not even begun, because all are busy with others', for `patience_s` at most."""
        if request.stage != "search":
            return
        key, start = _key(request), time.monotonic()
        with self._changed:
            while self._alive and self._open.get(key, 0):
                begun = any(f"{key}:{point}" in self._begun for point in points_of(request))
                left_s = start + (seconds if begun else min(seconds, patience_s)) - time.monotonic()
                if left_s <= 0:
                    return
                self._changed.wait(min(left_s, 1.0))

    def _serve(self, child: _Child) -> None:
        while True:
            _, _, key, text, point = self._jobs.get()
            with self._changed:
                name = f"{key}:{point}"
                if name in self._begun:  # it was foreseen, then asked for
                    continue
                self._begun.add(name)
                self._changed.notify_all()
            alive = child.compile(text, point)
            with self._changed:
                self._open[key] -= 1
                self._alive -= not alive
                self._changed.notify_all()
            if not alive:
                return


def _key(request: Request) -> str:
    return f"{digest(request.candidate)}:{request.stage}"


class _Child:
    """One compiling process as its parent sees it."""

    def __init__(self, write: int, read: int) -> None:
        self._write, self._read = write, os.fdopen(read, "rb")

    @staticmethod
    def fork(languages: Mapping[str, Language], kind: str) -> _Child:
        """A fresh one."""
        orders_read, orders_write = os.pipe()
        answers_read, answers_write = os.pipe()
        fork(lambda: _compile_all(languages, kind, orders_read, answers_write), (orders_read, answers_write))
        os.close(orders_read)
        os.close(answers_write)
        return _Child(orders_write, answers_read)

    def compile(self, text: str, point: Point) -> bool:
        """Whether the process still lives afterwards."""
        try:
            data = line({"text": text, "sizes": point[0], "strides": point[1]})
            while data:
                data = data[os.write(self._write, data) :]
            return bool(self._read.readline())
        except OSError:
            return False


def _compile_all(languages: Mapping[str, Language], kind: str, read: int, write: int) -> None:
    """The child: until its orders end."""
    confine_judge(kind, sandbox_without())
    with os.fdopen(read, "rb") as orders:
        for order in orders:
            found = json.loads(order)
            request = from_text(Request, found["text"])
            language = languages[request.candidate.language]
            point = (tuple(found["sizes"]), tuple(tuple(item) for item in found["strides"]))
            with contextlib.suppress(Exception):  # the judge compiles again, and its verdict says what is wrong
                assert isinstance(language, Ahead)
                language.compile_ahead(request.candidate, request.task, request.target, Path(request.artifact_folder), point)
            os.write(write, b"\n")
