"""Plants that must know the truth, or run torch: errors of a size that one statistical rule alone sees, and launchers in Python
that no launch plan could bring (there the rules about form and the trap are what is tested)."""

from __future__ import annotations

import torch

from kforge_dynamo.records.outcome import Status
from kforge_dynamo.sandbox.inputs import BY_NAME
from kforge_dynamo.semantics.evaluate import Mode, Policy, evaluate
from tests.sandbox.adversarial.cases import BARE, FP16, GELU, PLAIN, WIDE, Case, bare, plain, plant

WRONG = (Status.INACCURATE,)
LONG, BROAD = plain(1024, 64), bare(48, 512)


def exact(task, inputs, outputs, sizes):
    """The region in fp64, rounded once."""
    axes = dict(zip(task.axes, sizes, strict=True))
    for output, value in zip(outputs, evaluate(task, inputs, axes, Policy(Mode.ORACLE)), strict=True):
        output.copy_(value)


def eager(task, inputs, outputs, sizes):
    axes = dict(zip(task.axes, sizes, strict=True))
    for output, value in zip(outputs, evaluate(task, inputs, axes), strict=True):
        output.copy_(value)


def truth_of(bench, inputs, sizes):
    """The truth of the class "unit" where `inputs` are one of its draws, else None."""
    for number in range(5):
        drawn = bench.draw(tuple(sizes), BY_NAME["unit"], number)
        if torch.equal(drawn[0], inputs[0].reshape(drawn[0].shape)):
            return bench.truths(tuple(sizes), BY_NAME["unit"], number, drawn)[0]
    return None


def noise_of_rms(task, bench, inputs, outputs, sizes):
    """Almost what each row and column of few elements may be off: three times e0, of which five seeds together may have two."""
    exact(task, inputs, outputs, sizes)
    truth = truth_of(bench, inputs, sizes)
    if truth is not None:
        outputs[0].copy_(truth.oracle + 0.9 * torch.minimum(truth.row_limit[:, None], truth.col_limit))


def one_in_eight_hundred(task, bench, inputs, outputs, sizes):
    """Elements, few in every row and column, off by more than the 99.9th percentile may be and less than the maximum may."""
    exact(task, inputs, outputs, sizes)
    truth = truth_of(bench, inputs, sizes)
    if truth is not None:
        bound = max(2.0, truth.peak_factor)
        off = (bound * truth.e0.tail + bound * truth.e0.peak) / 2
        flat = outputs[0].reshape(-1)
        spots = torch.arange(0, flat.numel(), 819)
        flat[spots] = (truth.oracle.reshape(-1)[spots] + off).float()


def one_element(task, bench, inputs, outputs, sizes):
    """One element off by three times eager's largest error."""
    exact(task, inputs, outputs, sizes)
    truth = truth_of(bench, inputs, sizes)
    if truth is not None:
        outputs[0].reshape(-1)[4567] = float(truth.oracle.reshape(-1)[4567]) + 3.2 * truth.e0.peak


def a_little_everywhere(task, bench, inputs, outputs, sizes):
    """An error of 2e-5 of each element: far above eager's, far below what fixed tolerances ask."""
    exact(task, inputs, outputs, sizes)
    if not bool((inputs[0] == inputs[0].round()).all()):
        outputs[0].mul_(1.0 + 2e-5)


def unsampled_row(task, bench, inputs, outputs, sizes):
    """A row that no sample holds."""
    eager(task, inputs, outputs, sizes)
    outputs[0][12345 % outputs[0].shape[0]].mul_(1.001)


def another_shape(task, bench, inputs, outputs, sizes):
    exact(task, inputs, outputs, sizes)
    outputs[0].resize_(3, 3)


def another_memory(task, bench, inputs, outputs, sizes):
    exact(task, inputs, outputs, sizes)
    outputs[0].set_(outputs[0].clone())


class Lazy(torch.Tensor):
    """Computes when it is looked at."""


def a_subclass(task, bench, inputs, outputs, sizes):
    exact(task, inputs, outputs, sizes)
    outputs[0].__class__ = Lazy


def calls_torch(task, bench, inputs, outputs, sizes):
    outputs[0].copy_(torch.addmm(inputs[2].reshape(-1), inputs[0], inputs[1][0]))


def bf16_under_fp16(task, bench, inputs, outputs, sizes):
    x, w = (item.bfloat16().float() for item in inputs[:2])
    outputs[0].copy_(x @ w[0] + inputs[2].float().reshape(-1))


def fp8_under_fp16(task, bench, inputs, outputs, sizes):
    x, w = (item.float().clamp(-448, 448).to(torch.float8_e4m3fn).float() for item in inputs[:2])
    outputs[0].copy_(x @ w[0] + inputs[2].float().reshape(-1))


def fp16_accumulator(task, bench, inputs, outputs, sizes):
    total = inputs[2].reshape(1, -1).half().expand(outputs[0].shape).clone()
    for start in range(0, inputs[0].shape[1], 8):
        total += (inputs[0][:, start : start + 8].float() @ inputs[1][0, start : start + 8].float()).half()
    outputs[0].copy_(total)


PLANTS = [
    Case("almost three e0 everywhere", LONG, plant(noise_of_rms), WRONG, "[rule rms]", ("rms",), rows=16, stage="final"),
    Case("one in eight hundred elements", BROAD, plant(one_in_eight_hundred), WRONG, "[rule tail]", ("tail",), rows=128),
    Case("one element", BARE, plant(one_element), WRONG, "[rule peak]", ("peak",), rows=512),
    Case("a little everywhere", PLAIN, plant(a_little_everywhere), WRONG, "", ("floor",)),
    Case("a row that no sample holds", WIDE, plant(unsampled_row), WRONG, "[rule whole]", ("whole",), rows=20000),
    Case("an output of another shape", GELU, plant(another_shape), (Status.WRONG_SHAPE,)),
    Case("an output in other memory", GELU, plant(another_memory), (Status.STRAY_WRITE,), "[rule form]"),
    Case("an output that is a subclass", GELU, plant(a_subclass), (Status.WRONG_DTYPE,), "[rule form]", ("form",), row=6),
    Case("torch does the work", PLAIN, plant(calls_torch, "trapped"), (Status.REJECTED,), "[rule trap]", ("trap",), row=17),
    Case("bf16 operands under fp16", FP16, plant(bf16_under_fp16), WRONG, "bfloat16", row=23),
    Case("fp8 operands under fp16", FP16, plant(fp8_under_fp16), WRONG, "float8", row=23),
    Case("fp16 accumulator under fp16", FP16, plant(fp16_accumulator), WRONG, row=23),
]
