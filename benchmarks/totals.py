"""What a table of rows comes to: geometric means over the sets of workloads, how many are how fast, losses and wrong ones."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from kforge_dynamo.cli.measure import geomean

Row = dict[str, Any]

_ZEROS, _ALGEBRA, _IDLE = (9, 80), (14, 18, 51, 98), (66, 68)
SETS: dict[str, tuple[int, ...]] = {
    "37": (),
    "35": _ZEROS,
    "33": _ALGEBRA,
    "29": (*_ZEROS, *_ALGEBRA, *_IDLE),
}
"""Workloads that a mean leaves out, by the number that is left: those whose output is all zeros (9, 80); those in which a
reduction over the product's columns moves into the weight (14, 18, 51, 98); and, with all of those, two of which an operation
does nothing on the given inputs (66, 68)."""
LEVELS = (1.0, 1.5, 2.0)
"""fast_p counts the right rows in which a winner ran and kforge is more than p times as fast as the fastest baseline."""


@dataclass(frozen=True, slots=True)
class Totals:
    """Means are None where a set has no row. `fast` follows `LEVELS`; `spliced`, `losses` and `wrong` are workloads' numbers.
    `wall` is the mean of wall ratios where the others are device times."""

    rows: int
    means: dict[str, float | None]
    wall: float | None
    fast: tuple[int, ...]
    spliced: tuple[int, ...]
    losses: tuple[int, ...]
    wrong: tuple[int, ...]
    failed: tuple[int, ...]
    worst_error: float | None


def spliced(row: Row) -> bool:
    """Whether a winner really ran in this row."""
    return bool(row["kforge"]) and row["kforge"]["stats"].get("spliced", 0) > 0


def ratio_of(row: Row) -> dict[str, Any] | None:
    """The device's ratio where there is one, else the wall's; None for a row that failed or was not timed."""
    if row.get("failure"):
        return None
    found: dict[str, Any] | None = row["device_ratio"] or row["wall_ratio"]
    return found


def is_loss(row: Row) -> bool:
    """Whether a spliced winner is slower than the fastest baseline for sure."""
    ratio = ratio_of(row)
    return ratio is not None and spliced(row) and ratio["high"] < 1.0


def is_wrong(row: Row) -> bool:
    """Whether the result was outside what is promised."""
    return not row.get("failure") and row["error"]["right"] is False


def totals(rows: Sequence[Row]) -> Totals:
    """Of one table."""
    timed = [(row["row"]["id"], row, ratio_of(row)) for row in rows]
    values = {number: ratio["value"] for number, _, ratio in timed if ratio is not None}
    right = [ratio["value"] for _, row, ratio in timed if ratio is not None and spliced(row) and not is_wrong(row)]
    errors = [row["error"]["ratio"] for _, row, ratio in timed if ratio is not None and row["error"]["ratio"] is not None]
    walls = [row["wall_ratio"]["value"] for _, row, ratio in timed if ratio is not None and row["device_ratio"]]
    return Totals(
        rows=len(values),
        means={name: geomean([v for number, v in values.items() if number not in out]) for name, out in SETS.items()},
        wall=geomean(walls) if walls else None,
        fast=tuple(sum(value > level for value in right) for level in LEVELS),
        spliced=tuple(number for number, row, ratio in timed if ratio is not None and spliced(row)),
        losses=tuple(number for number, row, _ in timed if is_loss(row)),
        wrong=tuple(number for number, row, _ in timed if is_wrong(row)),
        failed=tuple(number for number, row, _ in timed if row.get("failure")),
        worst_error=max(errors, default=None),
    )
