"""Precision schemes: kernels of every form in the interpreter, their bounds on adversarial operands, and the error model."""

from __future__ import annotations

import math

import pytest
import torch
from tensor_cores import added, multiplied
from triton_tasks import Builder, gate, named_tasks

from kforge_dynamo.codegen.triton import Schedule
from kforge_dynamo.codegen.triton.schemes import SCHEMES, allowed, worst_error
from kforge_dynamo.languages.formats import scheme_refusal
from kforge_dynamo.records.target import Numerics
from kforge_dynamo.records.task import InputRole

TASKS = named_tasks()
WALKING = {"descriptors": True, "persistent": True, "flatten": True}


def schedule(scheme: str, **choices) -> Schedule:
    """A small one that reads copies of both operands; choices override."""
    base = {"block_m": 32, "block_n": 32, "block_k": 32, "group": 4, "warps": 4, "stages": 2, "copies": "both", "promote": 32}
    return Schedule(scheme, **(base | choices))


FORMS = {
    "passes": schedule("fp16x3"),
    "passes with breaks": schedule("fp16x3", promote=64, drain=True),
    "passes by descriptors": schedule("fp16x3", store="descriptor", **WALKING),
    "parts of K": schedule("fp16x3", split=2),
    "together": schedule("fp16x4", promote=64, together=True),
    "together with breaks": schedule("bf16x6", together=True, drain=True),
    "in registers": schedule("fp16x3", copies="left", together=True, promote=0, block_n=64),
    "in registers, promoted": schedule("bf16x6", copies="left", together=True, block_n=64, descriptors=True),
    "in registers, parts of K": schedule("fp16x3", copies="left", together=True, promote=0, split=2),
    "in registers, sampled": schedule("fp16x3", copies="left", together=True, sampled=True, block_n=64),
    "in registers, sampled, parts of K": schedule("fp16x4", copies="left", together=True, sampled=True, split=2),
    "in registers, sampled, by descriptors": schedule(
        "fp16x3", copies="left", together=True, sampled=True, block_n=64, **WALKING
    ),
    "nine": schedule("bf16x9", promote=0),
    "promoted as it is": schedule("tf32x3", copies="none"),
    "promoted as it is with breaks": schedule("tf32x3", copies="none", drain=True),
}


@pytest.mark.parametrize("form", FORMS)
def test_every_form_is_as_near_to_the_oracle_as_fp32(interpret, form):
    builder = Builder()
    task = builder.task(builder.gelu(builder.linear(40, 40)))
    for fill in ("normal", "edges"):
        gate(interpret(task, FORMS[form], (33,), fill=fill))


@pytest.mark.parametrize(("form", "name"), [("passes", "groups"), ("parts of K", "softmax"), ("in registers", "statistics")])
def test_epilogues_follow_split_products(interpret, form, name):
    task, sizes = TASKS[name]
    gate(interpret(task, FORMS[form], sizes))


COARSE = {"bf16x3": 2.0**-15, "fp16_rows": 2.0**-11, "fp16": 2.0**-11, "bf16": 2.0**-7}  # the interpreter truncates to bf16


@pytest.mark.parametrize("scheme", COARSE)
def test_coarse_schemes_keep_the_bits_they_promise(interpret, scheme):
    promote = 64 if scheme == "bf16x3" else 0
    turned = schedule(scheme, promote=promote, copies="left", together=True, block_n=64)
    for chosen in (schedule(scheme, promote=promote), turned):
        result = interpret(bare(200), chosen, (20,))
        assert 2.0**-16 * COARSE[scheme] < result["norms"] <= 2 * COARSE[scheme]


def bare(depth: int, n: int = 30, strides: tuple = (0, 1, "dense")):
    """A product and nothing else."""
    builder = Builder()
    x = builder.input((depth,), rows=("m",), role=InputRole.LHS)
    w = builder.input((depth, n), strides=strides, role=InputRole.RHS)
    return builder.task(builder.gemm(x, w))


FILLS = ("normal", "same sign", "lognormal", "scaled", "extreme", "tiny", "one hot", "outlier", "padded", "edges of fp32")
FP32 = {
    "fp16x3": FORMS["passes"],
    "fp16x3 in registers": FORMS["in registers"],
    "fp16x3 in registers, sampled": FORMS["in registers, sampled"],
    "fp16x4": FORMS["together"],
    "bf16x6": schedule("bf16x6"),
    "bf16x9": FORMS["nine"],
    "tf32x3": FORMS["promoted as it is"],
}


@pytest.mark.parametrize("fill", FILLS)
@pytest.mark.parametrize("name", FP32)
def test_schemes_for_fp32_keep_their_bound_on_adversarial_operands(interpret, name, fill):
    """The interpreter adds without truncation, so what is seen is splits, scales and the second launch."""
    chosen = FP32[name]
    result = interpret(bare(70), chosen, (20,), fill=fill)
    assert result["outputs"][0]["classes"] and not result["changed"]
    bound = worst_error(chosen.scheme, 70, chosen.promote, chosen.together, chosen.sampled)
    assert result["norms"] <= bound
    if not SCHEMES[chosen.scheme].scaled:
        assert result["terms"] <= bound


@pytest.mark.parametrize("strides", [(0, "dense", 1), (0, "pitch", 1), (0, 1, "pitch")])
def test_split_follows_the_strides_of_the_weight(interpret, strides):
    for form in ("passes", "in registers", "in registers, sampled"):
        gate(interpret(bare(50, 40, strides), FORMS[form], (33,)))


def test_copy_of_the_weight_serves_later_calls(interpret):
    builder = Builder("m")
    task = builder.task(builder.gelu(builder.linear(70, 40)))
    found = interpret(task, Schedule("fp16x3", 16, 16, 32, 4, 4, 2, copies="both", promote=64), (19,), halves=True)
    assert found["halves"] and found["kept"] == ["right_parts", "right_scales"]
    gate(found)


def test_batches_and_symbolic_depths_are_split_as_well(interpret):
    builder = Builder("b", "m")
    x = builder.input((24,), rows=("b", "m"), strides=("dense", "dense", 1), role=InputRole.LHS)
    w = builder.input((24, 40), rows=("b", 1), strides=("dense", 0, 1, "dense"), role=InputRole.RHS)
    task = builder.task(builder.softmax(builder.gemm(x, w, alpha=0.5)))
    for chosen in (FORMS["parts of K"], FORMS["in registers"], schedule("fp16x3", descriptors=True)):
        gate(interpret(task, chosen, (2, 33)))
    builder = Builder(cols=("k",))
    task = builder.task(builder.op("relu", builder.linear("k", 40)))
    for depth, slack in ((1, 2.0), (31, 1.0), (70, 1.0)):  # a single term shows the 22 bits that are kept of each operand
        gate(interpret(task, FORMS["passes"], (9, depth)), slack)


def test_long_line_is_walked_over_twice(interpret):
    task = bare(33000, 3)
    result = interpret(task, schedule("fp16x3", promote=1024, block_k=1024), (2,))
    assert result["norms"] <= worst_error("fp16x3", 33000, 1024)


# the error model


def test_addition_of_a_tensor_core_truncates_towards_zero():
    one = torch.ones(1, 1, dtype=torch.float64)
    small = torch.full((1, 1, 16), 2.0**-25, dtype=torch.float64)
    assert float(added(one, small)) == 1.0  # sixteen of them are 2^-21, and each is cut alone
    assert float(added(-one, -small)) == -1.0
    assert float(added(one, 4 * small)) == 1.0 + 2.0**-19
    assert float(added(one * 3.0, 2 * small)) == 3.0


def errors(
    kind: str, promote: int, depth: int = 2048, name: str = "fp16x3", together: bool = False
) -> tuple[float, float, float]:
    """Relative RMS error, mean error over mean product, and the largest error over |a_i| |b_j|."""
    noise = torch.Generator().manual_seed(3)
    a, b = (torch.randn(8, depth, generator=noise) for _ in range(2))
    a, b = (a.abs(), b.abs()) if kind == "same sign" else (a, b)
    exact = a.double() @ b.double().T
    off = multiplied(a, b, name, promote, together) - exact
    norms = a.double().norm(dim=1)[:, None] * b.double().norm(dim=1)
    return float(off.norm() / exact.norm()), float(off.mean() / exact.mean()), float((off.abs() / norms).max())


def test_promotion_takes_the_bias_of_truncation_away():
    """Seen on one H200 at K = 8192 as well: 9.7e-6 without promotion, 1.25e-6, 6.5e-7, 3.7e-7 each 1024, 512, 256."""
    found = {promote: errors("same sign", promote) for promote in (0, 512, 128)}
    assert found[0][1] < found[512][1] < found[128][1] < 0.0, "a bias towards zero"
    assert found[0][0] > 3 * found[512][0] > 6 * found[128][0]


def test_products_that_alternate_truncate_more_often():
    assert errors("normal", 512, together=True)[0] > 1.5 * errors("normal", 512)[0]


@pytest.mark.parametrize("name", ["fp16x3", "fp16x4", "bf16x6", "bf16x9"])
def test_truncating_sums_stay_inside_the_proven_bound(name):
    for kind, promote, together in (("normal", 256, False), ("same sign", 256, True), ("same sign", 0, False)):
        *_, worst = errors(kind, promote, 512, name, together)
        assert worst <= worst_error(name, 512, promote, together)
        assert worst_error(name, 512, promote, together) <= worst_error("ieee", 512, 0) * (
            len(SCHEMES[name].products) if together else 1
        )


@pytest.mark.parametrize("setting", ["strict", "highest", "high", "medium", "mixed"])
def test_guardrails_allow_what_the_table_allows_and_nothing_else(setting):
    numerics = Numerics(setting, fp16_reduced=False, bf16_reduced=False, deterministic=False)
    names = set(allowed(setting, ("tf32", "fp16_dot", "bf16_dot")))
    assert {name for name in SCHEMES if scheme_refusal(bare(64), name, numerics) is None} == names


def test_bounds_of_the_table_are_ordered_as_their_settings_are():
    fine = [scheme for scheme in SCHEMES.values() if "highest" in scheme.settings]
    coarse = [scheme for scheme in SCHEMES.values() if "highest" not in scheme.settings]
    assert max(scheme.error for scheme in fine) < min(scheme.error for scheme in coarse)
    assert all(not scheme.scaled for scheme in fine if "strict" in scheme.settings)
    assert all(scheme.redone for scheme in fine if scheme.name != "ieee")
    for scheme in SCHEMES.values():
        assert scheme.products[-1] == (0, 0) and len(set(scheme.products)) == len(scheme.products)
        assert math.isfinite(worst_error(scheme.name, 1024, 256))
