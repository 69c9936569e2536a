"""A CPU's ceiling is an upper bound: it refuses a kernel that remembers instead of computing, and no honest one."""

from __future__ import annotations

import time

import pytest
import torch
from python_language import candidate
from sandbox_checks import bench_of, eager
from sandbox_tasks import HIGHEST, gelu

from kforge_dynamo.records.outcome import Status
from kforge_dynamo.records.request import Request
from kforge_dynamo.records.task import point
from kforge_dynamo.sandbox.race import Rivals, race
from kforge_dynamo.sandbox.timing import roofline_us
from kforge_dynamo.semantics.cost import gemm_flops
from kforge_dynamo.targets import detect

ROWS = 64
TASK = gelu(k=32768)


@pytest.fixture(scope="module")
def bench():
    return bench_of(TASK)


def raced(bench, launcher, tmp_path):
    target = detect(torch.device("cpu"))
    if target.peak("fp32_flops") is None:
        pytest.skip("nothing is known of this CPU's cores")
    domain = point(TASK, (ROWS,))
    request = Request(
        TASK, (ROWS,), domain, candidate(""), target, HIGHEST, "default", "{}", "search", str(tmp_path), True, 60.0, None
    )

    def region(inputs):
        outputs = [torch.empty(ROWS, 64)]
        eager(TASK)(inputs, outputs, (ROWS,))
        return outputs

    return race(request, launcher, bench, Rivals(region, None, ()))


def test_kernel_that_remembers_its_outputs_is_too_fast(bench, tmp_path):
    known = {}

    def remembers(inputs, outputs, sizes):
        key = inputs[0].data_ptr()
        if key not in known:
            eager(TASK)(inputs, outputs, sizes)
            known[key] = outputs[0].clone()
        outputs[0].copy_(known[key])

    verdict, timings = raced(bench, remembers, tmp_path)
    assert verdict is not None and verdict.status is Status.TOO_FAST and timings == ()
    assert "below the roofline" in verdict.evidence


def test_honest_kernel_is_timed(bench, tmp_path):
    verdict, timings = raced(bench, eager(TASK), tmp_path)
    assert verdict is None and timings[0].candidate.median_us > 0


def test_library_s_product_stays_below_the_ceiling():
    """The claim behind the bound, on whatever CPU this is: the best of many runs of torch's own GEMM."""
    target = detect(torch.device("cpu"))
    peak = target.peak("fp32_flops")
    if peak is None:
        pytest.skip("nothing is known of this CPU's cores")
    x, w = torch.randn(256, 512), torch.randn(512, 512)
    best_s = min(_seconds(x, w) for _ in range(50))
    assert 2 * 256 * 512 * 512 / best_s < peak


def _seconds(x, w):
    start = time.perf_counter()
    torch.mm(x, w)
    return time.perf_counter() - start


def test_floor_of_a_cpu_is_its_work_over_the_fastest_unit():
    target = detect(torch.device("cpu"))
    rates = [peak.value for peak in target.peaks if peak.unit == "flop/s"]
    floor = roofline_us(TASK, (ROWS,), target)
    assert floor == (pytest.approx(gemm_flops(TASK, (ROWS,)) / max(rates) * 1e6) if rates else None)
    assert target.peak("memory_bytes_per_s") is None, "no bound on DRAM bounds what lies in a cache"
