"""Layouts against torch's own strides."""

from __future__ import annotations

import pytest
import torch

from kforge_dynamo.codegen.cpp.layout import Atom, Layout, Step, broadcast, chain, dense, of_strides, sliced, split


def addresses(layout: Layout) -> list[int]:
    """The address of every element, in order of the linear index."""
    found = [int(eval(layout.offset, {}))]  # a sum of products of integers
    for atom in layout.atoms:
        found = [base + digit * atom.step.factor for base in found for digit in range(atom.extent)]
    return found


def of_tensor(tensor: torch.Tensor) -> list[int]:
    """The same of a view of `arange`: its values are its addresses."""
    return tensor.reshape(-1).tolist()


def layout_of(tensor: torch.Tensor) -> Layout:
    return of_strides(list(tensor.shape), [Step(stride) for stride in tensor.stride()])


@pytest.mark.parametrize("dims", [(0, 1, 2), (2, 0, 1), (1, 0, 2), (2, 1, 0)])
def test_strides_slices_and_broadcasts_address_what_torch_addresses(dims):
    tensor = torch.arange(4 * 6 * 5).view(4, 6, 5).permute(dims)
    layout = layout_of(tensor)
    assert addresses(layout) == of_tensor(tensor)
    shape = list(tensor.shape)
    for axis, (start, stop, step) in ((0, (1, 4, 1)), (1, (0, 100, 2)), (2, (-3, 4, 1))):
        cut = sliced(layout, shape, axis, start, stop, step)
        assert cut is not None
        index = [slice(None)] * 3
        index[axis] = slice(start, stop, step)
        assert addresses(cut) == of_tensor(tensor[tuple(index)])
    row = tensor[:, :1, :]
    spread = broadcast(layout_of(row), list(row.shape), shape)
    assert spread is not None and addresses(spread) == of_tensor(row.expand(shape))


def test_a_slice_of_a_slice_keeps_both_offsets():
    tensor = torch.arange(60).view(6, 10)
    once = sliced(layout_of(tensor), [6, 10], 1, 2, 9, 1)
    assert once is not None
    twice = sliced(once, [6, 7], 0, 1, 6, 2)
    assert twice is not None and addresses(twice) == of_tensor(tensor[1:6:2, 2:9])


def test_splitting_keeps_the_map_and_refuses_what_does_not_divide():
    layout = dense(24)
    pieces = split(layout, {4, 12})
    assert pieces is not None and [atom.extent for atom in pieces.atoms] == [2, 3, 4]
    assert addresses(pieces) == list(range(24))
    assert split(layout, {5}) is None


def test_neighbouring_dimensions_merge_where_strides_continue():
    assert of_strides([3, 4], [Step(4), Step(1)]) == dense(12)
    assert of_strides([3, 4], [Step(5), Step(1)]).cuts == {4}
    assert of_strides([3, 4], [Step(4, "p"), Step(1)]).cuts == {4}
    assert of_strides([3, 4], [Step(4, "p"), Step(1, "p")]).atoms == (Atom(12, Step(1, "p")),)


def test_cuts_form_a_chain_only_if_each_divides_the_next():
    assert chain({4, 12}, 24) and not chain({4, 6}, 24) and not chain({5}, 24) and chain((), 7)
