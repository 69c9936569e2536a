"""`Task`: what a region computes, as text: no device, no batch size, no graph.

A task is a small functional program over *rows*. Every value has `rows + cols` dimensions:

- `rows` has one entry a row axis of the task (`("m",)` for a linear layer, `("b", "m")` for a batched product). An entry
  is the axis' name, or 1 where the value does not vary along it (a bias has rows `(1,)`).
- `cols` are the dimensions inside one row: `(N,)` for the product of an `(M, K)` by a `(K, N)` matrix, `(G, N // G)` where
  a group norm looks at it in groups, `(1,)` after a reduction that keeps its dimension.

Row axes are a *domain*, not identity: their sizes belong to a winner. Sizes inside a row are integers and identity, but
a size that is symbolic in the graph is an axis as well and stands by its name.

Operands of one pointwise node have the same number of `cols` and broadcast where an extent is 1; a change of `cols`
is a `reshape` node of its own. Type promotion is explicit: operands of a node have one dtype, except `where`'s condition,
and a conversion is a `convert` node.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum

Extent = int | str
"""A size inside a task: a number, or the name of an axis."""

Stride = int | str
"""0 (does not vary, or extent 1), 1, "dense" (no gap: the product of the extents of the dimensions with smaller strides) or
"pitch" (any other, given at the call)."""

Attribute = bool | int | float | str | tuple[int, ...]


class InputRole(Enum):
    """What an input is to the product; the generator picks loads by it, the verifier picks values by it."""

    LHS = "lhs"
    RHS = "rhs"
    EXTRA = "extra"


@dataclass(frozen=True, slots=True)
class ValueSpec:
    """Type and shape of a value; `dtype` is torch's name without the prefix."""

    dtype: str
    rows: tuple[Extent, ...]
    cols: tuple[Extent, ...]

    @property
    def shape(self) -> tuple[Extent, ...]:
        """`rows + cols`."""
        return self.rows + self.cols

    @property
    def varies_by_row(self) -> bool:
        """Whether any row axis is present."""
        return any(extent != 1 for extent in self.rows)


@dataclass(frozen=True, slots=True)
class InputSpec:
    """An input: its value and the class of its strides, one a dimension of `value.shape`."""

    value: ValueSpec
    strides: tuple[Stride, ...]
    role: InputRole


@dataclass(frozen=True, slots=True)
class Const:
    """A Python scalar of the graph. It takes the dtype of the node's other operands."""

    value: bool | int | float


Operand = int | Const
"""The number of a value (inputs first, then nodes, in order), or a constant."""


@dataclass(frozen=True, slots=True)
class Node:
    """One operation of `semantics.table`, its operands, its attributes sorted by name, and what it returns."""

    op: str
    args: tuple[Operand, ...]
    attrs: tuple[tuple[str, Attribute], ...]
    out: ValueSpec

    def attr(self, name: str) -> Attribute:
        """The attribute called `name`. Raises: KeyError."""
        return dict(self.attrs)[name]


@dataclass(frozen=True, slots=True)
class Task:
    """A functional program: `inputs`, `nodes` in order of evaluation, and the numbers of the values it returns.

    `row_axes` are the row axes, outermost first; `col_axes` the names of symbolic sizes inside a row (a symbolic K).
    Outputs are returned dense in row-major order of their `rows + cols`, fresh and not aliasing.
    """

    row_axes: tuple[str, ...]
    col_axes: tuple[str, ...]
    inputs: tuple[InputSpec, ...]
    nodes: tuple[Node, ...]
    outputs: tuple[int, ...]

    @property
    def axes(self) -> tuple[str, ...]:
        """All domain axes, in the order in which sizes are passed to a launch."""
        return self.row_axes + self.col_axes

    def value(self, number: int) -> ValueSpec:
        """The spec of the value with this number."""
        if number < len(self.inputs):
            return self.inputs[number].value
        return self.nodes[number - len(self.inputs)].out

    @property
    def anchor(self) -> Node | None:
        """The first GEMM of the task, None for a pure epilogue."""
        return next((node for node in self.nodes if node.op == "gemm"), None)


@dataclass(frozen=True, slots=True)
class AxisRange:
    """Sizes from `low` to `high`, both included, of the axis `axis`."""

    axis: str
    low: int
    high: int


@dataclass(frozen=True, slots=True)
class Domain:
    """The sizes that a winner was verified and timed for; one range an axis of the task, in the order of `Task.axes`."""

    ranges: tuple[AxisRange, ...]

    def holds(self, sizes: tuple[int, ...]) -> bool:
        """Whether every size lies in its range."""
        return len(sizes) == len(self.ranges) and all(
            item.low <= size <= item.high for item, size in zip(self.ranges, sizes, strict=True)
        )


def point(task: Task, sizes: tuple[int, ...]) -> Domain:
    """The domain that holds `sizes` alone."""
    return Domain(tuple(AxisRange(axis, size, size) for axis, size in zip(task.axes, sizes, strict=True)))
