"""Where a candidate runs: in the judge's own process (on a GPU), or in a runner of its own (on a CPU)."""

from __future__ import annotations

import time
from collections import OrderedDict
from collections.abc import Callable, Mapping
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path
from typing import Protocol

import torch

from kforge_dynamo.errors import BuildError, GuardrailError, KforgeError, ToolchainError
from kforge_dynamo.languages.base import Language, Launcher, canonical_dims
from kforge_dynamo.records.codec import digest, from_text
from kforge_dynamo.records.outcome import Status, Timings, Trial, Verdict
from kforge_dynamo.records.profile import Capture
from kforge_dynamo.records.request import Request
from kforge_dynamo.sandbox.bench import Bench
from kforge_dynamo.sandbox.forks import Forks
from kforge_dynamo.sandbox.memory import region_bytes, scratch_bytes
from kforge_dynamo.sandbox.profile.attach import attach
from kforge_dynamo.sandbox.race import Rivals, compile_rivals, race, run_race
from kforge_dynamo.sandbox.remote import Clock, Ended, RemoteLauncher, RemoteTrack, Runner
from kforge_dynamo.sandbox.rival import Rival
from kforge_dynamo.sandbox.watch import written_memory

_MOST_RIVALS = 4
_WATCHED = "torch"  # the instrument that must be in the process where the kernel runs
Say = Callable[[str], None]
Timed = tuple[Verdict | None, tuple[Timings, ...]]


class Untimed(Exception):
    """The baseline cannot be compiled; the text says why."""


class Venue(Protocol):
    """One candidate after the other: `begin`, then what is needed of the rest, then `end`."""

    def begin(self, request: Request, clock: Clock) -> None:
        """Starts what takes long and needs nothing else: the baseline, and where it can the build."""

    def launcher(self, request: Request) -> Launcher:
        """The loaded candidate. Raises: BuildError, ToolchainError, Ended."""

    def race(self, request: Request, launcher: Launcher, bench: Bench) -> Timed:
        """Timings, or the verdict that forbids them. Raises: Untimed, Ended."""

    def wrote(self) -> bool:
        """Whether launches wrote to memory of the candidate's own library since it was loaded. Raises: Ended."""

    def profiled(self, trial: Trial, request: Request, launcher: Launcher, bench: Bench) -> Trial:
        """A trial that passed, with its profile. Whatever goes wrong here is a note."""

    def end(self) -> None:
        """Ends what belongs to the candidate alone."""


def _rival_key(request: Request) -> tuple[str, str]:
    return digest(request.task) + digest(request.numerics), f"{request.sizes}:{request.mode}:{request.inductor}"


class Here:
    """In this process; the baseline is compiled by a thread."""

    def __init__(self, languages: Mapping[str, Language], device: torch.device, threads: int, say: Say) -> None:
        self._languages, self._device, self._threads, self._say = languages, device, threads, say
        self._rivals: dict[tuple[str, str], Future[Rivals]] = {}
        self._compiling = ThreadPoolExecutor(1, thread_name_prefix="inductor")
        self._folder, self._before = "", ""

    def begin(self, request: Request, clock: Clock) -> None:
        """See `Venue`."""
        del clock
        if not request.time or _rival_key(request) in self._rivals:
            return
        future = self._compiling.submit(compile_rivals, request, self._device, self._threads)
        self._rivals[_rival_key(request)] = future
        if "max" in request.mode or "max_autotune" in request.inductor:
            self._say("Inductor's autotuning")  # it times kernels of its own, beside which nothing else should run
            future.exception()

    def launcher(self, request: Request) -> Launcher:
        """See `Venue`."""
        candidate = request.candidate
        language = self._languages[candidate.language]
        artifact = language.build(candidate, request.task, request.target, Path(request.artifact_folder))
        launcher = language.load(artifact, candidate, request.task, canonical_dims(request.task))
        self._folder, self._before = request.artifact_folder, written_memory(request.artifact_folder)
        return launcher

    def wrote(self) -> bool:
        """See `Venue`."""
        return written_memory(self._folder) != self._before

    def race(self, request: Request, launcher: Launcher, bench: Bench) -> Timed:
        """See `Venue`."""
        self._say("Inductor's compile of the region")
        future = self._rivals[_rival_key(request)]
        error = future.exception()
        if error is not None:
            raise Untimed(f"{type(error).__name__}: {str(error)[:200]}")
        self._say("timing")
        return race(request, launcher, bench, future.result())

    def profiled(self, trial: Trial, request: Request, launcher: Launcher, bench: Bench) -> Trial:
        """See `Venue`."""
        return attach(trial, request, self._languages[request.candidate.language], launcher, bench)

    def end(self) -> None:
        """See `Venue`."""


class Apart:
    """In runners: one that is verified, and one, forked with the baseline loaded, that is timed."""

    def __init__(self, languages: Mapping[str, Language], forks: Forks, threads: int, say: Say) -> None:
        self._languages, self._forks, self._threads, self._say = languages, forks, threads, say
        self._rivals: OrderedDict[tuple[str, str], Rival] = OrderedDict()
        self._runners: list[Runner] = []
        self._wrote = False
        self._clock = Clock.of(0.0)

    def begin(self, request: Request, clock: Clock) -> None:
        """See `Venue`."""
        self._clock, self._wrote = clock, False
        self._start(self._forks, request)
        if not request.time:
            return
        key = _rival_key(request)
        if key not in self._rivals:
            self._rivals[key] = Rival(self._forks, request, self._threads)
            while len(self._rivals) > _MOST_RIVALS:
                self._rivals.popitem(last=False)[1].close()
        self._rivals.move_to_end(key)

    def _start(self, forks: Forks, request: Request, traced: bool = False) -> Runner:
        runner = Runner(forks, self._clock)
        self._runners.append(runner)
        largest = tuple(item.high for item in request.domain.ranges) if request.stage == "final" else request.sizes
        task_bytes = max(region_bytes(request.task, sizes) for sizes in (largest, request.sizes))
        runner.begin(request, task_bytes + scratch_bytes(request.candidate.plan, request.task, largest), self._threads, traced)
        return runner

    def launcher(self, request: Request) -> Launcher:
        """See `Venue`."""
        self._runners[0].opened()
        return RemoteLauncher(self._runners[0])

    def wrote(self) -> bool:
        """See `Venue`."""
        return self._wrote or any(bool(runner.ask({"do": "wrote"}).get("wrote")) for runner in self._runners)

    def race(self, request: Request, launcher: Launcher, bench: Bench) -> Timed:
        """See `Venue`."""
        self._wrote = self.wrote()
        self._end_runners()  # its spinning threads would take cores from the race
        self._say("Inductor's compile of the region")
        rival = self._rivals[_rival_key(request)]
        try:
            words = rival.wait(self._clock.end - time.monotonic())
        except TimeoutError:
            words = f"no answer within {self._clock.seconds:.1f} s; it was at: {self._clock.stage}"
            return Verdict(Status.TIMEOUT, None, None, "worker", words), ()
        except ToolchainError as error:
            self._rivals.pop(_rival_key(request)).close()
            raise Untimed(str(error)) from error
        if words:
            raise Untimed(words)
        self._say("timing")
        runner = self._start(rival.forks, request)
        runner.opened()
        return run_race(request, bench, RemoteTrack(runner, request, self._threads))

    def profiled(self, trial: Trial, request: Request, launcher: Launcher, bench: Bench) -> Trial:
        """See `Venue`. What must see the kernel run is asked of another runner."""
        watched = _WATCHED in request.profile
        names = tuple(name for name in request.profile if name != _WATCHED)
        found = attach(trial, replace(request, profile=names), self._languages[request.candidate.language], launcher, bench)
        if not watched or found.profile is None:
            return found
        try:
            runner = self._start(self._forks, request, traced=True)
            runner.opened()
            capture = from_text(Capture, str(runner.ask({"do": "profile"}).get("text")))
        except (Ended, KforgeError) as error:
            capture = Capture(_WATCHED, "failed", notes=(f"{type(error).__name__}: {str(error)[-200:]}",))
        return replace(found, profile=replace(found.profile, captures=(*found.profile.captures, capture)))

    def end(self) -> None:
        """See `Venue`."""
        self._end_runners()

    def _end_runners(self) -> None:
        while self._runners:
            self._runners.pop().close()


def built(venue: Venue, request: Request) -> Launcher | Verdict:
    """The candidate of a request, or why there is none."""
    try:
        return venue.launcher(request)
    except GuardrailError as error:
        return Verdict(Status.REJECTED, None, None, "guardrails", f"{error} [rule source]")
    except (BuildError, ToolchainError) as error:
        return Verdict(Status.COMPILE_ERROR, None, None, "build", str(error))


def unusable(request: Request, languages: Mapping[str, Language]) -> Verdict | None:
    """Why the candidate's language cannot be used here; None where it can."""
    language = languages.get(request.candidate.language)
    if language is None:
        known = ", ".join(sorted(languages)) or "none"
        words = f"no language {request.candidate.language!r}; known are {known}"
        return Verdict(Status.REJECTED, None, None, "language", words)
    missing = language.missing(request.target)
    return None if missing is None else Verdict(Status.COMPILE_ERROR, None, None, "language", missing)
