"""The judge on a CUDA device: both regimes of timing, and a device that a candidate has lost."""

from __future__ import annotations

import os
from dataclasses import replace

import pytest
import torch
from python_language import candidate
from sandbox_tasks import CPU, HIGHEST, gelu

from kforge_dynamo.records.outcome import Status
from kforge_dynamo.records.request import Request
from kforge_dynamo.records.task import point
from kforge_dynamo.sandbox.worker import Worker

pytestmark = [pytest.mark.gpu, pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")]

GPU = replace(CPU, kind="cuda", name="test gpu", arch="sm_90")
HONEST = """
def run(inputs, outputs, sizes):
    x, w, b = inputs
    p = torch.addmm(b.reshape(-1), x, w[0])
    torch.mul(p * 0.5, torch.erf(p * 0.7071067811865476) + 1.0, out=outputs[0])
"""
LOST = """
def run(inputs, outputs, sizes):
    index = torch.full((4,), 1 << 40, device="cuda")
    outputs[0].copy_(inputs[0].reshape(-1)[index].sum())
"""


@pytest.fixture(scope="module")
def worker():
    with Worker(lambda: dict(os.environ), "cuda:0", 2, "python_language:LANGUAGES") as found:
        yield found


def ask(worker, tmp_path, source, *, timed=False, rows=256, stage="search"):
    task = gelu(k=256, n=512)
    chosen = point(task, (rows,))
    request = Request(
        task, (rows,), chosen, candidate(source), GPU, HIGHEST, "default", "{}", stage, str(tmp_path), timed, 300.0, None
    )
    return worker.evaluate(request, 300.0)


def test_gpu_honest_candidate_is_timed_by_wall_and_by_replay(worker, tmp_path):
    trial = ask(worker, tmp_path, HONEST, timed=True)
    assert trial.verdict.status is Status.PASSED, trial.verdict
    regimes = {timings.regime: timings for timings in trial.timings}
    assert set(regimes) == {"wall", "replay"}
    assert regimes["replay"].candidate.median_us < regimes["wall"].candidate.median_us


def test_gpu_tf32_product_inaccurate(worker, tmp_path):
    source = HONEST.replace("    p = ", "    torch.backends.cuda.matmul.allow_tf32 = True\n    p = ")
    source += "    torch.backends.cuda.matmul.allow_tf32 = False\n"
    assert ask(worker, tmp_path, source).verdict.status is Status.INACCURATE


def test_gpu_lost_device_is_a_verdict_and_the_next_request_is_answered(worker, tmp_path):
    assert ask(worker, tmp_path, LOST).verdict.status is Status.RUNTIME_ERROR
    assert ask(worker, tmp_path, HONEST).verdict.status is Status.PASSED


def test_gpu_sampled_rows_of_a_large_product(worker, tmp_path):
    """Above 2^33 FLOP the oracle covers sampled rows, eager all."""
    assert ask(worker, tmp_path, HONEST, rows=40_000).verdict.status is Status.PASSED
    spoilt = HONEST + "    outputs[0][12345].mul_(1.001)\n"
    assert ask(worker, tmp_path, spoilt, rows=40_000).verdict.status is Status.INACCURATE
