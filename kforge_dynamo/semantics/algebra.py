"""Algebra across the product, as a rewrite of one task into another.

One rule: a sum or mean (R) over all columns of a product, or over equal groups of neighbouring columns, is a product with a
right operand whose columns were reduced first,

    R_j (c_i (alpha sum_k a_ik b_kj + beta z_ij) + d_ij) = c_i (alpha sum_k a_ik (R_j b_kj) + beta R_j z_ij) + R_j d_ij,

for factors `c` that do not vary inside a group. Valid where

- everything is fp32, and the reduced operand is summed in fp64 and rounded once to fp32: its relative error is then half a
  unit in the last place, like that of an operand that was rounded before the call, so the error of the new product is at
  most `(K + 2) u ||a_i|| ||R b||`, and eager's grows with the same norms over N columns;
- nobody reads the product, or a value between it and the reduction, but the chain itself;
- no value of the task depends on other rows, so that rows can be done again alone.

Finite inputs keep their meaning. Infinities, NaNs and an operand whose sum overflows do not: an infinite `b_kj` that meets a
zero `a_ik`, a column that overflows where the others do not. All of them make the reduced value itself non-finite in the new
form: each term of it is a sum, in which a non-finite addend is never lost (inf, NaN, 0 * inf and inf - inf stay non-finite),
and `c` enters as a factor. So `Folded.task` also returns the reduced value, and rows in which it is not finite have to be
computed by the original task.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from functools import lru_cache
from math import prod
from typing import cast

from kforge_dynamo.records.task import Const, Extent, InputSpec, Node, Operand, Stride, Task, ValueSpec

_LINEAR = ("add", "sub", "mul", "div", "neg", "reshape")


@dataclass(frozen=True, slots=True)
class Folded:
    """`task` has the original's inputs but for `rhs`, which has `groups` columns: column `g` is the sum, or with `mean` the mean,
    of the original's columns `g * width` to `(g + 1) * width`, stored along K; and for `vectors`, of one number a column,
    which are reduced in the same way to one number a group. Its outputs are the original's and, last, the reduced value
    `(M, groups)`, which tells the rows that the original has to compute.
    """

    task: Task
    rhs: int
    vectors: tuple[int, ...]
    groups: int
    width: int
    mean: bool


@lru_cache(maxsize=256)
def fold(task: Task) -> Folded | None:
    """`task` with the reduction over the product's columns moved into the right operand; None where the rule does not hold."""
    anchor = task.anchor
    if anchor is None or not _plain(task, anchor):
        return None
    found = _chain(task)
    if found is None:
        return None
    path, last = found
    return _Rewrite(task, path, last).folded()


def _plain(task: Task, anchor: Node) -> bool:
    """One fp32 product of two inputs with known sizes, the right one used for nothing else; rows that are on their own."""
    lhs, rhs = anchor.args[:2]
    uses = [arg for node in task.nodes for arg in node.args]
    if isinstance(lhs, Const) or isinstance(rhs, Const) or max(lhs, rhs) >= len(task.inputs) or lhs == rhs:
        return False
    specs = (task.value(lhs), task.value(rhs), anchor.out)
    return (
        sum(node.op == "gemm" for node in task.nodes) == 1
        and len(task.row_axes) == 1
        and not task.col_axes
        and uses.count(rhs) == 1
        and rhs not in task.outputs
        and task.value(rhs).rows == (1,)
        and all(spec.dtype == "float32" for spec in specs)
        and not any(dict(node.attrs).get("axes") == "rows" for node in task.nodes)
    )


def _chain(task: Task) -> tuple[list[int], int] | None:
    """Offsets of the linear nodes from the product on, and of the reduction that ends them."""
    count = len(task.inputs)
    readers: dict[int, list[int]] = {}
    for offset, node in enumerate(task.nodes):
        for arg in node.args:
            if not isinstance(arg, Const):
                readers.setdefault(arg, []).append(offset)
    path = [next(offset for offset, node in enumerate(task.nodes) if node.op == "gemm")]
    while True:
        number = count + path[-1]
        found = readers.get(number, [])
        if len(found) != 1 or number in task.outputs:
            return None
        node = task.nodes[found[0]]
        if node.out.dtype != "float32":
            return None
        if node.op in ("sum", "mean"):
            return path, found[0]
        if node.op not in _LINEAR or (node.op == "div" and node.args[0] != number):
            return None
        path.append(found[0])


class _Unfit(Exception):
    """The chain is not linear inside the groups."""


@dataclass(slots=True)
class _Rewrite:
    task: Task
    path: list[int]
    last: int
    nodes: list[Node] = field(default_factory=list)
    names: dict[int, int] = field(default_factory=dict)
    vectors: dict[int, ValueSpec] = field(default_factory=dict)

    @property
    def reduction(self) -> Node:
        return self.task.nodes[self.last]

    @property
    def before(self) -> tuple[int, ...]:
        """The columns that the reduction sees."""
        return cast("tuple[int, ...]", self.task.value(cast(int, self.reduction.args[0])).cols)

    @property
    def axes(self) -> tuple[int, ...]:
        return cast("tuple[int, ...]", self.reduction.attr("axes"))

    def folded(self) -> Folded | None:
        shape, axes = self.before, self.axes
        first = min(axes, default=len(shape))
        inner = shape[first:]
        if any(not isinstance(extent, int) for extent in shape) or sorted(axes) != list(range(first, len(shape))):
            return None
        width, groups = prod(inner), prod(shape[:first])
        if width < 2 or groups < 1:
            return None
        count = len(self.task.inputs)
        self.names = {number: number for number in range(count)}
        try:
            for offset, node in enumerate(self.task.nodes):
                if offset == self.last:
                    self.names[count + offset] = self._reduced(groups)
                elif offset not in self.path:
                    self.names[count + offset] = self._add(replace(node, args=self._renamed(node.args)))
        except _Unfit:
            return None
        reduced = self.names[count + self.last]
        return self._result(groups, width, reduced)

    def _result(self, groups: int, width: int, reduced: int) -> Folded:
        anchor = self.task.nodes[self.path[0]]
        rhs = cast(int, anchor.args[1])
        item = self.task.inputs[rhs]
        depth = item.value.cols[0]
        strides: tuple[Stride, ...] = (0, 0 if depth == 1 else 1, 0 if groups == 1 else "dense")
        if depth == 1 and groups > 1:
            strides = (0, 0, 1)
        derived = InputSpec(ValueSpec("float32", item.value.rows, (depth, groups)), strides, item.role)
        changed = {rhs: derived}
        for number, spec in self.vectors.items():
            changed[number] = InputSpec(spec, _row_major(spec), self.task.inputs[number].role)
        inputs = tuple(changed.get(number, other) for number, other in enumerate(self.task.inputs))
        outputs = (*(self.names[number] for number in self.task.outputs), reduced)
        task = Task(self.task.row_axes, self.task.col_axes, inputs, tuple(self.nodes), outputs)
        return Folded(task, rhs, tuple(sorted(self.vectors)), groups, width, self.reduction.op == "mean")

    def _reduced(self, groups: int) -> int:
        """The new form of the reduction: the product with the reduced operand, and what the chain does to it."""
        anchor, out = self.task.nodes[self.path[0]], self.reduction.out
        attrs = (("alpha", anchor.attr("alpha")), ("beta", 1.0))
        value = self._add(Node("gemm", anchor.args[:2], attrs, ValueSpec("float32", anchor.out.rows, (groups,))))
        if out.cols != (groups,):
            value = self._add(Node("reshape", (value,), (), out))
        beta = cast(float, anchor.attr("beta"))
        if len(anchor.args) == 3 and beta != 0.0:
            bias = self._pushed(anchor.args[2], self._split(0))
            bias = bias if beta == 1.0 else self._pointwise("mul", (bias, Const(beta)))
            value = self._pointwise("add", (value, bias))
        for position, offset in enumerate(self.path[1:], start=1):
            value = self._step(value, self.task.nodes[offset], len(self.task.inputs) + self.path[position - 1], position)
        return value

    def _step(self, value: int, node: Node, chained: int, position: int) -> int:
        """One linear node, after the reduction instead of before it. `chained` is the operand that the chain comes through."""
        if node.op == "reshape":
            if cast("tuple[int, ...]", node.out.cols) != self.before:
                raise _Unfit
            return value
        if node.op == "neg":
            return self._pointwise("neg", (value,))
        others = [arg for arg in node.args if arg != chained]
        if len(others) != 1:
            raise _Unfit
        split = self._split(position)
        other = self._factor(others[0], split) if node.op in ("mul", "div") else self._pushed(others[0], split)
        return self._pointwise(node.op, (value, other) if node.args[0] == chained else (other, value))

    def _split(self, position: int) -> bool:
        """Whether the columns are still to be split into groups after this node of the chain."""
        return any(self.task.nodes[offset].op == "reshape" for offset in self.path[position + 1 :])

    def _seen(self, operand: int, split: bool) -> int:
        """The operand as the reduction would see its columns."""
        spec = self._spec(operand)
        if len(spec.cols) == len(self.before) and not split:
            return operand
        total = prod(self.before)
        if not split or spec.cols not in ((total,), (1,)):
            raise _Unfit
        cols = self.before if spec.cols == (total,) else (1,) * len(self.before)
        return self._add(Node("reshape", (operand,), (), replace(spec, cols=cols)))

    def _factor(self, operand: Operand, split: bool) -> Operand:
        """A factor that is the same inside a group."""
        if isinstance(operand, Const):
            return operand
        number = self._seen(self.names[operand], split)
        if any(self._spec(number).cols[axis] != 1 for axis in self.axes):
            raise _Unfit
        return number

    def _pushed(self, operand: Operand, split: bool) -> Operand:
        """The sum or mean of an addend over each group."""
        total = self.reduction.op == "sum"
        if isinstance(operand, Const):
            return Const(float(operand.value) * prod(self.before[axis] for axis in self.axes)) if total else operand
        if self._is_vector(operand):
            out = self.reduction.out
            self.vectors[operand] = replace(self.task.inputs[operand].value, cols=out.cols)
            return operand
        number = self._seen(self.names[operand], split)
        spec = self._spec(number)
        if spec.dtype != "float32":
            raise _Unfit
        full = tuple(axis for axis in self.axes if spec.cols[axis] != 1)
        repeats = prod(self.before[axis] for axis in self.axes if spec.cols[axis] == 1)
        if full:
            cols = tuple(1 if axis in full else extent for axis, extent in enumerate(spec.cols))
            number = self._add(Node(self.reduction.op, (number,), (("axes", full),), replace(spec, cols=cols)))
        return self._pointwise("mul", (number, Const(float(repeats)))) if total and repeats > 1 else number

    def _is_vector(self, operand: int) -> bool:
        """An fp32 input of one number a column, for this one addition alone: it can be reduced before the call's work."""
        if operand >= len(self.task.inputs) or operand in self.task.outputs or operand in self.vectors:
            return False
        spec = self.task.inputs[operand].value
        uses = sum(node.args.count(operand) for node in self.task.nodes)
        return uses == 1 and spec.dtype == "float32" and not spec.varies_by_row and spec.cols == (prod(self.before),)

    def _pointwise(self, op: str, args: tuple[Operand, ...]) -> int:
        specs = [self._spec(arg) for arg in args if not isinstance(arg, Const)]
        rows = tuple(_joined(extents) for extents in zip(*(spec.rows for spec in specs), strict=True))
        cols = tuple(_joined(extents) for extents in zip(*(spec.cols for spec in specs), strict=True))
        return self._add(Node(op, args, (), ValueSpec("float32", rows, cols)))

    def _renamed(self, args: tuple[Operand, ...]) -> tuple[Operand, ...]:
        names: Mapping[int, int] = self.names
        return tuple(arg if isinstance(arg, Const) else names[arg] for arg in args)

    def _spec(self, number: int) -> ValueSpec:
        count = len(self.task.inputs)
        if number >= count:
            return self.nodes[number - count].out
        return self.vectors.get(number, self.task.inputs[number].value)

    def _add(self, node: Node) -> int:
        self.nodes.append(node)
        return len(self.task.inputs) + len(self.nodes) - 1


def _row_major(spec: ValueSpec) -> tuple[Stride, ...]:
    """Stride classes of a dense tensor without rows."""
    strides: list[Stride] = []
    for extent in reversed(spec.shape):
        strides.insert(0, 0 if extent == 1 else "dense" if any(strides) else 1)
    return tuple(strides)


def _joined(extents: tuple[Extent, ...]) -> Extent:
    """The extent of a broadcast."""
    return next((extent for extent in extents if extent != 1), 1)
