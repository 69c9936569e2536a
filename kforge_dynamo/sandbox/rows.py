"""Rows of a task: evaluation in blocks of bounded memory, and the rows that stand for all where the whole is too much."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import torch

from kforge_dynamo.records.task import Task
from kforge_dynamo.sandbox.dissect import numbers, row_local
from kforge_dynamo.semantics.evaluate import Policy, evaluate, shape_of

BLOCK_BYTES = 256 << 20
ORACLE_FLOP = 1 << 33
MOST_ELEMENTS, MOST_ELEMENTS_LATER = 1 << 20, 1 << 18
"""Of an output whose oracle covers every row: for the seed that every candidate meets, and for those of the final stage. A
region's budget is 10 s, and an element costs about 5 us on one core for the first seed of all classes together."""
_RANDOM_ROWS = 128
_EDGE = 64
_MOST_EDGES = 64


def flop(task: Task, sizes: Sequence[int]) -> int:
    """Floating-point operations of the products, a multiplication and an addition being two."""
    axes = dict(zip(task.axes, sizes, strict=True))
    total = 0
    for node in task.nodes:
        if node.op == "gemm":
            (lhs, *_) = numbers(node.args)
            depth = shape_of(task.value(lhs).cols, axes)[-1]
            total += 2 * int(depth) * math.prod(int(extent) for extent in shape_of(node.out.shape, axes))
    return total


def value_bytes(task: Task, axes: Mapping[str, int], width: int) -> int:
    """Bytes of all values of an evaluation at `width` bytes an element."""
    specs = [task.value(number) for number in range(len(task.inputs) + len(task.nodes))]
    return width * sum(math.prod(int(extent) for extent in shape_of(spec.shape, axes)) for spec in specs)


def evaluate_in_blocks(
    task: Task, inputs: Sequence[torch.Tensor], sizes: Sequence[int], policy: Policy
) -> tuple[torch.Tensor, ...]:
    """`semantics.evaluate`, where rows are independent with at most 256 MB at a time of what has rows, in one piece elsewhere."""
    axes = dict(zip(task.axes, sizes, strict=True))
    split = max(task.row_axes, key=lambda axis: _varying_bytes(task, axes, axis), default=None)
    pieces = 1 if split is None else -(-_varying_bytes(task, axes, split) // BLOCK_BYTES)
    if pieces <= 1 or split is None or axes[split] < 2 or not row_local(task):
        return evaluate(task, inputs, axes, policy)
    step = max(1, axes[split] // pieces)
    place = task.row_axes.index(split)
    parts: list[list[torch.Tensor]] = [[] for _ in task.outputs]
    for start in range(0, axes[split], step):
        length = min(step, axes[split] - start)
        index = torch.arange(start, start + length, device=inputs[0].device)
        found = evaluate(task, select(task, inputs, {split: index}), axes | {split: length}, policy)
        for at, number in enumerate(task.outputs):
            if start == 0 or task.value(number).rows[place] != 1:  # what has no rows is the same in every piece
                parts[at].append(found[at])
        del found
    return tuple(item[0] if len(item) == 1 else torch.cat(item, dim=place) for item in parts)


def _varying_bytes(task: Task, axes: Mapping[str, int], axis: str) -> int:
    """Bytes of all values of an evaluation in fp64 that grow with `axis`."""
    specs = [task.value(number) for number in range(len(task.inputs) + len(task.nodes))]
    return 8 * sum(math.prod(int(extent) for extent in shape_of(spec.shape, axes)) for spec in specs if axis in spec.shape)


def select(task: Task, inputs: Sequence[torch.Tensor], rows: Mapping[str, torch.Tensor]) -> list[torch.Tensor]:
    """The inputs with only the given indices of the named axes."""
    chosen = []
    for item, tensor in zip(task.inputs, inputs, strict=True):
        for dim, extent in enumerate(item.value.shape):
            if isinstance(extent, str) and extent in rows:
                tensor = tensor.index_select(dim, rows[extent])
        chosen.append(tensor)
    return chosen


def select_values(
    task: Task, numbers: Sequence[int], values: Sequence[torch.Tensor], rows: Mapping[str, torch.Tensor]
) -> list[torch.Tensor]:
    """The values with these numbers with only the given indices of the named axes."""
    chosen = []
    for number, tensor in zip(numbers, values, strict=True):
        for dim, extent in enumerate(task.value(number).shape):
            if isinstance(extent, str) and extent in rows:
                tensor = tensor.index_select(dim, rows[extent])
        chosen.append(tensor)
    return chosen


@dataclass(frozen=True, slots=True)
class Sampled:
    """Rows that stand for all: indices by axis, the sizes with them, and `flat`, their numbers among all rows."""

    rows: Mapping[str, torch.Tensor]
    sizes: tuple[int, ...]
    flat: torch.Tensor


def is_sampled(task: Task, sizes: Sequence[int], most_elements: int) -> bool:
    """Whether the oracle covers sampled rows only: above 2^33 FLOP, or with more than `most_elements` in an output, where
    rows are independent."""
    axes = dict(zip(task.axes, sizes, strict=True))
    largest = max(math.prod(int(extent) for extent in shape_of(task.value(number).shape, axes)) for number in task.outputs)
    much = flop(task, sizes) > ORACLE_FLOP or largest > most_elements
    return much and row_local(task) and all(1 not in task.value(number).rows for number in task.outputs)


def sample_rows(
    task: Task, sizes: Sequence[int], most_elements: int, generator: torch.Generator, device: torch.device
) -> Sampled | None:
    """Which rows the oracle covers: first, last, both sides of the edges of tiles, 128 random; None where it covers all."""
    if not is_sampled(task, sizes, most_elements):
        return None
    axes = dict(zip(task.axes, sizes, strict=True))
    rows = {}
    for axis in task.row_axes:
        inner = axis == task.row_axes[-1]
        rows[axis] = _chosen(axes[axis], _RANDOM_ROWS if inner else 2, inner, generator).to(device)
    return _sampled(task, axes, rows, device)


def _sampled(task: Task, axes: Mapping[str, int], rows: Mapping[str, torch.Tensor], device: torch.device) -> Sampled:
    flat = torch.zeros((), dtype=torch.int64, device=device)
    for axis in task.row_axes:
        flat = (flat[..., None] * axes[axis]) + rows[axis]
    fewer = tuple(int(rows[axis].numel()) if axis in rows else axes[axis] for axis in task.axes)
    return Sampled(rows, fewer, flat.reshape(-1))


def rows_holding(task: Task, sizes: Sequence[int], flat: torch.Tensor) -> Sampled:
    """The smallest sample that holds the rows with these numbers: by axis, all indices that occur in one of them."""
    axes = dict(zip(task.axes, sizes, strict=True))
    rows, rest = {}, flat
    for axis in reversed(task.row_axes):
        rows[axis] = torch.unique(rest % axes[axis])
        rest = rest // axes[axis]
    rows = {axis: rows[axis] for axis in task.row_axes}
    return _sampled(task, axes, rows, flat.device)


def _chosen(size: int, random: int, edges: bool, generator: torch.Generator) -> torch.Tensor:
    picked = {0, size - 1}
    if edges:
        step = max(_EDGE, -(-size // _MOST_EDGES // _EDGE) * _EDGE)
        picked.update(at for edge in range(step, size, step) for at in (edge - 1, edge))
    extra = torch.randint(size, (random,), generator=generator)
    return torch.tensor(sorted(picked | set(extra.tolist())), dtype=torch.int64)
