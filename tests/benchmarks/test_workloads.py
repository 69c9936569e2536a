"""The workloads compute what their facts say."""

from __future__ import annotations

import pytest
import torch
import torch.nn.functional as F
from torch.testing import assert_close

from benchmarks.workloads import KINDS, SCALES, build, facts

SMALL = facts("small")


def case_of(number):
    """A workload at its small size in fp64, in eval mode."""
    case = build(next(fact for fact in SMALL if fact.id == number), "cpu")
    return case.module.double().eval(), tuple(value.double() for value in case.inputs)


def linear_of(module, index=0):
    return [part for part in module.modules() if isinstance(part, torch.nn.Linear)][index]


def parameters_of(module):
    return {name.rpartition(".")[2]: value for name, value in module.named_parameters() if name.endswith(".parameter")}


@pytest.mark.parametrize("scale", SCALES)
def test_facts_are_37_with_sizes_at_every_scale(scale):
    rows = facts(scale)
    assert len({fact.id for fact in rows}) == len(rows) == 37
    assert all(fact.kind in KINDS and min(fact.sizes.M, fact.sizes.K, fact.sizes.N) > 0 for fact in rows)
    for fact in rows:
        assert ("group_norm" in fact.steps) == (fact.sizes.groups > 0), fact
        if fact.sizes.groups:
            assert fact.sizes.N % fact.sizes.groups == 0, fact


@pytest.mark.parametrize("fact", SMALL, ids=lambda fact: str(fact.id))
def test_workload_in_eval_mode_is_finite_and_repeats(fact):
    case = build(fact, "cpu")
    case.module.eval()
    with torch.no_grad():
        first, second = case.module(*case.inputs), case.module(*case.inputs)
    assert torch.isfinite(first).all()
    assert_close(first, second, rtol=0, atol=0)
    if fact.kind == "degenerate":
        assert not first.any()
    elif fact.kind == "plain":
        assert first.std() > 0


def check(number, expected):
    module, inputs = case_of(number)
    with torch.no_grad():
        assert_close(module(*inputs), expected(module, *inputs), rtol=1e-10, atol=1e-12)


def test_workload_22_is_residual_clamp_logsumexp_mish():
    def expected(module, x):
        y = (linear_of(module)(x) * 4).clamp(-10, 10).logsumexp(1, keepdim=True)
        return y * y * torch.tanh(F.softplus(y))

    check(22, expected)


def test_workload_28_normalises_each_row_then_adds_and_multiplies_the_second_input():
    def expected(module, x, other):
        y = linear_of(module)(x)
        centred = y - y.mean(1, keepdim=True)
        return (centred / (centred.square().mean(1, keepdim=True) + 1e-5).sqrt() + other) * other

    check(28, expected)


def test_workload_45_is_two_products_and_a_flat_logsumexp():
    check(45, lambda module, x: linear_of(module, 1)(linear_of(module)(x).sigmoid()).logsumexp(1))


def test_workload_51_adds_the_input_to_a_number_per_row():
    def expected(module, x):
        y = (linear_of(module)(x) - parameters_of(module)["parameter"]).mean(1, keepdim=True)
        return F.gelu(y) + x

    check(51, expected)


def test_workload_55_pools_pairs_then_sums():
    def expected(module, x):
        y = linear_of(module)(x)
        return y[:, : y.shape[1] // 2 * 2].view(len(y), -1, 2).amax(2).sum(1) * 0.5

    check(55, expected)


def test_workload_68_takes_the_minimum_with_the_parameter_it_then_subtracts():
    check(68, lambda module, x: linear_of(module)(x).clamp(max=2.0) - 2.0)


def test_workload_75_spreads_the_minimum_of_a_row_over_an_image_bias():
    def expected(module, x):
        groups = next(part for part in module.modules() if isinstance(part, torch.nn.GroupNorm)).num_groups
        y = linear_of(module)(x).view(len(x), groups, -1)
        centred = y - y.mean(2, keepdim=True)
        low = (centred / (centred.square().mean(2, keepdim=True) + 1e-5).sqrt()).view(len(x), -1).amin(1)
        return parameters_of(module)["parameter"] + low[None, None, :, None]

    check(75, expected)


def test_workload_98_averages_windows_before_the_maximum():
    def expected(module, x):
        y = linear_of(module)(x)
        return (F.gelu(y.view(len(y), -1, 4).mean(2)) * 2).amax(1)

    check(98, expected)


def test_seed_decides_the_case():
    fact = SMALL[0]
    one, same, other = build(fact, "cpu"), build(fact, "cpu"), build(fact, "cpu", seed=1)
    assert_close(one.inputs[0], same.inputs[0], rtol=0, atol=0)
    assert not torch.equal(one.inputs[0], other.inputs[0])
