"""Broadcasting: where the operands of a pointwise node stand in rows and columns."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from kforge_dynamo.lowering.refusal import Refused
from kforge_dynamo.lowering.sizes import Size, product, quotient, same
from kforge_dynamo.lowering.space import Col, Layout, Row, Tag, is_one, split_rows, static_col
from kforge_dynamo.records.region import Reason


@dataclass(frozen=True, slots=True)
class Frame:
    """The layout of a pointwise result. `rank` columns; dimension `i` of the result has `tags[i]`."""

    sizes: tuple[Size, ...]
    tags: tuple[Tag, ...]
    rank: int

    def columns_of(self, sizes: Sequence[Size]) -> tuple[int, ...]:
        """The column extents, in this frame, of an operand of shape `sizes` (right-aligned)."""
        cols = [1] * self.rank
        for size, tag in zip(reversed(sizes), reversed(self.tags), strict=False):
            if isinstance(tag, Col) and not is_one(size):
                cols[tag.index] = static_col(size)
        return tuple(cols)

    def tags_of(self, sizes: Sequence[Size]) -> tuple[Tag, ...]:
        """The tags of an operand of shape `sizes` that is not itself in the region."""
        shift = len(self.tags) - len(sizes)
        return tuple(None if is_one(size) else self.tags[shift + index] for index, size in enumerate(sizes))

    def layout(self, cols: tuple[int, ...]) -> Layout:
        """The result's layout once its columns are known."""
        return Layout(self.sizes, self.tags, cols)


def frame(out: Sequence[Size], insiders: Sequence[Layout], total: Size) -> Frame:
    """Aligns operands to the shape `out` of the result.

    `insiders` are the values of the region among them, whose dimensions stand for something already; a dimension that
    only an operand from outside has is a new column. Raises: Refused when two operands disagree, or columns are symbolic.
    """
    tags: list[Tag] = [_row_at(position, len(out), insiders) for position in range(len(out))]
    _check_rows_once([tag for tag in tags if isinstance(tag, Row)], insiders)
    if not is_one(total) and not any(layout.rows for layout in insiders):
        _lead_with_rows(tags, out, insiders, total)
    shared = _shared_columns(out, tags, insiders)
    if shared is not None:
        return Frame(tuple(out), tuple(shared), len(insiders[0].cols))
    rank = 0
    for position, size in enumerate(out):
        if tags[position] is None and (not is_one(size) or _has_col(position, len(out), insiders)):
            tags[position] = Col(rank)
            rank += 1
    for layout in insiders:
        order = [
            tag.index for tag, size in zip(layout.tags, layout.sizes, strict=True) if isinstance(tag, Col) and not is_one(size)
        ]
        if order != sorted(order):
            raise Refused(Reason.CROSSES_ROWS, "its operands hold the columns of the product in different orders")
    return Frame(tuple(out), tuple(tags), max(rank, 1))


def _at(position: int, rank: int, layout: Layout) -> int | None:
    index = position - (rank - len(layout.sizes))
    return index if index >= 0 else None


def _row_at(position: int, rank: int, insiders: Sequence[Layout]) -> Row | None:
    found: Row | None = None
    for layout in insiders:
        index = _at(position, rank, layout)
        tag = None if index is None else layout.tags[index]
        if isinstance(tag, Row):
            if found is not None and not (same(found.inner, tag.inner) and same(found.size, tag.size)):
                raise Refused(Reason.CROSSES_ROWS, "its operands have different rows of the product in the same dimension")
            found = tag
    for layout in insiders:
        index = _at(position, rank, layout)
        if found is not None and index is not None and isinstance(layout.tags[index], Col) and not is_one(layout.sizes[index]):
            raise Refused(Reason.CROSSES_ROWS, "it combines rows of the product with columns in one dimension")
    return found


def _has_col(position: int, rank: int, insiders: Sequence[Layout]) -> bool:
    indices = [(_at(position, rank, layout), layout) for layout in insiders]
    return any(index is not None and isinstance(layout.tags[index], Col) for index, layout in indices)


def _check_rows_once(rows: Sequence[Row], insiders: Sequence[Layout]) -> None:
    """An outer combination (rows against the same rows) has no place in a row space."""
    if len(insiders) < 2:
        return
    for index, a in enumerate(rows):
        for b in rows[index + 1 :]:
            above = quotient(a.inner, product((b.inner, b.size))) is not None
            below = quotient(b.inner, product((a.inner, a.size))) is not None
            if not above and not below:
                raise Refused(Reason.CROSSES_ROWS, "it combines rows of the product with other rows of it")


def _lead_with_rows(tags: list[Tag], out: Sequence[Size], insiders: Sequence[Layout], total: Size) -> None:
    """Statistics over all rows meet a tensor that varies along rows: its leading dimensions are the rows if they fill them."""
    leading: list[int] = []
    for position, size in enumerate(out):
        if _has_col(position, len(out), insiders):
            return
        if not is_one(size):
            leading.append(position)
            if same(product(out[index] for index in leading), total):
                rows = split_rows([out[index] for index in leading], 1)
                for index, row in zip(leading, rows, strict=True):
                    tags[index] = row
                return


def _shared_columns(out: Sequence[Size], tags: Sequence[Tag], insiders: Sequence[Layout]) -> list[Tag] | None:
    """The tags with the insiders' own columns, where all insiders have the same and no new column appears."""
    structures = {_structure(layout, len(out)) for layout in insiders}
    if len(structures) != 1:
        return None
    ((columns, _),) = structures
    result = list(tags)
    for position, index in columns:
        if result[position] is None:
            result[position] = Col(index)
    fresh = any(tag is None and not is_one(size) for tag, size in zip(result, out, strict=True))
    return None if fresh else result


def _structure(layout: Layout, rank: int) -> tuple[tuple[tuple[int, int], ...], int]:
    shift = rank - len(layout.tags)
    columns = tuple((index + shift, tag.index) for index, tag in enumerate(layout.tags) if isinstance(tag, Col))
    return columns, len(layout.cols)
