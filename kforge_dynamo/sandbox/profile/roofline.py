"""The least work of a task beside the ceilings of its device."""

from __future__ import annotations

import re
from collections.abc import Sequence

from kforge_dynamo.records.outcome import Timings
from kforge_dynamo.records.profile import Roofline
from kforge_dynamo.records.target import Peak, Target
from kforge_dynamo.records.task import Task
from kforge_dynamo.semantics.cost import least_flops, moved_bytes

_SCHEME = re.compile(r"^(ieee|tf32|bf16|fp16)(?:x(\d))?")
_UNITS = {"ieee": "fp32_flops", "tf32": "tf32_flops", "bf16": "bf16_flops", "fp16": "fp16_flops"}
_NATIVE = {"float16": "fp16_flops", "bfloat16": "bf16_flops", "float32": "fp32_flops"}


def roofline(task: Task, sizes: Sequence[int], target: Target, scheme: str, timings: Sequence[Timings]) -> Roofline:
    """`timings` may be empty: then time and shares are unknown. The fastest regime of the candidate counts."""
    fastest = min(timings, key=lambda item: item.candidate.median_us, default=None)
    peak, passes, words = _ceiling(task, target, scheme)
    memory = next((item for item in target.peaks if item.name == "memory_bytes_per_s"), None)
    return Roofline(
        flops=least_flops(task, sizes),
        moved_bytes=moved_bytes(task, sizes),
        time_us=None if fastest is None else fastest.candidate.median_us,
        flop_ceiling=None if peak is None else peak.value / passes,
        flop_source=words,
        byte_ceiling=None if memory is None else memory.value,
        byte_source="unknown for this device" if memory is None else memory.source,
        method="not timed" if fastest is None else f"median, {fastest.candidate.method}",
    )


def _ceiling(task: Task, target: Target, scheme: str) -> tuple[Peak | None, int, str]:
    """The unit that the scheme multiplies on, and how often it multiplies each pair of operands ("tf32x3": three times)."""
    peaks = {peak.name: peak for peak in target.peaks if peak.name.endswith("_flops")}
    match = _SCHEME.match(scheme)
    if match is not None:
        name, passes = _UNITS[match[1]], int(match[2] or 1)
    else:
        anchor = task.anchor
        name, passes = _NATIVE.get("" if anchor is None else anchor.out.dtype, ""), 1
    if target.kind == "cpu":
        name = name if name in peaks else "fp32_flops"  # a CPU without products of halves widens them
    elif name == "bf16_flops" and name not in peaks:
        name = "fp16_flops"  # GPUs' tables have one column for both
    peak = peaks.get(name)
    if peak is None:
        return None, 1, f"unknown for {scheme or 'this dtype'} on this device"
    over = f" / {passes} products ({scheme})" if passes > 1 else ""
    return peak, passes, f"{name}{over}: {peak.source}"
