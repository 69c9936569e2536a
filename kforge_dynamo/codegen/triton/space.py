"""The schedules of a task, best guess first, and the neighbours of one."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from functools import lru_cache
from itertools import islice

from kforge_dynamo.codegen.triton.choices import choices, divided, sensible
from kforge_dynamo.codegen.triton.emit import candidate
from kforge_dynamo.codegen.triton.forms import Unsupported
from kforge_dynamo.codegen.triton.model import LAUNCH_US, Weights, library_us, product_us, split_us, traffic_us, weights_of
from kforge_dynamo.codegen.triton.schedule import Schedule
from kforge_dynamo.codegen.triton.schemes import allowed, scheme_of
from kforge_dynamo.codegen.triton.tiles import Product, product_of
from kforge_dynamo.records.candidate import Candidate, LaunchPlan
from kforge_dynamo.records.target import Numerics, Target
from kforge_dynamo.records.task import Task, ValueSpec
from kforge_dynamo.semantics.algebra import fold

_REPEAT = 1.05
"""Factor on the model's time for each schedule of the same tile before it, so that the first few differ in tiles as well."""
_INSURED = 5
"""The latest place of the best schedule without descriptors."""
_MOST, _MOST_EMITTED, _FOLDED = 64, 90, 12


def schemes(task: Task, product: Product | None, target: Target, numerics: Numerics) -> tuple[str, ...]:
    """Precision schemes that the promise allows and the target has."""
    if product is None:
        return ("ieee",)
    if task.value(product.lhs).dtype != "float32":
        return ("native",)
    return allowed(numerics.fp32, target.features)


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
    """The best schedules that emit, by the model's time; the first of a tile before its variants."""
    return list(_ranked(task, tuple(sizes), target, numerics))


@lru_cache(maxsize=16)
def _ranked(task: Task, sizes: tuple[int, ...], target: Target, numerics: Numerics) -> tuple[Schedule, ...]:
    product = product_of(task)
    if product is None:
        return (Schedule("ieee", 16, 16, 16, 1, 4, 1),)
    named = dict(zip(task.axes, sizes, strict=True))
    names = schemes(task, product, target, numerics)
    weights = weights_of(numerics)
    folded = _ordered(task, product, _folded(task, named, target, names), named, target, weights)[:_FOLDED]
    ordered = _ordered(task, product, choices(task, product, named, target, names), named, target, weights)
    if folded and ordered:
        first = folded[0] is min(folded[0], ordered[0], key=lambda s: estimate_us(task, product, s, named, target, weights))
        # the two forms stand on different parts of the model: both are tried early
        ordered = [*folded[:3], *ordered[:3], *folded[3:], *ordered[3:]] if first else [*ordered[:3], *folded, *ordered[3:]]
    longest = 4 * ordered[0].promote if ordered else 0
    for length in sorted({schedule.promote for schedule in ordered[:_MOST_EMITTED] if schedule.promote <= longest}):
        # what truncation costs depends on the data and on what follows the product: each length is tried early
        found = next(schedule for schedule in ordered if schedule.promote == length)
        if ordered.index(found) > 1:
            ordered.remove(found)
            ordered.insert(1, found)
    plain = next((schedule for schedule in ordered if not schedule.descriptors), None)
    if plain is not None and ordered.index(plain) > _INSURED:  # a driver that refuses descriptors must not cost the search
        ordered.remove(plain)
        ordered.insert(_INSURED, plain)
    return tuple(ordered[:_MOST])


def _ordered(
    task: Task, product: Product, schedules: Iterable[Schedule], sizes: Mapping[str, int], target: Target, weights: Weights
) -> list[Schedule]:
    """Those that emit and differ, by the model's time, the first of a tile before its variants."""
    known = {schedule: estimate_us(task, product, schedule, sizes, target, weights) for schedule in schedules}
    timed = islice((s for s in sorted(known, key=known.__getitem__) if _emits(task, s, target)), _MOST_EMITTED)
    seen: dict[tuple[str, str, int, int], int] = {}
    ranked = []
    for schedule in timed:
        tile = (schedule.scheme, schedule.copies, schedule.block_m, schedule.block_n)
        seen[tile] = seen.get(tile, -1) + 1
        ranked.append((known[schedule] * _REPEAT ** seen[tile], schedule))
    return _different(task, target, [schedule for _, schedule in sorted(ranked, key=lambda item: item[0])])


def _folded(task: Task, sizes: Mapping[str, int], target: Target, names: Sequence[str]) -> list[Schedule]:
    """Schedules of the small product, where the reduction over the product's columns moves into the right operand."""
    found = fold(task)
    product = None if found is None else product_of(found.task)
    if found is None or product is None:
        return []
    return [replace(schedule, fold=True) for schedule in choices(found.task, product, sizes, target, names)]


def _subject(task: Task, product: Product, schedule: Schedule) -> tuple[Task, Product]:
    """The task and product that a schedule describes: the small one where it folds."""
    found = fold(task) if schedule.fold else None
    small = None if found is None else product_of(found.task)
    return (task, product) if found is None or small is None else (found.task, small)


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
    changes += [{"promote": schedule.promote * 2}, {"promote": schedule.promote // 2}] if schedule.promote else [{"promote": 512}]
    changes += [{"drain": not schedule.drain}, {"together": not schedule.together}]
    changes += [{"reduce": "rows" if schedule.reduce == "partials" else "partials"}, {"specialize": not schedule.specialize}]
    found = {replace(schedule, **change) for change in changes} - {schedule}  # type: ignore[arg-type]
    kept = [item for item in found if sensible(*_subject(task, product, item), item, target) and _emits(task, item, target)]
    return sorted(kept, key=lambda other: (estimate_us(task, product, other, named, target, weights_of(numerics)), repr(other)))


def gain_us(task: Task, sizes: Sequence[int], target: Target) -> float:
    """Estimated time saved a call over the library's product and one kernel for the rest; 0 where none is expected."""
    product = product_of(task)
    if product is None:
        return LAUNCH_US
    named = dict(zip(task.axes, sizes, strict=True))
    single = task.value(product.lhs).dtype == "float32"
    promise = Numerics("highest", fp16_reduced=False, bf16_reduced=False, deterministic=False)
    names = schemes(task, product, target, promise)
    known = (*_folded(task, named, target, names), *choices(task, product, named, target, names))
    best = min((estimate_us(task, product, schedule, named, target) for schedule in known), default=math.inf)
    return max(0.0, library_us(task, product, "ieee" if single else "native", named, target) - best)


def estimate_us(
    task: Task,
    product: Product,
    schedule: Schedule,
    sizes: Mapping[str, int],
    target: Target,
    weights: Weights = "prepared",
) -> float:
    """The model's time of all launches of a call."""
    extra = 0.0
    if schedule.fold:
        # reading the operand, and launches that add, mark, and find no rows to do again
        read_us = traffic_us([task.value(product.rhs)], sizes, target) + LAUNCH_US
        extra = (0.0 if weights == "kept" else read_us) + 3 * LAUNCH_US
        task, product = _subject(task, product, schedule)
    total = extra + product_us(task, product, schedule, sizes, target)
    stages = divided(task, product, schedule)
    if stages is None:
        return math.inf
    total += LAUNCH_US if scheme_of(schedule.scheme).redone else 0.0
    total += split_us(task, product, schedule, sizes, target, weights)
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
def emitted(task: Task, schedule: Schedule, target: Target, proven: bool = False) -> Candidate:
    """The candidate. Raises: Unsupported."""
    return candidate(task, schedule, target, proven)


def _emits(task: Task, schedule: Schedule, target: Target) -> bool:
    try:
        emitted(task, schedule, target)
    except Unsupported:
        return False
    return True
