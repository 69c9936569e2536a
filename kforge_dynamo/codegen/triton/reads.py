"""How the product reads the copies of its operands: by tensor descriptors or pointers, whatever the operands' own strides."""

from __future__ import annotations

from dataclasses import replace

from kforge_dynamo.codegen.triton.copies import Copy, scaled_by_sample
from kforge_dynamo.codegen.triton.operands import Operands, Side, joined, right_by_descriptor, right_by_pointer
from kforge_dynamo.codegen.triton.samples import scaled_lines
from kforge_dynamo.codegen.triton.schedule import Schedule
from kforge_dynamo.codegen.triton.signature import Signature, times
from kforge_dynamo.codegen.triton.tiles import Product
from kforge_dynamo.records.task import Task


def by_copies(task: Task, product: Product, schedule: Schedule, signature: Signature, left: Copy, right: Copy | None) -> Operands:
    """The left operand from its copy, and the right one too, or without a copy as it lies in memory."""
    one = _left(task, product, schedule, signature, left)
    for copy in scaled_by_sample(task, product, schedule):
        one = replace(one, before=(*one.before, f"right_line = {_columns(product)}", *scaled_lines(copy, signature)))
    if right is not None:
        return joined(one, _right(task, product, schedule, signature, right))
    if schedule.descriptors:
        return joined(one, right_by_descriptor(task, product, schedule, signature))
    whole = isinstance(product.depth, int) and product.depth % schedule.block_k == 0
    return joined(one, right_by_pointer(task, product, schedule, signature, whole))


def scale_texts(copies: tuple[Copy, ...], signature: Signature) -> tuple[str, ...]:
    """What the tile is multiplied by to undo the scales of its rows and columns, whose lines are those that `by_copies` names."""
    spread = {"left": "[:, None]", "right": "[None, :]"}
    return tuple(
        f"tl.load({signature.buffer(copy.scales)} + {copy.side}_line){spread[copy.side]}"
        for copy in sorted(copies, key=lambda copy: copy.side)
        if copy.scheme.scaled
    )


def _left(task: Task, product: Product, schedule: Schedule, signature: Signature, copy: Copy) -> Side:
    rows = signature.size(times(task.row_axes[product.batch :]))
    start = f"batch * {rows} + tile_m * BLOCK_M" if product.batch else "tile_m * BLOCK_M"
    inside = f"tl.minimum(tile_m * BLOCK_M + tl.arange(0, BLOCK_M), {rows} - 1)"
    return _side(schedule, signature, copy, start, f"batch * {rows} + {inside}" if product.batch else inside, schedule.block_m)


def _right(task: Task, product: Product, schedule: Schedule, signature: Signature, copy: Copy) -> Side:
    start = "batch * N + tile_n * BLOCK_N" if product.batch else "tile_n * BLOCK_N"
    side = _side(schedule, signature, copy, start, _columns(product), schedule.block_n)
    return Side(side.before, f"tl.trans({side.load})", side.after)


def _columns(product: Product) -> str:
    inside = "tl.minimum(tile_n * BLOCK_N + tl.arange(0, BLOCK_N), N - 1)"
    return f"batch * N + {inside}" if product.batch else inside


def _side(schedule: Schedule, signature: Signature, copy: Copy, start: str, lines: str, block: int) -> Side:
    """Lines past the end repeat the last one, or are zeros: what they give is never stored."""
    depth = copy.depth if copy.depth.isdigit() else signature.size(copy.depth)
    place = "k" if copy.scheme.parts == 1 else f"{{part}} * {depth} + k"
    before = [f"{copy.side}_line = {lines}"]
    if schedule.descriptors:
        view = f"desc:buf:{copy.parts}:{copy.rows}:{copy.pitch}:{copy.pitch}:{block}:{schedule.block_k}"
        before.append(f"{copy.side}_start = {start}")
        return Side(tuple(before), f"{signature.descriptor(view)}.load([{copy.side}_start, {place}])", ())
    pitch = f"{depth} * {copy.scheme.parts}"
    offset = f"{copy.side}_line.to(tl.int64)[:, None] * ({pitch}) + tl.arange(0, BLOCK_K)[None, :]"
    before.append(f"{copy.side}_block = {signature.buffer(copy.parts)} + {offset}")
    return Side(tuple(before), f"tl.load({copy.side}_block + ({place}))", ())
