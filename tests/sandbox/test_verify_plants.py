"""Planted wrong candidates, each with the verdict it must get; and that the rule meant for it is the one that catches it."""

from __future__ import annotations

import pytest
import torch
from sandbox_checks import before, bench_of, changed, checked, eager
from sandbox_tasks import batch_norm, gelu, layer_norm, linear, relu_mask, row_max, softmax

from kforge_dynamo.records.outcome import Status
from kforge_dynamo.sandbox import gate, layout, verify
from kforge_dynamo.sandbox.inputs import BY_NAME
from kforge_dynamo.sandbox.precision import round_to_tf32


def plain_product():
    builder, product = linear()
    return builder.done(product)


def test_verify_zeros_inaccurate():
    assert checked(gelu(), lambda i, o, s: o[0].zero_()).status is Status.INACCURATE


def test_verify_constant_mean_inaccurate():
    task = gelu()
    verdict = checked(task, changed(task, lambda i, o: o[0].fill_(float(o[0].mean()))))
    assert verdict.status is Status.INACCURATE


def test_verify_stale_output_inaccurate():
    task, kept = gelu(), []

    def launch(inputs, outputs, sizes):
        if not kept:
            eager(task)(inputs, outputs, sizes)
            kept.append(outputs[0].clone())
        outputs[0].copy_(kept[0])

    assert checked(task, launch).status is Status.INACCURATE


def test_verify_unwritten_row_inaccurate():
    task = gelu()

    def launch(inputs, outputs, sizes):
        part = torch.empty_like(outputs[0])
        eager(task)(inputs, [part], sizes)
        outputs[0][:-1] = part[:-1]

    verdict = checked(task, launch)
    assert verdict.status in (Status.INACCURATE, Status.NON_DETERMINISTIC)


def test_verify_tf32_product_inaccurate():
    task = gelu()
    verdict = checked(task, before(task, lambda i: [round_to_tf32(i[0]), round_to_tf32(i[1]), i[2]]))
    assert verdict.status is Status.INACCURATE
    assert verdict.error_ratio > 100


def test_verify_fp16_accumulation_inaccurate():
    def launch(inputs, outputs, sizes):
        outputs[0].copy_((inputs[0].half() @ inputs[1][0].half()).float() + inputs[2].reshape(-1))

    assert checked(plain_product(), launch).status is Status.INACCURATE


def test_verify_rows_shifted_by_one_inaccurate():
    task = gelu()
    assert checked(task, before(task, lambda i: [i[0].roll(1, 0), *i[1:]])).status is Status.INACCURATE


def test_verify_last_rows_wrong_inaccurate():
    task = softmax()
    assert checked(task, changed(task, lambda i, o: o[0][32:].mul_(1.001))).status is Status.INACCURATE


def test_verify_one_column_off_inaccurate():
    task = layer_norm()
    verdict = checked(task, changed(task, lambda i, o: o[0][:, 63].mul_(1.00001)))
    assert verdict.status is Status.INACCURATE


def test_verify_dropped_bias_inaccurate():
    task = gelu()
    assert checked(task, before(task, lambda i: [i[0], i[1], i[2] * 0])).status is Status.INACCURATE


def test_verify_second_output_wrong_inaccurate():
    task = relu_mask()
    verdict = checked(task, changed(task, lambda i, o: o[1].logical_not_()))
    assert verdict.status is Status.INACCURATE
    assert "output 1" in verdict.where


def test_verify_softmax_without_maximum_only_large_values_catch():
    task = softmax()

    def launch(inputs, outputs, sizes):
        e = torch.exp(inputs[0] @ inputs[1][0] * 0.125)
        outputs[0].copy_(e / e.sum(dim=1, keepdim=True))

    assert checked(task, launch, classes=["unit", "uniform", "sparse"]).passed
    assert checked(task, launch, classes=["large"]).status is Status.INACCURATE


def test_verify_variance_by_squares_only_shifted_data_catch():
    """E[x^2] - E[x]^2 cancels where the mean is far from zero."""
    task = layer_norm()

    def launch(inputs, outputs, sizes):
        x, w, r, g, s = inputs
        p = x @ w[0] + r
        mean = p.mean(dim=1, keepdim=True)
        var = (p * p).mean(dim=1, keepdim=True) - mean * mean
        outputs[0].copy_((p - mean) * torch.rsqrt(var + 1e-5) * g + s)

    assert checked(task, launch).status is Status.INACCURATE


def test_verify_zeros_in_small_rows_only_row_rule_catches(monkeypatch):
    builder, product = linear(bias=False)
    task = builder.done(product)
    bench = bench_of(task)

    def spoil(inputs, outputs):
        size = outputs[0].abs().amax(dim=1, keepdim=True)
        outputs[0].mul_(size > size.max() * 1e-9)

    verdict = checked(task, changed(task, spoil), classes=["scaled"], bench=bench)
    assert verdict.status is Status.INACCURATE
    assert "row" in verdict.evidence
    monkeypatch.setattr(gate, "_line_fault", lambda errors, truth, guards: None)
    assert checked(task, changed(task, spoil), classes=["scaled"], bench=bench).passed


def test_verify_one_large_error_only_maximum_catches(monkeypatch):
    """Three times eager's largest error in one element is lost in the RMS of its row and of its column."""
    builder, product = linear(k=16, n=512, bias=False)
    task = builder.done(product)
    bench = bench_of(task)
    chosen = BY_NAME["unit"]
    truth = bench.truths((512,), chosen, 0, bench.draw((512,), chosen, 0))[0]
    shift = 3.2 * truth.e0.peak

    def spoil(inputs, outputs):
        outputs[0][5, 7] = float(truth.oracle[5, 7]) + shift

    verdict = checked(task, changed(task, spoil), rows=512, classes=["unit"], bench=bench)
    assert verdict.status is Status.INACCURATE
    assert "maximum" in verdict.evidence
    monkeypatch.setattr(gate, "_beyond_rounding", lambda value, truth, name, guards: 0.0)
    assert checked(task, changed(task, spoil), rows=512, classes=["unit"], bench=bench).passed


def test_verify_rounding_floor_of_bias_only_exact_data_catch():
    """A factor of 1 - 2^-24 costs at most an ulp, less than eager's own error of a long sum."""
    builder, product = linear(k=2048, n=64)
    task = builder.done(product)
    launch = changed(task, lambda i, o: o[0].copy_((o[0].double() * (1 - 2.0**-23)).float()))
    assert checked(task, launch, classes=["unit", "uniform"]).passed
    verdict = checked(task, launch, classes=["integers"])
    assert verdict.status is Status.INACCURATE
    assert "exact" in verdict.evidence


def test_verify_relu_that_swallows_nan_only_non_finite_class_catches():
    builder, product = linear()
    task = builder.done(builder.op("relu", product))
    launch = changed(task, lambda i, o: o[0].copy_(torch.nan_to_num(o[0], nan=0.0, posinf=torch.inf)))
    assert checked(task, launch, classes=["unit", "normal", "large", "scaled", "integers"]).passed
    verdict = checked(task, launch, classes=["non_finite"])
    assert verdict.status is Status.INACCURATE
    assert "NaN" in verdict.evidence


def test_verify_argmax_last_of_equals_only_ties_catch():
    task = row_max()

    def launch(inputs, outputs, sizes):
        eager(task)(inputs, outputs, sizes)
        p = torch.addmm(inputs[2].reshape(-1), inputs[0], inputs[1][0])
        outputs[1].copy_(63 - p.flip(1).argmax(dim=1, keepdim=True))

    assert checked(task, launch, classes=["unit", "normal"]).passed
    assert checked(task, launch, classes=["integers"]).status is Status.INACCURATE


def test_verify_argmax_of_runner_up_inaccurate():
    task = row_max()

    def launch(inputs, outputs, sizes):
        eager(task)(inputs, outputs, sizes)
        p = torch.addmm(inputs[2].reshape(-1), inputs[0], inputs[1][0])
        outputs[1].copy_(p.topk(2, dim=1).indices[:, 1:])

    assert checked(task, launch, classes=["unit"]).status is Status.INACCURATE


def test_verify_mask_with_strict_comparison_inaccurate():
    task = relu_mask()
    assert checked(task, changed(task, lambda i, o: o[1].copy_(o[0] < 0))).status is Status.INACCURATE


def test_verify_batch_statistics_of_half_the_rows_inaccurate():
    task = batch_norm()
    launch = before(task, lambda i: [torch.cat([i[0][:18], i[0][:19]]), *i[1:]])
    assert checked(task, launch).status is Status.INACCURATE


def test_verify_stray_write_before_output_only_guards_catch(monkeypatch):
    task = gelu()

    def spoil(inputs, outputs):
        start = outputs[0].storage_offset()
        outputs[0].as_strided((1,), (1,), start - 1).fill_(3.0)

    verdict = checked(task, changed(task, spoil), classes=["unit"])
    assert verdict.status is Status.STRAY_WRITE
    assert "output 0" in verdict.evidence
    monkeypatch.setattr(verify, "guards_intact", lambda placed: True)
    assert checked(task, changed(task, spoil), classes=["unit"]).passed


def test_verify_stray_write_between_input_rows_stray_write():
    builder, product = linear()
    task = builder.done(product)
    items = (*task.inputs[:1], task.inputs[1], task.inputs[2])
    pitched = type(task)(
        task.row_axes, (), (type(items[0])(items[0].value, ("pitch", 1), items[0].role), *items[1:]), task.nodes, task.outputs
    )

    def spoil(inputs, outputs):
        x = inputs[0]
        assert x.stride(0) > x.shape[1]
        x.as_strided((1,), (1,), x.storage_offset() + x.shape[1]).fill_(0.0)

    verdict = checked(pitched, changed(pitched, spoil), classes=["unit"])
    assert verdict.status is Status.STRAY_WRITE


def test_verify_changed_input_input_changed():
    task = gelu()
    launch = changed(task, lambda i, o: i[0][3, 4].add_(1.0))
    assert checked(task, launch, classes=["unit"]).status is Status.INPUT_CHANGED


def test_verify_sign_of_zero_changed_in_an_input_only_its_rule_catches(monkeypatch):
    task = gelu()
    launch = changed(task, lambda i, o: i[0].copy_(torch.where(i[0] == 0.0, -0.0, i[0])))
    assert checked(task, launch, classes=["sparse"]).status is Status.INPUT_CHANGED
    monkeypatch.setattr(layout.Placed, "untouched", lambda self: True)
    assert checked(task, launch, classes=["sparse"]).passed


def test_verify_reads_beyond_input_inaccurate():
    """What lies behind an input is NaN."""
    task = gelu()

    def prepare(inputs):
        x = inputs[0]
        return [x.as_strided(x.shape, x.stride(), x.storage_offset() + 1), *inputs[1:]]

    assert checked(task, before(task, prepare), classes=["unit"]).status is Status.INACCURATE


def test_verify_random_last_bit_only_determinism_catches():
    task = gelu()
    state = torch.Generator().manual_seed(3)

    def spoil(inputs, outputs):
        outputs[0].mul_(1.0 + 6e-8 * torch.randint(0, 2, outputs[0].shape, generator=state))

    launch = changed(task, spoil)
    assert checked(task, launch, classes=["unit"]).status is Status.NON_DETERMINISTIC
    assert checked(task, launch, classes=["unit"], atomics=True).passed


def test_verify_declared_atomics_still_held_to_the_gate():
    task, calls = gelu(), []

    def spoil(inputs, outputs):
        calls.append(0)
        outputs[0].mul_(1.0 if len(calls) % 2 else 1.001)

    assert checked(task, changed(task, spoil), classes=["unit"], atomics=True).status is Status.INACCURATE


@pytest.mark.parametrize(
    ("form", "status"),
    [
        (lambda o: o.resize_(3, 3), Status.WRONG_SHAPE),
        (lambda o: o.t_(), Status.WRONG_SHAPE),
        (lambda o: o.set_(torch.zeros_like(o)), Status.STRAY_WRITE),
    ],
)
def test_verify_output_of_other_form_has_its_own_verdict(form, status):
    task = gelu()
    assert checked(task, changed(task, lambda i, o: form(o[0])), classes=["unit"]).status is status
