"""What there is to choose from: every schedule of a task that a device can run, and what it needs of the device."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from functools import lru_cache

from kforge_dynamo.codegen.triton.expressions import ITEM_BYTES
from kforge_dynamo.codegen.triton.forms import Unsupported, numbers
from kforge_dynamo.codegen.triton.model import rows_of
from kforge_dynamo.codegen.triton.operands import no_descriptor
from kforge_dynamo.codegen.triton.schedule import Schedule
from kforge_dynamo.codegen.triton.schemes import scheme_of
from kforge_dynamo.codegen.triton.scope import node_of
from kforge_dynamo.codegen.triton.stages import Stages, stages_of, walk
from kforge_dynamo.codegen.triton.tiles import Product, dependents
from kforge_dynamo.records.target import Target
from kforge_dynamo.records.task import Task
from kforge_dynamo.semantics.table import OPS, Kind

_HALF_TILES = (
    (128, 256, 64, 8, 3), (128, 256, 64, 8, 4), (256, 128, 64, 8, 3), (256, 128, 64, 8, 4), (128, 128, 64, 8, 4),
    (128, 128, 64, 4, 4), (64, 256, 64, 4, 4), (64, 128, 64, 4, 4), (128, 64, 64, 4, 4), (64, 64, 64, 4, 5),
    (64, 64, 128, 4, 4), (32, 128, 128, 4, 4), (32, 64, 128, 4, 5), (16, 256, 64, 4, 5), (16, 128, 128, 4, 5),
    (16, 64, 128, 4, 6),
)  # fmt: skip
_SINGLE_TILES = (
    (128, 256, 32, 8, 3), (128, 128, 32, 8, 3), (128, 128, 32, 8, 4), (128, 128, 32, 4, 3), (256, 128, 32, 8, 3),
    (128, 64, 32, 4, 3), (64, 256, 32, 8, 3), (64, 128, 32, 4, 3), (64, 128, 32, 4, 4), (64, 64, 32, 4, 4),
    (32, 128, 64, 4, 4), (32, 64, 64, 4, 4), (16, 128, 64, 4, 5), (16, 64, 128, 4, 4),
)  # fmt: skip
_PLAIN_TILES = (
    (128, 128, 16, 8, 3), (128, 64, 32, 8, 3), (64, 128, 32, 8, 3), (64, 64, 32, 4, 3), (32, 64, 32, 4, 3), (16, 64, 64, 4, 3),
    (16, 32, 64, 2, 3), (64, 16, 64, 4, 4), (32, 16, 128, 4, 3), (16, 16, 128, 2, 3),
)  # fmt: skip
_PROMOTED_TILES = (
    (128, 128, 64, 8, 4), (64, 256, 64, 8, 4), (64, 128, 64, 4, 4), (128, 64, 64, 4, 4), (64, 64, 64, 4, 5), (32, 128, 64, 4, 5),
    (32, 64, 128, 4, 4), (16, 128, 64, 4, 5), (16, 64, 128, 4, 4),
)  # fmt: skip
_TURNED_TILES = (
    (128, 128, 64, 8, 3), (64, 128, 64, 8, 4), (64, 128, 64, 4, 4), (32, 128, 64, 8, 4), (32, 128, 64, 4, 4), (16, 128, 64, 4, 4),
    (32, 64, 64, 4, 5), (16, 64, 128, 4, 4),
)  # fmt: skip
"""(block_m, block_n, block_k, warps, stages) for half-precision operands, for tensor cores on fp32, for fp32 itself, for two
accumulators (which 128 x 256 elements leave no registers for), and for a right operand that is split in registers.
Leads: design of the generator on one H200, and the shapes of Triton's own tutorials."""

_LEFT_ROWS = 512
"""Rows up to which splitting the right operand in registers, once for each block of rows, is tried."""
_PROMOTIONS = (1024, 512, 256, 128, 64)
"""Lengths of K between promotions."""
_WASTE = 1.125
"""How much longer zeros may make K."""


def choices(task: Task, product: Product, sizes: Mapping[str, int], target: Target, names: Sequence[str]) -> Iterator[Schedule]:
    """All schedules with one of these schemes that a device can run and that are of use at these sizes."""
    for name in names:
        for base in _bases(task, product, sizes, target, name):
            fitted = replace(base, stages=_fitting(task, product, base, target))
            for schedule in (fitted, *_with_descriptors(task, product, fitted, target)):
                for split in _splits(task, product, schedule, sizes, target):
                    for reduce in ("partials", "rows"):
                        option = replace(schedule, split=split, reduce=reduce)
                        if sensible(task, product, option, target) and _useful(task, product, option, sizes):
                            yield option


def _bases(task: Task, product: Product, sizes: Mapping[str, int], target: Target, name: str) -> Iterator[Schedule]:
    """Tiles of a scheme, by pointers and without a split K."""
    scheme = scheme_of(name)
    _, rows, depth = rows_of(task, product, sizes)
    single = ITEM_BYTES[task.value(product.lhs).dtype] == 4
    if not single or scheme.part is None or (len(scheme.products) == 1 and not scheme.scaled):
        table = _PLAIN_TILES if name == "ieee" else _SINGLE_TILES if single else _HALF_TILES
        yield from (Schedule(name, m, n, k, 8, warps, stages) for m, n, k, warps, stages in table)
    if not single:
        return
    if name == "tf32x3":
        narrow = [tile for tile in _SINGLE_TILES[1:] if tile[1] <= 128]  # of 256 columns the parts of a block spill
        for m, n, k, warps, stages in ((64, 128, 32, 8, 3), *narrow):
            yield from (Schedule(name, m, n, k, 8, warps, stages, promote=length) for length in _lengths(depth, k)[-2:])
    if scheme.part is None:
        return
    if len(scheme.products) == 1:
        yield from (Schedule(name, m, n, k, 8, warps, stages, copies="both") for m, n, k, warps, stages in _HALF_TILES)
    for m, n, k, warps, stages in _PROMOTED_TILES:
        for length in _lengths(depth, k):
            base = Schedule(name, m, n, k, 8, warps, stages, copies="both", promote=length)
            yield base
            if len(scheme.products) > 1:
                yield replace(base, drain=True)
            if scheme.parts > 1:
                yield replace(base, together=True)
    if rows <= _LEFT_ROWS:
        for m, n, k, warps, stages in _TURNED_TILES:
            length = _lengths(depth, k)[-1] if len(scheme.products) > 1 and not scheme.scaled else 0
            base = Schedule(name, m, n, k, 8, warps, stages, copies="left", together=True, promote=length)
            yield base
            if scheme.scaled and isinstance(product.depth, int):
                lengths = _lengths(depth, k) if len(scheme.products) > 1 else (0,)
                yield from (replace(base, sampled=True, promote=length) for length in lengths)


def _lengths(depth: int, block_k: int) -> list[int]:
    """Lengths of K between promotions that waste little of it, the shortest that is possible where all others do."""
    found = [length for length in _PROMOTIONS if length >= block_k and -(-depth // length) * length <= _WASTE * depth]
    return found or [block_k]


def _fitting(task: Task, product: Product, schedule: Schedule, target: Target) -> int:
    """Its stages, or the most that fit the shared memory, at least two."""
    stages = schedule.stages
    while (
        stages > 2
        and target.shared_bytes
        and _shared_bytes(task, product, replace(schedule, stages=stages)) > target.shared_bytes
    ):
        stages -= 1
    return stages


def _with_descriptors(task: Task, product: Product, base: Schedule, target: Target) -> list[Schedule]:
    described = base.copies == "both" or no_descriptor(task, product) is None
    if "tma" not in target.features or not described or base.scheme == "ieee":
        return []
    walking = replace(base, descriptors=True, persistent=True)
    stored = replace(walking, store="descriptor")
    found = [replace(stored, flatten=True), replace(walking, flatten=True), replace(base, descriptors=True)]
    if base.block_m * base.block_n >= 128 * 128:
        found += [replace(walking, flatten=True, store="halves"), stored, replace(stored, specialize=True)]
    if base.drain:
        found.append(stored)
    if base.promote or base.copies == "left":
        return [schedule for schedule in found if not schedule.specialize and schedule.store != "halves"]
    if base.block_n >= 128:
        found.append(replace(stored, flatten=True, cuts=2))
    return found


def _splits(task: Task, product: Product, schedule: Schedule, sizes: Mapping[str, int], target: Target) -> tuple[int, ...]:
    """Parts of K: more than one where the tiles leave multiprocessors idle."""
    batch, rows, depth = rows_of(task, product, sizes)
    tiles = batch * math.ceil(rows / schedule.block_m) * math.ceil(product.columns / schedule.block_n)
    if schedule.descriptors or tiles >= 0.7 * target.units:
        return (1,)
    return tuple(
        split for split in (1, 2, 4, 8, 16) if split == 1 or (tiles * split <= 2 * target.units and depth // split >= 256)
    )


def _useful(task: Task, product: Product, schedule: Schedule, sizes: Mapping[str, int]) -> bool:
    """Leaves out tiles far larger than the product, and a choice of `reduce` that changes nothing."""
    _, rows, _ = rows_of(task, product, sizes)
    tall = schedule.block_m > 16 and schedule.block_m >= 2 * rows
    wide = schedule.block_n > 64 and schedule.block_n >= 2 * product.columns
    if tall or wide:
        return False
    if schedule.reduce == "partials":
        return True
    if schedule.split > 1 or schedule.specialize or schedule.store == "halves" or schedule.cuts > 1:
        return False
    first = divided(task, product, replace(schedule, reduce="partials"))
    return first is not None and bool(first.row_partials)


def sensible(task: Task, product: Product, schedule: Schedule, target: Target) -> bool:
    """Whether the language has the schedule and a device can run it."""
    scheme = scheme_of(schedule.scheme)
    item = 2 if schedule.copies == "both" else ITEM_BYTES[task.value(product.lhs).dtype]
    blocks = (schedule.block_m, schedule.block_n, schedule.block_k)
    threads = 32 * schedule.warps
    senseless = (
        min(blocks) < 16,
        max(blocks) > 256,
        not 1 <= schedule.stages <= 8,
        schedule.split > 64,
        schedule.split > 1 and (schedule.descriptors or schedule.cuts > 1),
        schedule.cuts not in (1, 2, 4) or schedule.cut_n < 32 or product.columns == 1 < schedule.cuts,
        schedule.cuts > 1 and schedule.store == "halves",
        schedule.store != "pointer" and not schedule.descriptors,
        (schedule.flatten or schedule.specialize) and not schedule.persistent,
        schedule.flatten and schedule.specialize,
        schedule.descriptors and schedule.block_k * item > 256,
        not threads // 2 <= schedule.block_m * schedule.block_n <= 128 * threads,
        # two accumulators of 64 registers a thread leave room for addresses and the epilogue, larger ones spill (ptxas, sm_90)
        schedule.promote > 0 and schedule.block_m * schedule.block_n > 64 * threads,
        schedule.promote > 0 and schedule.scheme == "tf32x3" and threads == 128 and schedule.block_m * schedule.block_n > 64 * 64,
        schedule.promote > 0 and (schedule.specialize or schedule.promote % schedule.block_k != 0),
        schedule.copies == "none" and scheme.part is not None and (scheme.scaled or len(scheme.products) > 1),
        schedule.copies != "none" and scheme.part is None,
        schedule.copies == "left" and (not schedule.together or schedule.block_n < 64),
        schedule.together and ((scheme.parts == 1 and schedule.copies != "left") or schedule.copies == "none"),
        schedule.drain and not schedule.promote,
        schedule.sampled and (schedule.copies != "left" or not scheme.scaled or not isinstance(product.depth, int)),
    )
    if any(senseless):
        return False
    return target.shared_bytes is None or _shared_bytes(task, product, schedule) <= target.shared_bytes


def _loaded_bytes(task: Task, product: Product, schedule: Schedule) -> int:
    """Of one block of K; a right operand that is split in registers passes through shared memory again."""
    item, parts = ITEM_BYTES[task.value(product.lhs).dtype], scheme_of(schedule.scheme).parts
    if schedule.copies == "none":
        return (schedule.block_m + schedule.block_n) * schedule.block_k * item
    if schedule.copies == "both":
        return (schedule.block_m + schedule.block_n) * schedule.block_k * 2 * (parts if schedule.together else 1)
    return (schedule.block_m * 2 * parts + schedule.block_n * item) * schedule.block_k


def _shared_bytes(task: Task, product: Product, schedule: Schedule) -> int:
    """Loads in flight, the widest value on its way out, and what reductions over groups move through shared memory while the
    loads of the next tile are in flight. Source: what Triton 3.6 reports for sm_90."""
    loads = schedule.stages * _loaded_bytes(task, product, schedule)
    if schedule.copies == "left":
        loads += schedule.block_n * schedule.block_k * 2 * scheme_of(schedule.scheme).parts
    if not schedule.persistent and schedule.store == "pointer":
        return loads
    stages = divided(task, product, schedule)
    left = [] if stages is None else [task.outputs[position] for position in stages.tile_outputs]
    left += [stages.kept] if stages is not None and stages.kept is not None else []
    whole = [number for number in left if math.prod(numbers(task.value(number).cols)) > 1]
    widest = max((ITEM_BYTES[task.value(number).dtype] for number in whole), default=0)
    halved = 2 if schedule.store == "halves" else 1
    moved = schedule.flatten and schedule.cut_n == 256 and _reduces_groups(task, product, stages)
    tile = schedule.block_m * schedule.block_n
    if stages is not None and stages.column_partials:
        loads += 32768 if schedule.block_n == 256 else 4096  # sums over the rows cross the warps
    return loads + max(widest * schedule.block_m * schedule.cut_n // halved, 4 * tile if moved else 0) + 1024


def divided(task: Task, product: Product, schedule: Schedule) -> Stages | None:
    """What the launches of a schedule do, None where it cannot be written."""
    return _divided(task, product, schedule.block_m, schedule.cut_n, schedule.split > 1, schedule.reduce)


def _reduces_groups(task: Task, product: Product, stages: Stages | None) -> bool:
    """Whether the tile reduces over parts of its columns for what it writes."""
    if stages is None:
        return False
    inner = dependents(task, product.number)
    met: set[int] = set()

    def stop(number: int) -> bool:
        met.add(number)
        return number not in inner

    walk(task, [task.outputs[position] for position in stages.tile_outputs], stop)
    nodes = [node_of(task, number) for number in met & inner]
    return any(node is not None and OPS[node.op].kind is Kind.REDUCTION for node in nodes)


@lru_cache(maxsize=512)
def _divided(task: Task, product: Product, block_m: int, block_n: int, split: bool, reduce: str) -> Stages | None:
    probe = Schedule("ieee", block_m, block_n, 32, 8, 4, 2, split=2 if split else 1, reduce=reduce)
    try:
        return stages_of(task, product, probe)
    except Unsupported:
        return None
