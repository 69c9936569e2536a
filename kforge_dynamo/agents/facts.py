"""What is known of a right kernel as numbers by name: its times, the roofline's terms, its plan, and what its profile holds.

Numbers of a profile are taken by their names, so that a new field or metric of it needs no change here. Of several kernels the
worst number counts. Names that rules read: `registers`, `spilled_bytes`, `stack_moves`, `occupancy` (0 to 1), `stall_*` (shares).
"""

from __future__ import annotations

import dataclasses
import math
import re

from kforge_dynamo.agents.search import Problem
from kforge_dynamo.errors import RecordError
from kforge_dynamo.records.candidate import Candidate
from kforge_dynamo.records.expression import compile_sizes
from kforge_dynamo.records.outcome import Trial
from kforge_dynamo.records.profile import Profile
from kforge_dynamo.semantics.cost import ITEM_BYTES, gemm_flops, moved_bytes

Facts = dict[str, float]
_MOST = 40
_SCHEME_PEAKS = {
    "ieee": ("fp32_flops", 1.0),
    "tf32x3": ("tf32_flops", 3.0),
    "tf32": ("tf32_flops", 1.0),
    "fp16": ("fp16_flops", 1.0),
    "bf16": ("fp16_flops", 1.0),
    "native": ("fp16_flops", 1.0),
}
"""The peak that a scheme's products run against, and how many of them one product takes."""


def facts(problem: Problem, trial: Trial) -> Facts:
    """All numbers about a trial that was timed."""
    found: Facts = {}
    if trial.timings:
        timing = trial.timings[0]
        found |= {"candidate_us": timing.candidate.median_us, "region_us": timing.region.median_us}
        if timing.anchor is not None:
            found["anchor_us"] = timing.anchor.median_us
    found |= roofline(problem, trial.candidate)
    found |= {"launches": float(len(trial.candidate.plan.launches)), "buffer_bytes": _buffer_bytes(problem, trial.candidate)}
    if "candidate_us" in found:
        found |= _shares(found)
    return found | profile_facts(trial.profile)


def roofline(problem: Problem, candidate: Candidate) -> Facts:
    """`flop`, `bytes`, and where the peaks are known `compute_us` (of the scheme's units) and `memory_us`."""
    flop, moved = gemm_flops(problem.task, problem.sizes), moved_bytes(problem.task, problem.sizes)
    found: Facts = {"flop": float(flop), "bytes": float(moved)}
    name, products = _SCHEME_PEAKS.get(candidate.scheme, ("fp32_flops", 1.0))
    peak, bandwidth = problem.target.peak(name), problem.target.peak("memory_bytes_per_s")
    if peak:
        found["compute_us"] = products * flop / peak * 1e6
    if bandwidth:
        found["memory_us"] = moved / bandwidth * 1e6
        found["scratch_us"] = 2.0 * _buffer_bytes(problem, candidate) / bandwidth * 1e6  # written once, read once
    return found


def _shares(found: Facts) -> Facts:
    time_us = found["candidate_us"]
    pairs = {
        "compute_share": "compute_us",
        "memory_share": "memory_us",
        "scratch_share": "scratch_us",
        "anchor_share": "anchor_us",
    }
    return {name: found[term] / time_us for name, term in pairs.items() if term in found and time_us > 0}


def profile_facts(profile: Profile | None) -> Facts:
    """The numbers of a profile; empty for None."""
    found: Facts = {}
    if profile is None:
        return found
    for kernel in profile.kernels:
        for field in dataclasses.fields(kernel):
            value = getattr(kernel, field.name)
            if isinstance(value, int | float) and not isinstance(value, bool):
                found[field.name] = max(found.get(field.name, 0.0), float(value))
        if kernel.occupancy is not None:
            found["occupancy"] = min(found.get("occupancy", 1.0), kernel.occupancy.share)
    for capture in profile.captures:
        found |= {_word(item.name): item.value for item in capture.metrics[:_MOST] if math.isfinite(item.value)}
        total = sum(item.value for item in capture.stalls)
        found |= {f"stall_{_word(item.name)}": item.value / total for item in capture.stalls if total > 0}
    if profile.roofline is not None:
        pairs = {"compute_share": profile.roofline.flop_share, "memory_share": profile.roofline.byte_share}
        found |= {name: value for name, value in pairs.items() if value is not None}
    return found


def _word(name: str) -> str:
    return re.sub(r"\W+", "_", name).strip("_").lower()


def _buffer_bytes(problem: Problem, candidate: Candidate) -> float:
    """Bytes of the plan's buffers at the problem's sizes; 0 where an expression is none."""
    buffers = candidate.plan.buffers
    try:
        counts = compile_sizes([item.elements for item in buffers], problem.task.axes)(*problem.sizes)
        return float(sum(count * ITEM_BYTES.get(item.dtype, 4) for count, item in zip(counts, buffers, strict=True)))
    except (RecordError, ArithmeticError, TypeError):
        return 0.0
