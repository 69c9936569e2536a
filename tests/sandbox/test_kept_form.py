"""A winner whose preparation of weights is kept runs in two halves: kernels that are right as a whole and wrong in halves."""

import os
from dataclasses import replace

import pytest
from sandbox_tasks import CPU, HIGHEST, gelu

from kforge_dynamo.records.candidate import Buffer, Candidate, Launch, LaunchPlan
from kforge_dynamo.records.outcome import Status
from kforge_dynamo.records.request import Request
from kforge_dynamo.records.task import AxisRange, Domain
from kforge_dynamo.sandbox.worker import Worker

K, N, MOST = 48, 64, 1 << 14
_ARGS = "(void* const* inputs, void* const* outputs, void* const* buffers, const int64_t* sizes, const int64_t* strides, int n)"
_DOOR = 'extern "C" __attribute__((visibility("default"))) void'
BUFFERS = ("buf:packed", "buf:memo")
PLAN = LaunchPlan(
    (Buffer("packed", "float32", str(K * N)), Buffer("memo", "float32", str(MOST))),
    (
        Launch("kforge_pack", ("1",), ("in:1", *BUFFERS), weights_only=True),
        Launch("kforge_entry", ("1",), ("in:0", "in:1", "in:2", "out:0", *BUFFERS)),
    ),
)


def kernel(early: str = "", late: str = "", layout: str = "1") -> str:
    """gelu(x @ w + bias): the weight is packed as rows of `w` where `layout` holds, else as columns."""
    return f"""#include <stdint.h>
#include <math.h>
{_DOOR} kforge_pack{_ARGS} {{
  const float* w = (const float*)inputs[1];
  for (int k = 0; k < {K}; ++k)
    for (int j = 0; j < {N}; ++j)
      ((float*)buffers[0])[({layout}) ? k * {N} + j : j * {K} + k] = w[k * strides[3] + j * strides[4]];
  ((float*)buffers[1])[{MOST - 1}] = -1.0f;
}}
{_DOOR} kforge_entry{_ARGS} {{
  const float* x = (const float*)inputs[0];
  const float* p = (const float*)buffers[0];
  const float* bias = (const float*)inputs[2];
  float* memo = (float*)buffers[1];
  float* o = (float*)outputs[0];
  (void)memo;
  {early}
  for (int64_t m = 0; m < sizes[0]; ++m)
    for (int j = 0; j < {N}; ++j) {{
      double t = 0;
      for (int k = 0; k < {K}; ++k) t += (double)x[m * strides[0] + k] * (double)p[({layout}) ? k * {N} + j : j * {K} + k];
      t = (double)(float)(t + (double)bias[j * strides[6]]);
      o[m * {N} + j] = (float)(0.5 * t * (1.0 + erf(0.7071067811865476 * t)));
    }}
  {late}
}}
"""


FULL = f"memo[{MOST - 1}] == (float)sizes[0]"
COPY = f"for (int64_t i = 0; i < sizes[0] * {N} && i < {MOST - 1}; ++i)"
MEMO = kernel(f"if ({FULL}) {{ {COPY} o[i] = memo[i]; return; }}", f"{COPY} memo[i] = o[i]; memo[{MOST - 1}] = (float)sizes[0];")
SIZES = kernel(layout="sizes[0] >= 16")


@pytest.fixture(scope="module")
def worker():
    with Worker(lambda: dict(os.environ), "cpu", 1) as found:
        yield found


def verdict(worker, folder, source, kept):
    task = gelu(K, N)
    candidate = Candidate("cpp", source, PLAN, "", "ieee", "test")
    rules, domain = replace(HIGHEST, kept=kept), Domain((AxisRange("m", 1, 80),))
    request = Request(task, (37,), domain, candidate, CPU, rules, "default", "{}", "final", str(folder), False, 240.0, None)
    return worker.evaluate(request, 245.0).verdict


def test_honest_kernel_passes_in_both_forms(worker, tmp_path):
    for kept in (False, True):
        found = verdict(worker, tmp_path, kernel(), kept)
        assert found.status is Status.PASSED, found.evidence


@pytest.mark.parametrize(("source", "words"), [(MEMO, "weights_only launches prepared"), (SIZES, "the outputs are others")])
def test_kernel_that_is_wrong_in_halves_alone_is_refused(worker, tmp_path, source, words):
    """One hands results of an earlier call over in a buffer that is kept; one packs for the sizes of the call that packs."""
    found = verdict(worker, tmp_path, source, True)
    assert found.status is Status.REJECTED and "[rule state]" in found.evidence and words in found.evidence
