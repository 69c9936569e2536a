"""Timing: every callable of a row in turn, in one run, so that what disturbs one disturbs all.

Two numbers: *wall*, a host clock around one call and the wait for its end; *device*, events around a replay of the call's
device graph (CUDA only). Before every CUDA sample the L2 cache is overwritten. All samples are kept, in microseconds.
"""

from __future__ import annotations

import copy
import time
import types
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from kforge_dynamo.sandbox.capture import leave_capture

Call = Callable[[], Any]
Samples = dict[str, list[float]]

MIN_ROUNDS = 15
MAX_ROUNDS = 400
LEAST_SAMPLE_US = 500.0
"""CPU only: shorter calls are repeated within a sample, so that the clock's own cost stays below a thousandth."""
BATCH = 8
"""Rounds of device samples that are queued before the host waits."""
RESAMPLES = 2000


@dataclass(frozen=True, slots=True)
class Ratio:
    """Median of one series over median of another, with the 95 % interval of that ratio."""

    value: float
    low: float
    high: float


def ratio(over: list[float], under: list[float], seed: int = 0) -> Ratio:
    """Medians' ratio; the interval by resampling rounds, in pairs since both series saw the same rounds."""
    a, b = np.asarray(over), np.asarray(under)
    if len(a) != len(b) or len(a) == 0:
        raise ValueError(f"a ratio needs as many samples on both sides, found {len(a)} and {len(b)}: time them in one run")
    picks = np.random.default_rng(seed).integers(0, len(a), size=(RESAMPLES, len(a)))
    spread = np.median(a[picks], axis=1) / np.median(b[picks], axis=1)
    low, high = np.percentile(spread, [2.5, 97.5])
    return Ratio(float(np.median(a) / np.median(b)), float(low), float(high))


def median(series: list[float]) -> float:
    """Of the samples."""
    return float(np.median(series))


def geomean(values: list[float]) -> float | None:
    """None of no values."""
    return float(np.exp(np.mean(np.log(values)))) if values else None


class ColdCache:
    """Overwrites the device's L2 before a sample; does nothing on a CPU."""

    def __init__(self, device: str) -> None:
        self._buffer: Tensor | None = None
        if device == "cuda":
            size_bytes = max(2 * torch.cuda.get_device_properties(device).L2_cache_size, 64 << 20)
            self._buffer = torch.empty(size_bytes // 4, dtype=torch.int32, device=device)

    def __call__(self) -> None:
        if self._buffer is not None:
            self._buffer.zero_()


def orders(names: list[str]) -> Iterator[list[str]]:
    """The names in a new random order each time, so that no callable always runs behind the same other one."""
    random = np.random.default_rng(0)
    while True:
        yield [names[index] for index in random.permutation(len(names))]


def _synchronize(device: str) -> None:
    if device == "cuda":
        torch.cuda.synchronize()


def own_code(module: nn.Module, label: str) -> nn.Module:
    """The module with a `forward` that Dynamo sees as code of its own, sharing all parameters.

    Dynamo keeps the compiled versions of a code object in one list and walks it in every call; without this, each variant's
    call would pay for the variants compiled before it.
    """
    kind = type(module)
    old = kind.forward
    code = old.__code__.replace(co_name=f"forward_{label}")
    forward = types.FunctionType(code, old.__globals__, old.__name__, old.__defaults__, old.__closure__)
    twin: nn.Module = copy.copy(module)
    twin.__class__ = type(f"{kind.__name__}_{label}", (kind,), {"forward": forward})
    return twin


def wall(calls: Mapping[str, Call], device: str, limit_s: float) -> Samples:
    """Microseconds of one call, waiting for its end."""
    names = list(calls)
    flush = ColdCache(device)
    repeats = {name: 1 if device == "cuda" else _repeats(calls[name]) for name in names}
    samples: Samples = {name: [] for name in names}
    began, turns = time.perf_counter(), orders(names)
    for number in range(MAX_ROUNDS):
        if number >= MIN_ROUNDS and time.perf_counter() - began > limit_s:
            break
        for name in next(turns):
            call, count = calls[name], repeats[name]
            if device == "cpu":
                call()  # what ran before left its own data in the caches
            flush()
            _synchronize(device)
            start = time.perf_counter_ns()
            for _ in range(count):
                call()
            _synchronize(device)
            samples[name].append((time.perf_counter_ns() - start) / 1e3 / count)
    return samples


def _repeats(call: Call) -> int:
    """How often a call fits into the least sample, by the fastest of five."""
    fastest_us = float("inf")
    for _ in range(5):
        start = time.perf_counter_ns()
        call()
        fastest_us = min(fastest_us, (time.perf_counter_ns() - start) / 1e3)
    return max(1, min(1000, round(LEAST_SAMPLE_US / max(fastest_us, 0.1))))


def _capture(call: Call) -> Call:
    """The call's device work as a graph; calling it replays. Raises: RuntimeError where the call cannot be captured."""
    side: Any = torch.cuda.Stream()  # type: ignore[no-untyped-call]
    side.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(side):
        for _ in range(2):
            call()
    torch.cuda.current_stream().wait_stream(side)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        call()
    replay: Call = graph.replay
    return replay


def _event() -> Any:
    return torch.cuda.Event(enable_timing=True)  # type: ignore[no-untyped-call]


def device(calls: Mapping[str, Call], limit_s: float) -> tuple[Samples, str]:
    """Microseconds of device time of one call on the current CUDA device, and by which method.

    Where one of the calls cannot be captured, all of them are timed by events around plain calls: one method a row.
    """
    try:
        timed, method = {name: _capture(call) for name, call in calls.items()}, "graph replay, L2 cold"
    except RuntimeError as reason:
        leave_capture("cuda")
        timed, method = dict(calls), f"events, L2 cold ({str(reason).splitlines()[0][:80]})"
    names, flush = list(timed), ColdCache("cuda")
    samples: Samples = {name: [] for name in names}
    began, turns = time.perf_counter(), orders(names)
    for batch in range(MAX_ROUNDS // BATCH):
        if batch * BATCH >= MIN_ROUNDS and time.perf_counter() - began > limit_s:
            break
        pairs: list[tuple[str, Any, Any]] = []
        for _ in range(BATCH):
            for name in next(turns):
                start, end = _event(), _event()
                flush()
                start.record()
                timed[name]()
                end.record()
                pairs.append((name, start, end))
        torch.cuda.synchronize()
        for name, start, end in pairs:
            samples[name].append(start.elapsed_time(end) * 1e3)
    return samples, method
