"""One worked example a language, source and launch plan: what a writer of kernels, person or model, starts from.

Each computes `relu(x @ w + bias)` for x (m, 96), w (96, 64), bias (64); a test judges both as any candidate is judged.
"""

from __future__ import annotations

from dataclasses import dataclass

from kforge_dynamo.records.candidate import Launch, LaunchPlan
from kforge_dynamo.records.task import InputRole, InputSpec, Node, Task, ValueSpec


@dataclass(frozen=True, slots=True)
class Example:
    """`rules` say how a kernel of the language is called; `fence` is the word that stands at its block of code."""

    language: str
    fence: str
    rules: tuple[str, ...]
    source: str
    plan: LaunchPlan


def _task() -> Task:
    row, weight, bias = (
        ValueSpec("float32", ("m",), (96,)),
        ValueSpec("float32", (1,), (96, 64)),
        ValueSpec("float32", (1,), (64,)),
    )
    inputs = (
        InputSpec(row, ("dense", 1), InputRole.LHS),
        InputSpec(weight, (0, "dense", 1), InputRole.RHS),
        InputSpec(bias, (0, 1), InputRole.EXTRA),
    )
    out = ValueSpec("float32", ("m",), (64,))
    nodes = (Node("gemm", (0, 1, 2), (("alpha", 1.0), ("beta", 1.0)), out), Node("relu", (3,), (), out))
    return Task(("m",), (), inputs, nodes, (4,))


TASK = _task()
"""What the examples compute."""

_CPP = """#include <stdint.h>

constexpr int K = 96, N = 64, R = 4;  // R rows share each load of the weight

// sizes: one a row axis. strides: those of all inputs, dimension by dimension, in elements:
// x (m, K) has 0 and 1; w (1, K, N) has 2, 3, 4; bias (1, N) has 5, 6.
extern "C" __attribute__((visibility("default"))) void kforge_entry(
    void* const* inputs, void* const* outputs, void* const* buffers, const int64_t* sizes, const int64_t* strides, int threads) {
  const float *x = (const float*)inputs[0], *w = (const float*)inputs[1], *bias = (const float*)inputs[2];
  float* y = (float*)outputs[0];
  const int64_t m = sizes[0], pitch = strides[0], along_k = strides[3], along_n = strides[4];
#pragma omp parallel for num_threads(threads) schedule(static)
  for (int64_t first = 0; first < m; first += R) {
    const int rows = (int)(m - first < R ? m - first : R);
    float sum[R][N] = {};
    for (int k = 0; k < K; ++k)
      for (int r = 0; r < rows; ++r)
        for (int n = 0; n < N; ++n) sum[r][n] += x[(first + r) * pitch + k] * w[k * along_k + n * along_n];
    for (int r = 0; r < rows; ++r)
      for (int n = 0; n < N; ++n) {
        const float v = sum[r][n] + bias[n];
        y[(first + r) * N + n] = v < 0.0f ? 0.0f : v;  // a NaN stays a NaN, as in torch
      }
  }
}
"""

_TRITON = """import triton
import triton.language as tl


@triton.jit
def linear_relu(x, w, bias, y, m, pitch, along_k, along_n, N: tl.constexpr, K: tl.constexpr,
                BM: tl.constexpr, BN: tl.constexpr, BK: tl.constexpr):
    rows = tl.program_id(0) * BM + tl.arange(0, BM)
    cols = tl.program_id(1) * BN + tl.arange(0, BN)
    far = rows.to(tl.int64)
    acc = tl.zeros((BM, BN), dtype=tl.float32)
    for start in range(0, K, BK):
        ks = start + tl.arange(0, BK)
        a = tl.load(x + far[:, None] * pitch + ks[None, :], mask=(rows[:, None] < m) & (ks[None, :] < K), other=0.0)
        b = tl.load(w + ks[:, None] * along_k + cols[None, :] * along_n,
                    mask=(ks[:, None] < K) & (cols[None, :] < N), other=0.0)
        acc = tl.dot(a, b, acc, input_precision="ieee")
    acc += tl.load(bias + cols, mask=cols < N, other=0.0)[None, :]
    acc = tl.where(acc < 0.0, 0.0, acc)
    tl.store(y + far[:, None] * N + cols[None, :], acc, mask=(rows[:, None] < m) & (cols[None, :] < N))
"""

EXAMPLES: dict[str, Example] = {
    "cpp": Example(
        "cpp",
        "cpp",
        (
            'One function, extern "C" void kforge_entry, does everything; it is visible, as in the example (all else is hidden).',
            "Halves come as uint16_t, indices as int64_t, booleans as one byte.",
            "Use at most `threads` threads, by OpenMP. GCC vector extensions and immintrin.h are there; compiled with "
            "-O3 -march=native -ffp-contract=fast.",
            "Scratch memory comes from `buffers` of the plan, in its order; nothing is kept between calls.",
        ),
        _CPP,
        LaunchPlan((), (Launch("kforge_entry", ("1",), ()),)),
    ),
    "triton": Example(
        "triton",
        "python",
        (
            "Only @triton.jit functions; no host code. The launch plan says what is started, with which grid and arguments.",
            "Arguments of a launch, in the order of the parameters: in:I, out:I, buf:NAME are pointers; size:EXPR an integer "
            "over the axes; stride:I:D the stride of dimension D of input I. Keyword constants are the tl.constexpr parameters.",
            "A buffer of the plan is scratch memory of one call; launches run in order.",
        ),
        _TRITON,
        LaunchPlan(
            (),
            (
                Launch(
                    "linear_relu",
                    ("cdiv(m, 32)", "cdiv(64, 64)"),
                    ("in:0", "in:1", "in:2", "out:0", "size:m", "stride:0:0", "stride:1:1", "stride:1:2"),
                    (("BK", 32), ("BM", 32), ("BN", 64), ("K", 96), ("N", 64)),
                    num_warps=4,
                    num_stages=2,
                ),
            ),
        ),
    ),
}
"""By the language's name."""
