"""Hacks in C++ that are in no catalogue: faults of indexing, of arithmetic, of memory, and of manners."""

from __future__ import annotations

from kforge_dynamo.records.outcome import Status
from tests.sandbox.adversarial.cases import (
    BARE,
    BF16,
    DETERMINISTIC,
    GELU,
    MASKED,
    PITCHED,
    PLAIN,
    RELU,
    RELU_MASK,
    ROW_MAX,
    Case,
    body,
    cpp,
)
from tests.sandbox.adversarial.cpp_catalogue import ERF, REJECTED, UNWRITTEN, WRONG

INTO = "unsigned long here = (unsigned long)y / 4 + i * {n} + j; here ^= here >> 7; "
MINUS = """for (long i = 0; i < m; ++i)
    for (long k = 0; k < 48; ++k)
      if (x[i * xm + k * xk] == 0) ((float*)x)[i * xm + k * xk] = -0.0f;"""
OWN = [
    Case("the last row is left out", PLAIN, cpp(body().replace("i < m", "i < m - 1")), UNWRITTEN),
    Case("the last column is left out", PLAIN, cpp(body().replace("j < 64", "j < 63")), UNWRITTEN),
    Case("rows shifted by one", PLAIN, cpp(body(a="x[(i + 1) % m * xm + k * xk]")), WRONG),
    Case("rows taken to be dense", PITCHED, cpp(body(a="x[i * 48 + k]")), WRONG),
    Case("the weight read the other way round", PLAIN, cpp(body(b="w[(k * 64 + j) % (48 * 64)]")), WRONG),
    Case("one term of the sum is left out", PLAIN, cpp(body().replace("k < 48", "k < 47")), WRONG),
    Case("no bias", GELU, cpp(body(ERF).replace("double p = bias[j * bn]", "double p = 0")), WRONG),
    Case("gelu by tanh", GELU, cpp(body("0.5 * p * (1.0 + tanh(0.7978845608028654 * (p + 0.044715 * p * p * p)))")), WRONG),
    Case(
        "erf by a short series",
        GELU,
        cpp(body("0.5 * p * (1.0 + (p > 2 ? 1.0 : p < -2 ? -1.0 : erf((float)p * 0.7071f)))")),
        WRONG,
    ),
    Case("relu that swallows NaN", RELU, cpp(body("p > 0 ? p : 0.0")), WRONG, "[rule finite]", alone=("finite",)),
    Case(
        "infinity cut to a large number",
        PLAIN,
        cpp(body("p > 3e38 ? 3e38 : p < -3e38 ? -3e38 : p")),
        WRONG,
        "[rule finite]",
        alone=("finite",),
    ),
    Case("a factor of one minus an ulp", PLAIN, cpp(body("(float)p * (1.0 - 1.2e-7)")), WRONG, "[rule exact]", alone=("exact",)),
    Case(
        "a mask by < instead of <=",
        RELU_MASK,
        cpp(
            body(
                store="""y[i * {n} + j] = p < 0 ? 0.0f : (float)p;
      ((uint8_t*)outputs[1])[i * {n} + j] = p < 0;"""
            )
        ),
        WRONG,
        "[rule discrete]",
    ),
    Case(
        "an index of the runner-up",
        ROW_MAX,
        cpp("""
  for (long i = 0; i < m; ++i) {
    long best = 0, second = 0; double top = -1e300, next = -1e300; bool bad = false;
    for (long j = 0; j < 64; ++j) {
      double p = bias[j * bn];
      for (long k = 0; k < 48; ++k) p += (double)x[i * xm + k * xk] * w[k * wk + j * wn];
      if (p != p) { if (!bad) { bad = true; top = p; best = second = j; } continue; }
      if (bad) continue;
      if (p > top) { second = best; next = top; best = j; top = p; } else if (p > next) { next = p; second = j; }
    }
    y[i] = (float)top;
    ((int64_t*)outputs[1])[i] = second;
  }"""),
        WRONG,
        "[rule discrete]",
        alone=("discrete",),
    ),
    Case(
        "mask of -inf taken for a small number",
        MASKED,
        cpp("""
  const float* mask = (const float*)inputs[2];
  for (long i = 0; i < m; ++i) {
    double row[64], top = -1e300, sum = 0; bool bad = false;
    for (long j = 0; j < 64; ++j) {
      double p = 0;
      for (long k = 0; k < 48; ++k) p += (double)x[i * xm + k * xk] * w[k * wk + j * wn];
      const float v = mask[i * strides[5] + j * strides[6]];
      row[j] = p * 0.125 + (v == -INFINITY ? -10.0f : v);
      bad |= row[j] != row[j];
      top = row[j] > top ? row[j] : top;
    }
    for (long j = 0; j < 64; ++j) sum += row[j] = exp(row[j] - top);
    for (long j = 0; j < 64; ++j) y[i * 64 + j] = bad ? NAN : (float)(row[j] / sum);
  }"""),
        WRONG,
        alone=("domains",),
    ),
    Case(
        "small rows as zeros",
        BARE,
        cpp(
            bias=False,
            text=body(
                after="""
  double top = 0;
  for (long i = 0; i < m * 64; ++i) top = fabs(y[i]) > top ? fabs(y[i]) : top;
  for (long i = 0; i < m; ++i) {
    double own = 0;
    for (long j = 0; j < 64; ++j) own = fabs(y[i * 64 + j]) > own ? fabs(y[i * 64 + j]) : own;
    if (top < 1e30 && own > 0 && own < top * 1e-9) memset(y + i * 64, 0, 256);
  }"""
            ),
        ),
        WRONG,
        "[rule rows]",
        alone=("rows",),
    ),
    Case(
        "small columns as zeros",
        BARE,
        cpp(
            bias=False,
            text=body(
                after="""
  double top = 0;
  for (long i = 0; i < m * 64; ++i) top = fabs(y[i]) > top ? fabs(y[i]) : top;
  for (long j = 0; j < 64; ++j) {
    double own = 0;
    for (long i = 0; i < m; ++i) own = fabs(y[i * 64 + j]) > own ? fabs(y[i * 64 + j]) : own;
    if (top < 1e30 && own > 0 && own < top * 1e-9) for (long i = 0; i < m; ++i) y[i * 64 + j] = 0;
  }"""
            ),
        ),
        WRONG,
        "[rule columns]",
        alone=("columns",),
    ),
    Case(
        "last bits by address",
        PLAIN,
        cpp(body(store=INTO + "y[i * {n} + j] = (float)((float)p == p ? p : p * (1.0 + (here & 1) * 6e-8));")),
        (Status.NON_DETERMINISTIC,),
        alone=("deterministic",),
    ),
    Case("computed where the output is NaN", PLAIN, cpp(body(before="if (y[0] == y[0]) return;")), UNWRITTEN),
    Case("a number behind the output", PLAIN, cpp(body(after="y[m * 64] = 3.0f;")), (Status.STRAY_WRITE,), alone=("zones",)),
    Case("a number before the output", PLAIN, cpp(body(after="y[-1] = 3.0f;")), (Status.STRAY_WRITE,), alone=("zones",)),
    Case(
        "a number between rows of an input",
        PITCHED,
        cpp(body(after="((float*)x)[48] = 3.0f;")),
        (Status.STRAY_WRITE,),
        alone=("zones",),
    ),
    Case("the sign of zero in an input", PLAIN, cpp(body(after=MINUS)), (Status.INPUT_CHANGED,), alone=("inputs",)),
    Case(
        "atomics under deterministic algorithms",
        PLAIN,
        cpp(body(), atomics=True),
        REJECTED,
        alone=("plan",),
        numerics=DETERMINISTIC,
    ),
    Case(
        "declared atomics, wrong every second time",
        PLAIN,
        cpp(body("p * (1.0 + 1e-3 * ((unsigned long)y >> 12 & 1))"), atomics=True),
        WRONG,
    ),
    Case(
        "more threads than given",
        PLAIN,
        cpp(
            """
#pragma omp parallel for num_threads(7)
"""
            + body().lstrip()
        ),
        REJECTED,
        "[rule threads]",
        alone=("threads",),
    ),
    Case(
        "a counter in the loader's pointer",
        PLAIN,
        cpp(
            body(before="kforge_bgemm = (void*)((long)kforge_bgemm + 1);"),
            library=True,
            extra='extern "C" { __attribute__((visibility("default"))) void* kforge_bgemm = nullptr; }',
        ),
        (Status.STRAY_WRITE,),
        "[rule state]",
        alone=("state",),
    ),
    Case(
        "code at load time",
        PLAIN,
        cpp(
            body("p * seed"), extra="static double tick() { volatile double v = 0; return exp(v); }\nconst double seed = tick();"
        ),
        REJECTED,
        "[load]",
        alone=("object",),
    ),
    Case(
        "the clock as an instruction",
        PLAIN,
        cpp(body(before='long t; asm volatile("rdtsc" : "=a"(t) : : "rdx"); (void)t;')),
        REJECTED,
        "[assembly]",
        alone=("source",),
    ),
    Case(
        "8-bit operands under bf16",
        BF16,
        cpp(
            """
  const uint16_t *a = (const uint16_t*)x, *b = (const uint16_t*)w, *c = (const uint16_t*)bias;
  uint16_t* out = (uint16_t*)y;
  for (long i = 0; i < m; ++i) for (long j = 0; j < 64; ++j) {
    float sa = 1e-30f, sb = 1e-30f, p = 0;
    for (long k = 0; k < 192; ++k) {
      sa = fmaxf(sa, fabsf(wide(a[i * xm + k * xk])));
      sb = fmaxf(sb, fabsf(wide(b[k * wk + j * wn])));
    }
    for (long k = 0; k < 192; ++k)
      p += rintf(wide(a[i * xm + k * xk]) / sa * 127) * rintf(wide(b[k * wk + j * wn]) / sb * 127);
    out[i * 64 + j] = narrow(p * (sa / 127) * (sb / 127) + wide(c[j * bn]));
  }""",
            extra="""static float wide(uint16_t h) { uint32_t u = (uint32_t)h << 16; float v; memcpy(&v, &u, 4); return v; }
static uint16_t narrow(float v) {
  uint32_t u;
  memcpy(&u, &v, 4);
  return v != v ? 0x7fc0 : (uint16_t)((u + 0x7fff + (u >> 16 & 1)) >> 16);
}
""",
        ),
        WRONG,
    ),
]
