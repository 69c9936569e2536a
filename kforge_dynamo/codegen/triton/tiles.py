"""The tile of the product as a place, and what can be computed in it."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import cast

from kforge_dynamo.codegen.triton.compose import Composer
from kforge_dynamo.codegen.triton.expressions import Flavour
from kforge_dynamo.codegen.triton.forms import ZERO, Access, Unsupported, numbers
from kforge_dynamo.codegen.triton.place import AxisPlace, Piece, Place, Text, shaped
from kforge_dynamo.codegen.triton.schedule import Schedule
from kforge_dynamo.codegen.triton.scope import Scope, components, is_symbolic, scope_of
from kforge_dynamo.codegen.triton.signature import RowIndex, Signature
from kforge_dynamo.records.task import Extent, Node, Task

FAST_SCHEMES = ("tf32", "fp16", "bf16", "native")
"""Schemes whose products carry 11 bits or fewer of their operands."""


@dataclass(frozen=True, slots=True)
class Product:
    """The task's product: its node and number, sizes, and how many leading row axes are its batch."""

    node: Node
    number: int
    columns: int
    depth: Extent
    batch: int

    @property
    def lhs(self) -> int:
        """The number of the left operand."""
        return cast(int, self.node.args[0])

    @property
    def rhs(self) -> int:
        """The number of the right operand."""
        return cast(int, self.node.args[1])


def product_of(task: Task) -> Product | None:
    """The product, None for a task without one. Raises: Unsupported for a second one, or operands that are no inputs."""
    found = [number for number, node in enumerate(task.nodes) if node.op == "gemm"]
    if not found:
        return None
    if len(found) > 1:
        raise Unsupported("a region with two products has no Triton form")
    node = task.nodes[found[0]]
    if any(not isinstance(arg, int) or arg >= len(task.inputs) for arg in node.args[:2]):
        raise Unsupported("an operand of the product is computed inside the region")
    rhs = task.value(cast(int, node.args[1]))
    (columns,) = numbers(node.out.cols)
    batch = sum(extent != 1 for extent in rhs.rows)
    return Product(node, found[0] + len(task.inputs), columns, rhs.cols[0], batch)


def flavour_of(scheme: str) -> Flavour:
    """FAST where the product is not kept to fp32's accuracy."""
    return Flavour.FAST if scheme in FAST_SCHEMES else Flavour.PRECISE


def tile_place(task: Task, product: Product, schedule: Schedule) -> Place:
    """The tile as a block. Where the row's inner axes do not divide it, a flat row remains."""
    members = component(task, product.number)
    try:
        scope = scope_of(task, members) if members else Scope((1,), {})
    except Unsupported:
        scope = flat_scope(task, members, product.columns)
    inner = math.prod(scope.extents[1:])
    if any(extent & (extent - 1) for extent in scope.extents[1:]) or schedule.block_n % inner:
        scope, inner = flat_scope(task, members, product.columns), 1
    rank = len(scope.extents)
    outer, block = scope.extents[0], schedule.block_n // inner
    axes = [AxisPlace(outer, block, "c0", block >= outer, outer % block != 0)]
    axes += [AxisPlace(extent, extent, f"c{axis}", True, False) for axis, extent in enumerate(scope.extents) if axis]
    return Place(scope, tuple(axes), rank, schedule.block_m)


def component(task: Task, number: int) -> list[int]:
    """The values that share column axes with this one."""
    roots = components(task)
    return [other for other, root in roots.items() if root == roots.get(number)]


def flat_scope(task: Task, members: list[int], columns: int) -> Scope:
    """One axis: values that see the row as one dimension, and reductions of those."""
    naturals: dict[int, Access] = {}
    full = Scope((columns,), {})
    for number in members:
        cols = numbers(task.value(number).cols)
        if math.prod(cols) == columns and sum(extent > 1 for extent in cols) == 1:
            naturals[number] = scope_access(cols, full)
    return Scope((columns,), naturals)


def scope_access(cols: tuple[int, ...], scope: Scope) -> Access:
    """The access of a value with one dimension that is not 1 and covers the scope's only axis."""
    whole = tuple((axis, 1) for axis in range(len(scope.extents)))
    return tuple(ZERO if extent == 1 else type(ZERO)(0, whole) for extent in cols)


def tile_lines(place: Place, schedule: Schedule, rows: str) -> list[str]:
    """The index blocks of a tile whose coordinates are `tile_m` and `tile_n`."""
    lines = [f"row = {shaped('(tile_m * BLOCK_M + tl.arange(0, BLOCK_M))', 0, place.rank)}", f"row_ok = row < {rows}"]
    for axis, item in enumerate(place.axes):
        vector = f"tl.arange(0, {item.block})"
        if axis == 0:
            vector = f"(tile_n * {item.block} + {vector})"
        lines.append(f"c{axis} = {shaped(vector, place.position(axis), place.rank)}")
    return lines


def tile_composer(task: Task, product: Product, place: Place, schedule: Schedule, text: Text, head: list[str],
                  signature: Signature) -> Composer:  # fmt: skip
    """A composer at the tile, whose product stands in the block `product` (of one column where N is 1)."""
    rows = RowIndex(task, signature, head, product.batch)
    composer = Composer(task, signature, rows, text, flavour_of(schedule.scheme))
    composer.raw = Piece(
        "product", frozenset(range(len(place.axes)) if product.columns > 1 else ()), True, product.node.out.dtype
    )
    composer.enter(place)
    return composer


class Reach:
    """Answers whether a value can be computed in the tile, by trying."""

    def __init__(self, task: Task, product: Product, schedule: Schedule) -> None:
        place = tile_place(task, product, schedule)
        self._task = task
        self._composer = tile_composer(task, product, place, schedule, Text(0), [], Signature())
        self._from_product = dependents(task, product.number)
        self._known: dict[int, bool] = {}

    def depends(self, number: int) -> bool:
        """Whether the value depends on the product."""
        return number in self._from_product

    def holds(self, number: int) -> bool:
        """Whether the tile holds all that the value needs."""
        if number not in self._known:
            self._known[number] = self._tried(number)
        return self._known[number]

    def leaves_state(self, reduction: Node) -> bool:
        """Whether the tile can leave a state of this reduction's operand."""
        try:
            self._composer.block_state(reduction, count="1.0")
        except Unsupported:
            return False
        return True

    def _tried(self, number: int) -> bool:
        if is_symbolic(self._task, number):
            return False
        try:
            self._composer.value(number, self._composer.natural(number))
        except Unsupported:
            return False
        return True


def dependents(task: Task, number: int) -> frozenset[int]:
    """The value and all that is computed from it."""
    found = {number}
    for offset, node in enumerate(task.nodes):
        if any(arg in found for arg in node.args if isinstance(arg, int)):
            found.add(offset + len(task.inputs))
    return frozenset(found)
