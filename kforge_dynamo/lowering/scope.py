"""One region under construction: which graph nodes it holds as values, and how tensors from outside enter it."""

from __future__ import annotations

import functools
from collections.abc import Sequence
from dataclasses import dataclass

import torch
import torch.fx

from kforge_dynamo.lowering.align import Frame
from kforge_dynamo.lowering.bases import base_of
from kforge_dynamo.lowering.calls import dtype_name, tensor_of
from kforge_dynamo.lowering.draft import Draft, Leaf, mergeable, merged
from kforge_dynamo.lowering.emit import Emit
from kforge_dynamo.lowering.refusal import Refused
from kforge_dynamo.lowering.sizes import Size, is_static, product, quotient, same, sizes_of, strides_of
from kforge_dynamo.lowering.space import Col, Layout, Row, RowSpace
from kforge_dynamo.lowering.spec import DTYPES
from kforge_dynamo.records.region import Reason
from kforge_dynamo.records.task import InputRole

MAX_ELEMENTS = 2**31
"""Kernels index one tensor with 32 bits."""


@dataclass(frozen=True, slots=True)
class Value:
    """The value with this number in the draft, as a graph tensor of this layout shows it."""

    number: int
    layout: Layout


Bound = Value | tuple[Value | None, ...]
"""What a graph node is in the region; a tuple for nodes that return several tensors, None for a part that has no value."""


class Scope:
    """The draft of one region with the graph nodes translated so far.

    `unit_axes` says that the product has row axes of extent 1. Nodes in `pulled` lie before the region: they are
    computed inside it where they are read.
    """

    def __init__(self, device: torch.device, total: Size, unit_axes: bool, pulled: frozenset[torch.fx.Node]) -> None:
        self.draft = Draft()
        self.emit = Emit(self.draft)
        self.space = RowSpace(total)
        self.bound: dict[torch.fx.Node, Bound] = {}
        self.pulled = pulled
        self.device = device
        self.unit_axes = unit_axes

    def value(self, node: object) -> Value | None:
        """The single value that a graph node is in this region."""
        bound = self.bound.get(node) if isinstance(node, torch.fx.Node) else None
        return bound if isinstance(bound, Value) else None

    def commit(self, node: torch.fx.Node, bound: Bound) -> None:
        """Takes a translated node in, if its rows fit the region's. Raises: Refused."""
        values = bound if isinstance(bound, tuple) else (bound,)
        rows = [row for value in values if value is not None for row in self.draft.rows(value.number)]
        self.space.admit(rows)
        self.bound[node] = bound

    def leaf(self, node: torch.fx.Node, frame: Frame) -> int:
        """`node` as an input, with the columns of `frame`. Raises: Refused where it cannot be one."""
        tensor = self.input_tensor(node)
        sizes, strides = sizes_of(tensor), strides_of(tensor)
        rows: list[tuple[Row, Size]] = []
        cols: list[tuple[Size, Size]] = [(1, 0)] * frame.rank
        for tag, size, stride in zip(frame.tags_of(sizes), sizes, strides, strict=True):
            if isinstance(tag, Row):
                rows.append((tag, stride))
            elif isinstance(tag, Col):
                cols[tag.index] = (size, stride)
        full = len(sizes) == len(frame.sizes) and same(product(row.size for row, _ in rows), self.space.total)
        number = self.add_leaf(node, InputRole.EXTRA, rows, merged(cols), unit_rows=full)
        return self.emit.reshape(number, tuple(extent for extent, _ in cols))

    def add_leaf(
        self,
        node: torch.fx.Node,
        role: InputRole,
        rows: Sequence[tuple[Row, Size]],
        cols: tuple[tuple[Size, Size], ...],
        unit_rows: bool,
    ) -> int:
        """The number of an input whose rows and columns (with strides) are known."""
        tensor = self.input_tensor(node)
        unit = unit_rows and self.unit_axes
        dtype = dtype_name(tensor.dtype)
        return self.draft.leaf(Leaf(node, base_of(node), role, dtype, _joined_rows(rows), cols, unit))

    def input_tensor(self, node: object) -> torch.Tensor:
        """The (fake) tensor of a node that is to be an input. Raises: Refused."""
        tensor = tensor_of(node)
        if tensor is None:
            raise Refused(Reason.UNSUPPORTED_LAYOUT, f"its operand {node} is no plain strided tensor")
        if tensor.device != self.device:
            raise Refused(Reason.DEVICE, f"its operand {node} lives on {tensor.device}, the product on {self.device}")
        if dtype_name(tensor.dtype) not in DTYPES:
            raise Refused(Reason.UNSUPPORTED_DTYPE, f"its operand {node} is {dtype_name(tensor.dtype)}")
        if tensor.is_neg() or tensor.is_conj():
            raise Refused(Reason.UNSUPPORTED_LAYOUT, f"its operand {node} is a lazily negated view")
        sizes = sizes_of(tensor)
        if any(is_static(size) and size == 0 for size in sizes):
            raise Refused(Reason.EMPTY, f"its operand {node} has no elements")
        count = product(size for size in sizes if is_static(size))
        if count >= MAX_ELEMENTS:
            raise Refused(Reason.UNSUPPORTED_LAYOUT, f"its operand {node} has {count} elements, kernels index 2^31 at most")
        return tensor


def _joined_rows(rows: Sequence[tuple[Row, Size]]) -> tuple[tuple[Row, Size], ...]:
    """Outermost first, neighbours that step through memory as one interval joined."""
    result: list[tuple[Row, Size]] = []
    for row, stride in sorted(rows, key=functools.cmp_to_key(_outer_first)):
        if result:
            above, above_stride = result[-1]
            adjacent = same(above.inner, product((row.inner, row.size)))
            if adjacent and mergeable([(above.size, above_stride), (row.size, stride)]):
                result[-1] = (Row(row.inner, product((above.size, row.size))), stride)
                continue
        result.append((row, stride))
    return tuple(result)


def _outer_first(a: tuple[Row, Size], b: tuple[Row, Size]) -> int:
    return -1 if quotient(a[0].inner, product((b[0].inner, b[0].size))) is not None else 1
