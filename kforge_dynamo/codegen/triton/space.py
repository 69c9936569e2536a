"""The schedules of a task, best guess first, and the neighbours of one."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from functools import lru_cache

from kforge_dynamo.codegen.triton.emit import candidate
from kforge_dynamo.codegen.triton.expressions import ITEM_BYTES
from kforge_dynamo.codegen.triton.forms import Unsupported, numbers
from kforge_dynamo.codegen.triton.model import LAUNCH_US, library_us, product_us, rows_of, traffic_us
from kforge_dynamo.codegen.triton.operands import no_descriptor
from kforge_dynamo.codegen.triton.schedule import Schedule
from kforge_dynamo.codegen.triton.scope import node_of
from kforge_dynamo.codegen.triton.stages import Stages, stages_of, walk
from kforge_dynamo.codegen.triton.tiles import Product, dependents, product_of
from kforge_dynamo.records.candidate import Candidate, LaunchPlan
from kforge_dynamo.records.target import Numerics, Target
from kforge_dynamo.records.task import Task, ValueSpec
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
    (16, 32, 64, 2, 3),
)  # fmt: skip
"""(block_m, block_n, block_k, warps, stages) for half-precision operands, for tensor cores on fp32, and for fp32 itself.
Leads: design of the generator on one H200, and the shapes of Triton's own tutorials."""

_ALLOWED = {
    "strict": ("tf32x3", "ieee"),
    "highest": ("tf32x3", "ieee"),
    "high": ("tf32", "tf32x3", "ieee"),
    "medium": ("bf16", "tf32", "tf32x3", "ieee"),
    "mixed": ("fp16", "tf32", "tf32x3", "ieee"),
}
_NEEDS = {"tf32x3": "tf32", "tf32": "tf32", "bf16": "bf16_dot", "fp16": "fp16_dot"}
_REPEAT = 1.05
"""Factor on the model's time for each schedule of the same tile before it, so that the first few differ in tiles as well."""
_INSURED = 5
"""The latest place of the best schedule without descriptors."""
_MOST = 96


def schemes(task: Task, product: Product | None, target: Target, numerics: Numerics) -> tuple[str, ...]:
    """Precision schemes that the promise allows and the target has."""
    if product is None:
        return ("ieee",)
    if task.value(product.lhs).dtype != "float32":
        return ("native",)
    allowed = _ALLOWED.get(numerics.fp32, ("ieee",))
    return tuple(scheme for scheme in allowed if scheme not in _NEEDS or _NEEDS[scheme] in target.features)


def rejects(task: Task, target: Target) -> str | None:
    """Why no kernel can be written, None when one can."""
    if target.kind != "cuda":
        return f"Triton kernels are written for GPUs, not for {target.kind}"
    try:
        product = product_of(task)
        dtype = task.value(product.lhs).dtype if product is not None else "float32"
        if dtype not in ("float32", "float16", "bfloat16"):
            return f"a product of {dtype} operands has no Triton form here"
        if dtype == "bfloat16" and "bf16_dot" not in target.features:
            return f"{target.name} multiplies no bfloat16"
    except Unsupported as reason:
        return str(reason)
    reasons = []
    for block_n in (64, 256):  # a row of up to 256 columns fits a tile, and more follows from whole rows
        try:
            candidate(task, Schedule("ieee" if dtype == "float32" else "native", 64, block_n, 32, 8, 8, 2, reduce="rows"), target)
        except Unsupported as reason:
            reasons.append(str(reason))
    return reasons[0] if len(reasons) == 2 else None


def space(task: Task, sizes: Sequence[int], target: Target, numerics: Numerics) -> list[Schedule]:
    """All schedules that emit, by the model's time; the first of a tile before its variants."""
    product = product_of(task)
    if product is None:
        return [Schedule("ieee", 16, 16, 16, 1, 4, 1)]
    named = dict(zip(task.axes, sizes, strict=True))
    found = [s for s in dict.fromkeys(_all(task, product, named, target, numerics)) if _emits(task, s, target)]
    timed = sorted(found, key=lambda schedule: estimate_us(task, product, schedule, named, target))
    seen: dict[tuple[str, int, int], int] = {}
    ranked = []
    for schedule in timed:
        tile = (schedule.scheme, schedule.block_m, schedule.block_n)
        seen[tile] = seen.get(tile, -1) + 1
        ranked.append((estimate_us(task, product, schedule, named, target) * _REPEAT ** seen[tile], schedule))
    ordered = _different(task, target, [schedule for _, schedule in sorted(ranked, key=lambda item: item[0])])
    plain = next((schedule for schedule in ordered if not schedule.descriptors), None)
    if plain is not None and ordered.index(plain) > _INSURED:  # a driver that refuses descriptors must not cost the search
        ordered.remove(plain)
        ordered.insert(_INSURED, plain)
    return ordered[:_MOST]


def neighbours(schedule: Schedule, task: Task, sizes: Sequence[int], target: Target, numerics: Numerics) -> list[Schedule]:
    """Schedules that differ from this one in one choice, by the model's time."""
    product = product_of(task)
    if product is None:
        return []
    named = dict(zip(task.axes, sizes, strict=True))
    changes: list[dict[str, int | str | bool]] = [{"stages": schedule.stages + 1}, {"stages": schedule.stages - 1}]
    changes += [{"warps": 12 - schedule.warps}] if schedule.warps in (4, 8) else []
    changes += [{"group": group} for group in (1, 4, 8, 16)]
    changes += [{"store": store} for store in ("pointer", "descriptor", "halves")]
    changes += [{"cuts": cuts} for cuts in (1, 2, 4)]
    for name in ("block_m", "block_n", "block_k"):
        changes += [{name: getattr(schedule, name) * 2}, {name: getattr(schedule, name) // 2}]
    changes += [{"flatten": not schedule.flatten}, {"split": schedule.split * 2}, {"split": max(1, schedule.split // 2)}]
    changes += [{"reduce": "rows" if schedule.reduce == "partials" else "partials"}, {"specialize": not schedule.specialize}]
    found = {replace(schedule, **change) for change in changes} - {schedule}  # type: ignore[arg-type]
    kept = [other for other in found if _sensible(task, product, other, target) and _emits(task, other, target)]
    return sorted(kept, key=lambda other: (estimate_us(task, product, other, named, target), repr(other)))


def gain_us(task: Task, sizes: Sequence[int], target: Target) -> float:
    """Estimated time saved a call over the library's product and one kernel for the rest; 0 where none is expected."""
    product = product_of(task)
    if product is None:
        return LAUNCH_US
    named = dict(zip(task.axes, sizes, strict=True))
    single = task.value(product.lhs).dtype == "float32"
    promise = Numerics("highest", fp16_reduced=False, bf16_reduced=False, deterministic=False)
    best = min(
        (estimate_us(task, product, s, named, target) for s in _all(task, product, named, target, promise)), default=math.inf
    )
    return max(0.0, library_us(task, product, "ieee" if single else "native", named, target) - best)


def estimate_us(task: Task, product: Product, schedule: Schedule, sizes: Mapping[str, int], target: Target) -> float:
    """The model's time of all launches."""
    total = product_us(task, product, schedule, sizes, target)
    stages = _stages(task, product, schedule)
    if stages is None:
        return math.inf
    total += LAUNCH_US if schedule.scheme == "tf32x3" else 0.0
    total += LAUNCH_US if stages.column_partials or stages.column_outputs else 0.0
    written = [task.value(task.outputs[position]) for position in stages.tile_outputs]
    moved: list[ValueSpec] = []
    if stages.raw:
        moved += [ValueSpec("float32", product.node.out.rows, product.node.out.cols)] * (2 * schedule.split)
    if stages.kept is not None:
        moved += [task.value(stages.kept)] * (2 if stages.kept not in {task.outputs[p] for p in stages.tile_outputs} else 1)
    if stages.row_outputs:
        total += LAUNCH_US
        moved += [task.value(task.outputs[position]) for position in stages.row_outputs]
    return total + traffic_us(moved, sizes, target) + 0.3 * traffic_us(written, sizes, target)


def _different(task: Task, target: Target, schedules: Sequence[Schedule]) -> list[Schedule]:
    """Without those whose kernels are those of an earlier one (how a tile is stored, where none is)."""
    found: dict[tuple[str, LaunchPlan], Schedule] = {}
    for schedule in schedules:
        made = emitted(task, schedule, target)
        found.setdefault((made.source, made.plan), schedule)
    return list(found.values())


@lru_cache(maxsize=512)
def emitted(task: Task, schedule: Schedule, target: Target) -> Candidate:
    """The candidate. Raises: Unsupported."""
    return candidate(task, schedule, target)


def _stages(task: Task, product: Product, schedule: Schedule) -> Stages | None:
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


def _emits(task: Task, schedule: Schedule, target: Target) -> bool:
    try:
        emitted(task, schedule, target)
    except Unsupported:
        return False
    return True


def _all(task: Task, product: Product, sizes: Mapping[str, int], target: Target, numerics: Numerics) -> Iterator[Schedule]:
    descriptors = "tma" in target.features and no_descriptor(task, product) is None
    for scheme in schemes(task, product, target, numerics):
        tiles = (
            _PLAIN_TILES if scheme == "ieee" else _SINGLE_TILES if ITEM_BYTES[task.value(product.lhs).dtype] == 4 else _HALF_TILES
        )
        for block_m, block_n, block_k, warps, stages in tiles:
            stages = _fitting(task, product, Schedule(scheme, block_m, block_n, block_k, 8, warps, stages), target)
            base = Schedule(scheme, block_m, block_n, block_k, 8, warps, stages)
            for schedule in (base, *(_with_descriptors(base) if descriptors and scheme != "ieee" else ())):
                for split in _splits(task, product, schedule, sizes, target):
                    for reduce in ("partials", "rows"):
                        option = replace(schedule, split=split, reduce=reduce)
                        if _sensible(task, product, option, target) and _useful(task, product, option, sizes):
                            yield option


def _fitting(task: Task, product: Product, schedule: Schedule, target: Target) -> int:
    """Its stages, or the most that fit the shared memory, at least two."""
    item = ITEM_BYTES[task.value(product.lhs).dtype]
    stages = schedule.stages
    while (
        stages > 2
        and target.shared_bytes
        and _shared_bytes(task, product, replace(schedule, stages=stages), item) > target.shared_bytes
    ):
        stages -= 1
    return stages


def _with_descriptors(base: Schedule) -> list[Schedule]:
    walking = replace(base, descriptors=True, persistent=True)
    stored = replace(walking, store="descriptor")
    found = [replace(stored, flatten=True), replace(walking, flatten=True), replace(base, descriptors=True)]
    if base.block_m * base.block_n >= 128 * 128:
        found += [replace(walking, flatten=True, store="halves"), stored, replace(stored, specialize=True)]
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
    first = _stages(task, product, replace(schedule, reduce="partials"))
    return first is not None and bool(first.row_partials)


def _sensible(task: Task, product: Product, schedule: Schedule, target: Target) -> bool:
    """What a device or the language cannot run is not in the space."""
    item = ITEM_BYTES[task.value(product.lhs).dtype]
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
    )
    if any(senseless):
        return False
    return target.shared_bytes is None or _shared_bytes(task, product, schedule, item) <= target.shared_bytes


def _shared_bytes(task: Task, product: Product, schedule: Schedule, item: int) -> int:
    """Loads in flight, the widest value on its way out, and what reductions over groups move through shared memory while the
    loads of the next tile are in flight. Source: what Triton 3.6 reports for sm_90."""
    loads = schedule.stages * (schedule.block_m + schedule.block_n) * schedule.block_k * item
    if not schedule.persistent and schedule.store == "pointer":
        return loads
    stages = _stages(task, product, schedule)
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
