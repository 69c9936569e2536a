"""Honest kernels of every kind: each must pass, with all rules on."""

from __future__ import annotations

from kforge_dynamo.records.outcome import Status
from kforge_dynamo.records.target import Numerics
from kforge_dynamo.sandbox.precision import round_to_tf32
from tests.sandbox.adversarial.cases import (
    BF16,
    GELU,
    LOGARITHM,
    PITCHED,
    PLAIN,
    SOFTMAX,
    SQUASHED,
    SUMMED,
    Case,
    body,
    cpp,
    plant,
    upto,
)
from tests.sandbox.adversarial.cpp_catalogue import ERF
from tests.sandbox.adversarial.plants import eager, exact
from tests.sandbox.sandbox_tasks import attention_scores, batch_norm, layer_norm

PASSED = (Status.PASSED,)
HIGH = Numerics("high", False, False, False)
LANES = """
  for (long i = 0; i < m; ++i)
    for (long j = 0; j < 64; ++j) {
      float lane[8] = {};
      for (long k = 0; k < 48; ++k) lane[k & 7] += x[i * xm + k * xk] * w[k * wk + j * wn];
      const float p = ((lane[0] + lane[1]) + (lane[2] + lane[3])) + ((lane[4] + lane[5]) + (lane[6] + lane[7])) + bias[j * bn];
      y[i * 64 + j] = p;
    }"""
SPLIT = LANES.replace(
    "lane[k & 7] += x[i * xm + k * xk] * w[k * wk + j * wn];",
    """{
        const float a = x[i * xm + k * xk], b = w[k * wk + j * wn];
        const float a0 = near(a), b0 = near(b);
        const float a1 = near(a - a0), b1 = near(b - b0);
        if (!(fabsf(a) < INFINITY && fabsf(b) < INFINITY)) { lane[k & 7] += a * b; continue; }
        lane[k & 7] += a0 * b1 + a1 * b0;
        lane[k & 7] += a0 * b0;
      }""",
)
NEAR = """static float near(float v) {
  unsigned u;
  memcpy(&u, &v, 4);
  u = (u + 0x0fff + (u >> 13 & 1)) & 0xffffe000u;
  float r;
  memcpy(&r, &u, 4);
  return v != v ? v : r;
}"""
GEMM = """
  const int one_row = 64, depth = 48, rows = (int)m, right = (int)wn, left = (int)xm;  // the weight lies as (N, K)
  const float alpha = 1, beta = 0;
  kforge_sgemm("T", "N", &one_row, &rows, &depth, &alpha, w, &right, x, &left, &beta, y, &one_row);
  for (long i = 0; i < m; ++i) for (long j = 0; j < 64; ++j) y[i * 64 + j] += bias[j * bn];"""
SGEMM = """typedef void Sgemm(const char*, const char*, const int*, const int*, const int*, const float*, const float*,
                   const int*, const float*, const int*, const float*, float*, const int*);
extern "C" { __attribute__((visibility("default"))) Sgemm* kforge_sgemm = nullptr; }"""
ONLINE = """
  for (long i = 0; i < m; ++i) {
    float row[64], top = -INFINITY, sum = 0;
    for (long j = 0; j < 64; ++j) {
      float lane[4] = {};
      for (long k = 0; k < 48; ++k) lane[k & 3] += x[i * xm + k * xk] * w[k * wk + j * wn];
      row[j] = ((lane[0] + lane[1]) + (lane[2] + lane[3])) * 0.125f;
      const float next = row[j] > top || row[j] != row[j] ? row[j] : top;
      sum = sum * expf(top - next) + expf(row[j] - next);
      top = next;
    }
    for (long j = 0; j < 64; ++j) y[i * 64 + j] = expf(row[j] - top) / sum;
  }"""
ATOMIC = """
  for (long i = 0; i < m * 64; ++i) y[i] = bias[i % 64 * bn];
#pragma omp parallel for num_threads(threads)
  for (long part = 0; part < 4; ++part)
    for (long i = 0; i < m; ++i)
      for (long j = 0; j < 64; ++j) {
        float sum = 0;
        for (long k = part * 12; k < part * 12 + 12; ++k) sum += x[i * xm + k * xk] * w[k * wk + j * wn];
#pragma omp atomic
        y[i * 64 + j] += sum;
      }"""
WEIGHT_FIRST = """
  for (long k = 0; k < 48; ++k) { keep[k] = 0; for (long j = 0; j < 64; ++j) keep[k] += w[k * wk + j * wn]; }
  float rest = 0;
  for (long j = 0; j < 64; ++j) rest += bias[j * bn];
  for (long i = 0; i < m; ++i) {
    float lane[4] = {};
    bool finite = true;
    for (long k = 0; k < 48; ++k) {
      lane[k & 3] += x[i * xm + k * xk] * keep[k];
      finite &= fabsf(x[i * xm + k * xk]) < INFINITY;
    }
    for (long j = 0; j < 64 && !finite; ++j) {  // a row that is not finite, by the whole product
      float p = bias[j * bn];
      for (long k = 0; k < 48; ++k) p += x[i * xm + k * xk] * w[k * wk + j * wn];
      lane[3] = j ? lane[3] + p : p;
    }
    if (!finite) { y[i] = lane[3]; continue; }
    y[i] = (lane[0] + lane[1]) + (lane[2] + lane[3]) + rest;
  }"""
HALVES = """
  const uint16_t *a = (const uint16_t*)x, *b = (const uint16_t*)w, *c = (const uint16_t*)bias;
  for (long i = 0; i < m; ++i)
    for (long j = 0; j < 64; ++j) {
      float p = wide(c[j * bn]);
      for (long k = 0; k < 192; ++k) p += wide(a[i * xm + k * xk]) * wide(b[k * wk + j * wn]);
      uint32_t u;
      memcpy(&u, &p, 4);
      ((uint16_t*)y)[i * 64 + j] = p != p ? 0x7fc0 : (uint16_t)((u + 0x7fff + (u >> 16 & 1)) >> 16);
    }"""
WIDEN = "static float wide(uint16_t h) { uint32_t u = (uint32_t)h << 16; float v; memcpy(&v, &u, 4); return v; }"
TEAM = "\n#pragma omp parallel for num_threads(threads)\n"
IN_PLACE = "for (long i = 0; i < m * 64; ++i) { const double p = y[i]; y[i] = (float)(" + ERF + "); }"


def in_fp64(task, bench, inputs, outputs, sizes):
    exact(task, inputs, outputs, sizes)


def backwards(task, bench, inputs, outputs, sizes):
    """Sums in the opposite order."""
    eager(task, [inputs[0].flip(-1), inputs[1].flip(-2), *inputs[2:]], outputs, sizes)


def tf32_operands(task, bench, inputs, outputs, sizes):
    eager(task, [round_to_tf32(inputs[0]), round_to_tf32(inputs[1]), *inputs[2:]], outputs, sizes)


REDUCTION = plant(backwards)
CONTROLS = [
    Case("sums in eight lanes", PLAIN, cpp(LANES), PASSED),
    Case("operands in two parts of 11 bits", PLAIN, cpp(SPLIT, extra=NEAR, scheme="tf32x3"), PASSED),
    Case("declared atomics", PLAIN, cpp(ATOMIC, atomics=True), PASSED),
    Case("the library's GEMM, declared", PLAIN, cpp(GEMM, extra=SGEMM, library=True), PASSED, timed=True),
    Case("a sum turned into a product with a vector", SUMMED, cpp(WEIGHT_FIRST, buffer="48"), PASSED, row=22),
    Case("online softmax in fp32", SOFTMAX, cpp(ONLINE, bias=False), PASSED),
    Case("an epilogue in place", GELU, cpp(body(after=IN_PLACE)), PASSED),
    Case("bf16 operands, fp32 accumulator", BF16, cpp(HALVES, extra=WIDEN), PASSED),
    Case("a team of the threads given", PLAIN, cpp(TEAM + body().lstrip()), PASSED, timed=True),
    Case("a constant table", PLAIN, cpp(body("p * ONE[j & 1]"), extra="static const double ONE[2] = {1.0, 1.0};"), PASSED),
    Case("rows apart", PITCHED, cpp(body()), PASSED),
    Case("a whole domain", GELU, cpp(body(ERF)), PASSED, stage="final", domain=upto(40)),
    Case("an equivalent clamp left out", SQUASHED, cpp(body("tanh(p)")), PASSED, "equivalent"),
    Case("a logarithm, in its domain", LOGARITHM, plant(in_fp64), PASSED),
    Case("layer norm, sums reordered", layer_norm(), REDUCTION, PASSED),
    Case("batch norm, sums reordered", batch_norm(), REDUCTION, PASSED),
    Case("attention scores, sums reordered", attention_scores(), REDUCTION, PASSED),
    Case("tf32 operands under high", PLAIN, plant(tf32_operands), PASSED, numerics=HIGH),
]
