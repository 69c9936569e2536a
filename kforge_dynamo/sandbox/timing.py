"""How fast: the candidate, Inductor's region and the bare GEMM in one interleaved run.

Samples of the contestants alternate, a round in every order in turn, so drift of a shared machine meets all alike, and are
compared round by round (`records.pairs`); a sample is several calls, each on other inputs at other addresses. "wall" is the
host clock around the calls, the device drained before and after. "replay" is the same calls in a CUDA graph. On a GPU the
inputs in rotation exceed the L2 cache twice where memory allows, so calls find it cold. The last output of every sample of
the candidate is compared with the verified one.
"""

from __future__ import annotations

import contextlib
import gc
import math
import statistics
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path

import torch

from kforge_dynamo.records.outcome import Measurement
from kforge_dynamo.records.pairs import STRICT, lost, median_interval, numbers_text, won
from kforge_dynamo.records.target import Target
from kforge_dynamo.records.task import Task
from kforge_dynamo.sandbox.capture import leave_capture
from kforge_dynamo.sandbox.memory import input_bytes, region_bytes
from kforge_dynamo.sandbox.rows import flop
from kforge_dynamo.semantics.algebra import fold
from kforge_dynamo.semantics.evaluate import shape_of

Call = Callable[[int], Sequence[torch.Tensor]]
"""Runs a contestant once on the inputs of that number in the rotation."""
Check = Callable[[int, Sequence[torch.Tensor]], str | None]
"""What is wrong with the candidate's outputs for those inputs, None when they are right."""

_FLOOR_SHARE = 0.9  # a datasheet's peak is not exceeded, a clock is read with some error
_LONGEST_SAMPLE_S = 2e-3
_WARM_CALLS = 2
_THREADS = Path("/proc/self/task")
_DISTURBED_SHARE = 0.05
_PATIENCE = 3.0  # times the budget, where other work disturbs
_MOST_ROUNDS = 256
UNSTABLE_SPREAD = 0.5
_SAME_SHARE = 0.02
_FEWEST_APART = 10  # samples of which two medians can be made


@dataclass(frozen=True, slots=True)
class Effort:
    """How long a run may take, how many samples it must and may have, and how many undisturbed ones stand for all.

    With `close` the run ends when it is clear whether the candidate beats the region, which is asked after the fewest rounds and
    each time their number has doubled, and goes on to so many rounds while it is not.
    """

    budget_s: float
    fewest: int
    most: int
    undisturbed: int
    close: int = 0


EFFORTS = {"search": Effort(0.4, 5, 11, 3), "final": Effort(1.5, 15, 31, 15, 127)}


@dataclass(frozen=True, slots=True)
class Taken:
    """One sample: its seconds, how long threads waited for a core, the last set of inputs and the outputs for it."""

    seconds: float
    waited_s: float
    last: int
    outputs: Sequence[torch.Tensor]


Sampler = Callable[[str, int, int], Taken]
"""Times so many calls of the contestant of that name; the third number says with which set of inputs they begin."""


@dataclass(frozen=True, slots=True)
class Contest:
    """Contestants by name, "candidate" first; `rotation` is how many sets of inputs there are. With `sampler` the calls happen
    elsewhere, and `calls` only gives the names."""

    calls: dict[str, Call]
    rotation: int
    check: Check
    device: torch.device
    sampler: Sampler | None = None


@dataclass(frozen=True, slots=True)
class Samples:
    """Microseconds a call of each contestant, or what was wrong with a timed output; `taken` are the rounds of its samples."""

    by_name: dict[str, tuple[float, ...]]
    calls_a_sample: dict[str, int]
    rounds: int
    fault: str | None
    taken: dict[str, str] = field(default_factory=dict)


def roofline_us(task: Task, sizes: Sequence[int], target: Target, unread: Sequence[int] = ()) -> float | None:
    """Below this no kernel can be: bytes of inputs and outputs over the memory's peak, and the product over the peak of the
    matrix units, of the small product where the reduction over its columns moves into an operand, unless a reduction leaves
    fewer outputs than the product has (algebra may then save it). Inputs `unread` need not be read, because a copy of them is
    kept. None if unknown."""
    axes = dict(zip(task.axes, sizes, strict=True))
    bounds = []
    bandwidth = target.peak("memory_bytes_per_s")
    if bandwidth is not None:
        bounds.append((region_bytes(task, sizes) - input_bytes(task, sizes, unread)) / bandwidth)
    peaks = [peak.value for peak in target.peaks if peak.name.endswith("_flops")]
    largest = max(math.prod(int(e) for e in shape_of(task.value(number).shape, axes)) for number in task.outputs)
    folded = fold(task)
    task = task if folded is None else folded.task
    anchor = task.anchor
    if peaks and anchor is not None and largest >= math.prod(int(e) for e in shape_of(anchor.out.shape, axes)):
        bounds.append(flop(task, sizes) / max(peaks))
    return max(bounds) * 1e6 if bounds else None


def too_fast(median_us: float, floor_us: float | None) -> str | None:
    """Why a median cannot be true; None when it can."""
    if floor_us is None or median_us >= floor_us * _FLOOR_SHARE:
        return None
    return f"{median_us:.2f} us a call is below the roofline of {floor_us:.2f} us: the work cannot have been done"


def spread_share(samples: Sequence[float]) -> float:
    """Interquartile distance over the median."""
    if len(samples) < 4:
        return 0.0
    low, middle, high = statistics.quantiles(samples, n=4)
    return (high - low) / middle if middle > 0 else 0.0


def disagreement(samples: Sequence[float]) -> str | None:
    """What an A/A run says against a measurement: its samples in turn are two measurements of one thing, whose medians must
    agree within 2 %, or within what so few samples can tell at the 95 % level; None where they do."""
    if len(samples) < _FEWEST_APART:
        return None
    first, second = Measurement(tuple(samples[0::2]), ""), Measurement(tuple(samples[1::2]), "")
    apart_us = abs(first.median_us - second.median_us)
    allowed_us = max(_SAME_SHARE * first.median_us, math.hypot(first.uncertainty_us, second.uncertainty_us))
    if apart_us <= allowed_us:
        return None
    return f"every other sample has a median of {first.median_us:.2f} us, the others {second.median_us:.2f} us"


def sample_wall(contest: Contest, effort: Effort) -> Samples:
    """Host-clock samples of all contestants, interleaved.

    On a CPU, samples during which a thread of this process waited for a core are set aside, where enough rounds without are
    found in time: they tell of the machine's other work.
    """
    take = contest.sampler or sampler(contest.calls, contest.rotation, contest.device)
    names = list(contest.calls)
    estimates = {name: _estimate_s(take, name, contest.rotation) for name in names}
    rounds, counts = _shares(estimates, effort)
    every: dict[str, dict[int, float]] = {name: {} for name in names}
    kept: dict[str, dict[int, float]] = {name: {} for name in names}
    start, turn = time.monotonic(), 0
    with _no_collection():
        while not _enough(kept, rounds, effort, turn, time.monotonic() - start):
            for name in order_of(names, turn):
                taken = take(name, counts[name], turn)
                every[name][turn] = taken.seconds / counts[name] * 1e6
                if taken.waited_s <= _DISTURBED_SHARE * taken.seconds:
                    kept[name][turn] = every[name][turn]
                fault = contest.check(taken.last, taken.outputs) if name == "candidate" else None
                if fault is not None:
                    return Samples({}, counts, 0, fault)
            turn += 1
    chosen = kept if _pairs(kept) >= effort.undisturbed else every
    by_name = {name: tuple(found.values()) for name, found in chosen.items()}
    return Samples(by_name, counts, turn, None, {name: numbers_text([*found]) for name, found in chosen.items()})


def order_of(names: Sequence[str], turn: int) -> list[str]:
    """Who comes when in a round: of up to three contestants in all orders in turn, so each is as often behind each other one."""
    step = turn // 2 % len(names)
    turned = [*names[step:], *names[:step]]
    return turned if turn % 2 == 0 else turned[::-1]


def _pairs(kept: dict[str, dict[int, float]]) -> int:
    """Rounds in which no contestant's sample was set aside."""
    return len(set.intersection(*(set(found) for found in kept.values())))


def _enough(kept: dict[str, dict[int, float]], rounds: int, effort: Effort, turn: int, elapsed_s: float) -> bool:
    if turn < effort.fewest:
        return False
    pairs = _pairs(kept)
    if elapsed_s > _PATIENCE * effort.budget_s or turn >= _MOST_ROUNDS:
        return True
    if pairs >= max(effort.close, min(rounds, effort.most)):
        return True
    if not effort.close or "region" not in kept:
        return pairs >= min(rounds, effort.most)
    if elapsed_s > effort.budget_s and pairs >= min(rounds, effort.most):
        return True
    return (pairs + 1) in {(effort.fewest + 1) << step for step in range(8)} and _clear(kept)


def _clear(kept: dict[str, dict[int, float]]) -> bool:
    """Whether more rounds would hardly change the answer. A gain must be surer than the rule for winners asks, as this is asked
    several times of one run; that there is none may be wrong at the usual rate, and only costs a winner."""
    shares = [value / kept["region"][turn] for turn, value in kept["candidate"].items() if turn in kept["region"]]
    surely, usually = median_interval(shares, STRICT), median_interval(shares)
    return (surely is not None and won(surely)) or (usually is not None and lost(usually))


def _waited_s(device: torch.device) -> float:
    """How long threads of this process have been ready to run without a core, all together; 0 where the system does not say
    and where host threads do not compute.

    Source: Documentation/scheduler/sched-stats.rst of the Linux kernel, /proc/<pid>/schedstat, second field (ns).
    """
    if device.type != "cpu":
        return 0.0
    waited_ns = 0
    for record in _THREADS.glob("*/schedstat"):
        with contextlib.suppress(OSError, ValueError, IndexError):  # a thread may end meanwhile
            waited_ns += int(record.read_text().split()[1])
    return waited_ns * 1e-9


@contextmanager
def _no_collection() -> Iterator[None]:
    """Python's garbage collector does not run inside."""
    collecting = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if collecting:
            gc.enable()


def _shares(estimates: dict[str, float], effort: Effort) -> tuple[int, dict[str, int]]:
    """Rounds, and calls a sample of each contestant: equal time for all, within the budget where the fewest samples fit."""
    once = sum(estimates.values())
    rounds = max(effort.fewest, min(effort.most, int(effort.budget_s / max(once, 1e-9))))
    slice_s = min(_LONGEST_SAMPLE_S, effort.budget_s / rounds / len(estimates))
    return rounds, {name: max(1, min(1000, int(slice_s / max(seconds, 1e-9)))) for name, seconds in estimates.items()}


def _estimate_s(take: Sampler, name: str, rotation: int) -> float:
    take(name, max(_WARM_CALLS, rotation), 0)
    return min(take(name, 1, turn).seconds for turn in range(3))


def sampler(calls: dict[str, Call], rotation: int, device: torch.device) -> Sampler:
    """Times calls in this process by its clock, the device drained before and after, so that work on any stream counts."""

    def take(name: str, count: int, turn: int) -> Taken:
        call = calls[name]
        numbers = [(turn + step) % rotation for step in range(count)]
        outputs: Sequence[torch.Tensor] = ()
        _drain(device)
        waited_s = _waited_s(device)
        start = time.perf_counter()
        for number in numbers:
            outputs = call(number)
        _drain(device)
        seconds = time.perf_counter() - start
        return Taken(seconds, _waited_s(device) - waited_s, numbers[-1], outputs)

    return take


def _drain(device: torch.device) -> None:
    if device.type == "cuda":
        torch.cuda.synchronize(device)


def sample_replay(contest: Contest, effort: Effort) -> Samples | None:
    """Samples of CUDA graphs that hold a call on every set of inputs; None where a contestant cannot be captured."""
    graphs: dict[str, tuple[torch.cuda.CUDAGraph, list[Sequence[torch.Tensor]]]] = {}
    for name, call in contest.calls.items():
        captured = _captured(call, contest)
        if captured is None:
            return None
        graphs[name] = captured

    def replay(name: str) -> Call:
        graph, outputs = graphs[name]

        def call(_: int) -> Sequence[torch.Tensor]:
            graph.replay()
            return outputs[-1]

        return call

    def check(_: int, outputs: Sequence[torch.Tensor]) -> str | None:
        return contest.check(contest.rotation - 1, outputs)

    inner = Contest({name: replay(name) for name in graphs}, 1, check, contest.device)
    found = sample_wall(inner, effort)
    scaled = {name: tuple(value / contest.rotation for value in values) for name, values in found.by_name.items()}
    return replace(found, by_name=scaled)


def _captured(call: Call, contest: Contest) -> tuple[torch.cuda.CUDAGraph, list[Sequence[torch.Tensor]]] | None:
    side = torch.cuda.Stream(contest.device)  # type: ignore[no-untyped-call]
    with torch.cuda.stream(side):
        for number in range(contest.rotation):
            call(number)
    torch.cuda.synchronize(contest.device)
    graph = torch.cuda.CUDAGraph()
    try:
        with torch.cuda.graph(graph, stream=side):
            outputs = [call(number) for number in range(contest.rotation)]
    except RuntimeError:  # a contestant that synchronises or allocates outside the pool cannot be replayed
        leave_capture(contest.device)
        return None
    return graph, outputs


def measurement(samples: Samples, name: str, regime: str, rotation: int) -> Measurement:
    """The record of one contestant's samples."""
    count = samples.calls_a_sample[name]
    taken = f"{len(samples.by_name[name])} of {samples.rounds} samples of {count} calls"
    method = f"{regime}: {taken}, interleaved, {rotation} sets of inputs"
    return Measurement(samples.by_name[name], method, samples.taken.get(name, ""))
