"""Column indices as linear forms, and the axes that shapes of one row have in common."""

from __future__ import annotations

import itertools

import pytest
from triton_tasks import Builder

from kforge_dynamo.codegen.triton.forms import Form, Refine, Unsupported, flatten, identity, split
from kforge_dynamo.codegen.triton.scope import components, scope_of


def value_of(form: Form, point: tuple[int, ...]) -> int:
    return form.constant + sum(coefficient * point[axis] for axis, coefficient in form.terms)


@pytest.mark.parametrize("extents", [(24,), (4, 6), (2, 3, 4), (1, 24)])
@pytest.mark.parametrize("cols", [(24,), (4, 6), (2, 12), (2, 3, 4), (24, 1), (1, 24), (8, 3)])
def test_split_of_a_flat_index_is_exact_wherever_it_succeeds(extents, cols):
    try:
        access = identity(cols, extents)
    except Refine as cut:
        assert extents[cut.axis] % cut.inner == 0
        return
    except Unsupported:
        return
    for flat, point in enumerate(itertools.product(*map(range, extents))):
        indices = [value_of(form, point) for form in access]
        assert all(0 <= index < extent for index, extent in zip(indices, cols, strict=True))
        assert value_of(flatten(access, cols), point) == flat


def test_split_keeps_a_constant_that_a_slice_brought():
    shifted = Form(8, ((0, 4), (1, 1)))
    assert split(shifted, (3, 4), (1, 4)) == (Form(2, ((0, 1),)), Form(0, ((1, 1),)))


def test_split_that_would_carry_is_refused():
    with pytest.raises(Unsupported, match="multiples of 4"):
        split(Form(2, ((0, 3),)), (3, 4), (3,))


def test_axes_of_a_row_are_cut_where_its_reshapes_cut_it():
    builder = Builder()
    x = builder.linear(8, 96)
    groups = builder.reshape(x, 12, 8)
    pairs = builder.reshape(builder.reduce("amax", builder.reshape(x, 48, 2), (1,)), 24, 2)
    task = builder.task(groups, builder.reduce("sum", pairs, (1,)))
    roots = components(task)
    scope = scope_of(task, [number for number, root in roots.items() if root == roots[x]])
    assert scope.extents == (12, 2, 2, 2) and scope.columns == 96
    assert scope.naturals[groups] == (Form(0, ((0, 1),)), Form(0, ((1, 4), (2, 2), (3, 1))))
    assert scope.naturals[pairs][1].axes == frozenset({2})


def test_shapes_that_do_not_nest_are_refused():
    builder = Builder()
    x = builder.linear(8, 36)
    task = builder.task(builder.reshape(x, 4, 9), builder.reshape(x, 6, 6))
    roots = components(task)
    with pytest.raises(Unsupported, match="nest"):
        scope_of(task, [number for number, root in roots.items() if root == roots[x]])


def test_slices_start_axes_of_their_own():
    builder = Builder()
    x = builder.linear(8, 32)
    left = builder.slice(x, 0, 16)
    roots = components(builder.task(left))
    assert roots[left] == left != roots[x]
