"""The tile of the product as a place, and what can be computed in it."""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import lru_cache
from typing import cast

from kforge_dynamo.codegen.triton.compose import Composer
from kforge_dynamo.codegen.triton.expressions import Flavour
from kforge_dynamo.codegen.triton.forms import ZERO, Access, Unsupported, numbers
from kforge_dynamo.codegen.triton.place import AxisPlace, Piece, Place, Text, shaped
from kforge_dynamo.codegen.triton.schedule import Schedule
from kforge_dynamo.codegen.triton.schemes import scheme_of
from kforge_dynamo.codegen.triton.scope import Scope, components, is_symbolic, scope_of
from kforge_dynamo.codegen.triton.signature import RowIndex, Signature
from kforge_dynamo.records.task import Extent, Node, Task


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
    return Flavour.FAST if scheme_of(scheme).coarse else Flavour.PRECISE


def tile_place(task: Task, product: Product, schedule: Schedule, cut: int = 0) -> Place:
    """Piece `cut` of the tile as a block. Where the row's inner axes do not divide it, a flat row remains."""
    return _tile_place(task, product, schedule.block_m, schedule.block_n, schedule.cuts, cut)


@lru_cache(maxsize=256)
def _tile_place(task: Task, product: Product, block_m: int, block_n: int, cuts: int, cut: int) -> Place:
    cut_n = block_n // cuts
    members = component(task, product.number)
    try:
        scope = scope_of(task, members) if members else Scope((1,), {})
    except Unsupported:
        scope = flat_scope(task, members, product.columns)
    inner = math.prod(scope.extents[1:])
    if any(extent & (extent - 1) for extent in scope.extents[1:]) or cut_n % inner:
        scope, inner = flat_scope(task, members, product.columns), 1
    rank = len(scope.extents)
    outer, block = scope.extents[0], cut_n // inner
    end = _suffix(cuts, cut)
    axes = [AxisPlace(outer, block, f"c0{end}", block >= outer, product.columns % block_n != 0)]
    axes += [AxisPlace(extent, extent, f"c{axis}{end}", True, False) for axis, extent in enumerate(scope.extents) if axis]
    return Place(scope, tuple(axes), rank, block_m)


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


def suffix(schedule: Schedule, cut: int) -> str:
    """What names of a piece of the tile end with."""
    return _suffix(schedule.cuts, cut)


def _suffix(cuts: int, cut: int) -> str:
    return "" if cuts == 1 else f"_{cut}"


def piece_of_row(schedule: Schedule, cut: int) -> str:
    """The number of a piece of the tile among those of the row."""
    return "tile_n" if schedule.cuts == 1 else f"at_n_{cut}"


def column_lines(place: Place, schedule: Schedule, cut: int) -> list[str]:
    """The column indices of a piece of the tile."""
    at = piece_of_row(schedule, cut)
    lines = [f"{at} = tile_n * {schedule.cuts} + {cut}"] if schedule.cuts > 1 else []
    for axis, item in enumerate(place.axes):
        vector = f"tl.arange(0, {item.block})"
        if axis == 0:
            vector = f"({at} * {item.block} + {vector})"
        lines.append(f"{item.index} = {shaped(vector, place.position(axis), place.rank)}")
    return lines


def tile_composer(
    task: Task, product: Product, schedule: Schedule, text: Text, head: list[str], signature: Signature
) -> Composer:
    """A composer for tiles; `enter_cut` brings it to a piece of one."""
    return Composer(task, signature, RowIndex(task, signature, head, product.batch), text, flavour_of(schedule.scheme))


def enter_cut(composer: Composer, product: Product, place: Place, end: str) -> None:
    """To the piece whose product stands in the block `product` + `end` (of one column where N is 1)."""
    axes = frozenset(range(len(place.axes)) if product.columns > 1 else ())
    composer.raw = Piece(f"product{end}", axes, True, product.node.out.dtype)
    composer.enter(place)


class Reach:
    """Answers whether a value can be computed in the tile, by trying."""

    def __init__(self, task: Task, product: Product, schedule: Schedule) -> None:
        self._task = task
        self._composer = tile_composer(task, product, schedule, Text(0), [], Signature())
        enter_cut(self._composer, product, tile_place(task, product, schedule), "")
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
