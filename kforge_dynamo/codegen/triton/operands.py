"""How a tile of the product gets its operands: by pointers with masks, or by tensor descriptors."""

from __future__ import annotations

from dataclasses import dataclass
from typing import cast

from kforge_dynamo.codegen.triton.expressions import ITEM_BYTES
from kforge_dynamo.codegen.triton.forms import Unsupported
from kforge_dynamo.codegen.triton.schedule import Schedule
from kforge_dynamo.codegen.triton.signature import RowIndex, Signature
from kforge_dynamo.codegen.triton.tiles import Product
from kforge_dynamo.records.task import InputSpec, Task


@dataclass(frozen=True, slots=True)
class Operands:
    """Lines before the loop over K, the two loads inside it, and lines that move on to the next block of K.

    A load reads the block of K that starts at `k`; of a copy, the part that its `{part}` is to be replaced by.
    """

    before: tuple[str, ...]
    loads: tuple[str, str]
    after: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Side:
    """The same for one operand."""

    before: tuple[str, ...]
    load: str
    after: tuple[str, ...]


def joined(left: Side, right: Side) -> Operands:
    """Both operands."""
    return Operands((*left.before, *right.before), (left.load, right.load), (*left.after, *right.after))


def left_by_pointer(task: Task, product: Product, schedule: Schedule, signature: Signature, whole_k: bool) -> Side:
    """A block of pointers that advances along K; `whole_k` says that no block of K is cut short."""
    lhs = task.inputs[product.lhs]
    head: list[str] = []
    rows = RowIndex(task, signature, head, product.batch, "line")
    stride = stride_text(task, signature, product.lhs, len(task.row_axes))
    wrapped = lhs.strides[len(task.row_axes)] == 1
    line = "tile_m * BLOCK_M + tl.arange(0, BLOCK_M)"
    # rows past the end repeat others: no mask in the loop, and what they give is never stored
    head.append(f"line = ({line}) % {rows.count}" if wrapped else f"line = {line}")
    pointer = [signature.input(product.lhs), *_row_part(task, signature, rows, product.lhs)]
    block = f"a = {' + '.join(pointer)} + {times_text('depth_a', stride)}[None, :]"
    edge = [] if wrapped else [f"(line < {rows.count})[:, None]"]
    mask = _masks(edge, [f"{text}[None, :]" for text in _k_mask(product, signature, whole_k)])
    before = (*head, f"depth_a = tl.arange(0, BLOCK_K){_first(schedule)}", block)
    return Side(before, f"tl.load(a{mask})", (_advance("a", stride),))


def right_by_pointer(task: Task, product: Product, schedule: Schedule, signature: Signature, whole_k: bool) -> Side:
    """The same for the right operand."""
    head: list[str] = []
    rows = RowIndex(task, signature, head, product.batch, "line")
    count = len(task.row_axes)
    stride_k, stride_n = (stride_text(task, signature, product.rhs, count + place) for place in (0, 1))
    pointer = [signature.input(product.rhs), *_batch_part(task, signature, rows, product)]
    block = f"b = {' + '.join(pointer)} + {times_text('depth_b', stride_k)}[:, None] + {times_text('column', stride_n)}[None, :]"
    edge = [] if product.columns % schedule.block_n == 0 else ["(column < N)[None, :]"]
    mask = _masks([f"{text}[:, None]" for text in _k_mask(product, signature, whole_k)], edge)
    column = "column = tile_n * BLOCK_N + tl.arange(0, BLOCK_N)"
    before = (*head, column, f"depth_b = tl.arange(0, BLOCK_K){_first(schedule)}", block)
    return Side(before, f"tl.load(b{mask})", (_advance("b", stride_k),))


def left_by_descriptor(task: Task, product: Product, schedule: Schedule, signature: Signature) -> Side:
    """A descriptor of the operand as it lies in memory. Raises: Unsupported where the hardware cannot take it."""
    _expect_descriptor(task, product)
    rows, depth = task.row_axes[-1], str(product.depth)
    m, k = schedule.block_m, schedule.block_k
    if task.inputs[product.lhs].strides[len(task.row_axes)] == 1:
        tiles = signature.descriptor(f"desc:in:{product.lhs}:{rows}:{depth}:{depth}:{m}:{k}")
        return Side((), f"{tiles}.load([tile_m * BLOCK_M, k])", ())
    tiles = signature.descriptor(f"desc:in:{product.lhs}:{depth}:{rows}:{rows}:{k}:{m}")
    return Side((), f"{tiles}.load([k, tile_m * BLOCK_M]).T", ())


def right_by_descriptor(task: Task, product: Product, schedule: Schedule, signature: Signature) -> Side:
    """The same for the right operand."""
    _expect_descriptor(task, product)
    depth, columns = str(product.depth), str(product.columns)
    n, k = schedule.block_n, schedule.block_k
    if task.inputs[product.rhs].strides[len(task.row_axes)] == 1:
        tiles = signature.descriptor(f"desc:in:{product.rhs}:{columns}:{depth}:{depth}:{n}:{k}")
        return Side((), f"{tiles}.load([tile_n * BLOCK_N, k]).T", ())
    tiles = signature.descriptor(f"desc:in:{product.rhs}:{depth}:{columns}:{columns}:{k}:{n}")
    return Side((), f"{tiles}.load([k, tile_n * BLOCK_N])", ())


def _expect_descriptor(task: Task, product: Product) -> None:
    reason = no_descriptor(task, product)
    if reason is not None:
        raise Unsupported(reason)


def _first(schedule: Schedule) -> str:
    return " + first" if schedule.split > 1 else ""


def _k_mask(product: Product, signature: Signature, whole_k: bool) -> list[str]:
    depth = "K" if isinstance(product.depth, int) else signature.size(product.depth)
    return [] if whole_k else [f"(k + tl.arange(0, BLOCK_K) < {depth})"]


def _advance(name: str, stride: str) -> str:
    return f"{name} += BLOCK_K" if stride == "1" else f"{name} += BLOCK_K * {stride}"


def no_descriptor(task: Task, product: Product) -> str | None:
    """Why the operands cannot come by descriptors, None when they can: two dense dimensions, a pitch of 16-byte multiples.

    Source: CUDA driver API, cuTensorMapEncodeTiled: strides are multiples of 16 bytes, the innermost dimension is dense.
    """
    if len(task.row_axes) != 1:
        return "a descriptor has two dimensions, and the rows are several"
    if not isinstance(product.depth, int):
        return "a descriptor needs a K that is known"
    for number in (product.lhs, product.rhs):
        spec = task.inputs[number]
        inner = _dense_inner(spec)
        if inner is None:
            return "an operand is not dense"
        if isinstance(inner, int) and inner * ITEM_BYTES[spec.value.dtype] % 16:
            return f"rows of {inner} elements are no multiple of 16 bytes"
        if isinstance(inner, str):
            return "an operand is dense along the rows, whose number is not known to be a multiple of 16 bytes"
    return None


def _dense_inner(spec: InputSpec) -> int | str | None:
    """The extent of the innermost dimension when both are dense, of an operand with two dimensions that vary."""
    varying = [(extent, stride) for extent, stride in zip(spec.value.shape, spec.strides, strict=True) if extent != 1]
    if len(varying) != 2 or {stride for _, stride in varying} != {1, "dense"}:
        return None
    return next(extent for extent, stride in varying if stride == 1)


def stride_text(task: Task, signature: Signature, number: int, dimension: int) -> str:
    """The stride of an operand: a number where it is known, else the parameter that holds it."""
    stride = task.inputs[number].strides[dimension]
    return str(stride) if stride in (0, 1) else signature.stride(number, dimension)


def row_terms(task: Task, signature: Signature, number: int) -> list[tuple[str, str]]:
    """(axis, stride) of the row axes that an operand varies along."""
    return [
        (axis, stride_text(task, signature, number, position))
        for position, axis in enumerate(task.row_axes)
        if task.inputs[number].value.rows[position] != 1 and task.inputs[number].strides[position] != 0
    ]


def _row_part(task: Task, signature: Signature, rows: RowIndex, number: int) -> list[str]:
    """Offsets of the left operand's rows: scalars for the batch, a column of the block for the others."""
    terms = row_terms(task, signature, number)
    if not terms:
        return ["tl.zeros((BLOCK_M, 1), tl.int32)"]
    name = rows.offset(number, terms)
    return [
        f"{name}[:, None]" if any(not rows.is_fixed(axis) for axis, _ in terms) else f"{name} + tl.zeros((BLOCK_M, 1), tl.int32)"
    ]


def batch_terms(task: Task, signature: Signature, product: Product) -> list[tuple[str, str]]:
    """(axis, stride) of the batch axes that the right operand varies along."""
    return [
        (cast(str, task.inputs[product.rhs].value.rows[position]), stride_text(task, signature, product.rhs, position))
        for position in range(product.batch)
        if task.inputs[product.rhs].strides[position] != 0
    ]


def _batch_part(task: Task, signature: Signature, rows: RowIndex, product: Product) -> list[str]:
    terms = batch_terms(task, signature, product)
    return [rows.offset(product.rhs, terms)] if terms else []


def _masks(*groups: list[str]) -> str:
    masks = [mask for group in groups for mask in group]
    return f", mask={' & '.join(masks)}, other=0.0" if masks else ""


def times_text(index: str, stride: str) -> str:
    """An index times a stride, 64 bits wide."""
    return index if stride == "1" else f"({index}.to(tl.int64) * {stride})"
