"""Symbolic sizes: proven equal, proven divisible, grouped and viewed, without a single guard."""

import pytest
import sympy
import torch
from post_grad import trace

from kforge_dynamo.lowering.partition import partition
from kforge_dynamo.lowering.sizes import hint, is_dense, product, quotient, regroup, same, view_strides

S, T = sympy.Symbol("s", positive=True, integer=True), sympy.Symbol("t", positive=True, integer=True)


def test_same_is_proof_of_equality_only():
    assert same(6, 6) and same(2 * S, S + S) and same((S + 1) * 4, 4 * S + 4)
    assert not same(S, T) and not same(S, 6) and not same(S, S + 1)


@pytest.mark.parametrize(
    ("a", "b", "expected"),
    [
        (12, 4, 3),
        (12, 5, None),
        (8 * S, 8, S),
        (8 * S, S, 8),
        (S * T, T, S),
        (8 * S, 16, None),
        (S, 2, None),
        (4 * S + 4, S + 1, 4),
    ],
)
def test_quotient_is_exact_or_none(a, b, expected):
    found = quotient(a, b)
    assert found is None if expected is None else same(found, expected)


def test_product_of_numbers_is_a_number():
    assert product(()) == 1 and product((2, 3)) == 6 and isinstance(product((S, 2)) / S, sympy.Integer)


@pytest.mark.parametrize(
    ("old", "new", "groups"),
    [
        ((6, 4), (24,), [((0, 2), (0, 1))]),
        ((24, 5), (2, 12, 5), [((0, 1), (0, 2)), ((1, 2), (2, 3))]),
        ((6, 4), (4, 6), [((0, 2), (0, 2))]),
        ((S, 8, 5), (8 * S, 5), [((0, 2), (0, 1)), ((2, 3), (1, 2))]),
        ((8 * S,), (S, 8), [((0, 1), (0, 2))]),
        ((S, 6), (6, S), None),
        ((S, T), (T, S), None),
        ((6,), (5,), None),
        ((6, 4), (6,), None),
    ],
)
def test_regroup_splits_both_shapes_into_runs_of_equal_product(old, new, groups):
    found = regroup(old, new)
    if groups is None:
        assert found is None
    else:
        assert [((a.start, a.stop), (b.start, b.stop)) for a, b in found] == groups


@pytest.mark.parametrize("shape", [(2, 3, 20), (6, 4, 5), (1, 6, 20), (120,), (6, 20, 1)])
@pytest.mark.parametrize(
    "make", [lambda: torch.empty(6, 20), lambda: torch.empty(6, 40)[:, ::2], lambda: torch.empty(1, 20).expand(6, 20)]
)
def test_view_strides_are_those_of_torch(make, shape):
    tensor = make()
    found = view_strides(tuple(tensor.shape), tensor.stride(), shape)
    try:
        expected = tensor.view(shape).stride()
    except RuntimeError:
        assert found is None
        return
    assert [a for a, size in zip(found, shape, strict=True) if size != 1] == [
        b for b, size in zip(expected, shape, strict=True) if size != 1
    ]


def test_dense_ignores_strides_of_single_elements():
    assert is_dense((3, 1, 4), (4, 99, 1)) and not is_dense((3, 4), (5, 1)) and is_dense((S, 4), (4, 1))
    assert not is_dense((S, 4), (1, S))


def test_hint_is_the_traced_size_or_none():
    assert hint(7, {}) == 7 and hint(4 * S, {S: 3}) == 12 and hint(S + T, {S: 3}) is None


def test_partition_of_a_symbolic_graph_adds_no_guard():
    def function(x, w, r):
        y = torch.mm(x.reshape(-1, 16), w[:16, :8]).view(x.shape[0], x.shape[1], 8)
        return (y + r).softmax(-1).view(-1, 2, 4).sum(2)

    graph = trace(function, torch.randn(3, 5, 16), torch.randn(16, 8), torch.randn(3, 5, 1), symbolic=True)
    environment = next(
        size.node.shape_env
        for node in graph.nodes
        for size in getattr(node.meta.get("val"), "shape", ())
        if isinstance(size, torch.SymInt)
    )
    before = len(environment.guards), dict(environment.replacements)
    partition(graph)
    assert (len(environment.guards), dict(environment.replacements)) == before
