"""Several searches at once, each with a seat of its own; what a lost seat was asked is asked again on another.

A search keeps its seat from its first trial to its last, so that the times it compares were taken on one device. The results
come back to this process, which alone writes the store; a search that ended is stored before the next begins on its seat, so
a driver that is killed and started again goes on with what has no answer.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import TypeVar

from kforge_dynamo.errors import LostError, ToolchainError
from kforge_dynamo.evaluation import Judge, request_of
from kforge_dynamo.forge import Evaluate, Miss
from kforge_dynamo.records.candidate import Candidate
from kforge_dynamo.records.outcome import Status, Trial, Verdict
from kforge_dynamo.records.request import Request
from kforge_dynamo.records.target import Numerics
from kforge_dynamo.scale.seats import Place, Seat

R = TypeVar("R")
_log = logging.getLogger("kforge")
_MOST_LOST = 2
"""Seats that one kernel may cost: what two were lost with is taken to be the reason."""


class Crew:
    """Seats on devices. Only those that are like one of `places` are used: the winners of others would be stale here."""

    def __init__(self, seats: Sequence[Seat], places: Sequence[Place]) -> None:
        self._changed = threading.Condition()
        self._free: list[Seat] = []
        self._size: dict[str, int] = {}
        self.losses: list[str] = []
        for seat in seats:
            differs = _difference(seat.place, places)
            if differs is not None:
                _log.warning("%s is not used: %s", seat.name, differs)
                seat.close()
                continue
            self._free.append(seat)
            name = seat.place.target.name
            self._size[name] = self._size.get(name, 0) + 1

    @property
    def size(self) -> int:
        """How many seats there are now."""
        with self._changed:
            return sum(self._size.values())

    def each(self, works: Sequence[tuple[str, Callable[[Judge], R]]]) -> list[R]:
        """See `evaluation.Crew`. Raises: what a work raises, after the others have ended."""
        with ThreadPoolExecutor(max_workers=max(1, self.size), thread_name_prefix="kforge-crew") as pool:
            futures = [pool.submit(self._one, device, work) for device, work in works]
        return [future.result() for future in futures]

    def close(self) -> None:
        """Ends every seat that is not at work."""
        with self._changed:
            for seat in self._free:
                seat.close()
            self._free.clear()
            self._size.clear()

    def _one(self, device: str, work: Callable[[Judge], R]) -> R:
        lease = Lease(self, device)
        try:
            return work(lease)
        finally:
            lease.release()

    def take(self, device: str) -> Seat:
        """A free seat on a device of this name, as soon as there is one. Raises: ToolchainError when there never will be."""
        with self._changed:
            while True:
                if not self._size.get(device):
                    lost = f"; lost: {'; '.join(self.losses)}" if self.losses else ""
                    raise ToolchainError(f"no evaluator has the device {device}{lost}")
                found = next((seat for seat in self._free if seat.place.target.name == device), None)
                if found is not None:
                    self._free.remove(found)
                    return found
                self._changed.wait()

    def give(self, seat: Seat) -> None:
        """Frees a seat that was taken."""
        with self._changed:
            self._free.append(seat)
            self._changed.notify_all()

    def lose(self, seat: Seat, error: LostError) -> None:
        """Strikes a seat that was taken; those who wait for one like it are told."""
        _log.warning("an evaluator is lost, and what it was asked is asked again elsewhere: %s", error)
        with self._changed:
            self._size[seat.place.target.name] -= 1
            self.losses.append(f"{seat.name} ({error})")
            self._changed.notify_all()
        seat.close()


class Lease:
    """The judge of one search: a seat, and another one when it is lost."""

    def __init__(self, crew: Crew, device: str) -> None:
        self._crew, self._device = crew, device
        self._seat: Seat | None = None

    def wait(self) -> None:
        """Takes a seat. Raises: ToolchainError when there is none any more."""
        if self._seat is None:
            self._seat = self._crew.take(self._device)

    def bound(self, mode: str, inductor: str, numerics: Numerics) -> Evaluate:
        """See `evaluation.Judge`."""

        def evaluate(miss: Miss, candidate: Candidate, stage: str, seconds: float) -> Trial:
            self.wait()
            assert self._seat is not None
            target = self._seat.place.target
            return self._judged(request_of(miss, candidate, stage, seconds, target, numerics, mode, inductor, ""))

        return evaluate

    def release(self) -> None:
        """Gives the seat back."""
        if self._seat is not None:
            self._crew.give(self._seat)
            self._seat = None

    def _judged(self, request: Request) -> Trial:
        words: list[str] = []
        while len(words) < _MOST_LOST:
            self.wait()
            assert self._seat is not None
            seat = self._seat
            try:
                return seat.evaluate(request)
            except LostError as error:
                self._seat = None
                self._crew.lose(seat, error)
                words.append(f"{seat.name}: {error}")
        evidence = f"{_MOST_LOST} evaluators were lost while they judged it: {'; '.join(words)}"
        return Trial(request.candidate, Verdict(Status.RUNTIME_ERROR, None, None, "", evidence), ())


def _difference(place: Place, places: Sequence[Place]) -> str | None:
    """How a place differs from all of `places`, None where it is like one."""
    same = [item for item in places if item.target.name == place.target.name]
    if not same:
        return f"its device is {place.target.name}, and the search is for {', '.join(item.target.name for item in places)}"
    if place.software not in [item.software for item in same]:
        return f"it has {'; '.join(place.software) or 'no language'}, and here is {'; '.join(same[0].software) or 'none'}"
    return None
