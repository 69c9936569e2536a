"""A region's program while it is being built: values by number, equal ones built once, rows still as intervals.

`canonical` turns a finished draft into a `Task`. Nothing here knows ATen; `translate` does.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from itertools import pairwise

import torch.fx

from kforge_dynamo.lowering.sizes import Size, same
from kforge_dynamo.lowering.space import Row, is_one
from kforge_dynamo.records.task import Attribute, Const, InputRole, Operand

Attrs = tuple[tuple[str, Attribute], ...]


@dataclass(frozen=True, slots=True)
class Leaf:
    """An input: the memory of `base` (the deepest tensor of which `node` is a pure view), and the strides in it.

    `rows` and `cols` pair each interval or extent with its stride in elements; `unit_rows` says that the value also
    varies along a row axis whose extent is 1 in this graph.
    """

    node: torch.fx.Node
    base: torch.fx.Node
    role: InputRole
    dtype: str
    rows: tuple[tuple[Row, Size], ...]
    cols: tuple[tuple[Size, Size], ...]
    unit_rows: bool

    @property
    def extents(self) -> tuple[Size, ...]:
        """The column extents."""
        return tuple(extent for extent, _ in self.cols)


@dataclass(frozen=True, slots=True)
class Step:
    """One operation of the op table."""

    op: str
    args: tuple[Operand, ...]
    attrs: Attrs
    dtype: str
    rows: frozenset[Row]
    unit_rows: bool
    extents: tuple[Size, ...]


@dataclass(slots=True)
class Draft:
    """Values in the order in which they were built."""

    values: list[Leaf | Step] = field(default_factory=list)
    _known: dict[object, int] = field(default_factory=dict)

    def leaf(self, leaf: Leaf) -> int:
        """The number of this input; the same memory read the same way is one input."""
        key = (leaf.base, leaf.role, leaf.dtype, leaf.rows, leaf.cols, leaf.unit_rows)
        return self._add(key, leaf)

    def step(self, step: Step) -> int:
        """The number of this operation's result; an equal operation on equal operands is built once."""
        key = (step.op, tuple(_key(arg) for arg in step.args), tuple((name, _key(value)) for name, value in step.attrs),
               step.dtype, step.extents)  # fmt: skip
        return self._add(key, step)

    def duplicate(self, number: int) -> int:
        """The same operation once more, as a value of its own: two outputs may not share memory."""
        self.values.append(self.values[number])
        return len(self.values) - 1

    def dtype(self, number: int) -> str:
        """The dtype of a value."""
        return self.values[number].dtype

    def extents(self, number: int) -> tuple[Size, ...]:
        """The column extents of a value."""
        return self.values[number].extents

    def rows(self, number: int) -> frozenset[Row]:
        """The row intervals along which a value varies."""
        value = self.values[number]
        return frozenset(row for row, _ in value.rows) if isinstance(value, Leaf) else value.rows

    def unit_rows(self, number: int) -> bool:
        """Whether a value varies along row axes of extent 1."""
        return self.values[number].unit_rows

    def as_step(self, number: int, op: str) -> Step | None:
        """The step with this number if it is an `op`."""
        value = self.values[number]
        return value if isinstance(value, Step) and value.op == op else None

    def _add(self, key: object, value: Leaf | Step) -> int:
        number = self._known.get(key)
        if number is None:
            number = len(self.values)
            self.values.append(value)
            self._known[key] = number
        return number


def _key(value: object) -> object:
    """Distinguishes what `==` does not: 1 from 1.0 and True, 0.0 from -0.0; NaN equals itself."""
    if isinstance(value, Const):
        return ("const", _key(value.value))
    return (type(value).__name__, repr(value))


def mergeable(strides: Sequence[tuple[Size, Size]]) -> bool:
    """Whether consecutive (extent, stride) dimensions step through memory as one dimension would."""
    return all(same(a[1], b[0] * b[1]) for a, b in pairwise(strides))


def merged(dims: Sequence[tuple[Size, Size]]) -> tuple[tuple[Size, Size], ...]:
    """`dims` (extent, stride) without extents of 1, neighbours that step as one merged; one of extent 1 where none is left."""
    result: list[tuple[Size, Size]] = []
    for extent, stride in dims:
        if is_one(extent):
            continue
        if result and mergeable([result[-1], (extent, stride)]):
            result[-1] = (result[-1][0] * extent, stride)
        else:
            result.append((extent, stride))
    return tuple(result) or ((1, 0),)
