"""Precision schemes on a GPU: every kernel form against fp64, its proven bound and the gate of the judge."""

from __future__ import annotations

import dataclasses
import os
import pathlib

import pytest
import torch
from triton_tasks import Builder

from kforge_dynamo import targets
from kforge_dynamo.codegen import triton as generator
from kforge_dynamo.codegen.triton import Schedule
from kforge_dynamo.codegen.triton.schemes import SCHEMES, worst_error
from kforge_dynamo.languages.base import canonical_dims
from kforge_dynamo.languages.triton import LANGUAGE
from kforge_dynamo.records.outcome import Status
from kforge_dynamo.records.request import Request
from kforge_dynamo.records.target import Numerics
from kforge_dynamo.records.task import Task, point
from kforge_dynamo.sandbox.worker import Worker

pytestmark = [pytest.mark.gpu, pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")]

WALK = {"descriptors": True, "persistent": True, "flatten": True, "store": "descriptor"}
FORMS = {
    "fp16x3": Schedule("fp16x3", 128, 128, 64, 8, 8, 4, copies="both", promote=512, **WALK),
    "fp16x3 with breaks": Schedule("fp16x3", 128, 128, 64, 8, 8, 4, copies="both", promote=256, drain=True, **WALK),
    "fp16x3 by pointers": Schedule("fp16x3", 64, 64, 64, 8, 4, 3, copies="both", promote=512),
    "fp16x3 of parts of K": Schedule("fp16x3", 64, 64, 64, 8, 4, 3, copies="both", promote=256, split=4),
    "fp16x3 together": Schedule("fp16x3", 64, 128, 64, 8, 4, 3, copies="both", promote=128, together=True, descriptors=True),
    "fp16x3 in registers": Schedule("fp16x3", 64, 128, 64, 8, 8, 3, copies="left", together=True, descriptors=True),
    "fp16x3 in registers, sampled": Schedule(
        "fp16x3",
        128,
        128,
        64,
        8,
        8,
        3,
        copies="left",
        together=True,
        sampled=True,
        promote=256,
        descriptors=True,
        persistent=True,
    ),
    "fp16x3 in registers, sampled, by pointers": Schedule(
        "fp16x3", 32, 64, 64, 8, 4, 3, copies="left", together=True, sampled=True, promote=256, split=2
    ),
    "fp16x3 in registers by pointers": Schedule("fp16x3", 32, 64, 64, 8, 4, 3, copies="left", together=True, split=2),
    "fp16x4": Schedule("fp16x4", 128, 128, 64, 8, 8, 4, copies="both", promote=512, **WALK),
    "bf16x6": Schedule("bf16x6", 128, 128, 64, 8, 8, 4, copies="both", promote=512, **WALK),
    "bf16x6 in registers": Schedule("bf16x6", 64, 128, 64, 8, 8, 2, copies="left", together=True, promote=128, descriptors=True),
    "bf16x9": Schedule("bf16x9", 128, 128, 64, 8, 8, 4, copies="both", promote=512, **WALK),
    "tf32x3": Schedule("tf32x3", 64, 128, 32, 8, 8, 3, promote=256, **WALK),
    "tf32x3 with breaks": Schedule("tf32x3", 64, 128, 32, 8, 8, 3, promote=256, drain=True),
    "bf16x3": Schedule("bf16x3", 128, 128, 64, 8, 8, 4, copies="both", promote=1024, **WALK),
    "fp16_rows": Schedule("fp16_rows", 128, 256, 64, 8, 8, 3, copies="both", cuts=2, **WALK),
    "fp16": Schedule("fp16", 128, 256, 64, 8, 8, 3, copies="both", cuts=2, **WALK),
    "bf16": Schedule("bf16", 128, 128, 64, 8, 8, 3, copies="both", **WALK),
}
M, K, N = 300, 2048, 512


def bare() -> Task:
    """A linear layer without bias."""
    builder = Builder()
    return builder.task(builder.gemm(*builder.operands(K, N, bias=False)))


def operands(kind: str) -> tuple[torch.Tensor, torch.Tensor]:
    """(M, K) and (N, K)."""
    noise = torch.Generator("cuda").manual_seed(1)
    a, w = (torch.randn(rows, K, device="cuda", generator=noise) for rows in (M, N))
    if kind == "same sign":
        return a.abs(), w.abs()
    if kind == "lognormal":
        return tuple(x * torch.exp(2 * torch.randn(x.shape, device="cuda", generator=noise)) for x in (a, w))  # type: ignore[return-value]
    if kind in ("scaled", "extreme"):
        reach = 20.0 if kind == "scaled" else 55.0
        return tuple(  # type: ignore[return-value]
            x * torch.exp2((torch.rand(x.shape[0], 1, device="cuda", generator=noise) * 2 - 1) * reach) for x in (a, w)
        )
    if kind == "outlier":
        a[:, K // 2] *= 2.0**20
        w[::2, K // 2] = 0.0
    if kind == "one hot":
        a = torch.zeros_like(a).scatter_(1, torch.randint(0, K, (M, 1), device="cuda", generator=noise), 1.0)
    if kind == "edges":
        a[-40:], a[0], a[1] = float("nan"), 0.0, a[1] * 2.0**-140
        a[2, 5], a[3, 7], a[4] = float("inf"), 3.4e38, a[4] * 1e37
        w = w * 2.0**-12
    return a, w


def launched(schedule: Schedule, a: torch.Tensor, w: torch.Tensor, folder: pathlib.Path) -> torch.Tensor:
    """What the second of two launches gives."""
    target = targets.detect(a.device)
    assert target is not None
    task, numerics = bare(), Numerics("highest", fp16_reduced=False, bf16_reduced=False, deterministic=False)
    candidate = generator.emit(task, schedule, (M,), target, numerics)
    launch = LANGUAGE.load(LANGUAGE.build(candidate, task, target, folder), candidate, task, canonical_dims(task))
    outputs = [torch.full((M, N), 7.0, device=a.device) for _ in range(2)]
    for output in outputs:
        launch([a, w.t()[None]], [output], (M,))
    torch.cuda.synchronize()
    assert torch.equal(outputs[0].nan_to_num(), outputs[1].nan_to_num())
    return outputs[1]


@pytest.mark.parametrize("name", FORMS)
def test_scheme_keeps_its_bound_on_every_class_of_operands(tmp_path, name):
    schedule = FORMS[name]
    scheme = SCHEMES[schedule.scheme]
    kinds = ["normal", "same sign", "one hot"]
    if scheme.redone:
        kinds += ["lognormal", "scaled", "extreme", "outlier", "edges"]
    promote = schedule.block_k if schedule.copies == "left" and scheme.scaled and not schedule.sampled else schedule.promote
    bound = worst_error(scheme.name, K, promote, schedule.together, schedule.sampled)
    for kind in kinds:
        a, w = operands(kind)
        found, exact = launched(schedule, a, w, tmp_path), a.double() @ w.double().t()
        known = exact.float().isfinite()
        assert torch.equal(found.isfinite(), known), kind
        assert torch.equal(found.isnan(), exact.isnan()), kind
        error = torch.where(known, (found.double() - exact).abs(), 0.0)
        size, weight = a.double().nan_to_num(0.0, 0.0, 0.0), w.double()
        norms = size.norm(dim=1)[:, None] * weight.norm(dim=1)
        assert float((error / norms.clamp(min=2.0**-119)).max()) <= bound, kind
        if not scheme.scaled and not scheme.coarse:
            terms = size.abs() @ weight.abs().t()
            assert float((error / terms.clamp(min=2.0**-119)).max()) <= bound, kind


def test_promotion_shortens_the_bias_of_sums_of_one_sign(tmp_path):
    """Truncation is a bias, about as large as the chain is long: 16 times as many promotions leave less than an eighth."""
    a, w = operands("same sign")
    exact = a.double() @ w.double().t()
    short = FORMS["fp16x3"]
    errors = [
        float((launched(dataclasses.replace(short, promote=promote), a, w, tmp_path).double() - exact).norm() / exact.norm())
        for promote in (2048, 512, 128)
    ]
    assert errors[0] > errors[1] > errors[2]
    assert errors[2] <= errors[0] / 8


@pytest.fixture(scope="module")
def worker():
    with Worker(lambda: dict(os.environ), "cuda:0", 2) as found:
        yield found


FINE = [name for name in FORMS if "highest" in SCHEMES[FORMS[name].scheme].settings]


@pytest.mark.parametrize("setting", ["highest", "strict"])
def test_judge_passes_what_the_table_allows(worker, tmp_path, setting):
    """The gate of the search, with all its classes of inputs, on each form for fp32."""
    builder = Builder()
    task = builder.task(builder.gelu(builder.linear(K, N)))
    target = targets.detect(torch.device("cuda", 0))
    numerics = Numerics(setting, fp16_reduced=False, bf16_reduced=False, deterministic=False)
    failed = []
    for name in FINE:
        schedule = dataclasses.replace(FORMS[name], promote=min(FORMS[name].promote, 64))
        if setting not in SCHEMES[schedule.scheme].settings:
            continue
        candidate = generator.emit(task, schedule, (M,), target, numerics)
        request = Request(
            task,
            (M,),
            point(task, (M,)),
            candidate,
            target,
            numerics,
            "default",
            "{}",
            "search",
            str(tmp_path),
            False,
            300.0,
            None,
        )
        verdict = worker.evaluate(request, 300.0).verdict
        if verdict.status is not Status.PASSED:
            failed.append(f"{name}: {verdict.status} {verdict.where} {verdict.evidence[:300]}")
    assert not failed, "\n".join(failed)


@pytest.mark.parametrize("setting", ["highest", "strict", "high", "medium", "mixed"])
def test_first_schedules_of_each_setting_pass_the_judge(worker, tmp_path, setting):
    builder = Builder()
    task = builder.task(builder.gelu(builder.linear(K, N)))
    target = targets.detect(torch.device("cuda", 0))
    assert target is not None
    numerics = Numerics(setting, fp16_reduced=False, bf16_reduced=False, deterministic=False)
    found = []
    for schedule in generator.space(task, (M,), target, numerics)[:4]:
        candidate = generator.emit(task, schedule, (M,), target, numerics)
        request = Request(
            task,
            (M,),
            point(task, (M,)),
            candidate,
            target,
            numerics,
            "default",
            "{}",
            "search",
            str(tmp_path),
            False,
            300.0,
            None,
        )
        verdict = worker.evaluate(request, 300.0).verdict
        found.append(f"{schedule}: {verdict.status} {verdict.where} {verdict.evidence[:300]}")
    assert any(str(Status.PASSED) in words for words in found), "\n".join(found)
