"""The race of a verified candidate against its baselines: sets the contestants up, and turns samples into a verdict."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Protocol

import torch

from kforge_dynamo.languages.base import Launcher
from kforge_dynamo.records.outcome import Status, Timings, Verdict
from kforge_dynamo.records.request import Request
from kforge_dynamo.sandbox.baseline import Compiled, anchor_of, compile_region
from kforge_dynamo.sandbox.bench import Bench
from kforge_dynamo.sandbox.candidate_call import candidate_call
from kforge_dynamo.sandbox.inputs import BY_NAME, full_shape
from kforge_dynamo.sandbox.layout import TIMED_PAD, place, same_bits
from kforge_dynamo.sandbox.memory import region_bytes
from kforge_dynamo.sandbox.threads import for_checks, threads
from kforge_dynamo.sandbox.timing import (
    EFFORTS,
    UNSTABLE_SPREAD,
    Call,
    Check,
    Contest,
    Effort,
    Samples,
    disagreement,
    measurement,
    roofline_us,
    sample_replay,
    sample_wall,
    spread_share,
    too_fast,
)
from kforge_dynamo.sandbox.verify import judge_outputs
from kforge_dynamo.sandbox.watch import LaunchFault

_SOURCES = ("unit", "normal", "uniform")  # classes whose first draw the gate has seen already
_RUNS = 4
_AFTER_A_LIE = 2
_ON_CPU = 3
_ON_GPU = 12


@dataclass(frozen=True, slots=True)
class Rivals:
    """Inductor's region and bare GEMM; `anchor_inputs` are the task inputs that the GEMM takes."""

    region: Compiled
    anchor: Compiled | None
    anchor_inputs: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class _Stand:
    """One set of inputs in the rotation: the tensors, and the candidate's verified outputs for them."""

    source: str
    inputs: list[torch.Tensor]
    expected: list[torch.Tensor]


class Track(Protocol):
    """Where the contestants run."""

    def first(self, inputs: list[torch.Tensor]) -> Sequence[torch.Tensor]:
        """Takes the next set of inputs, and returns the candidate's outputs for it."""

    def again(self, inputs: list[torch.Tensor]) -> Sequence[torch.Tensor]:
        """The candidate's outputs for these values at the addresses of the first set."""

    def contest(self, rotation: int, check: Check) -> Contest:
        """The contest over the sets taken so far."""

    def fault(self) -> str | None:
        """What shows that its clock cannot be believed, of the samples since the last such question; None where nothing does."""


class _HereTrack:
    """In this process: the contestants share its clock."""

    def __init__(self, request: Request, launcher: Launcher, rivals: Rivals, device: torch.device) -> None:
        self._call = candidate_call(request.task, request.sizes, launcher, device, request.numerics)
        self._rivals, self._device = rivals, device
        self._inputs: list[list[torch.Tensor]] = []

    def first(self, inputs: list[torch.Tensor]) -> Sequence[torch.Tensor]:
        self._inputs.append(inputs)
        return self._call(inputs)

    def again(self, inputs: list[torch.Tensor]) -> Sequence[torch.Tensor]:
        overwrite(self._inputs[0], inputs)
        if self._call.wrote():
            raise LaunchFault("a timed call wrote to what weights_only launches prepared, which outlives it [rule state]")
        self._call.forget()
        return self._call(self._inputs[0])

    def contest(self, rotation: int, check: Check) -> Contest:
        return Contest(calls_of(self._call, self._rivals, self._inputs), rotation, check, self._device)

    def fault(self) -> str | None:
        return None


def race(request: Request, launcher: Launcher, bench: Bench, rivals: Rivals) -> tuple[Verdict | None, tuple[Timings, ...]]:
    """Timings of every regime of the device with all contestants in this process, or the verdict that forbids them."""
    return run_race(request, bench, _HereTrack(request, launcher, rivals, bench.device))


def run_race(request: Request, bench: Bench, track: Track) -> tuple[Verdict | None, tuple[Timings, ...]]:
    """Timings of every regime of the device, or the verdict that forbids them."""
    stands = _stands(request, bench, track)
    with threads(for_checks(request.task, request.sizes, torch.get_num_threads())):
        fault = _unverified(request, bench, stands) if bench.guards.timed else None
    if fault is not None:
        return fault, ()
    contest = track.contest(len(stands), _check(request, bench, stands))
    unread = request.candidate.plan.packed_inputs if request.numerics.kept else ()
    floor_us = roofline_us(request.task, request.sizes, request.target, unread)
    timings = []
    regimes: list[tuple[str, Callable[[Contest, Effort], Samples | None]]] = [("wall", sample_wall)]
    if bench.device.type == "cuda":
        regimes.append(("replay", sample_replay))
    for regime, sample in regimes:
        samples, lie = _sampled(sample, contest, track, request.stage)
        if samples is None:
            continue
        verdict = _refused(samples, regime, floor_us if bench.guards.roofline else None, request.stage)
        if verdict is None and lie is not None:
            verdict = Verdict(Status.TOO_FAST, None, None, f"timing, {regime}", lie)
        if verdict is not None:
            return verdict, ()
        anchor = measurement(samples, "anchor", regime, len(stands)) if "anchor" in samples.by_name else None
        candidate, region = (measurement(samples, name, regime, len(stands)) for name in ("candidate", "region"))
        timings.append(Timings(regime, request.mode or "default", candidate, region, anchor))
    stale = _stale(request, bench, track, stands) if bench.guards.reused else None
    return stale, () if stale is not None else tuple(timings)


def _sampled(
    sample: Callable[[Contest, Effort], Samples | None], contest: Contest, track: Track, stage: str
) -> tuple[Samples | None, str | None]:
    """Samples, and what then speaks against their clock. A run that the machine's other work spoilt is taken again as a whole:
    one that scatters once, in the final stage. After one whose clock the judge's does not bear out it takes two in a row that
    it does, within `_RUNS` in all: a clock that lies now and then is not believed for one lucky run."""
    needed, clean, lie = 1, 0, None
    for number in range(_RUNS):
        samples = sample(contest, EFFORTS[stage])
        found = track.fault()
        if samples is None or samples.fault is not None:
            return samples, found
        if found is None:
            clean += 1
        else:
            needed, clean, lie = _AFTER_A_LIE, 0, found
        if clean >= needed and (number > 0 or stage != "final" or _unsteady(samples) is None):
            return samples, None
        if needed - clean > _RUNS - number - 1:
            break
    return samples, lie


def compile_rivals(request: Request, device: torch.device, threads: int) -> Rivals:
    """Inductor's versions for a request. Raises what Inductor raises."""
    if device.type == "cuda":
        torch.cuda.set_device(device)  # the current device is a thread's own
    region = compile_region(request.task, request.sizes, device, request.mode, request.inductor, threads)
    bare = anchor_of(request.task)
    if bare is None:
        return Rivals(region, None, ())
    task, used = bare
    axes = dict(zip(request.task.axes, request.sizes, strict=True))
    sizes = tuple(axes[axis] for axis in task.axes)
    return Rivals(region, compile_region(task, sizes, device, request.mode, request.inductor, threads), used)


def _stands(request: Request, bench: Bench, track: Track) -> list[_Stand]:
    axes = dict(zip(request.task.axes, request.sizes, strict=True))
    stands = []
    for number in range(_rotation(request, bench.device)):
        source = _SOURCES[number % len(_SOURCES)]
        drawn = bench.draw(request.sizes, BY_NAME[source], 0)
        inputs = [
            place(values, item, full_shape(item, axes), TIMED_PAD).tensor
            for values, item in zip(drawn, request.task.inputs, strict=True)
        ]
        stands.append(_Stand(source, inputs, [output.clone() for output in track.first(inputs)]))
    return stands


def _rotation(request: Request, device: torch.device) -> int:
    if device.type != "cuda":
        return _ON_CPU
    cache = torch.cuda.get_device_properties(device).L2_cache_size
    return max(2, min(_ON_GPU, -(-2 * int(cache) // max(region_bytes(request.task, request.sizes), 1))))


def _unverified(request: Request, bench: Bench, stands: Sequence[_Stand]) -> Verdict | None:
    """The gate once more, on the outputs of unguarded calls; copies of one draw must agree with its first."""
    for stand in stands[: len(_SOURCES)]:
        drawn = bench.draw(request.sizes, BY_NAME[stand.source], 0)
        found = bench.truths(request.sizes, BY_NAME[stand.source], 0, drawn)
        comparable = all(truth.classes is None for truth in found)
        verdict = judge_outputs(request.task, [stand.expected], [found], bench.guards)
        if comparable and not verdict.passed:
            return Verdict(verdict.status, verdict.error_ratio, verdict.e0, verdict.where, f"in a timed call: {verdict.evidence}")
    return None


def _check(request: Request, bench: Bench, stands: Sequence[_Stand]) -> Check:
    """The comparison of a timed call's outputs with the verified ones."""

    def check(number: int, outputs: Sequence[torch.Tensor]) -> str | None:
        fault = _compared(request, bench, stands[number], outputs) if bench.guards.timed else None
        return None if fault is None else f"{fault} (set {number}) [rule timed]"

    return check


def calls_of(call: Callable[..., list[torch.Tensor]], rivals: Rivals | None, inputs: list[list[torch.Tensor]]) -> dict[str, Call]:
    """The contestants by name, each called with the number of a set of inputs."""
    calls: dict[str, Call] = {"candidate": lambda number: call(inputs[number])}
    if rivals is None:
        return calls
    calls["region"] = lambda number: rivals.region([*inputs[number]])
    anchor = rivals.anchor
    if anchor is not None:
        bare = [[stand[used] for used in rivals.anchor_inputs] for stand in inputs]
        calls["anchor"] = lambda number: anchor([*bare[number]])
    return calls


def _compared(request: Request, bench: Bench, stand: _Stand, outputs: Sequence[torch.Tensor]) -> str | None:
    """What tells a timed call's outputs from the verified ones for the same values: bits or, with atomics, the gate."""
    if request.candidate.plan.atomics:
        return _far(request, bench, stand, outputs)
    same = all(same_bits(left, right) for left, right in zip(outputs, stand.expected, strict=True))
    return None if same else "a timed call returned other values than the verified call on equal inputs"


def _far(request: Request, bench: Bench, stand: _Stand, outputs: Sequence[torch.Tensor]) -> str | None:
    drawn = bench.draw(request.sizes, BY_NAME[stand.source], 0)
    truths = bench.truths(request.sizes, BY_NAME[stand.source], 0, drawn)
    verdict = judge_outputs(request.task, [outputs], [truths], bench.guards)
    return None if verdict.passed else f"a timed call is wrong: {verdict.evidence}"


def _stale(request: Request, bench: Bench, track: Track, stands: Sequence[_Stand]) -> Verdict | None:
    """What a timed call gives for other values at addresses that it has seen: results kept by address are old ones."""
    second = stands[1]
    try:
        fault = _compared(request, bench, second, track.again(second.inputs))
    except LaunchFault as caught:
        return Verdict(Status.STRAY_WRITE, None, None, "after timing", str(caught))
    if fault is None:
        return None
    words = f"with other values at addresses that were timed: {fault} [rule reused]"
    return Verdict(Status.NON_DETERMINISTIC, None, None, "after timing", words)


def overwrite(mine: Sequence[torch.Tensor], others: Sequence[torch.Tensor]) -> None:
    """Puts the values of `others` where those of `mine` are."""
    for left, right in zip(mine, others, strict=True):
        _repeating_once(left).copy_(_repeating_once(right))


def _repeating_once(tensor: torch.Tensor) -> torch.Tensor:
    """`tensor` without the dimensions along which it repeats."""
    for dim, stride in enumerate(tensor.stride()):
        tensor = tensor.narrow(dim, 0, 1) if stride == 0 and tensor.shape[dim] > 1 else tensor
    return tensor


def _unsteady(samples: Samples) -> str | None:
    """Why nothing can be concluded from the samples; None where something can."""
    judged = {name: samples.by_name[name] for name in ("candidate", "region")}
    shares = {name: f"{spread_share(found):.0%}" for name, found in judged.items()}
    if any(spread_share(found) > UNSTABLE_SPREAD for found in judged.values()):
        return f"samples scatter by {shares} of their median"
    for name, found in judged.items():
        words = disagreement(found)
        if words is not None:
            return f"the A/A run of {name} fails: {words}"
    return None


def _refused(samples: Samples, regime: str, floor_us: float | None, stage: str) -> Verdict | None:
    if samples.fault is not None:
        return Verdict(Status.NON_DETERMINISTIC, None, None, f"timing, {regime}", samples.fault)
    median_us = sorted(samples.by_name["candidate"])[len(samples.by_name["candidate"]) // 2]
    fast = too_fast(median_us, floor_us)
    if fast is not None:
        return Verdict(Status.TOO_FAST, None, None, f"timing, {regime}", fast)
    reason = _unsteady(samples) if stage == "final" else None
    if reason is not None:
        words = f"{reason} after a second run; the machine is too busy to time on"
        return Verdict(Status.UNSTABLE_TIMING, None, None, f"timing, {regime}", words)
    return None
