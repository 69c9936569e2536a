"""What the adversarial set is made of: a candidate for a task, the verdict it must get, and the rules that alone catch it."""

from __future__ import annotations

from dataclasses import dataclass, field, replace

from kforge_dynamo.records.candidate import Buffer, Candidate, Launch, LaunchPlan
from kforge_dynamo.records.outcome import Status
from kforge_dynamo.records.target import Numerics, Peak, Target
from kforge_dynamo.records.task import AxisRange, Const, Domain, InputRole, InputSpec, Task, point
from tests.sandbox.sandbox_tasks import CPU, HIGHEST, Builder, gelu, linear, minus_own_mean, relu_mask, row_max, softmax

ROWS = 37
DETERMINISTIC = Numerics("highest", False, False, True)
SLOW = Target("cpu", "test", "test cpu", "avx2", 2, None, None, (), (Peak("memory_bytes_per_s", 1.0, "byte/s", "test"),))
"""A device that moves one byte a second: whatever was timed on it cannot have been."""
PASS = (Status.PASSED,)


@dataclass(frozen=True)
class Case:
    """`statuses` are the verdicts that are right (several where memory decides which comes first), `words` what the evidence must
    hold. `alone` names the rules of `Guards` without which, each by itself, the candidate would pass: nothing else catches it.
    `row` is the number in the catalogue of reward hacks, None for one of our own."""

    name: str
    task: Task
    candidate: Candidate
    statuses: tuple[Status, ...]
    words: str = ""
    alone: tuple[str, ...] = ()
    row: int | None = None
    rows: int = ROWS
    numerics: Numerics = HIGHEST
    target: Target = CPU
    stage: str = "search"
    domain: Domain | None = None
    timed: bool = False

    @property
    def sizes(self) -> tuple[int, ...]:
        return (self.rows,) if len(self.task.row_axes) == 1 else (2, self.rows)

    @property
    def where(self) -> Domain:
        return self.domain or point(self.task, self.sizes)


def upto(rows: int) -> Domain:
    return Domain((AxisRange("m", 1, rows),))


# tasks


def plain(k: int = 48, n: int = 64, dtype: str = "float32") -> Task:
    builder, product = linear(k, n, dtype)
    return builder.done(product)


def bare(k: int = 48, n: int = 64) -> Task:
    """A product alone."""
    builder, product = linear(k, n, bias=False)
    return builder.done(product)


def relu(k: int = 48, n: int = 64) -> Task:
    builder, product = linear(k, n)
    return builder.done(builder.op("relu", product))


def clamped(k: int = 48, n: int = 64) -> Task:
    """min(linear, 20): N(0, 1) never gets there."""
    builder, product = linear(k, n)
    return builder.done(builder.op("minimum", product, Const(20.0)))


def squashed(k: int = 48, n: int = 64) -> Task:
    """min(tanh(linear), 1): the clamp does nothing, and says so."""
    builder, product = linear(k, n)
    return builder.done(builder.op("minimum", builder.op("tanh", product), Const(1.0)))


def pitched(k: int = 48, n: int = 64) -> Task:
    """A linear layer whose rows lie apart."""
    task = plain(k, n)
    first = InputSpec(task.inputs[0].value, ("pitch", 1), InputRole.LHS)
    return replace(task, inputs=(first, *task.inputs[1:]))


def summed(k: int = 48, n: int = 64) -> Task:
    """sum over the columns of a linear layer: a matrix times a vector, by algebra."""
    builder, product = linear(k, n)
    return builder.done(builder.reduce("sum", product))


def logarithm(k: int = 48, n: int = 64) -> Task:
    """A product times the logarithm of an input."""
    builder = Builder()
    x = builder.input(("m",), (k,), InputRole.LHS)
    w = builder.input((1,), (k, n), InputRole.RHS)
    scale = builder.input(("m",), (n,))
    return builder.done(builder.op("mul", builder.gemm(x, w), builder.op("log", scale)))


PLAIN, BARE, RELU, GELU, CLAMPED, SQUASHED, PITCHED, SUMMED = (
    plain(),
    bare(),
    relu(),
    gelu(),
    clamped(),
    squashed(),
    pitched(),
    summed(),
)
MASKED, SOFTMAX, ROW_MAX, RELU_MASK, ZERO, LOGARITHM = (
    softmax(mask=True),
    softmax(),
    row_max(),
    relu_mask(),
    minus_own_mean(),
    logarithm(),
)
BF16, FP16 = plain(192, 64, "bfloat16"), plain(192, 64, "float16")
WIDE = plain(8, 64)

# C++

_HEAD = """#include <math.h>
#include <stdint.h>
#include <string.h>
{extra}
extern "C" __attribute__((visibility("default"))) void kforge_entry(void* const* inputs, void* const* outputs,
    void* const* buffers, const int64_t* sizes, const int64_t* strides, int threads) {{
  const float* x = (const float*)inputs[0];
  const float* w = (const float*)inputs[1];
  const float* bias = {bias};
  float* y = (float*)outputs[0];
  float* keep = {keep};
  const long m = sizes[0], xm = strides[0], xk = strides[1], wk = strides[3], wn = strides[4], bn = {step};
  (void)threads; (void)keep; (void)y; (void)bn; (void)wn; (void)wk; (void)xk; (void)xm; (void)bias; (void)w; (void)x;
  {body}
}}
"""
LOOP = """{before}
  for (long i = 0; i < m; ++i)
    for (long j = 0; j < {n}; ++j) {{
      double p = bias[j * bn];
      for (long k = 0; k < {k}; ++k) p += (double)({a}) * ({b});
      {store}
    }}
  {after}"""
STORE = "y[i * {n} + j] = (float)({value});"


def body(
    value: str = "p",
    *,
    before: str = "",
    after: str = "",
    a: str = "x[i * xm + k * xk]",
    b: str = "w[k * wk + j * wn]",
    store: str | None = None,
    k: int = 48,
    n: int = 64,
) -> str:
    """The loops of a linear layer that adds in fp64, with `value` of the product `p` stored for row i and column j."""
    text = (store or STORE).format(value=value, n=n)
    return LOOP.format(before=before, after=after, a=a, b=b, store=text, n=n, k=k)


def cpp(text: str, *, extra: str = "", buffer: str = "", bias: bool = True, **plan: object) -> Candidate:
    """A C++ candidate with this body of the entry; `buffer` is the size of its one buffer of floats."""
    buffers = (Buffer("keep", "float32", buffer),) if buffer else ()
    source = _HEAD.format(
        extra=extra,
        body=text if bias else text.replace("double p = bias[j * bn]", "double p = 0"),
        keep="(float*)buffers[0]" if buffer else "nullptr",
        bias="(const float*)inputs[2]" if bias else "x",
        step="strides[6]" if bias else "0",
    )
    scheme = str(plan.pop("scheme", "ieee"))
    launches = (Launch("kforge_entry", ("1",), ()),)
    return Candidate("cpp", source, LaunchPlan(buffers, launches, **plan), "", scheme, "test")  # type: ignore[arg-type]


# functions of this process


@dataclass
class Plants:
    """Launchers by name, for what has to know the truth, or needs a language that runs torch."""

    by_name: dict[str, object] = field(default_factory=dict)

    def __call__(self, function):
        self.by_name[function.__name__] = function
        return function


PLANTS = Plants()


def plant(function, language: str = "plant", **plan: object) -> Candidate:
    """A candidate whose launcher is a function `(task, bench, inputs, outputs, sizes)`."""
    PLANTS(function)
    return Candidate(language, function.__name__, LaunchPlan((), (), **plan), "", "ieee", "test")  # type: ignore[arg-type]
