"""What a task must do at least: floating-point operations of its products, and bytes in and out of memory."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import cast

from kforge_dynamo.records.task import Extent, Task, ValueSpec
from kforge_dynamo.semantics.algebra import fold

ITEM_BYTES = {"float64": 8, "int64": 8, "float32": 4, "int32": 4, "float16": 2, "bfloat16": 2, "bool": 1, "int8": 1, "uint8": 1}
"""Bytes of one element, by torch's name of the dtype."""


def gemm_flops(task: Task, sizes: Sequence[int]) -> int:
    """`2 M N K` summed over the products of the task; the epilogue is not counted."""
    axes = dict(zip(task.axes, sizes, strict=True))
    total = 0
    for node in task.nodes:
        if node.op == "gemm":
            depth = task.value(cast(int, node.args[0])).cols[-1]
            total += 2 * elements(node.out, axes) * _size(depth, axes)
    return total


def least_flops(task: Task, sizes: Sequence[int]) -> int:
    """`gemm_flops`, of the small product where a reduction over the product's columns can be done to an operand first."""
    folded = fold(task)
    return gemm_flops(task if folded is None else folded.task, sizes)


def moved_bytes(task: Task, sizes: Sequence[int]) -> int:
    """Every input read once and every output written once; a dimension of stride 0 is read once."""
    axes = dict(zip(task.axes, sizes, strict=True))
    total = 0
    for item in task.inputs:
        extents = [_size(extent, axes) for extent, stride in zip(item.value.shape, item.strides, strict=True) if stride != 0]
        total += math.prod(extents) * ITEM_BYTES[item.value.dtype]
    for number in task.outputs:
        spec = task.value(number)
        total += elements(spec, axes) * ITEM_BYTES[spec.dtype]
    return total


def elements(spec: ValueSpec, axes: Mapping[str, int]) -> int:
    """Number of elements of a value at these sizes."""
    return math.prod(_size(extent, axes) for extent in spec.shape)


def _size(extent: Extent, axes: Mapping[str, int]) -> int:
    return axes[extent] if isinstance(extent, str) else extent
