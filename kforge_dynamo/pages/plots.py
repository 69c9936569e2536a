"""Charts as SVG inside the page: points over logarithmic axes under a device's ceilings, and a search over time."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from xml.etree.ElementTree import Element

from kforge_dynamo.pages.elements import tag
from kforge_dynamo.records.target import Peak

_WIDE, _HIGH = 640.0, 340.0
_LEFT, _RIGHT, _TOP, _BOTTOM = 70.0, 12.0, 14.0, 40.0
_MOST_TICKS = 9
Scale = Callable[[float], float]


@dataclass(frozen=True, slots=True)
class Point:
    """A kernel on the roofline: operations a byte, operations a second, whose it is ("point", "slow", "base"), its words."""

    intensity: float
    flops_per_s: float
    kind: str
    words: str


def roofline(points: Sequence[Point], peaks: Sequence[Peak]) -> Element | None:
    """Each point under the ceilings that are known; None where there is no point to show."""
    shown = [item for item in points if _usable(item.intensity) and _usable(item.flops_per_s)]
    if not shown:
        return None
    flat = [peak for peak in peaks if peak.name.endswith("_flops")]
    memory = next((peak.value for peak in peaks if peak.name == "memory_bytes_per_s"), None)
    xs = [item.intensity for item in shown] + [peak.value / memory for peak in flat if memory]
    ys = [item.flops_per_s for item in shown] + [peak.value for peak in flat]
    across, down = _span(xs), _span(ys)
    x, y = _logarithmic(across, _LEFT, _WIDE - _RIGHT), _logarithmic(down, _HIGH - _BOTTOM, _TOP)
    drawn = [*_grid(across, down, x, y), *_roofs(flat, memory, across, down, x, y)]
    for item in shown:
        circle = tag("circle", tag("title", item.words), cx=_round(x(item.intensity)), cy=_round(y(item.flops_per_s)), r=4)
        circle.set("class", item.kind)
        drawn.append(circle)
    labels = (
        tag("text", "operations a byte", x=_WIDE / 2, y=_HIGH - 6, text_anchor="middle"),
        tag("text", "operations a second", x=14, y=_HIGH / 2, text_anchor="middle", transform=f"rotate(-90 14 {_HIGH / 2})"),
    )
    return _chart("Roofline", *drawn, *labels)


def trajectory(tried: Sequence[tuple[float, float]], unit: str, region_us: float | None) -> Element | None:
    """The best time so far, in us, over what was spent; `tried` are (spent, time in us) of right kernels in order."""
    shown = [(spent, time_us) for spent, time_us in tried if spent >= 0 and math.isfinite(spent) and _usable(time_us)]
    if not shown:
        return None
    end = max(spent for spent, _ in shown) or 1.0
    levels = [time_us for _, time_us in shown] + ([region_us] if region_us is not None and _usable(region_us) else [])
    low, high = min(levels) * 0.9, max(levels) * 1.1
    x: Scale = lambda value: _LEFT + value / end * (_WIDE - _RIGHT - _LEFT)  # noqa: E731
    y: Scale = lambda value: _HIGH - _BOTTOM - (value - low) / (high - low) * (_HIGH - _BOTTOM - _TOP)  # noqa: E731
    best = math.inf
    corners: list[tuple[float, float]] = []
    for spent, time_us in shown:
        if time_us < best:
            corners += [(x(spent), y(best))] if corners else []
            corners.append((x(spent), y(time_us)))
            best = time_us
    corners.append((x(end), y(best)))
    path = " ".join(f"{_round(a)},{_round(b)}" for a, b in corners)
    drawn = [tag("polyline", points=path, class_="trace")]
    drawn += [tag("circle", cx=_round(x(s)), cy=_round(y(t)), r=3, class_="point") for s, t in shown]
    if region_us is not None and _usable(region_us):
        drawn.append(tag("line", x1=_LEFT, x2=_WIDE - _RIGHT, y1=_round(y(region_us)), y2=_round(y(region_us)), class_="roof"))
        drawn.append(tag("text", "Inductor", x=_WIDE - _RIGHT, y=_round(y(region_us) - 4), text_anchor="end"))
    for value in (low, high):
        drawn.append(tag("text", f"{value:.4g} us", x=_LEFT - 6, y=_round(y(value) + 4), text_anchor="end"))
    for value in (0.0, end):
        drawn.append(
            tag("text", f"{value:.3g} {unit}", x=_round(x(value)), y=_HIGH - 16, text_anchor="end" if value else "start")
        )
    return _chart(f"Best time over {unit}", *drawn)


def _usable(value: float) -> bool:
    return math.isfinite(value) and value > 0


def _span(values: Sequence[float]) -> tuple[int, int]:
    """Powers of ten that hold all values with room at both ends."""
    low, high = math.floor(math.log10(min(values) * 0.8)), math.ceil(math.log10(max(values) * 1.2))
    return low, max(high, low + 1)


def _logarithmic(span: tuple[int, int], start: float, end: float) -> Scale:
    low, high = span
    return lambda value: start + (math.log10(value) - low) / (high - low) * (end - start)


def _grid(across: tuple[int, int], down: tuple[int, int], x: Scale, y: Scale) -> list[Element]:
    drawn = []
    for power in _powers(across):
        place = _round(x(10.0**power))
        drawn.append(tag("line", x1=place, x2=place, y1=_TOP, y2=_HIGH - _BOTTOM, class_="axis"))
        drawn.append(tag("text", f"1e{power}", x=place, y=_HIGH - _BOTTOM + 14, text_anchor="middle"))
    for power in _powers(down):
        place = _round(y(10.0**power))
        drawn.append(tag("line", x1=_LEFT, x2=_WIDE - _RIGHT, y1=place, y2=place, class_="axis"))
        drawn.append(tag("text", f"1e{power}", x=_LEFT - 6, y=place + 4, text_anchor="end"))
    return drawn


def _powers(span: tuple[int, int]) -> range:
    low, high = span
    return range(low, high + 1, max(1, math.ceil((high - low) / _MOST_TICKS)))


def _roofs(
    flat: Sequence[Peak], memory: float | None, across: tuple[int, int], down: tuple[int, int], x: Scale, y: Scale
) -> list[Element]:
    """The line of each unit's peak from where the memory's slope meets it, and the slope up to the highest."""
    drawn = []
    start, end, floor = 10.0 ** across[0], 10.0 ** across[1], 10.0 ** down[0]
    for peak in flat:
        left = min(max(peak.value / memory, start), end) if memory else start
        place = _round(y(peak.value))
        line = tag("line", tag("title", peak.source), x1=_round(x(left)), x2=_round(x(end)), y1=place, y2=place, class_="roof")
        drawn += [line, tag("text", peak.name, x=_round(x(end)), y=place - 4, text_anchor="end")]
    if memory:
        top = max((peak.value for peak in flat), default=10.0 ** down[1])
        first, last = max(start, floor / memory), min(end, top / memory)
        if first < last:
            ends = {
                "x1": _round(x(first)),
                "y1": _round(y(first * memory)),
                "x2": _round(x(last)),
                "y2": _round(y(last * memory)),
            }
            drawn.append(tag("line", tag("title", "memory"), class_="roof", **ends))
    return drawn


def _round(value: float) -> float:
    return round(value, 1)


def _chart(name: str, *drawn: Element) -> Element:
    return tag("svg", tag("title", name), *drawn, viewBox=f"0 0 {_WIDE:g} {_HIGH:g}", role="img")
