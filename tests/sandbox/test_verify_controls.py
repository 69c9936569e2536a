"""Honest kernels of every kind must pass, whatever order they add in: a judge that rejects everything is none."""

from __future__ import annotations

import pytest
import torch
from sandbox_checks import before, bench_of, checked, eager
from sandbox_tasks import (
    Builder,
    attention_scores,
    batch_norm,
    gelu,
    layer_norm,
    linear,
    relu_mask,
    row_max,
    softmax,
)

from kforge_dynamo.records.outcome import Status
from kforge_dynamo.records.target import Numerics
from kforge_dynamo.records.task import Const, InputRole
from kforge_dynamo.sandbox.discrimination import discriminate
from kforge_dynamo.sandbox.precision import round_to_tf32
from kforge_dynamo.semantics.evaluate import Mode, Policy, evaluate

TASKS = [gelu, softmax, layer_norm, relu_mask, row_max, batch_norm, attention_scores]


def shuffled(inputs):
    order = torch.randperm(inputs[0].shape[-1], generator=torch.Generator().manual_seed(5))
    return [inputs[0].index_select(-1, order), inputs[1].index_select(-2, order), *inputs[2:]]


@pytest.mark.parametrize("make", TASKS)
@pytest.mark.parametrize("rows", [1, 5, 37])
def test_verify_sum_in_other_order_passes(make, rows):
    task = make()
    if rows == 1 and make is batch_norm:
        return  # one row is its own mean: see test_discrimination
    verdict = checked(task, before(task, shuffled), rows=rows, numbers=(0, 1))
    assert verdict.passed, verdict


@pytest.mark.parametrize("make", TASKS)
def test_verify_fp64_arithmetic_passes_with_less_error_than_eager(make):
    task = make()

    def launch(inputs, outputs, sizes):
        axes = dict(zip(task.axes, sizes, strict=True))
        for output, value in zip(outputs, evaluate(task, inputs, axes, Policy(Mode.ORACLE)), strict=True):
            output.copy_(value)

    verdict = checked(task, launch)
    assert verdict.passed, verdict
    assert verdict.error_ratio <= 1.0


def test_verify_split_k_passes():
    task = gelu(k=256)

    def launch(inputs, outputs, sizes):
        x, w, b = inputs
        p = b.reshape(-1) + sum(x[:, at : at + 64] @ w[0, at : at + 64] for at in range(0, 256, 64))
        outputs[0].copy_(0.5 * p * (1.0 + torch.erf(p / 2.0**0.5)))

    verdict = checked(task, launch, numbers=(0, 1))
    assert verdict.passed, verdict


def test_verify_softmax_by_powers_of_two_passes():
    task = softmax()

    def launch(inputs, outputs, sizes):
        p = (inputs[0] @ inputs[1][0]) * 0.125
        e = torch.exp2((p - p.amax(dim=1, keepdim=True)) * 1.4426950408889634)
        outputs[0].copy_(e * (1.0 / e.sum(dim=1, keepdim=True)))

    verdict = checked(task, launch)
    assert verdict.passed, verdict


def test_verify_welford_in_blocks_passes():
    task = layer_norm()

    def launch(inputs, outputs, sizes):
        x, w, r, g, s = inputs
        p = x @ w[0] + r
        halves = p.reshape(p.shape[0], 2, -1)
        means, squares = halves.mean(2), halves.var(2, correction=0) * 32
        mean = means.mean(1, keepdim=True)
        var = (squares.sum(1, keepdim=True) + 32 * ((means - mean) ** 2).sum(1, keepdim=True)) / 64
        outputs[0].copy_((p - mean) * (1.0 / (var + 1e-5).sqrt()) * g + s)

    verdict = checked(task, launch)
    assert verdict.passed, verdict


def test_verify_folded_scale_passes():
    """Algebra: a scale behind the product goes into the weight."""
    builder, product = linear(bias=False)
    task = builder.done(builder.op("relu", builder.op("mul", product, Const(0.7))))

    def launch(inputs, outputs, sizes):
        outputs[0].copy_(torch.relu(inputs[0] @ (inputs[1][0] * 0.7)))

    verdict = checked(task, launch)
    assert verdict.passed, verdict


def test_verify_masked_softmax_with_open_first_column_passes():
    task = softmax(mask=True)
    verdict = checked(task, before(task, shuffled))
    assert verdict.passed, verdict


@pytest.mark.parametrize("dtype", ["bfloat16", "float16"])
def test_verify_half_tensors_with_fp32_epilogue_pass(dtype):
    task = gelu(dtype=dtype)

    def launch(inputs, outputs, sizes):
        x, w, b = (item.float() for item in inputs)
        p = x @ w[0] + b.reshape(-1)
        outputs[0].copy_(0.5 * p * (1.0 + torch.erf(p / 2.0**0.5)))

    verdict = checked(task, launch)
    assert verdict.passed, verdict


def test_verify_half_output_of_fp32_product_passes_although_roundings_flip():
    builder, product = linear()
    task = builder.done(builder.convert(product, "bfloat16"))
    verdict = checked(task, before(task, shuffled), rows=64, numbers=(0, 1, 2))
    assert verdict.passed, verdict


def test_verify_rounded_inside_passes_although_roundings_flip():
    """A fake quantisation: every element near a step may fall to either side."""
    builder, product = linear()
    steps = builder.op("round", builder.op("mul", product, Const(8.0)))
    task = builder.done(builder.op("mul", steps, Const(0.125)))
    verdict = checked(task, before(task, shuffled), rows=64, numbers=(0, 1, 2))
    assert verdict.passed, verdict


def test_verify_rounded_inside_with_coarser_steps_inaccurate():
    builder, product = linear()
    steps = builder.op("round", builder.op("mul", product, Const(8.0)))
    task = builder.done(builder.op("mul", steps, Const(0.125)))

    def launch(inputs, outputs, sizes):
        p = torch.addmm(inputs[2].reshape(-1), inputs[0], inputs[1][0])
        outputs[0].copy_(torch.floor(p * 8.0) * 0.125)

    assert checked(task, launch).status is Status.INACCURATE


def test_verify_int8_operands_under_bf16_inaccurate():
    task = gelu(k=192, dtype="bfloat16")

    def quantised(x, dim):
        scale = x.float().abs().amax(dim=dim, keepdim=True).clamp(min=1e-30) / 127
        return ((x.float() / scale).round() * scale).to(x.dtype)

    launch = before(task, lambda i: [quantised(i[0], -1), quantised(i[1], -2), i[2]])
    assert checked(task, launch).status is Status.INACCURATE


@pytest.mark.parametrize(
    ("fp32", "rounding", "passes"),
    [
        ("high", round_to_tf32, True),
        ("high", lambda x: x.bfloat16().float(), False),
        ("medium", lambda x: x.bfloat16().float(), True),
        ("mixed", lambda x: x.half().float(), True),
        ("strict", round_to_tf32, False),
    ],
)
def test_verify_precision_setting_admits_its_own_format(fp32, rounding, passes):
    builder, product = linear(k=192)
    task = builder.done(builder.op("relu", product))
    bench_numerics = Numerics(fp32, False, False, False)
    launch = before(task, lambda i: [rounding(i[0]), rounding(i[1]), i[2]])
    assert checked(task, launch, numerics=bench_numerics).passed is passes


def test_verify_backward_with_saved_statistic_passes():
    """exp(product - saved logsumexp) times something: the statistic is drawn to fit its product."""
    b = Builder()
    x = b.input(("m",), (48,), InputRole.LHS)
    w = b.input((1,), (48, 64), InputRole.RHS)
    saved, grad = b.input(("m",), (1,)), b.input(("m",), (64,))
    p = b.op("exp", b.op("sub", b.gemm(x, w), saved))
    task = b.done(b.op("mul", p, grad))
    verdict = checked(task, before(task, shuffled))
    assert verdict.passed, verdict


def test_verify_three_rows_of_batches_passes():
    task = attention_scores()
    verdict = checked(task, eager(task), rows=3)
    assert verdict.passed, verdict
    assert verdict.e0 >= 0.0


def test_verify_outlier_column_spoils_a_norm_wise_scheme_under_strict_alone():
    """Operands rounded to 26 bits of their row's largest: as right by norms as fp32 is, and wrong where the large one meets 0."""
    builder, product = linear(k=192, bias=False)
    task = builder.done(product)

    def blockwise(x, dim):
        unit = torch.exp2(torch.floor(torch.log2(x.abs().amax(dim=dim, keepdim=True).clamp(min=1e-30))) - 25)
        return (x.double() / unit).round().mul(unit).float()

    launch = before(task, lambda i: [blockwise(i[0], -1), blockwise(i[1], -2)])
    strict = Numerics("strict", False, False, False)
    assert checked(task, launch, classes=["unit", "normal", "uniform"]).passed
    assert checked(task, launch, classes=["outlier"]).passed
    assert checked(task, launch, classes=["outlier"], numerics=strict).status is Status.INACCURATE
    assert "outlier" in {chosen.name for chosen in discriminate(bench_of(task, strict), (37,)).classes}
    exact = checked(task, before(task, shuffled), numerics=strict)
    assert exact.passed, exact
