"""Why the store has no winner: the nearest entry, and the fields in which it differs from what was asked."""

from __future__ import annotations

import itertools
from collections.abc import Iterable
from dataclasses import dataclass, fields
from functools import lru_cache

from kforge_dynamo.records.codec import digest
from kforge_dynamo.records.outcome import CacheKey, State
from kforge_dynamo.records.target import Numerics
from kforge_dynamo.records.task import Domain

_FP32 = ("strict", "highest", "high", "medium", "mixed")


@dataclass(frozen=True, slots=True)
class Difference:
    """A field of the key, or "sizes", with what was asked and what the nearest entry has."""

    field: str
    asked: str
    stored: str


@dataclass(frozen=True, slots=True)
class Miss:
    """`nearest` is the key with the fewest differences, None in an empty store."""

    nearest: CacheKey | None
    differences: tuple[Difference, ...]

    def __str__(self) -> str:
        if self.nearest is None:
            return "the store has no winner for any task"
        if not self.differences:
            return "the store has a winner for this task, device, numerics and sizes"
        words = [f"{item.field}: asked {item.asked}, stored {item.stored}" for item in self.differences]
        return "the nearest winner differs in " + "; ".join(words)


def explain(key: CacheKey, sizes: tuple[int, ...], stored: Iterable[tuple[CacheKey, tuple[tuple[State, Domain], ...]]]) -> Miss:
    """The miss of `key` and `sizes` among the keys in `stored`, judged by their winners."""
    best: tuple[int, CacheKey, tuple[Difference, ...]] | None = None
    for other, entries in stored:
        domains = [domain for state, domain in entries if state is State.WINNER]
        if not domains:
            continue
        differences = _differences(key, sizes, other, domains)
        weight = sum(8 if item.field == "task" else 1 for item in differences)
        if best is None or weight < best[0]:
            best = (weight, other, differences)
    return Miss(None, ()) if best is None else Miss(best[1], best[2])


def _differences(key: CacheKey, sizes: tuple[int, ...], other: CacheKey, domains: list[Domain]) -> tuple[Difference, ...]:
    found = []
    for name in ("task", "device", "schema"):
        asked, stored = getattr(key, name), getattr(other, name)
        if asked != stored:
            found.append(Difference(name, str(asked)[:40], str(stored)[:40]))
    if key.numerics != other.numerics:
        found.extend(_numerics(key.numerics, other.numerics))
    if key.task == other.task and not any(domain.holds(sizes) for domain in domains):
        found.append(Difference("sizes", "x".join(map(str, sizes)), " or ".join(map(show_domain, domains[:4]))))
    return tuple(found)


def _numerics(asked: str, stored: str) -> list[Difference]:
    known = known_numerics()
    if asked not in known or stored not in known:
        return [Difference("numerics", asked[:12], stored[:12])]
    pairs = [(item.name, getattr(known[asked], item.name), getattr(known[stored], item.name)) for item in fields(Numerics)]
    return [Difference(f"numerics.{name}", str(left), str(right)) for name, left, right in pairs if left != right]


def describe_numerics(numerics: str) -> str:
    """The numerics with this digest in words; its first digits where it is none that this version can have made."""
    known = known_numerics().get(numerics)
    if known is None:
        return numerics[:12]
    flags = [item.name for item in fields(Numerics) if item.name != "fp32" and getattr(known, item.name)]
    return " ".join([known.fp32, *flags])


def show_domain(domain: Domain) -> str:
    """The domain for people: `m=1..64 n=8`."""
    return " ".join(
        f"{item.axis}={item.low}" if item.low == item.high else f"{item.axis}={item.low}..{item.high}" for item in domain.ranges
    )


@lru_cache(maxsize=1)
def known_numerics() -> dict[str, Numerics]:
    """All numerics by their digest: keys hold digests only, and there are few enough numerics to try them all."""
    flags = itertools.product((False, True), repeat=4)
    records = [Numerics(fp32, *each) for fp32, each in itertools.product(_FP32, flags)]
    return {digest(record): record for record in records}
