"""Rows and columns through reshapes, permutations and broadcasts."""

import pytest
import sympy

from kforge_dynamo.lowering.align import frame
from kforge_dynamo.lowering.refusal import Refused
from kforge_dynamo.lowering.space import Col, Layout, Row, RowSpace, covers, in_order, permuted, reshaped

B = sympy.Symbol("b", positive=True, integer=True)
PRODUCT = Layout((6, 8), (Row(1, 6), Col(0)), (8,))


def test_reshape_splits_rows_into_intervals_and_columns_into_columns():
    layout = reshaped(PRODUCT, (2, 3, 2, 4))
    assert layout.tags == (Row(3, 2), Row(1, 3), Col(0), Col(1)) and layout.cols == (2, 4)
    assert reshaped(layout, (6, 8)) == PRODUCT


def test_reshape_with_extents_of_one_keeps_the_columns():
    layout = reshaped(PRODUCT, (1, 6, 1, 8, 1))
    assert layout.tags == (None, Row(1, 6), None, Col(0), None) and layout.cols == (8,)


def test_reshape_of_symbolic_rows_is_followed():
    layout = reshaped(Layout((4 * B, 8), (Row(1, 4 * B), Col(0)), (8,)), (B, 4, 8))
    assert layout.tags == (Row(4, B), Row(1, 4), Col(0))


@pytest.mark.parametrize("shape", [(48,), (3, 16), (8, 6), (6, 8, 2)])
def test_reshape_that_mixes_rows_and_columns_is_refused(shape):
    with pytest.raises(Refused):
        reshaped(PRODUCT, shape)


def test_order_is_rows_from_the_outside_then_columns():
    split = reshaped(PRODUCT, (2, 3, 2, 4))
    assert in_order(split)
    assert not in_order(permuted(split, (1, 0, 2, 3))) and not in_order(permuted(split, (0, 2, 1, 3)))
    assert not in_order(permuted(split, (0, 1, 3, 2)))


def test_cuts_of_the_rows_need_a_common_refinement():
    space = RowSpace(12)
    space.admit([Row(4, 3), Row(1, 4)])
    space.admit([Row(2, 6)])
    assert space.intervals() == [Row(4, 3), Row(2, 2), Row(1, 2)]
    with pytest.raises(Refused):
        space.admit([Row(3, 4)])
    assert covers(Row(1, 12), Row(2, 2)) and not covers(Row(4, 3), Row(1, 4))


def test_broadcast_aligns_to_the_right_and_new_dimensions_are_columns():
    reduced = Layout((6, 1), (Row(1, 6), Col(0)), (1,))
    found = frame((6, 5), [reduced], 6)
    assert found.tags == (Row(1, 6), Col(0)) and found.columns_of((6, 5)) == (5,) and found.columns_of((6, 1)) == (1,)
    flat = Layout((6,), (Row(1, 6),), (1,))
    assert frame((6,), [flat], 6).tags == (Row(1, 6),)
    with pytest.raises(Refused):
        frame((6, 6), [flat, reduced], 6)


def test_operands_of_equal_columns_keep_them():
    grouped = Layout((6, 2, 4), (Row(1, 6), Col(0), Col(1)), (2, 4))
    summed = Layout((6, 2, 1), (Row(1, 6), Col(0), Col(1)), (2, 1))
    found = frame((6, 2, 4), [grouped, summed], 6)
    assert found.tags == grouped.tags and found.rank == 2
    squeezed = Layout((6, 2), (Row(1, 6), Col(0)), (2, 1))
    plain = Layout((6, 2), (Row(1, 6), Col(0)), (2,))
    assert frame((6, 2), [squeezed, plain], 6).rank == 1


def test_statistics_over_all_rows_meet_a_tensor_with_rows():
    statistics = Layout((1, 8), (None, Col(0)), (8,))
    assert frame((6, 8), [statistics], 6).tags == (Row(1, 6), Col(0))
    assert frame((2, 3, 8), [statistics], 6).tags == (Row(3, 2), Row(1, 3), Col(0))
    assert frame((5, 8), [statistics], 6).tags == (Col(0), Col(1)), "5 is not the number of rows"


def test_symbolic_columns_are_refused():
    value = Layout((6, 1), (Row(1, 6), Col(0)), (1,))
    with pytest.raises(Refused):
        frame((6, B), [value], 6).columns_of((6, B))
