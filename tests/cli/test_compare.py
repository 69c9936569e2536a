"""What counts as right: error against error, and non-finite values in the same places."""

from __future__ import annotations

import pytest
import torch

from kforge_dynamo.cli.compare import Distance, distance, judge, oracle, tensors_of

EXACT = [torch.linspace(-1, 1, 10_000, dtype=torch.float64)]


def off_by(scale, exact=EXACT):
    noise = torch.randn(exact[0].shape, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    return distance([(exact[0] + scale * noise).float()], exact)


@pytest.mark.parametrize(("times", "right"), [(0.5, True), (1.9, True), (2.2, False), (100.0, False)])
def test_judge_allows_twice_the_error_of_eager(times, right):
    verdict = judge(off_by(1e-4 * times), off_by(1e-4), torch.float32)
    assert verdict.right is right
    assert verdict.ratio == pytest.approx(times, rel=0.01)


def test_judge_of_an_exact_eager_allows_half_an_ulp():
    eager = Distance(0.0, 1.0, True, 10_000)
    eps = torch.finfo(torch.float32).eps
    assert judge(Distance(eps / 4, 1.0, True, 10_000), eager, torch.float32).right
    assert not judge(Distance(eps, 1.0, True, 10_000), eager, torch.float32).right
    assert judge(Distance(0.0, 1.0, True, 10_000), eager, torch.float32).ratio is None


def test_judge_refuses_nan_where_the_oracle_is_finite():
    wrong = EXACT[0].float()
    wrong[17] = float("nan")
    found = distance([wrong], EXACT)
    assert not found.same_nonfinite
    assert not judge(found, off_by(1e-4), torch.float32).right


def test_judge_accepts_infinities_that_the_oracle_has():
    exact = [EXACT[0].clone()]
    exact[0][3] = float("-inf")
    found = distance([exact[0].float()], exact)
    assert found.same_nonfinite and judge(found, off_by(1e-4, exact), torch.float32).right


def test_distance_of_other_shapes_is_refused():
    with pytest.raises(ValueError, match="expected"):
        distance([torch.zeros(3)], EXACT)


def test_tensors_of_nested_outputs_are_the_floating_ones_in_order():
    one, two = torch.zeros(1), torch.ones(2)
    assert [len(t) for t in tensors_of({"a": one, "b": [torch.arange(3), (two,)], "c": None})] == [1, 2]


def test_oracle_leaves_the_module_in_its_dtype():
    module = torch.nn.Linear(3, 2)
    (exact,) = oracle(module, (torch.rand(4, 3),))
    assert exact.dtype == torch.float64 and module.weight.dtype == torch.float32
