"""A diagnosis without any model: rules from numbers to limits, each with evidence, changes, and gains computed from the numbers.

A rule takes the facts and the target's kind and returns a `Finding`, or None where it does not apply. The finding with the
largest predicted gain is the limit; the changes of all findings are offered, the largest gain first.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from kforge_dynamo.agents.facts import Facts
from kforge_dynamo.records.diagnosis import Change, Diagnosis, Limit

MOST_CHANGES = 3
_LARGEST_GAIN = 4.0


@dataclass(frozen=True, slots=True)
class Finding:
    """What a rule found."""

    limit: Limit
    evidence: str
    changes: tuple[Change, ...]


Rule = Callable[[Facts, str], Finding | None]


def _saved(share: float) -> float:
    """The gain when `share` of the time goes."""
    return min(_LARGEST_GAIN, 1.0 / max(1.0 - share, 1.0 / _LARGEST_GAIN))


def _spills(facts: Facts, kind: str) -> Finding | None:
    spilled = facts.get("spilled_bytes", 0.0) or 64.0 * facts.get("stack_moves", 0.0)  # a vector register is at most 64 bytes
    if spilled <= 0:
        return None
    registers = f" with {facts['registers']:.0f} registers a thread" if "registers" in facts else ""
    gain = 1.1 if spilled < 128 else 1.3
    what = "make the tile smaller in its larger direction, or use more warps for the same tile"
    if kind == "cpu":
        what = "keep fewer accumulators: a register tile of fewer rows"
    why = "values that do not fit into registers go through memory in the innermost loop"
    return Finding(Limit.SPILLS, f"{spilled:.0f} bytes spilled{registers}", (Change(what, why, gain),))


def _scratch(facts: Facts, kind: str) -> Finding | None:
    share = facts.get("scratch_share", 0.0)
    if share < 0.05:
        return None
    evidence = (
        f"{facts['buffer_bytes'] / 1e6:.1f} MB of buffers are written and read again: {share:.0%} of the time at full bandwidth"
    )
    change = Change(
        "keep what goes through a buffer in registers or shared memory", "the round trip through memory goes", _saved(share)
    )
    return Finding(Limit.SCRATCH, evidence, (change,))


def _epilogue(facts: Facts, kind: str) -> Finding | None:
    """The bare product is a kernel of the vendor's: what lies above its time is epilogue, or a poorer product."""
    anchor, time_us = facts.get("anchor_us"), facts["candidate_us"]
    if anchor is None or time_us <= 1.1 * anchor:
        return None
    over = (time_us - anchor) / time_us
    changes = [
        Change(
            "work on the epilogue: apply it to the tile in registers, in one pass, with row statistics found beside the product",
            f"{over:.0%} of the time lies above the bare product",
            _saved(0.6 * over),
        )
    ]
    if over > 0.3:
        what = "a larger register tile, the weight packed once per call" if kind == "cpu" else "larger tiles, deeper pipeline"
        changes.append(Change(f"improve the product itself: {what}", "it may be slower than the library's", _saved(0.4 * over)))
    return Finding(Limit.EPILOGUE, f"{time_us:.1f} us against {anchor:.1f} us of the bare product", tuple(changes))


def _launch(facts: Facts, kind: str) -> Finding | None:
    launches, time_us = facts.get("launches", 1.0), facts["candidate_us"]
    if kind == "cpu" or launches < 2 or time_us > 30.0 * launches:
        return None
    share = (launches - 1) * 3.0 / time_us  # a launch costs about 3 us on the device's side of a busy queue
    change = Change("do it in one launch", f"{launches:.0f} launches in {time_us:.0f} us", _saved(min(share, 0.6)))
    return Finding(Limit.LAUNCH, f"{launches:.0f} launches in {time_us:.1f} us", (change,))


def _occupancy(facts: Facts, kind: str) -> Finding | None:
    occupancy = facts.get("occupancy")
    if kind == "cpu" or occupancy is None or occupancy >= 0.25 or facts.get("compute_share", 0.0) > 0.6:
        return None
    what, why = "a smaller tile or fewer stages, so that two blocks fit", "too few warps hide the latency of memory"
    return Finding(Limit.OCCUPANCY, f"occupancy {occupancy:.0%}", (Change(what, why, 1.15),))


def _stalls(facts: Facts, kind: str) -> Finding | None:
    stalls = {name: value for name, value in facts.items() if name.startswith("stall_") and 0.0 < value <= 1.0}
    if not stalls:
        return None
    name, share = max(stalls.items(), key=lambda item: item[1])
    if share < 0.3:
        return None
    word = name.removeprefix("stall_").replace("_", " ")
    if any(part in name for part in ("barrier", "sync", "membar")):
        what, limit = "fewer barriers: larger steps of K, or warps that work on their own", Limit.LATENCY
    elif any(part in name for part in ("mio", "short_scoreboard", "shared", "bank")):
        what, limit = "fewer accesses to shared memory: wider loads, a layout without bank conflicts", Limit.LATENCY
    elif any(part in name for part in ("math", "pipe", "tensor")):
        what, limit = (
            "the units are busy: fewer instructions for the same work, or a cheaper scheme that the precision allows",
            Limit.COMPUTE,
        )
    else:
        what, limit = "load earlier: another pipeline stage, prefetch, asynchronous copies", Limit.MEMORY
    return Finding(limit, f"{share:.0%} of the stalls are {word}", (Change(what, f"warps wait for {word}", _saved(0.4 * share)),))


def _memory(facts: Facts, kind: str) -> Finding | None:
    share = facts.get("memory_share", 0.0)
    if share < 0.5 or share < facts.get("compute_share", 0.0):
        return None
    left = 1.0 - share
    change = Change(
        "read every input once, in wide and contiguous loads", "memory is the longer term of the roofline", _saved(0.7 * left)
    )
    return Finding(Limit.MEMORY, f"memory traffic alone takes {share:.0%} of the time", (change,))


def _compute(facts: Facts, kind: str) -> Finding | None:
    share = facts.get("compute_share")
    if share is None or share < facts.get("memory_share", 0.0) or share > 0.9:
        return None
    what = "larger tiles per program, operands kept in flight (stages, tensor descriptors), order of tiles for the cache"
    if kind == "cpu":
        what = "a register tile with more independent accumulators, contiguous panels of the weight"
    change = Change(what, f"the units do {share:.0%} of what they could", _saved(0.5 * (1.0 - share)))
    return Finding(Limit.COMPUTE, f"products reach {share:.0%} of the peak of this scheme", (change,))


def _unmeasured(facts: Facts, kind: str) -> Finding | None:
    """Where no peak and no profile is known: the rate of the product, against the bare one."""
    if kind != "cpu" or "compute_share" in facts or "memory_share" in facts:
        return None
    rate = facts["flop"] / facts["candidate_us"] / 1e3
    intensity = facts["flop"] / max(facts["bytes"], 1.0)
    evidence = f"{rate:.1f} GFLOP/s, {intensity:.1f} operations a byte"
    if intensity < 4.0:
        change = Change("stream the larger operand once, with every thread on its own part", "few operations a byte", 1.15)
        return Finding(Limit.MEMORY, evidence, (change,))
    changes = (
        Change(
            "another register tile (rows by vectors), so that all accumulators stay in registers", "the product dominates", 1.15
        ),
        Change(
            "pack the weight into panels that fit the second-level cache, or stop packing where it is small", "its reads", 1.1
        ),
    )
    return Finding(Limit.COMPUTE, evidence, changes)


RULES: tuple[Rule, ...] = (
    _spills, _scratch, _epilogue, _launch, _occupancy, _stalls, _memory, _compute, _unmeasured,
)  # fmt: skip
"""All rules; their order decides only between equal gains."""


def diagnose(facts: Facts, kind: str, floor_us: float | None, calibration: float = 1.0) -> Diagnosis:
    """The diagnosis of a right kernel. `calibration` scales predicted gains by how earlier ones turned out."""
    time_us = facts["candidate_us"]
    if floor_us is not None and floor_us >= 0.9 * time_us:
        words = f"{time_us:.1f} us against a floor of {floor_us:.1f} us"
        change = Change("nothing large is left; tune tile sizes", "the roofline is near", time_us / floor_us)
        return Diagnosis(Limit.NEAR_FLOOR, (words,), (change,), "rules")
    findings = [finding for rule in RULES if (finding := rule(facts, kind)) is not None]
    if not findings:
        change = Change("try other tile sizes", "no number points to one limit", 1.05)
        return Diagnosis(Limit.UNKNOWN, (f"{time_us:.1f} us",), (change,), "rules")
    findings.sort(key=lambda item: -max(change.gain for change in item.changes))
    changes = sorted((change for item in findings for change in item.changes), key=lambda change: -change.gain)
    bound = time_us / floor_us if floor_us else _LARGEST_GAIN
    kept = tuple(_scaled(change, calibration, bound) for change in changes[:MOST_CHANGES])
    return Diagnosis(findings[0].limit, tuple(item.evidence for item in findings[:MOST_CHANGES]), kept, "rules")


def _scaled(change: Change, calibration: float, bound: float) -> Change:
    """No prediction goes below 1 or beyond the roofline."""
    return Change(change.what, change.why, min(max(1.0, 1.0 + (change.gain - 1.0) * calibration), max(bound, 1.0)))


def untried(diagnosis: Diagnosis, tried: Sequence[str]) -> Change | None:
    """The first change that was not tried on this kernel, else the first; None where there is none."""
    fresh = [change for change in diagnosis.changes if change.what not in tried]
    return next(iter(fresh or diagnosis.changes), None)
