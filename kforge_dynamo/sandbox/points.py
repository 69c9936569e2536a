"""Which sizes of a domain a candidate is checked at."""

from __future__ import annotations

from kforge_dynamo.records.candidate import Candidate
from kforge_dynamo.records.task import AxisRange, Domain

_TILES = (16, 32, 64, 128)
_LARGEST_TILE = 1024


def tiles_of(candidate: Candidate) -> tuple[int, ...]:
    """Extents that may be tiles: the usual ones and the integer constants of the launches."""
    constants = {
        value
        for launch in candidate.plan.launches
        for _, value in launch.constants
        if type(value) is int and 1 < value <= _LARGEST_TILE
    }
    return tuple(sorted(constants | set(_TILES)))


def further_points(domain: Domain, sizes: tuple[int, ...], candidate: Candidate) -> tuple[tuple[int, ...], ...]:
    """Sizes to check beside `sizes`: one axis at a time at both ends, at 1, at an odd size, and on both sides of the first
    edge of each tile inside the domain. Empty for a domain of one point."""
    tiles = tiles_of(candidate)
    found: dict[tuple[int, ...], None] = {}
    for place, item in enumerate(domain.ranges):
        for size in _of_axis(item, tiles):
            found[(*sizes[:place], size, *sizes[place + 1 :])] = None
    found.pop(sizes, None)
    return tuple(found)


def _of_axis(item: AxisRange, tiles: tuple[int, ...]) -> list[int]:
    if item.low == item.high:
        return []
    wanted = [item.low, item.high, 1, item.low + 1 - item.low % 2 + (item.low % 2) * 2]
    for tile in tiles:
        edge = -(-max(item.low, 2) // tile) * tile
        wanted += [edge - 1, edge + 1]
    return sorted({size for size in wanted if max(item.low, 1) <= size <= item.high})
