"""torch's profiler around calls of a candidate, and its Chrome trace as a `Capture`. Works on CPUs and GPUs.

Source: the Chrome Trace Event Format ("X" events, `ts` and `dur` in us) as Kineto writes it: categories "kernel",
"gpu_memcpy", "gpu_memset" on the device, "cpu_op", "user_annotation" and "cuda_runtime" on the host.
"""

from __future__ import annotations

import json
import tempfile
from collections.abc import Callable, Sequence
from pathlib import Path
from statistics import median
from typing import Any

import torch
from torch.profiler import ProfilerActivity, profile, record_function

from kforge_dynamo.records.profile import Capture, Metric
from kforge_dynamo.sandbox.profile.nsys import summary

MARK = "kforge candidate"
"""The annotation around each call."""
_CALLS = 10
_WARM = 2
_DEVICE = ("kernel", "gpu_memcpy", "gpu_memset")
_HOST = ("cpu_op", "cuda_runtime", "cuda_driver", "user_annotation")


def profile_calls(call: Callable[[], Sequence[torch.Tensor]], kind: str) -> Capture:
    """Ten calls under torch's profiler. `kind` is torch's device type."""
    for _ in range(_WARM):
        call()
    activities = [ProfilerActivity.CPU]
    if kind == "cuda":
        activities.append(ProfilerActivity.CUDA)
        torch.cuda.synchronize()
    with profile(activities=activities) as taken:
        for _ in range(_CALLS):
            with record_function(MARK):
                call()
        if kind == "cuda":
            torch.cuda.synchronize()
    with tempfile.TemporaryDirectory(prefix="kforge-trace-") as folder:
        path = Path(folder) / "trace.json"
        taken.export_chrome_trace(str(path))
        text = path.read_text(errors="replace")
    return parse(text, f"torch.profiler, {_CALLS} calls", _CALLS)


def parse(text: str, method: str, calls: int | None = None) -> Capture:
    """The capture in a Chrome trace: kernels on a device where there are any, else what torch's operators took on the host."""
    try:
        data = json.loads(text)
    except ValueError as error:
        return Capture("torch", method, notes=(f"the trace is not JSON: {error}",))
    events = data.get("traceEvents") if isinstance(data, dict) else data
    events = events if isinstance(events, list) else []
    whole = [event for event in events if isinstance(event, dict) and event.get("ph") == "X" and "ts" in event and "dur" in event]
    device = [_span(event, "stream") for event in whole if event.get("cat") in _DEVICE]
    host = _host_metrics([event for event in whole if event.get("cat") in _HOST])
    if device:
        return summary("torch", method, device, calls, host)
    if not host:
        return Capture("torch", method, notes=("the trace holds no kernel, operator or annotation",))
    return Capture("torch", method, tuple(host))


def _span(event: dict[str, Any], lane: str) -> tuple[str, str, float, float]:
    start, duration = float(event["ts"]), float(event["dur"])
    number = event.get("args", {}).get("stream", event.get("tid", 0))
    return str(event.get("name", "kernel")), f"{lane} {number}", start, start + duration


def _host_metrics(events: Sequence[dict[str, Any]]) -> list[Metric]:
    """Median time of each operator, annotation and runtime call by name, the longest first."""
    by_name: dict[str, list[float]] = {}
    for event in events:
        by_name.setdefault(str(event.get("name", "")), []).append(float(event["dur"]))
    found = [Metric("host time", median(durations), "us", name) for name, durations in by_name.items()]
    return sorted(found, key=lambda item: -item.value)[:12]
