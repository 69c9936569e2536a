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
    """Lines before the loop over K, the two loads inside it, and lines that move on to the next block of K."""

    before: tuple[str, ...]
    loads: tuple[str, str]
    after: tuple[str, ...]


def by_pointer(task: Task, product: Product, schedule: Schedule, signature: Signature, whole_k: bool) -> Operands:
    """Pointer blocks that advance along K; `whole_k` says that no block of K is cut short."""
    lhs = task.inputs[product.lhs]
    head: list[str] = []
    rows = RowIndex(task, signature, head, product.batch, "line")
    depth = "K" if isinstance(product.depth, int) else signature.size(product.depth)
    count = len(task.row_axes)
    stride_a, stride_bk, stride_bn = (
        _stride(task, signature, product.lhs, count),
        _stride(task, signature, product.rhs, count),
        _stride(task, signature, product.rhs, count + 1),
    )
    wrapped = lhs.strides[count] == 1
    line = "tile_m * BLOCK_M + tl.arange(0, BLOCK_M)"
    # rows past the end repeat others: no mask in the loop, and what they give is never stored
    head.append(f"line = ({line}) % {rows.count}" if wrapped else f"line = {line}")
    a = [signature.input(product.lhs), *_row_part(task, signature, rows, product.lhs)]
    b = [signature.input(product.rhs), *_batch_part(task, signature, rows, product)]
    before = [
        "column = tile_n * BLOCK_N + tl.arange(0, BLOCK_N)",
        f"depth = tl.arange(0, BLOCK_K){' + first' if schedule.split > 1 else ''}",
        f"a = {' + '.join(a)} + {_times('depth', stride_a)}[None, :]",
        f"b = {' + '.join(b)} + {_times('depth', stride_bk)}[:, None] + {_times('column', stride_bn)}[None, :]",
    ]
    k_mask = [] if whole_k else [f"(k + tl.arange(0, BLOCK_K) < {depth})"]
    a_mask = _masks([] if wrapped else [f"(line < {rows.count})[:, None]"], [f"{mask}[None, :]" for mask in k_mask])
    b_edge = [] if product.columns % schedule.block_n == 0 else ["(column < N)[None, :]"]
    b_mask = _masks([f"{mask}[:, None]" for mask in k_mask], b_edge)
    after = tuple(
        f"{name} += BLOCK_K" if stride == "1" else f"{name} += BLOCK_K * {stride}"
        for name, stride in (("a", stride_a), ("b", stride_bk))
    )
    return Operands((*head, *before), (f"tl.load(a{a_mask})", f"tl.load(b{b_mask})"), after)


def by_descriptor(task: Task, product: Product, schedule: Schedule, signature: Signature) -> Operands:
    """Descriptors of the operands as they lie in memory. Raises: Unsupported where the hardware cannot take them."""
    reason = no_descriptor(task, product)
    if reason is not None:
        raise Unsupported(reason)
    count = len(task.row_axes)
    rows, depth, columns = task.row_axes[-1], str(product.depth), str(product.columns)
    lhs, rhs = task.inputs[product.lhs], task.inputs[product.rhs]
    m, n, k = schedule.block_m, schedule.block_n, schedule.block_k
    if lhs.strides[count] == 1:
        a = signature.descriptor(f"desc:in:{product.lhs}:{rows}:{depth}:{depth}:{m}:{k}")
        load_a = f"{a}.load([tile_m * BLOCK_M, k])"
    else:
        a = signature.descriptor(f"desc:in:{product.lhs}:{depth}:{rows}:{rows}:{k}:{m}")
        load_a = f"{a}.load([k, tile_m * BLOCK_M]).T"
    if rhs.strides[count] == 1:
        b = signature.descriptor(f"desc:in:{product.rhs}:{columns}:{depth}:{depth}:{n}:{k}")
        load_b = f"{b}.load([tile_n * BLOCK_N, k]).T"
    else:
        b = signature.descriptor(f"desc:in:{product.rhs}:{depth}:{columns}:{columns}:{k}:{n}")
        load_b = f"{b}.load([k, tile_n * BLOCK_N])"
    return Operands((), (load_a, load_b), ())


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


def _stride(task: Task, signature: Signature, number: int, dimension: int) -> str:
    stride = task.inputs[number].strides[dimension]
    return str(stride) if stride in (0, 1) else signature.stride(number, dimension)


def _row_part(task: Task, signature: Signature, rows: RowIndex, number: int) -> list[str]:
    """Offsets of the left operand's rows: scalars for the batch, a column of the block for the others."""
    terms = []
    for position, axis in enumerate(task.row_axes):
        if task.inputs[number].value.rows[position] != 1 and task.inputs[number].strides[position] != 0:
            terms.append((axis, _stride(task, signature, number, position)))
    if not terms:
        return ["tl.zeros((BLOCK_M, 1), tl.int32)"]
    name = rows.offset(number, terms)
    return [
        f"{name}[:, None]" if any(not rows.is_fixed(axis) for axis, _ in terms) else f"{name} + tl.zeros((BLOCK_M, 1), tl.int32)"
    ]


def _batch_part(task: Task, signature: Signature, rows: RowIndex, product: Product) -> list[str]:
    terms = []
    for position in range(product.batch):
        if task.inputs[product.rhs].strides[position] != 0:
            terms.append(
                (cast(str, task.inputs[product.rhs].value.rows[position]), _stride(task, signature, product.rhs, position))
            )
    return [rows.offset(product.rhs, terms)] if terms else []


def _masks(*groups: list[str]) -> str:
    masks = [mask for group in groups for mask in group]
    return f", mask={' & '.join(masks)}, other=0.0" if masks else ""


def _times(index: str, stride: str) -> str:
    return index if stride == "1" else f"({index}.to(tl.int64) * {stride})"
