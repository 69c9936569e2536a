"""Samples that were taken in turn, compared round by round: what a round has in common (the machine's load, its clock) cancels.

The interval is that of the median by order statistics: of n independent values each lies above their median with chance one
half, whatever their distribution, so the k-th smallest is above it with the chance that at most k - 1 of n coins show heads.
Bursts, two modes and heavy tails, as on a shared machine, change nothing of that.
"""

from __future__ import annotations

import math
import statistics
from collections.abc import Sequence
from dataclasses import dataclass

USUAL = 0.95
STRICT = 0.998
MEANINGFUL = 0.01
"""A gain of less is not told from drift between runs, whatever the spread inside one run."""


@dataclass(frozen=True, slots=True)
class Interval:
    """An estimate and between what its true value lies; `pairs` rounds were compared, 0 where none could be."""

    value: float
    low: float
    high: float
    pairs: int

    @property
    def share(self) -> float:
        """Half of the width over the value."""
        return (self.high - self.low) / 2.0 / self.value


def won(found: Interval) -> bool:
    """Whether a time's share of its limit is a gain, by 1 % and surely."""
    return max(found.high, found.value + MEANINGFUL) < 1.0


def lost(found: Interval) -> bool:
    """Whether it surely is none."""
    return found.low > 1.0 - MEANINGFUL


def median_interval(values: Sequence[float], sure: float = USUAL) -> Interval | None:
    """The median of independent values, and between what the true one lies at least `sure` of the time; None of too few values
    (below six for 95 %)."""
    ranked, outside = sorted(values), 0
    count, ways = len(ranked), 0
    while outside < count / 2:
        ways += math.comb(count, outside)
        if ways / (1 << count) > (1.0 - sure) / 2.0:
            break
        outside += 1
    if outside == 0:
        return None
    return Interval(statistics.median(ranked), ranked[outside - 1], ranked[count - outside], count)


def numbers_text(numbers: Sequence[int]) -> str:
    """Ascending whole numbers as ranges: "0-4,6-30"."""
    parts: list[list[int]] = []
    for number in numbers:
        if parts and number == parts[-1][1] + 1:
            parts[-1][1] = number
        else:
            parts.append([number, number])
    return ",".join(f"{first}-{last}" if last > first else str(first) for first, last in parts)


def numbers_of(text: str, count: int) -> tuple[int, ...]:
    """`numbers_text` undone. Raises: ValueError for another text, and for other than `count` numbers."""
    found: list[int] = []
    for part in text.split(","):
        first, _, last = part.partition("-")
        low, high = int(first), int(last or first)
        if low < (found[-1] + 1 if found else 0) or not 0 <= high - low < count - len(found):
            raise ValueError(f"{text[:60]!r} does not name {count} rounds in their order")
        found += range(low, high + 1)
    if len(found) != count:
        raise ValueError(f"{text[:60]!r} names {len(found)} rounds, there are {count} samples")
    return tuple(found)
