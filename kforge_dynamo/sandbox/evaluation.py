"""From a request to a trial, inside the worker: memory, discrimination, build, checks, race."""

from __future__ import annotations

import time
from collections import OrderedDict
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace

import torch

from kforge_dynamo.languages.base import Language, Launcher
from kforge_dynamo.languages.formats import scheme_refusal
from kforge_dynamo.records.codec import digest
from kforge_dynamo.records.guardrail import ALL, Guards
from kforge_dynamo.records.outcome import Status, Timings, Trial, Verdict
from kforge_dynamo.records.request import Request
from kforge_dynamo.sandbox.ahead import Compilers
from kforge_dynamo.sandbox.bench import Bench
from kforge_dynamo.sandbox.discrimination import Discrimination, discriminate, few_rows
from kforge_dynamo.sandbox.forks import Forks
from kforge_dynamo.sandbox.inputs import BY_NAME, InputClass, Seeds
from kforge_dynamo.sandbox.lasting import form_of
from kforge_dynamo.sandbox.memory import scratch_bytes, shortage
from kforge_dynamo.sandbox.plans import buffer_downcast, check_plan
from kforge_dynamo.sandbox.points import further_points
from kforge_dynamo.sandbox.precision import set_flags
from kforge_dynamo.sandbox.remote import Clock
from kforge_dynamo.sandbox.threads import for_checks, threads
from kforge_dynamo.sandbox.venue import Apart, Here, Untimed, Venue, built, unusable
from kforge_dynamo.sandbox.verify import Plan, verify
from kforge_dynamo.sandbox.watch import launch_threads

_SEEDS = {"search": (0,), "final": (0, 1, 2, 3, 4)}
_ELSEWHERE = ("unit", "integers", "scaled")
"""Classes at the other sizes of a domain: what goes wrong there is the mask of a tail, not the arithmetic."""
_MOST_BENCHES = 8

Say = Callable[[str], None]
"""Tells the parent what is being done, so that a timeout can name it."""


class Evaluator:
    """Evaluates requests one after the other and keeps what does not depend on the candidate."""

    def __init__(
        self,
        languages: Mapping[str, Language],
        device: torch.device,
        secret: bytes,
        say: Say,
        guards: Guards = ALL,
        forks: Forks | None = None,
        ahead: Compilers | None = None,
    ) -> None:
        self._languages, self._device, self._told, self._guards = languages, device, say, guards
        self._ahead = ahead
        self._clock = Clock.of(0.0)
        self._threads = torch.get_num_threads()
        self._seeds = Seeds(secret)
        self._benches: OrderedDict[str, Bench] = OrderedDict()
        self._judged: dict[tuple[str, tuple[int, ...]], Discrimination] = {}
        self._venue: Venue = (
            Here(languages, device, self._threads, self._say)
            if forks is None
            else Apart(languages, forks, self._threads, self._say)
        )

    def evaluate(self, request: Request) -> Trial:
        """The trial. Raises what the candidate or the machine raises: the border is the caller's.

        Memory of a GPU that the trial needed goes back to the device, whose other user is the process that waits.
        """
        try:
            return self._evaluate(request)
        finally:
            self._venue.end()
            if self._device.type == "cuda":
                for bench in self._benches.values():
                    bench.release()
                torch.cuda.empty_cache()

    def _say(self, text: str) -> None:
        self._clock.stage = text
        self._told(text)

    def _evaluate(self, request: Request) -> Trial:
        start = time.monotonic()
        self._clock = Clock.of(request.deadline_s)
        set_flags(request.numerics)
        self._say("memory check")
        lack = shortage(request.task, _largest(request), self._device, request.memory_bytes)
        if lack is not None:
            return _trial(request, Verdict(Status.NOT_TESTABLE, None, None, "memory", lack))
        refused = _refused(request, self._guards) or unusable(request, self._languages)
        if refused is not None:
            return _trial(request, refused)
        scratch = scratch_bytes(request.candidate.plan, request.task, _largest(request))
        lack = shortage(request.task, _largest(request), self._device, request.memory_bytes, scratch)
        if lack is not None:  # another candidate may need less
            return _trial(request, Verdict(Status.REJECTED, None, None, "memory", lack))
        if self._ahead is not None:
            self._ahead.expect([request], foreseen=False)
        self._venue.begin(request, self._clock)
        bench = self._bench(request)
        self._say("discrimination")
        with threads(for_checks(request.task, request.sizes, self._threads)):
            judged = self._discriminate(request, bench)
        if judged.reason is not None and self._guards.discrimination:
            return _trial(request, Verdict(Status.NOT_TESTABLE, None, None, "discrimination", judged.reason))
        self._say("build")
        if self._ahead is not None:
            self._ahead.wait(request, self._clock.end - time.monotonic())
        launcher = built(self._venue, request)
        if isinstance(launcher, Verdict):
            return _trial(request, launcher)
        with threads(for_checks(request.task, _largest(request), self._threads)):
            verdict = self._verify(request, bench, launcher, judged, start)
        if not verdict.passed:
            return _trial(request, verdict)
        trial = self._timed(request, launcher, bench, verdict) if request.time else _trial(request, verdict)
        if trial.verdict.passed and self._guards.state and self._venue.wrote():
            words = "launches wrote to memory of the candidate's own library, which survives a call [rule state]"
            return _trial(request, Verdict(Status.STRAY_WRITE, None, None, "library", words))
        if not trial.verdict.passed:
            return trial
        self._say("profile")
        return self._venue.profiled(trial, request, launcher, bench)

    def _timed(self, request: Request, launcher: Launcher, bench: Bench, verdict: Verdict) -> Trial:
        try:
            refused, timings = self._venue.race(request, launcher, bench)
        except Untimed as error:
            words = f"{verdict.evidence}; not timed, Inductor could not compile the region: {error}"
            return _trial(request, Verdict(verdict.status, verdict.error_ratio, verdict.e0, verdict.where, words))
        return _trial(request, refused or verdict, timings)

    def _bench(self, request: Request) -> Bench:
        key = f"{digest(request.task)}:{digest(request.numerics)}"
        if key not in self._benches:
            self._benches[key] = Bench(request.task, request.numerics, self._device, self._seeds, self._guards)
            while len(self._benches) > (1 if self._device.type == "cuda" else _MOST_BENCHES):
                self._benches.popitem(last=False)
        self._benches.move_to_end(key)
        return self._benches[key]

    def _discriminate(self, request: Request, bench: Bench) -> Discrimination:
        key = (f"{digest(request.task)}:{digest(request.numerics)}", few_rows(request.task, request.sizes))
        if key not in self._judged:
            self._judged[key] = discriminate(bench, request.sizes)
        return self._judged[key]

    def _verify(self, request: Request, bench: Bench, launcher: Launcher, judged: Discrimination, start: float) -> Verdict:
        numbers, atomics = _SEEDS[request.stage], request.candidate.plan.atomics
        trapped = bool(getattr(self._languages[request.candidate.language], "device_code", False))
        classes = judged.classes if self._guards.classes else (BY_NAME["unit"],)
        form = form_of(launcher, request.numerics, request.sizes, atomics)
        plan = Plan(request.sizes, classes, numbers, atomics, self._threads, trapped, launch_threads(), form)
        verdict = verify(launcher, bench, plan, self._say)
        if not verdict.passed:
            return verdict
        elsewhere = tuple(BY_NAME[name] for name in _ELSEWHERE)
        further = request.stage == "final" and self._guards.sizes
        points = further_points(request.domain, request.sizes, request.candidate) if further else ()
        for sizes in points:
            if time.monotonic() - start > request.deadline_s:
                words = f"the domain's other sizes were not all checked within {request.deadline_s:.1f} s; next would be {sizes}"
                return Verdict(Status.TIMEOUT, verdict.error_ratio, verdict.e0, "domain", words)
            other = verify(
                launcher, bench, replace(plan, sizes=sizes, classes=_usable(elsewhere, judged), numbers=(0,)), self._say
            )
            if not other.passed:
                return replace(other, evidence=f"{other.evidence} [rule sizes]")
        ways = f"; {len(points)} other sizes" if points else ""
        same = f"; equivalent mutants: {', '.join(judged.equivalent)}" if judged.equivalent else ""
        same += f"; hidden by half precision: {', '.join(judged.indistinct)}" if judged.indistinct else ""
        return Verdict(Status.PASSED, verdict.error_ratio, verdict.e0, verdict.where, verdict.evidence + ways + same)


def _refused(request: Request, guards: Guards) -> Verdict | None:
    """What no check can change. Raises: RecordError for a plan that is none."""
    check_plan(request.candidate.plan, request.task, request.sizes)
    if 0 in request.sizes:
        words = "not testable: a size is 0, there is nothing to compute"
        return Verdict(Status.NOT_TESTABLE, None, None, "sizes", words)
    if guards.plan and request.numerics.deterministic and request.candidate.plan.atomics:
        words = "deterministic algorithms are asked for, and the plan declares atomic additions [rule plan]"
        return Verdict(Status.REJECTED, None, None, "plan", words)
    if not guards.precision:
        return None
    downcast = scheme_refusal(request.task, request.candidate.scheme, request.numerics)
    downcast = downcast or buffer_downcast(request.candidate, request.task)
    return None if downcast is None else Verdict(Status.REJECTED, None, None, "precision", f"{downcast} [rule precision]")


def _trial(request: Request, verdict: Verdict, timings: tuple[Timings, ...] = ()) -> Trial:
    return Trial(request.candidate, verdict, timings)


def _largest(request: Request) -> tuple[int, ...]:
    """The sizes at which the check needs most memory."""
    return tuple(item.high for item in request.domain.ranges) if request.stage == "final" else request.sizes


def _usable(classes: Sequence[InputClass], judged: Discrimination) -> tuple[InputClass, ...]:
    names = {chosen.name for chosen in judged.classes}
    return tuple(chosen for chosen in classes if chosen.name in names) or judged.classes
