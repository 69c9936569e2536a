"""`kforge report RUN`: a search by agents: what it tried over time and money, every verdict, each kernel and its change."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Any
from xml.etree.ElementTree import Element

from kforge_dynamo.agents.transcript import Recorded
from kforge_dynamo.errors import RecordError
from kforge_dynamo.pages.elements import facts, folded, page, section, table, tag
from kforge_dynamo.pages.kernels import Placed, difference, number, placed, source_block, speedup_cell
from kforge_dynamo.pages.plots import Point, roofline, trajectory
from kforge_dynamo.records.codec import digest, from_plain
from kforge_dynamo.records.outcome import Trial
from kforge_dynamo.records.spending import Spent
from kforge_dynamo.semantics.show import show


@dataclass(frozen=True, slots=True)
class _Try:
    """A trial of the record: its step, number and stage, seconds since the beginning, dollars spent when its step began."""

    step: int
    index: int
    stage: str
    seconds: float
    money: float
    trial: Trial

    @property
    def name(self) -> str:
        return f"{self.step}.{self.index} {self.stage}"


def run_page(recorded: Recorded) -> bytes:
    """The page of a recorded run. Raises: RecordError where an event of it is damaged."""
    tries = list(_tries(recorded))
    assignment, target = recorded.header.assignment, recorded.header.target
    place = placed(assignment.task, assignment.sizes, target.peaks)
    return page(
        f"Search: {assignment.title}",
        _overview(recorded, tries, place),
        _course(tries),
        _picture(tries, place, recorded),
        _trials(tries, place),
        *_kernels(tries),
        section("The region", tag("pre", show(assignment.task))),
    )


def _tries(recorded: Recorded) -> Iterator[_Try]:
    money, began = 0.0, None
    for item in recorded.events:
        at = _moment(item)
        began = at if began is None else began
        if item["event"] == "spent":
            money = from_plain(Spent, item.get("spent")).money
        if item["event"] == "trial":
            trial: Trial = from_plain(Trial, item.get("trial"))
            seconds = (at - began).total_seconds() if at is not None and began is not None else 0.0
            yield _Try(int(item["step"]), _index(item), str(item.get("stage", "-")), max(0.0, seconds), money, trial)


def _moment(item: Mapping[str, Any]) -> datetime | None:
    try:
        return datetime.fromisoformat(str(item["at"]))
    except (KeyError, ValueError):
        return None


def _index(item: Mapping[str, Any]) -> int:
    if type(item.get("index")) is not int:
        raise RecordError(f"a trial of step {item['step']} has no number; `kforge runs list` shows whether the run is whole")
    return int(item["index"])


def _overview(recorded: Recorded, tries: Sequence[_Try], place: Placed) -> Element:
    header = recorded.header
    spent = next((from_plain(Spent, e.get("spent")) for e in reversed(recorded.events) if e["event"] == "spent"), Spent())
    passed = [item for item in tries if item.trial.verdict.passed]
    best = min((item for item in passed if item.trial.timings), key=_time_us, default=None)
    pairs = [
        ("device", header.target.name),
        (
            "sizes",
            " ".join(f"{axis}={size}" for axis, size in zip(header.assignment.task.axes, header.assignment.sizes, strict=True)),
        ),
        ("models", f"{header.model}, analyst {header.analyst or header.model}"),
        ("began", header.created),
        ("ended", recorded.ending or "not ended"),
        ("spent", spent.text(header.budget)),
        ("kernels tried", f"{len(tries)}, of which {len(passed)} were right"),
        (
            "best",
            "-" if best is None else f"{best.name}: {_time_us(best):.1f} us, {best.trial.timings[0].speedup:.2f}x over Inductor",
        ),
        ("roofline", number(place.floor_us, 1, " us at least")),
    ]
    return section("Overview", facts(pairs))


def _time_us(item: _Try) -> float:
    return item.trial.timings[0].candidate.median_us


def _course(tries: Sequence[_Try]) -> Element | None:
    """The best time over time, and over money where any was spent."""
    timed = [item for item in tries if item.trial.timings]
    region_us = timed[0].trial.timings[0].region.median_us if timed else None
    over_time = trajectory([(item.seconds, _time_us(item)) for item in timed], "s", region_us)
    paid = any(item.money for item in timed)
    over_money = trajectory([(item.money, _time_us(item)) for item in timed], "USD", region_us) if paid else None
    return section("Course of the search", over_time, over_money) if over_time is not None else None


def _picture(tries: Sequence[_Try], place: Placed, recorded: Recorded) -> Element | None:
    points: list[Point] = []
    for item in tries:
        if item.trial.timings:
            points += place.points(item.name, item.trial.timings[0])
    picture = roofline(points, recorded.header.target.peaks)
    return section("Roofline", picture) if picture is not None else None


def _trials(tries: Sequence[_Try], place: Placed) -> Element:
    heads = ("kernel", "after s", "verdict", "us", "speed-up", "of roofline", "error ratio", "by", "evidence")
    rows = []
    for item in tries:
        verdict, timing = item.trial.verdict, item.trial.timings[0] if item.trial.timings else None
        share = place.share(timing.candidate.median_us) if timing is not None else None
        rows.append(
            (
                item.name,
                number(item.seconds, 1),
                tag("span", verdict.status.value, class_="good" if verdict.passed else "bad"),
                number(timing.candidate.median_us if timing is not None else None, 1),
                speedup_cell(timing.speedup if timing is not None else None),
                "-" if share is None else f"{share:.0%}",
                number(verdict.error_ratio),
                f"{item.trial.candidate.author}, {item.trial.candidate.language}, {item.trial.candidate.scheme}",
                verdict.evidence[:400],
            )
        )
    return section("Every kernel", table(heads, rows, numeric=("after s", *heads[3:7])))


def _kernels(tries: Sequence[_Try]) -> Iterator[Element]:
    """Each source once, with what changed since its parent and the whole evidence of its verdict."""
    known = {digest(item.trial.candidate): item.trial.candidate for item in tries}
    shown: set[str] = set()
    blocks = []
    for item in tries:
        candidate = item.trial.candidate
        name = digest(candidate)
        if name in shown:
            continue
        shown.add(name)
        parent = known.get(candidate.parent or "")
        change = (
            folded("what changed since its parent", difference(parent.source, candidate.source)) if parent is not None else None
        )
        words = f"{item.trial.verdict.status.value}: {item.trial.verdict.evidence}" if item.trial.verdict.evidence else None
        blocks.append(
            folded(item.name, tag("pre", words) if words else None, change, source_block(candidate.source, candidate.language))
        )
    if blocks:
        yield section("Sources", *blocks)
