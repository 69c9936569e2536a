"""What a page says of one kernel: how far it is from the roofline, its source, how it differs from its parent."""

from __future__ import annotations

import difflib
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from xml.etree.ElementTree import Element

from pygments.lexers import get_lexer_by_name
from pygments.token import Comment, Keyword, Number, String

from kforge_dynamo.forge import floor_us
from kforge_dynamo.pages.elements import tag
from kforge_dynamo.pages.plots import Point
from kforge_dynamo.records.outcome import Timings
from kforge_dynamo.records.target import Peak, Target
from kforge_dynamo.records.task import Task
from kforge_dynamo.semantics.cost import least_flops, moved_bytes

_LEXERS = {"cpp": "cpp", "triton": "python"}
_CLASSES = ((Comment, "c"), (Keyword, "k"), (String, "s"), (Number, "m"))
_MOST_SOURCE = 200_000
"""Letters of a source that are shown; kernels have some thousands, and a page must open."""


@dataclass(frozen=True, slots=True)
class Placed:
    """A task at sizes with the least it must do and the time that its device's ceilings allow, None where none is known."""

    flops: int
    moved_bytes: int
    floor_us: float | None

    def share(self, time_us: float) -> float | None:
        """Which part of the ceiling `time_us` reaches: 1.0 is the roofline."""
        return None if self.floor_us is None else self.floor_us / time_us

    def points(self, name: str, timing: Timings) -> Iterator[Point]:
        """The kernel and Inductor's version of the region on the roofline."""
        kind = "point" if timing.speedup > 1.0 else "slow"
        yield self._point(f"{name}: kforge {timing.candidate.median_us:.1f} us", timing.candidate.median_us, kind)
        yield self._point(f"{name}: Inductor {timing.region.median_us:.1f} us", timing.region.median_us, "base")

    def _point(self, words: str, time_us: float, kind: str) -> Point:
        return Point(self.flops / max(1, self.moved_bytes), self.flops / time_us * 1e6, kind, words)


def placed(task: Task, sizes: tuple[int, ...], peaks: tuple[Peak, ...]) -> Placed:
    """Where a task at `sizes` lies under `peaks`."""
    target = Target("", "", "", "", 1, None, None, (), peaks)
    return Placed(least_flops(task, sizes), moved_bytes(task, sizes), floor_us(task, sizes, target))


def source_block(source: str, language: str) -> Element:
    """The source with its keywords, comments, strings and numbers told apart."""
    block, shown = tag("pre"), source[:_MOST_SOURCE]
    lexer = get_lexer_by_name(_LEXERS.get(language, "text"), stripnl=False, ensurenl=False)
    code = tag("code")
    for kind, text in _joined(lexer.get_tokens(shown)):
        code.append(tag("span", text, class_=kind or "n"))
    block.append(code)
    if len(source) > _MOST_SOURCE:
        block.append(tag("span", f"\n... {len(source) - _MOST_SOURCE} more letters", class_="dim"))
    return block


def _joined(tokens: Iterable[tuple[object, str]]) -> Iterator[tuple[str, str]]:
    """Neighbours of one class as one piece: a page of a thousand kernels stays small."""
    kind = ""
    pieces: list[str] = []
    for token, text in tokens:
        found = next((name for group, name in _CLASSES if token in group), "")
        if found != kind and pieces:
            yield kind, "".join(pieces)
            pieces = []
        kind = found
        pieces.append(text)
    if pieces:
        yield kind, "".join(pieces)


def difference(parent: str, child: str) -> Element:
    """The lines in which `child` differs from `parent`."""
    lines = []
    for line in difflib.unified_diff(parent.splitlines(), child.splitlines(), "parent", "this", lineterm="", n=2):
        kind = "good" if line.startswith("+") else "bad" if line.startswith("-") else "dim" if line.startswith("@") else "n"
        lines.append(tag("span", line + "\n", class_=kind))
    return tag("pre", tag("code", *lines)) if lines else tag("p", "The sources are equal; schedule or plan differ.", class_="dim")


def number(value: float | None, digits: int = 2, unit: str = "") -> str:
    """The number as a table shows it, "-" where it was not measured."""
    return "-" if value is None else f"{value:,.{digits}f}{unit}"


def speedup_cell(value: float | None) -> Element | str:
    """A ratio to Inductor's version, in the colour of winners or losers."""
    return "-" if value is None else tag("span", f"{value:.2f}x", class_="good" if value > 1.0 else "bad")
