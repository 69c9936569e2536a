"""`kforge report --cache`: every stored answer, by device: winners, regions that stay with Inductor and why, refused entries."""

from __future__ import annotations

import statistics
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from xml.etree.ElementTree import Element

from kforge_dynamo.errors import RecordError
from kforge_dynamo.pages.elements import facts, folded, page, section, table, tag
from kforge_dynamo.pages.kernels import Placed, number, placed, source_block, speedup_cell
from kforge_dynamo.pages.plots import Point, roofline
from kforge_dynamo.placement import ceilings
from kforge_dynamo.records.codec import from_text
from kforge_dynamo.records.outcome import Standing, State, Timings, Winner
from kforge_dynamo.records.target import Peak
from kforge_dynamo.records.task import Task
from kforge_dynamo.semantics.show import show
from kforge_dynamo.store import Entry
from kforge_dynamo.store.explain import describe_numerics, show_domain
from kforge_dynamo.store.ship import task_name

_SHORT = 12
_NOT_A_TASK = (RecordError, ValueError, KeyError, IndexError, TypeError, AttributeError)
"""What reading a task of another version may end in."""


@dataclass(frozen=True, slots=True)
class _Won:
    """A winner with what its page needs; `placed` is None for a range of sizes or a task of another version."""

    layer: str
    entry: Entry
    winner: Winner
    placed: Placed | None

    @property
    def name(self) -> str:
        return f"{task_name(self.winner.task)} {show_domain(self.entry.domain)}"

    @property
    def timing(self) -> Timings | None:
        return self.winner.trial.timings[0] if self.winner.trial.timings else None


def cache_page(entries: Sequence[tuple[str, Entry]], title: str) -> bytes:
    """The page of these entries, each with the name of its layer."""
    devices = sorted({entry.key.device for _, entry in entries})
    parts = [_overview(entries)]
    for device in devices:
        parts += _device(device, [(layer, entry) for layer, entry in entries if entry.key.device == device])
    return page(title, *parts)


def _overview(entries: Sequence[tuple[str, Entry]]) -> Element:
    winners = [entry.record for _, entry in entries if isinstance(entry.record, Winner)]
    ratios = [item.trial.timings[0].speedup for item in winners if item.trial.timings]
    mean = statistics.geometric_mean(ratios) if ratios else None
    pairs = [
        ("entries", str(len(entries))),
        ("winners", str(len(winners))),
        ("left to Inductor", str(sum(isinstance(entry.record, Standing) for _, entry in entries))),
        ("refused", str(sum(entry.record is None for _, entry in entries))),
        ("geometric mean of the winners", number(mean, unit="x over Inductor's region")),
        ("made with", ", ".join(sorted({f"kforge {w.provenance.kforge}, torch {w.provenance.torch}" for w in winners})) or "-"),
    ]
    return section("Overview", facts(pairs))


def _device(device: str, entries: Sequence[tuple[str, Entry]]) -> Iterator[Element]:
    peaks = ceilings(device)
    won = [
        _Won(layer, entry, entry.record, _placed(entry.record, peaks))
        for layer, entry in entries
        if isinstance(entry.record, Winner)
    ]
    left = [(layer, entry, entry.record) for layer, entry in entries if isinstance(entry.record, Standing)]
    refused = [(layer, entry) for layer, entry in entries if entry.record is None]
    points: list[Point] = []
    for item in won:
        if item.placed is not None and item.timing is not None:
            points += item.placed.points(item.name, item.timing)
    picture = roofline(points, peaks)
    said = "Filled: kernels of kforge; rings: Inductor's versions of the same regions. " + (
        "Dashed: the device's ceilings." if peaks else "No ceiling of this device is known."
    )
    yield section(device, tag("p", said, class_="dim") if picture is not None else None, picture)
    if won:
        yield _winners(won)
    if left:
        yield _left(left)
    if refused:
        rows = [(entry.digest[:_SHORT], layer, entry.problem or "-") for layer, entry in refused]
        yield section("Refused entries", table(("entry", "layer", "why"), rows))


def _placed(winner: Winner, peaks: tuple[Peak, ...]) -> Placed | None:
    if any(item.low != item.high for item in winner.domain.ranges):
        return None  # which of its sizes was timed is not kept
    sizes = tuple(item.high for item in winner.domain.ranges)
    try:
        return placed(from_text(Task, winner.task), sizes, peaks)
    except _NOT_A_TASK:
        return None


def _winners(won: Sequence[_Won]) -> Element:
    heads = (
        "task",
        "sizes",
        "kforge us",
        "Inductor us",
        "bare GEMM us",
        "speed-up",
        "of roofline",
        "error ratio",
        "kernel",
        "numerics",
    )
    ranked = sorted(won, key=lambda item: -(item.timing.speedup if item.timing is not None else 0.0))
    rows = []
    for item in ranked:
        timing, verdict, candidate = item.timing, item.winner.trial.verdict, item.winner.trial.candidate
        share = item.placed.share(timing.candidate.median_us) if item.placed is not None and timing is not None else None
        anchor = timing.anchor.median_us if timing is not None and timing.anchor is not None else None
        rows.append(
            (
                task_name(item.winner.task),
                show_domain(item.entry.domain),
                number(timing.candidate.median_us if timing is not None else None, 1),
                number(timing.region.median_us if timing is not None else None, 1),
                number(anchor, 1),
                speedup_cell(timing.speedup if timing is not None else None),
                "-" if share is None else f"{share:.0%}",
                number(verdict.error_ratio),
                f"{candidate.language}, {candidate.scheme}, {candidate.author}",
                describe_numerics(item.entry.key.numerics),
            )
        )
    return section("Winners", table(heads, rows, numeric=heads[2:8]), *map(_kernel, ranked))


def _kernel(item: _Won) -> Element:
    candidate, verdict, made = item.winner.trial.candidate, item.winner.trial.verdict, item.winner.provenance
    pairs: list[tuple[str, str]] = [("entry", f"{item.entry.digest} ({item.layer})")]
    for timing in item.winner.trial.timings:
        words = f"kforge {timing.candidate.median_us:.1f} us, Inductor {timing.region.median_us:.1f} us, {timing.speedup:.2f}x"
        pairs.append((f"{timing.regime}, mode {timing.mode}", words))
    if item.placed is not None:
        pairs.append(("least work", f"{item.placed.flops:,} operations, {item.placed.moved_bytes:,} bytes"))
        pairs.append(("roofline", number(item.placed.floor_us, 1, " us at least")))
    pairs += [
        ("verdict", f"{verdict.status.value}, error ratio {number(verdict.error_ratio)}, worst at {verdict.where or '-'}"),
        ("schedule", candidate.schedule or "-"),
        ("made with", f"kforge {made.kforge}, torch {made.torch}, {made.compiler}, driver {made.driver}, {made.created}"),
    ]
    return folded(
        item.name, facts(pairs), tag("pre", _task_text(item.winner.task)), source_block(candidate.source, candidate.language)
    )


def _task_text(text: str) -> str:
    try:
        return show(from_text(Task, text))
    except _NOT_A_TASK:
        return text


def _left(left: Sequence[tuple[str, Entry, Standing]]) -> Element:
    heads = ("task", "sizes", "state", "best found", "tried", "why", "numerics")
    order = {State.NO_WINNER: 0, State.NOT_SEARCHED: 1}
    rows = [
        (
            entry.key.task[:_SHORT],
            show_domain(entry.domain),
            record.state.value,
            speedup_cell(record.best_speedup),
            "-" if record.terms is None else f"{record.terms.candidates} kernels of {record.terms.generator}",
            record.reason,
            describe_numerics(entry.key.numerics),
        )
        for _, entry, record in sorted(left, key=lambda item: (order.get(item[2].state, 2), item[1].digest))
    ]
    return section("Left to Inductor", table(heads, rows, numeric=("best found",)))
