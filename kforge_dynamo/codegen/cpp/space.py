"""The schedules worth measuring, best guess first, by a model that knows five numbers of a core."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from functools import lru_cache
from math import prod

from kforge_dynamo.codegen.cpp.folded import written
from kforge_dynamo.codegen.cpp.memory import batch_axes
from kforge_dynamo.codegen.cpp.product import Operands, operands_of
from kforge_dynamo.codegen.cpp.program import Inexpressible, program_of
from kforge_dynamo.codegen.cpp.schedule import Schedule
from kforge_dynamo.codegen.cpp.source import lanes_of, one_range
from kforge_dynamo.languages.cpp import library_symbols
from kforge_dynamo.records.target import Numerics, Target
from kforge_dynamo.records.task import Task
from kforge_dynamo.semantics.algebra import fold

_CORE_GFLOPS = {16: 100.0, 8: 50.0, 4: 12.0}
"""fp32 of one core in a cached loop, by vector width. Source: measured, Zen 4: 117 at the peak of AVX-512."""
_MEMORY_GBS, _CACHE_GBS, _TURN_GBS = 16.0, 50.0, 12.0
"""One core reading memory, reading the last cache, and transposing. Source: measured, Zen 4, 2 cores."""
_TEAM_US, _CALL_US, _EAGER_US = 3.0, 2.0, 12.0
"""Meeting of all threads; entering a kernel; the GEMM call and the extra kernel of Inductor's code."""
_LAST_CACHE_BYTES = 16e6
_MOST = 16


@dataclass(frozen=True, slots=True)
class Shape:
    """The sizes a schedule is chosen for: `outer` products of (m, k) by (k, n)."""

    m: int
    k: int
    n: int
    outer: int
    ranged: bool
    width: int
    by_k: tuple[bool, bool]

    @property
    def flops(self) -> float:
        """Multiplications and additions."""
        return 2.0 * self.m * self.k * self.n * self.outer


@lru_cache(maxsize=256)
def _shape(task: Task, sizes: tuple[int, ...], lanes: int) -> tuple[Shape, Operands]:
    it = operands_of(task)
    given = dict(zip(task.axes, sizes, strict=True))
    rows = [given[axis] for axis in task.row_axes]
    batch = batch_axes(task)
    k = it.k if isinstance(it.k, int) else given[it.k]
    width = 2 if it.ctype in ("bf16", "f16") else 4
    shape = Shape(
        prod(rows[batch:]), k, it.n, prod(rows[:batch]), one_range(task, lanes), width, (it.lhs_k == "1", it.rhs_k == "1")
    )
    return shape, it


def space(task: Task, sizes: Sequence[int], target: Target, numerics: Numerics) -> list[Schedule]:
    """At most 16 schedules of `task`, best guess first. Of `numerics` only what is kept of weights counts: all compute in
    fp32."""
    if task.anchor is None:
        return [Schedule("none", rows) for rows in (32, 8, 128)]
    shape, it = _shape(task, tuple(sizes), lanes_of(target))
    found: dict[Schedule, float] = {}
    for schedule in (*_folded(task, tuple(sizes), target), *_all(shape, it, target)):
        if schedule not in found and _writes(task, schedule, target):
            small = _small(task, tuple(sizes), target) if schedule.fold else None
            found[schedule] = estimate_us(small or shape, schedule, target)
            found[schedule] += _fold_us(shape, target) if small and not numerics.kept else 0.0
    ranked = sorted(found, key=lambda schedule: found[schedule])
    return _mixed(ranked)[:_MOST]


def _mixed(ranked: Sequence[Schedule]) -> list[Schedule]:
    """The best of each kind first, then the second of each: a model this simple ranks kinds better than their variants."""
    seen: dict[tuple[object, ...], int] = {}
    rounds: list[tuple[int, int]] = []
    for place, schedule in enumerate(ranked):
        kind = (schedule.product, schedule.side, schedule.cols > 0, schedule.fresh, schedule.fold)
        seen[kind] = seen.get(kind, -1) + 1
        rounds.append((seen[kind], place))
    return [ranked[place] for _, place in sorted(rounds)]


def _folded(task: Task, sizes: tuple[int, ...], target: Target) -> list[Schedule]:
    """Schedules of the small product, where the reduction over the columns moves into the right operand."""
    found = fold(task)
    shape = _small(task, sizes, target)
    if found is None or shape is None:
        return []
    _, it = _shape(found.task, sizes, lanes_of(target))
    own = (schedule for schedule in _all(shape, it, target) if schedule.product in ("own", "dot"))
    return [replace(schedule, fold=True) for schedule in own]


def _small(task: Task, sizes: tuple[int, ...], target: Target) -> Shape | None:
    """The sizes of the product with the reduced operand."""
    found = fold(task)
    return None if found is None else _shape(found.task, sizes, lanes_of(target))[0]


def _fold_us(shape: Shape, target: Target) -> float:
    """Reading the whole right operand once."""
    weights = 4.0 * shape.k * shape.n
    stream = _CACHE_GBS if weights < _LAST_CACHE_BYTES else _MEMORY_GBS
    return weights / (stream * 1e3 * max(1, target.units)) + _TEAM_US


def _writes(task: Task, schedule: Schedule, target: Target) -> bool:
    try:
        written(task, schedule, target)
    except Inexpressible:
        return False
    return True


def _all(shape: Shape, it: Operands, target: Target) -> Iterator[Schedule]:
    yield from _library(shape, it, target)
    lanes = lanes_of(target)
    yield from _columns(shape, target, lanes)
    yield from _rows(shape, target, lanes)
    if all(shape.by_k) and shape.m <= 16:
        for mr in (1, 2, 4, 8):
            if mr <= min(lanes, 2 * shape.m):
                for cols in (64, 256):
                    yield Schedule("dot", _up(shape.m, 1), cols, "", mr)
    elif all(shape.by_k) and shape.n <= 16:
        for mr in (lanes, lanes // 2):
            yield Schedule("dot", max(mr, _share(shape, target)), 0, "", mr)


def _library(shape: Shape, it: Operands, target: Target) -> Iterator[Schedule]:
    symbols = library_symbols()
    if (it.ctype == "float" and "sgemm_" in symbols) or (it.ctype == "bf16" and "cblas_gemm_bf16bf16f32" in symbols):
        share = _share(shape, target)
        for rows in sorted({min(share, 512), min(share, 128)}, reverse=True):
            yield Schedule("library", rows)
        if shape.outer == 1:
            yield Schedule("library_whole", 32)


def _tiles(lanes: int) -> tuple[tuple[int, int], ...]:
    """Register tiles (mr, nv) that reach a core's speed: accumulators fill most of the registers."""
    return ((12, 2), (14, 2), (6, 4), (8, 3)) if lanes == 16 else ((6, 2), (4, 3), (4, 2))


def _share(shape: Shape, target: Target) -> int:
    """Rows of a thread, where the threads divide the rows of each product."""
    return -(-shape.m // max(1, target.units // max(1, shape.outer)))


def _columns(shape: Shape, target: Target, lanes: int) -> Iterator[Schedule]:
    """The right operand packed, rows broadcast: many rows share one packing."""
    if shape.m < 12:
        # few rows: more vectors to a tile, and each unit packs its own columns once
        for cols in (64, 128, 256):
            yield Schedule("own", shape.m, cols, "columns", shape.m, max(2, min(8, 24 // shape.m)), 256, fresh=True)
        return
    share = _share(shape, target)
    for mr, nv in _tiles(lanes):
        # a block of the product and a block of the packed side stay in the second cache together
        for floats in (24576, 65536):
            yield Schedule("own", _up(min(share, max(mr, floats // shape.n)), mr), 0, "columns", mr, nv, 256)
        for cols in (256, 512):
            if cols < shape.n:
                yield Schedule("own", _up(min(share, 96), mr), cols, "columns", mr, nv, 256)
        if shape.m <= 256:
            for cols in (64, 128):
                yield Schedule("own", _up(shape.m, mr), cols, "columns", mr, nv, 256, fresh=True)


def _rows(shape: Shape, target: Target, lanes: int) -> Iterator[Schedule]:
    """The left operand packed, weights broadcast as they lie: few rows, a large weight."""
    wide = ((6, 4), (12, 2), (14, 1)) if lanes == 16 else ((4, 3), (6, 2), (12, 1))
    narrow = ((8, 1), (14, 1)) if lanes == 16 else ((8, 1), (12, 1))
    for mr, nv in wide if shape.m > lanes else narrow:
        panel = nv * lanes
        share, whole = _up(_share(shape, target), panel), _up(shape.m, panel)
        if share <= 256:
            yield Schedule("own", share, 0, "rows", mr, nv, 256)
        if whole <= 512:
            for cols in (64, 128):
                yield Schedule("own", whole, cols, "rows", mr, nv, 256)


def neighbours(schedule: Schedule, task: Task, sizes: Sequence[int], target: Target, numerics: Numerics) -> list[Schedule]:
    """Schedules one step away from `schedule`, best guess first."""
    del numerics
    if task.anchor is None:
        return [replace(schedule, rows=rows) for rows in (schedule.rows * 2, schedule.rows // 2) if rows > 0]
    shape, _ = _shape(task, tuple(sizes), lanes_of(target))
    shape = (_small(task, tuple(sizes), target) if schedule.fold else None) or shape
    near = [replace(schedule, rows=rows) for rows in (schedule.rows * 2, schedule.rows // 2) if 0 < rows <= 2 * shape.m]
    if schedule.cols:
        near += [replace(schedule, cols=cols) for cols in (schedule.cols * 2, schedule.cols // 2) if 16 <= cols < shape.n]
    if schedule.product == "own":
        near += [replace(schedule, kc=kc) for kc in (128, 256, 512, 1024) if kc != schedule.kc and kc < 2 * shape.k]
        near += [replace(schedule, mr=mr, nv=nv) for mr, nv in _tiles(lanes_of(target)) if (mr, nv) != (schedule.mr, schedule.nv)]
        near.append(replace(schedule, phased=not schedule.phased))
        near += [replace(schedule, fresh=not schedule.fresh)] if schedule.side == "columns" else []
    if schedule.product == "dot":
        near += [replace(schedule, mr=mr) for mr in (1, 2, 4, 8) if mr != schedule.mr]
    near = [item for item in near if item != schedule and _writes(task, item, target)]
    return sorted(near, key=lambda item: estimate_us(shape, item, target))


def estimate_us(shape: Shape, schedule: Schedule, target: Target) -> float:
    """A guess at the product's time; the epilogue costs every schedule about the same."""
    lanes = lanes_of(target)
    cols = schedule.cols if 0 < schedule.cols < shape.n else shape.n
    units = -(-shape.m // max(1, schedule.rows)) * -(-shape.n // cols) * shape.outer
    threads = min(max(1, target.units), units) if schedule.product != "library_whole" else target.units
    rate = _CORE_GFLOPS[lanes] * 1e3 * threads * (units / threads) / -(-units // threads)
    weights = shape.k * shape.n * shape.outer * shape.width
    stream = _CACHE_GBS if weights < _LAST_CACHE_BYTES else _MEMORY_GBS
    time = max(shape.flops / rate, weights / (stream * 1e3 * threads))
    product = 4.0 * shape.m * shape.n * shape.outer
    if schedule.product == "library_whole" or schedule.phased or (cols < shape.n and not shape.ranged):
        time += 2 * product / (_CACHE_GBS * 1e3 * threads) + _TEAM_US
    return time + _packing_us(shape, schedule, lanes, threads, cols)


def _packing_us(shape: Shape, schedule: Schedule, lanes: int, threads: int, cols: int) -> float:
    right, left = 4.0 * shape.k * shape.n * shape.outer, 4.0 * shape.m * shape.k * shape.outer
    if schedule.product.startswith("library"):
        slow = 0.12 * shape.flops / (_CORE_GFLOPS[lanes] * 1e3 * threads)
        return slow + right / (_TURN_GBS * 1e3) / (threads if schedule.product == "library_whole" else 1)
    if schedule.product == "dot":
        loads = schedule.mr + lanes // schedule.mr
        useless = max(0.0, 2.0 * loads / lanes - 1.0) + 0.5 * (shape.m % schedule.mr > 0)
        return useless * shape.flops / (_CORE_GFLOPS[lanes] * 1e3 * threads)
    if schedule.side == "columns":
        waste = _up(shape.m, schedule.mr) / shape.m * _lanes_used(shape.n, schedule.nv, lanes) / shape.n - 1
        again = -(-shape.m // schedule.rows) if schedule.fresh else 1
        moved = again * right / (_TURN_GBS if shape.by_k[1] else 4 * _TURN_GBS if schedule.fresh else 2 * _TURN_GBS)
    else:
        waste = _lanes_used(shape.m, schedule.nv, lanes) / shape.m * _up(shape.n, schedule.mr) / shape.n - 1
        moved = left / _TURN_GBS + 4.0 * shape.m * shape.n * shape.outer / _TURN_GBS
        moved += right / (2 * _CACHE_GBS) if not shape.by_k[1] else 0.0
    return waste * shape.flops / (_CORE_GFLOPS[lanes] * 1e3 * threads) + moved / (1e3 * threads)


def gain_us(task: Task, sizes: Sequence[int], target: Target) -> float:
    """Estimated time saved a call against the GEMM and one more kernel; only an order."""
    if task.anchor is None:
        return _CALL_US
    lanes = lanes_of(target)
    shape, _ = _shape(task, tuple(sizes), lanes)
    threads = max(1, target.units)
    product = 4.0 * shape.m * shape.n * shape.outer
    nodes = len(program_of(task).nodes)
    epilogue = product * (1 + 0.2 * nodes) / (_CACHE_GBS * 1e3 * threads)
    share = 0.8 if fold(task) is not None else max(0.1, min(0.6, 16.0 / shape.m))
    slow = share * shape.flops / (_CORE_GFLOPS[lanes] * 1e3 * threads)
    return _EAGER_US + epilogue + slow


def _lanes_used(count: int, nv: int, lanes: int) -> int:
    """Lanes that `count` lines of the vector side take: whole panels, and half a panel where that is enough for the last."""
    panel = nv * lanes
    rest = count % panel
    half = (nv + 1) // 2 * lanes
    return count - rest + (0 if rest == 0 else half if rest <= panel // 2 else panel)


def _up(count: int, unit: int) -> int:
    return -(-count // unit) * unit
