"""The gate's arithmetic, and e0 with its noise."""

from __future__ import annotations

import math

import pytest
import torch
from sandbox_checks import bench_of
from sandbox_tasks import HIGHEST, batch_norm, gelu, linear, relu_mask, row_max

from kforge_dynamo.records.target import Numerics
from kforge_dynamo.sandbox import bench as bench_module
from kforge_dynamo.sandbox import gate
from kforge_dynamo.sandbox.inputs import BY_NAME
from kforge_dynamo.sandbox.noise import noise_scales, noise_shape
from kforge_dynamo.sandbox.precision import baseline_policy, round_to_tf32
from kforge_dynamo.sandbox.rows import evaluate_in_blocks, is_sampled
from kforge_dynamo.semantics.evaluate import Mode, Policy


def truth_of(task, name="unit", rows=64, number=0, numerics=HIGHEST):
    bench = bench_of(task, numerics)
    return bench.truths((rows,), BY_NAME[name], number, bench.draw((rows,), BY_NAME[name], number))


def test_quantile_factors_far_for_one_variable_near_one_for_many():
    found = gate.quantile_factors(torch.tensor([1.0, 32.0, 1e6]))
    assert 5.0 < found[0] < 10.0  # a normal variable exceeds 4.9 sigma once in 1e6, a rounding error more often
    assert found[1] < gate.FACTOR
    assert found[2] == pytest.approx(1.0, abs=0.01)


def test_quantile_factors_hold_for_drawn_chi_squares():
    draws = torch.randn(200_000, 6, generator=torch.Generator().manual_seed(1)).square().mean(dim=1).sqrt()
    assert float((draws > gate.quantile_factors(torch.tensor(6.0))).float().mean()) < 1e-4


def test_summarise_statistics_of_known_errors():
    error = torch.tensor([[3.0, 4.0], [0.0, 0.0]], dtype=torch.float64)
    found = gate.summarise(error)
    assert found.rms == pytest.approx(2.5)
    assert found.peak == 4.0
    assert found.rows.tolist() == pytest.approx([math.sqrt(12.5), 0.0])
    assert found.cols.tolist() == pytest.approx([math.sqrt(4.5), math.sqrt(8.0)])


def test_summarise_percentile_of_a_large_tensor_is_near_the_true_one():
    error = torch.rand(1000, 1000, generator=torch.Generator().manual_seed(2), dtype=torch.float64)
    assert gate.summarise(error).tail == pytest.approx(0.999, abs=5e-4)


def test_judge_oracle_itself_has_no_error():
    (truth,) = truth_of(gelu())
    assert gate.judge([truth.oracle.float()], [truth]).ratio < 0.5


@pytest.mark.parametrize("spoilt", [torch.nan, torch.inf, -torch.inf])
def test_judge_one_non_finite_element_named(spoilt):
    (truth,) = truth_of(gelu())
    value = truth.oracle.float()
    value[3, 4] = spoilt
    found = gate.judge([value], [truth])
    assert found.fault is not None and "[3, 4]" in found.fault


def test_judge_pooled_seeds_reach_the_smaller_factor(monkeypatch):
    """One draw of (16, 64) has fewer than 4096 elements, five have more: 2.3 e0 passes the former only."""
    monkeypatch.setattr(gate, "_line_fault", lambda errors, truth, guards: None)
    builder, product = linear(k=1024, bias=False)
    bench = bench_of(builder.done(product))
    truths = [bench.truths((16,), BY_NAME["unit"], n, bench.draw((16,), BY_NAME["unit"], n))[0] for n in range(5)]
    assert all(truth.factor < 2.0 for truth in truths)
    generator = torch.Generator().manual_seed(4)
    values = []
    for truth in truths:
        noise = torch.randn(truth.oracle.shape, generator=generator, dtype=torch.float64)
        values.append(truth.oracle + 2.3 * truth.e0.rms * noise)
    assert 2.3 * truths[0].e0.rms > gate.rounding_floor(torch.float32) * truths[0].oracle_rms
    assert gate.judge(values[:1], truths[:1]).fault is None
    found = gate.judge(values, truths)
    assert found.fault is not None and "RMS" in found.fault


def test_truth_exact_integers_demanded_exactly_where_eager_is_exact():
    builder, product = linear()
    assert truth_of(builder.done(product), "integers")[0].exact
    assert not truth_of(builder.done(product), "unit")[0].exact
    assert not truth_of(gelu(), "integers")[0].exact  # erf is rounded


def test_truth_boolean_near_its_threshold_may_be_either():
    truth = truth_of(relu_mask(), rows=64)[1]
    assert truth.low is not None
    open_ = truth.low != truth.high
    assert float(open_.float().mean()) < 0.01
    value = truth.oracle.bool()
    flipped = torch.where(open_, ~value, value)
    assert gate.judge([flipped], [truth]).fault is None
    closed = (~open_).nonzero()[0]
    flipped[closed[0], closed[1]] ^= True
    assert gate.judge([flipped], [truth]).fault is not None


def test_truth_choice_accepts_ties_within_the_error_and_no_others():
    values = torch.tensor([[1.0, 1.0 + 1e-9, 0.0], [1.0, 0.5, 0.0]], dtype=torch.float64)
    slack = torch.tensor([1e-6, 1e-6], dtype=torch.float64)
    choice = gate.Choice(values, slack, torch.tensor([1, 0]), torch.tensor([False, False]), True)
    assert gate._choice_fault(torch.tensor([[0], [0]]), choice) is None
    assert "row 1" in gate._choice_fault(torch.tensor([[0], [1]]), choice)
    assert "not below" in gate._choice_fault(torch.tensor([[0], [3]]), choice)
    fixed = gate.Choice(values, slack, torch.tensor([1, 0]), torch.tensor([True, True]), True)
    assert "first of equals" in gate._choice_fault(torch.tensor([[0], [0]]), fixed)


def test_truth_argmax_output_is_judged_as_a_choice():
    truth = truth_of(row_max())[1]
    assert truth.choice is not None
    assert truth.choice.values.shape == (64, 64)
    assert bool((truth.choice.slack < 1e-3).all())


def test_truth_non_finite_places_are_demanded():
    (truth,) = truth_of(gelu(), "non_finite")
    assert truth.classes is not None
    assert bool((truth.classes[0] == 1).all())  # the row with a NaN
    assert bool((truth.classes[3:] == 0).all())


def test_is_sampled_large_products_and_large_outputs_of_independent_rows():
    assert not is_sampled(gelu(), (64,), 1 << 20)
    assert is_sampled(gelu(), (64,), 1000)
    assert is_sampled(gelu(k=8192, n=8192), (1024,), 1 << 40)
    assert not is_sampled(batch_norm(), (64,), 1000)


def test_truth_of_sampled_rows_still_sees_every_row(monkeypatch):
    monkeypatch.setattr(bench_module, "MOST_ELEMENTS", 1000)
    (truth,) = truth_of(gelu(), rows=700)
    assert truth.at is not None and truth.oracle.shape[0] < 300
    value = truth.whole.eager.clone()
    assert gate.judge([value], [truth]).fault is None
    unseen = next(row for row in range(700) if row not in set(truth.at.tolist()))
    value[unseen] *= 1.0001
    assert gate.judge([value], [truth]).fault is not None


def test_round_to_tf32_keeps_ten_bits_to_nearest_even():
    x = torch.tensor([1.0, 1.0 + 2**-10, 1.0 + 2**-11, 1.0 + 3 * 2**-11, -3.3, math.inf, 0.0])
    found = round_to_tf32(x)
    assert found[:4].tolist() == [1.0, 1.0 + 2**-10, 1.0, 1.0 + 2**-9]
    assert abs(float(found[4]) + 3.3) <= 2**-10
    assert found[5] == math.inf and found[6] == 0.0


@pytest.mark.parametrize(("fp32", "error"), [("highest", 3e-7), ("high", 6e-4), ("mixed", 6e-4), ("medium", 5e-3)])
def test_baseline_policy_error_is_that_of_the_format(fp32, error):
    builder, product = linear(k=192)
    (truth,) = truth_of(builder.done(product), numerics=Numerics(fp32, False, False, False))
    relative = truth.e0.rms / truth.oracle_rms
    assert error / 8 < relative < error


def test_baseline_policy_half_tensors_are_plain_eager():
    task = gelu(dtype="bfloat16")
    assert baseline_policy(task, Numerics("high", False, False, False)) == Policy(Mode.EAGER)


@pytest.mark.parametrize("name", ["unit", "normal", "uniform", "same_sign", "scaled"])
def test_noise_is_of_the_size_of_eagers_error(name):
    builder, product = linear(k=96, n=80)
    task = builder.done(product)
    bench = bench_of(task)
    inputs = bench.expanded((64,), bench.draw((64,), BY_NAME[name], 0))
    exact = evaluate_in_blocks(task, inputs, (64,), Policy(Mode.ORACLE))
    plain = evaluate_in_blocks(task, inputs, (64,), Policy())
    (scale,) = noise_scales(task, (product,), inputs, (64,), exact, plain, strict=False)
    ratio = ((plain[0].double() - exact[0]) / scale).square().mean().sqrt()
    assert 0.3 < float(ratio) < 1.7


def test_noise_equal_rows_share_it():
    task = gelu()
    assert noise_shape(task, 3, (37, 64), alike=True) == (1, 64)
    assert noise_shape(task, 3, (37, 64), alike=False) == (37, 64)
