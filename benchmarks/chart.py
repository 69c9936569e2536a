"""Bars of the ratios of one device as an SVG: one group a workload, one bar a setting, over a logarithmic axis."""

from __future__ import annotations

import math
from collections.abc import Sequence
from pathlib import Path
from xml.etree.ElementTree import Element, indent, tostring

from benchmarks.overview import setting
from benchmarks.report import Key, read
from benchmarks.totals import Row, ratio_of, spliced
from kforge_dynamo.pages.elements import tag

_WIDE, _LEFT, _RIGHT, _TOP, _BAR, _GAP = 900.0, 360.0, 40.0, 60.0, 7.0, 5.0
_COLOURS = ("#3b6fb6", "#d98324", "#4f9d69", "#a05195", "#7f7f7f", "#c44e52")
_TICKS = (0.5, 1.0, 1.5, 2.0, 3.0, 4.0, 6.0, 8.0, 12.0, 16.0, 24.0, 32.0, 48.0, 64.0, 96.0)
_STYLE = (
    "text{font:11px sans-serif;fill:#57606a}.grid{stroke:#8884;stroke-width:1}.one{stroke:#57606a;stroke-width:1.5}"
    "@media(prefers-color-scheme:dark){text{fill:#9aa4af}.one{stroke:#9aa4af}}"
)


def bars(device: str, tables: dict[Key, list[Row]]) -> Element | None:
    """The chart of one device; None where nothing was timed there. What was left to Inductor is pale."""
    keys = sorted(key for key in tables if key[0] == device)
    series = [{row["row"]["id"]: row for row in tables[key] if ratio_of(row)} for key in keys]
    numbers = sorted({number for found in series for number in found})
    if not numbers:
        return None
    values = [ratio["value"] for found in series for row in found.values() if (ratio := ratio_of(row))]
    low, high = math.log(min(0.9, *values) * 0.95), math.log(max(1.2, *values) * 1.05)
    group = _BAR * len(keys) + _GAP
    tall = _TOP + _legend(keys) + group * len(numbers)
    x = lambda value: round(_LEFT + (math.log(value) - low) / (high - low) * (_WIDE - _RIGHT - _LEFT), 1)  # noqa: E731
    drawn: list[Element] = [tag("style", _STYLE), tag("title", f"kforge over the fastest other way, {device}")]
    drawn.append(tag("text", f"{device}: how many times as fast as the fastest other way (logarithmic)", x=8, y=18))
    for place, (key, colour) in enumerate(zip(keys, _COLOURS * len(keys), strict=False)):
        drawn.append(tag("rect", x=8, y=26 + 14 * place, width=10, height=10, fill=colour))
        drawn.append(tag("text", setting(key).replace("`", ""), x=24, y=35 + 14 * place))
    top = _TOP + _legend(keys)
    for tick in (tick for tick in _TICKS if low <= math.log(tick) <= high):
        drawn.append(tag("line", x1=x(tick), x2=x(tick), y1=top - 4, y2=tall, class_="one" if tick == 1.0 else "grid"))
        drawn.append(tag("text", f"{tick:g}x", x=x(tick), y=top - 8, text_anchor="middle"))
    for line, number in enumerate(numbers):
        begin = top + line * group
        drawn += _group([found.get(number) for found in series], begin, x)
    return tag("svg", *drawn, xmlns="http://www.w3.org/2000/svg", viewBox=f"0 0 {_WIDE:g} {tall:g}", role="img")


def _legend(keys: Sequence[Key]) -> float:
    return 14.0 * max(0, len(keys) - 1)


def _group(rows: Sequence[Row | None], begin: float, x: object) -> list[Element]:
    """Name and bars of one workload."""
    assert callable(x)
    named = next(row for row in rows if row is not None)
    middle = begin + _BAR * len(rows) / 2 + 4
    drawn = [tag("text", f"{named['row']['id']} {named['name']}"[:50], x=_LEFT - 8, y=middle, text_anchor="end")]
    for place, row in enumerate(rows):
        ratio = None if row is None else ratio_of(row)
        if row is None or ratio is None:
            continue
        ends = sorted((x(1.0), x(ratio["value"])))
        pale = {} if spliced(row) else {"opacity": "0.35"}
        bar = tag(
            "rect",
            tag("title", f"{ratio['value']:.2f}x [{ratio['low']:.2f}, {ratio['high']:.2f}] over {ratio['against']}"),
            x=ends[0],
            y=round(begin + _BAR * place, 1),
            width=round(max(ends[1] - ends[0], 1.0), 1),
            height=_BAR - 1,
            fill=_COLOURS[place % len(_COLOURS)],
            **pale,
        )
        drawn.append(bar)
    return drawn


def written(paths: Sequence[Path]) -> dict[str, str]:
    """The text of each device's chart by a name for its file."""
    tables = read(paths)
    found = {}
    for device in sorted({key[0] for key in tables}):
        chart = bars(device, tables)
        if chart is not None:
            indent(chart)
            found[device.lower().replace(" ", "-") + ".svg"] = tostring(chart, encoding="unicode") + "\n"
    return found
