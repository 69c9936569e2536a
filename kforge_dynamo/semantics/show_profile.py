"""A profile for people and models: rows of (what, value with its unit, where it comes from), and as JSON data."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator
from typing import Any

from kforge_dynamo.records.profile import Capture, KernelFacts, Metric, Occupancy, Profile, Roofline

Row = tuple[str, str, str]

_PREFIXES = ((1e12, "T"), (1e9, "G"), (1e6, "M"), (1e3, "k"))
_MOST_SPANS = 8


def show_profile(profile: Profile) -> list[Row]:
    """The rows, the most telling first. What is unknown has no row, unless a note says why it is unknown."""
    rows: list[Row] = []
    if profile.roofline is not None:
        rows += _roofline(profile.roofline)
    for kernel in profile.kernels:
        rows += _kernel(kernel)
    for capture in profile.captures:
        rows += _capture(capture)
    rows += [("picture", f"{item.path} ({item.mime}, {scaled(item.file_bytes, 'byte')})", "") for item in profile.pictures]
    return rows + [("note", note, "") for note in profile.notes]


def profile_data(profile: Profile) -> dict[str, Any]:
    """The profile as JSON data with plain numbers, derived shares included."""
    data = dataclasses.asdict(profile)
    line = profile.roofline
    if line is not None:
        derived = ("intensity", "flop_rate", "byte_rate", "flop_share", "byte_share", "bound")
        data["roofline"] |= {name: getattr(line, name) for name in derived}
    for kernel, facts in zip(data["kernels"], profile.kernels, strict=True):
        if facts.occupancy is not None:
            kernel["occupancy"]["share"] = facts.occupancy.share
    return data


def scaled(value: float, unit: str) -> str:
    """`value` with a decimal prefix: 4.16e11, "flop/s" -> "416 Gflop/s"."""
    for size, prefix in _PREFIXES:
        if abs(value) >= size:
            return f"{value / size:.4g} {prefix}{unit}"
    return f"{value:.4g} {unit}"


def _roofline(line: Roofline) -> Iterator[Row]:
    yield "work", f"{scaled(line.flops, 'flop')}, {scaled(line.moved_bytes, 'byte')}, {line.intensity:.3g} flop a byte", ""
    if line.flop_rate is not None and line.flops:
        yield "arithmetic", scaled(line.flop_rate, "flop/s") + _of(line.flop_share, line.flop_ceiling, "flop/s"), line.flop_source
    if line.byte_rate is not None:
        yield "memory", scaled(line.byte_rate, "byte/s") + _of(line.byte_share, line.byte_ceiling, "byte/s"), line.byte_source
    if line.bound is not None:
        yield "roofline", f"{line.bound} bound", line.method


def _of(share: float | None, ceiling: float | None, unit: str) -> str:
    if share is None or ceiling is None:
        return ", the ceiling is unknown"
    return f", {share:.1%} of at most {scaled(ceiling, unit)}"


def _kernel(facts: KernelFacts) -> Iterator[Row]:
    words = []
    for value, form in (
        (facts.threads, "{} threads a block"),
        (facts.registers, "{} registers a thread"),
        (facts.spilled_bytes, "{} bytes spilled"),
        (facts.local_bytes, "{} bytes of local memory"),
        (facts.shared_bytes, "{} bytes of shared memory"),
        (facts.vector_bits, "vectors of {} bits"),
        (facts.fma, "{} fused multiply-adds"),
        (facts.instructions, "{} instructions a turn"),
        (facts.stack_moves, "{} vector moves to or from the stack"),
    ):
        if value is not None:
            words.append(form.format(value))
    yield f"kernel {facts.name}", ", ".join(words) or "nothing known", facts.instrument
    if facts.occupancy is not None:
        yield from _occupancy(facts.occupancy)


def _occupancy(found: Occupancy) -> Iterator[Row]:
    tightest = found.limits[0]
    words = (
        f"{found.share:.0%} ({found.warps} of {found.most_warps} warps, {found.blocks} blocks), limited by {tightest.resource}"
    )
    yield "  occupancy", words, f"{found.formula}. {found.source}"


def _capture(capture: Capture) -> Iterator[Row]:
    yield capture.instrument, "", capture.method
    for metric in capture.metrics:
        yield _name(metric), _amount(metric), ""
    for stall in capture.stalls:
        yield f"  stall: {stall.name}", _amount(stall), stall.kernel or ""
    for span in capture.spans[:_MOST_SPANS]:
        yield f"  at {span.start_us:.1f} us", f"{span.name} for {span.duration_us:.2f} us", span.lane
    for note in capture.notes:
        yield "  note", note, ""


def _name(metric: Metric) -> str:
    return f"  {metric.name}" + (f" of {metric.kernel}" if metric.kernel else "")


def _amount(metric: Metric) -> str:
    if metric.unit in ("byte", "byte/s"):
        return scaled(metric.value, metric.unit)
    return f"{metric.value:.4g} {metric.unit}".strip()
