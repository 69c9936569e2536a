"""Rows and columns: which part of a GEMM's row space each dimension of a graph tensor stands for.

The product of a region has `total` rows. A dimension of a graph tensor is a `Row` (an interval of the row index, split off
or merged by reshapes), a `Col` (a position among the value's columns), or `None` (extent 1, stands for nothing).
A permuted tensor has its tags in another order; a value that does not vary along rows has no tag for them.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from itertools import pairwise

from kforge_dynamo.lowering.refusal import Refused
from kforge_dynamo.lowering.sizes import Size, is_static, product, quotient, regroup, same
from kforge_dynamo.records.region import Reason


@dataclass(frozen=True, slots=True)
class Row:
    """`size` steps through the row index, each over `inner` rows."""

    inner: Size
    size: Size


@dataclass(frozen=True, slots=True)
class Col:
    """The column dimension `index` of the value."""

    index: int


Tag = Row | Col | None


@dataclass(frozen=True, slots=True)
class Layout:
    """A graph tensor of shape `sizes` whose dimensions have these `tags`; `cols` are the value's own column extents."""

    sizes: tuple[Size, ...]
    tags: tuple[Tag, ...]
    cols: tuple[int, ...]

    @property
    def rows(self) -> tuple[Row, ...]:
        """The row intervals along which the value varies, as its dimensions have them."""
        return tuple(tag for tag in self.tags if isinstance(tag, Row))


def is_one(size: Size) -> bool:
    """Whether the extent is known to be 1."""
    return is_static(size) and size == 1


class RowSpace:
    """The row index of one region and the places where its values cut it: each cut divides the next."""

    def __init__(self, total: Size) -> None:
        self.total = total
        self._cuts: list[Size] = [1] if is_one(total) else [1, total]

    def admit(self, rows: Iterable[Row]) -> None:
        """Takes the cuts of `rows` in. Raises: Refused when two values cut the rows in ways that have no common refinement."""
        cuts = self._cuts
        for row in rows:
            for cut in (row.inner, product((row.inner, row.size))):
                cuts = _with_cut(cuts, cut)
        self._cuts = cuts

    def intervals(self) -> list[Row]:
        """The finest intervals, outermost first."""
        return [Row(low, quotient(high, low)) for low, high in reversed(list(pairwise(self._cuts)))]


def _with_cut(cuts: list[Size], cut: Size) -> list[Size]:
    if any(same(cut, known) for known in cuts):
        return cuts
    for position in range(1, len(cuts)):
        low, high = cuts[position - 1], cuts[position]
        if quotient(cut, low) is not None and quotient(high, cut) is not None:
            return [*cuts[:position], cut, *cuts[position:]]
    raise Refused(Reason.CROSSES_ROWS, f"it cuts the rows at {cut}, which does not fit the cuts {cuts} of the values before it")


def covers(row: Row, part: Row) -> bool:
    """Whether the interval `part` lies inside `row`."""
    ends = quotient(product((row.inner, row.size)), product((part.inner, part.size)))
    return ends is not None and quotient(part.inner, row.inner) is not None


def split_rows(sizes: Sequence[Size], inner: Size) -> list[Row]:
    """Tags for consecutive row dimensions of these sizes, the last of which starts at `inner`."""
    tags: list[Row] = []
    for size in reversed(sizes):
        tags.append(Row(inner, size))
        inner = product((inner, size))
    return tags[::-1]


def reshaped(layout: Layout, sizes: Sequence[Size]) -> Layout:
    """`layout` seen in the row-major shape `sizes`; its `cols` differ where columns were split or merged.

    Raises: Refused where the reshape mixes rows with columns or cannot be followed.
    """
    old = [index for index, size in enumerate(layout.sizes) if not is_one(size)]
    new = [index for index, size in enumerate(sizes) if not is_one(size)]
    groups = regroup([layout.sizes[index] for index in old], [sizes[index] for index in new])
    if groups is None:
        raise Refused(Reason.CROSSES_ROWS, f"the reshape from {_shape(layout.sizes)} to {_shape(sizes)} cannot be followed")
    tags: list[Tag] = [None] * len(sizes)
    runs: list[tuple[list[int], list[int]]] = []
    for olds, news in groups:
        before, after = [old[index] for index in olds], [new[index] for index in news]
        rows = [tag for tag in (layout.tags[index] for index in before) if isinstance(tag, Row)]
        if not rows:
            runs.append((before, after))
            continue
        if len(rows) != len(before) or not _adjacent(rows):
            raise Refused(Reason.CROSSES_ROWS, f"the reshape to {_shape(sizes)} mixes rows of the product with columns")
        for index, tag in zip(after, split_rows([sizes[index] for index in after], rows[-1].inner), strict=True):
            tags[index] = tag
    cols = _reshape_cols(layout, sizes, tags, runs)
    return Layout(tuple(sizes), tuple(tags), cols)


def _adjacent(rows: Sequence[Row]) -> bool:
    return all(same(a.inner, product((b.inner, b.size))) for a, b in pairwise(rows))


def _reshape_cols(
    layout: Layout, sizes: Sequence[Size], tags: list[Tag], runs: Sequence[tuple[list[int], list[int]]]
) -> tuple[int, ...]:
    """Fills in the column tags and returns the new columns."""
    if all(len(before) == len(after) == 1 for before, after in runs):
        for (before,), (after,) in runs:
            tags[after] = layout.tags[before]
        return layout.cols
    order = [tag.index for before, _ in runs for tag in (layout.tags[index] for index in before) if isinstance(tag, Col)]
    if order != sorted(order):
        raise Refused(Reason.CROSSES_ROWS, "the reshape reads permuted columns, which needs a copy")
    cols: list[int] = []
    for _, shown in runs:
        for index in shown:
            tags[index] = Col(len(cols))
            cols.append(static_col(sizes[index]))
    return tuple(cols)


def static_col(size: Size) -> int:
    """`size` as a column extent. Raises: Refused for a symbolic one."""
    if not is_static(size):
        raise Refused(Reason.SYMBOLIC_SIZE, f"a size inside a row is symbolic ({size}); mark that dimension static to fuse it")
    return int(size)


def permuted(layout: Layout, order: Sequence[int]) -> Layout:
    """`layout` with its dimensions in another order."""
    return Layout(tuple(layout.sizes[i] for i in order), tuple(layout.tags[i] for i in order), layout.cols)


def in_order(layout: Layout) -> bool:
    """Whether a dense row-major tensor of `layout.sizes` is a view of the dense value: rows from the outside in, then columns."""
    rows = layout.rows
    kinds = [isinstance(tag, Col) for tag in layout.tags if tag is not None]
    cols = [tag.index for tag in layout.tags if isinstance(tag, Col)]
    descending = all(quotient(a.inner, product((b.inner, b.size))) is not None for a, b in pairwise(rows))
    return kinds == sorted(kinds) and cols == sorted(cols) and descending


def _shape(sizes: Sequence[Size]) -> str:
    return "(" + ", ".join(str(size) for size in sizes) + ")"
