"""A finished draft into a `Task`: the fewest row axes, values in a fixed order, names and stride classes instead of sizes."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from kforge_dynamo.lowering.draft import Draft, Leaf, Step, mergeable
from kforge_dynamo.lowering.sizes import Size, is_static, product, quotient, same
from kforge_dynamo.lowering.space import Row, RowSpace, covers, is_one
from kforge_dynamo.lowering.spec import COLUMN_AXES, check, row_axis_names
from kforge_dynamo.records.task import Const, Extent, InputRole, InputSpec, Node, Operand, Stride, Task, ValueSpec


@dataclass(frozen=True, slots=True)
class Axis:
    """A row axis: its interval of the row index, None for an axis whose extent is 1 in this graph. `batch`: the right operand
    varies along it."""

    row: Row | None
    batch: bool = False

    @property
    def size(self) -> Size:
        """Its extent in this graph."""
        return 1 if self.row is None else self.row.size


@dataclass(frozen=True, slots=True)
class Input:
    """A task input with the (extent, stride) of each dimension of its `rows + cols`."""

    leaf: Leaf
    dims: tuple[tuple[Size, Size], ...]


@dataclass(frozen=True, slots=True)
class Canonical:
    """A task with what binds it to the graph: its inputs in order, and the size of each axis of `task.axes`."""

    task: Task
    inputs: tuple[Input, ...]
    sizes: tuple[Size, ...]


def canonical(draft: Draft, outputs: Sequence[int], anchor_rows: Sequence[Size]) -> Canonical:
    """The task that returns `outputs`; `anchor_rows` are the product's own row extents, `(M,)` or `(B, M)`.

    Equal computations give equal tasks, whatever the sizes of their rows and the graph around them.
    """
    order = _order(draft, outputs)
    live = [draft.values[number] for number in order]
    axes = _axes(live, anchor_rows)
    names = row_axis_names(len(axes))
    steps = [number for number in order if isinstance(draft.values[number], Step)]
    leaves = _leaves_by_first_use(draft, steps)
    numbering = {number: index for index, number in enumerate([*leaves, *steps])}
    inner = next(leaf.cols[0][0] for leaf in live if isinstance(leaf, Leaf))  # the left operand comes first
    symbolic = not is_static(inner)
    inputs = tuple(_input(draft.values[number], axes) for number in leaves)
    task = Task(
        row_axes=names,
        col_axes=COLUMN_AXES if symbolic else (),
        inputs=tuple(_input_spec(item, axes, names) for item in inputs),
        nodes=tuple(_node(draft.values[number], axes, names, numbering) for number in steps),
        outputs=tuple(numbering[number] for number in outputs),
    )
    check(task)
    return Canonical(task, inputs, (*(axis.size for axis in axes), *((inner,) if symbolic else ())))


def _order(draft: Draft, outputs: Sequence[int]) -> list[int]:
    """Operands before results, depth first from the product and then from the outputs: no trace of the graph's own order."""
    order: list[int] = []
    seen: set[int] = set()
    gemm = next(number for number, value in enumerate(draft.values) if isinstance(value, Step) and value.op == "gemm")
    stack = [(number, False) for number in reversed([gemm, *outputs])]
    while stack:
        number, expanded = stack.pop()
        if expanded:
            order.append(number)
        elif number not in seen:
            seen.add(number)
            stack.append((number, True))
            value = draft.values[number]
            args = value.args if isinstance(value, Step) else ()
            stack.extend((arg, False) for arg in reversed(args) if isinstance(arg, int))
    return order


def _leaves_by_first_use(draft: Draft, steps: Sequence[int]) -> list[int]:
    found: dict[int, None] = {}
    for number in steps:
        value = draft.values[number]
        args = value.args if isinstance(value, Step) else ()
        found.update((arg, None) for arg in args if isinstance(arg, int) and isinstance(draft.values[arg], Leaf))
    return list(found)


def _axes(live: Sequence[Leaf | Step], anchor_rows: Sequence[Size]) -> list[Axis]:
    """The finest intervals that values or strides tell apart, and the product's own axes of extent 1 in their places."""
    space = RowSpace(product(anchor_rows))
    for value in live:
        space.admit(_rows(value))
    merged: list[Row] = []
    for row in space.intervals():
        if merged and all(_one_axis(value, merged[-1], row) for value in live):
            above = merged.pop()
            row = Row(row.inner, product((above.size, row.size)))
        merged.append(row)
    axes = [Axis(row) for row in merged]
    if is_one(anchor_rows[-1]):
        axes.append(Axis(None))
    if len(anchor_rows) > 1 and is_one(anchor_rows[0]):
        axes.insert(0, Axis(None, batch=True))
    return axes


def _rows(value: Leaf | Step) -> list[Row]:
    return [row for row, _ in value.rows] if isinstance(value, Leaf) else list(value.rows)


def _one_axis(value: Leaf | Step, above: Row, below: Row) -> bool:
    """Whether `value` steps through the two neighbouring intervals as through one."""
    varies = [any(covers(row, part) for row in _rows(value)) for part in (above, below)]
    if varies[0] != varies[1]:
        return False
    if not isinstance(value, Leaf) or not varies[0]:
        return True
    return mergeable([(above.size, _stride(value, above)), (below.size, _stride(value, below))])


def _stride(leaf: Leaf, part: Row) -> Size:
    """The stride of an interval inside one of the leaf's, or of one that joins several of them (the innermost's)."""
    for row, stride in reversed(leaf.rows):
        if covers(row, part):
            steps = quotient(part.inner, row.inner)
            return product((stride, steps))
        if covers(part, row):
            return stride
    raise AssertionError(f"{leaf.node} does not vary along {part}")


def _varies(value: Leaf | Step, axis: Axis) -> bool:
    if axis.row is None:
        return value.unit_rows and (axis.batch or not isinstance(value, Leaf) or value.role is not InputRole.RHS)
    return any(covers(row, axis.row) or covers(axis.row, row) for row in _rows(value))


def _row_extents(value: Leaf | Step, axes: Sequence[Axis], names: Sequence[str]) -> tuple[Extent, ...]:
    return tuple(name if _varies(value, axis) else 1 for axis, name in zip(axes, names, strict=True))


def _col_extents(value: Leaf | Step) -> tuple[Extent, ...]:
    return tuple(int(extent) if is_static(extent) else COLUMN_AXES[0] for extent in value.extents)


def _input(value: Leaf | Step, axes: Sequence[Axis]) -> Input:
    assert isinstance(value, Leaf)
    rows = [(axis.size, _axis_stride(value, axis)) if _varies(value, axis) else (1, 0) for axis in axes]
    return Input(value, (*rows, *value.cols))


def _axis_stride(leaf: Leaf, axis: Axis) -> Size:
    return 0 if axis.row is None else _stride(leaf, axis.row)


def _input_spec(item: Input, axes: Sequence[Axis], names: Sequence[str]) -> InputSpec:
    leaf = item.leaf
    rows = _row_extents(leaf, axes, names)
    value = ValueSpec(leaf.dtype, rows, _col_extents(leaf))
    free = [extent != 1 and is_one(size) for extent, (size, _) in zip(value.shape, item.dims, strict=True)]
    return InputSpec(value, _stride_classes(item.dims, free), leaf.role)


def _stride_classes(dims: Sequence[tuple[Size, Size]], free: Sequence[bool]) -> tuple[Stride, ...]:
    """0, 1, "dense" or "pitch" for each (extent, stride).

    "dense" is given only where the whole layout follows from it: dimensions from the outside in, the one of stride 1 moved
    to the end. `free` marks row axes of extent 1, whose stride is arbitrary: they count as dense where they can.
    """
    classes: list[Stride] = [0] * len(dims)
    moving = [index for index, (size, stride) in enumerate(dims) if free[index] or not (is_one(size) or same(stride, 0))]
    unit = next((index for index in reversed(moving) if not free[index] and same(dims[index][1], 1)), None)
    order = [index for index in moving if index != unit]
    expected: Size | None = None
    if unit is not None:
        classes[unit] = 1
        expected = dims[unit][0]
    for index in reversed(order):
        size, stride = dims[index]
        dense = expected is not None and (free[index] or same(stride, expected))
        classes[index] = "dense" if dense else "pitch"
        expected = product((expected, size)) if dense else None
    return tuple(classes)


def _node(value: Leaf | Step, axes: Sequence[Axis], names: Sequence[str], numbering: dict[int, int]) -> Node:
    assert isinstance(value, Step)
    args: list[Operand] = [arg if isinstance(arg, Const) else numbering[arg] for arg in value.args]
    out = ValueSpec(value.dtype, _row_extents(value, axes, names), _col_extents(value))
    return Node(value.op, tuple(args), value.attrs, out)
