"""Tasks for `triton_space`: the forms and full sizes of GEMM epilogues that people benchmark, as task records."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

from triton_tasks import Builder

from kforge_dynamo.records.task import InputRole, Task


@dataclass(frozen=True)
class Case:
    """A task at sizes, the promise for fp32 operands, and the name it has in the table."""

    name: str
    task: Task
    sizes: tuple[int, ...]
    fp32: str = "highest"


def linear(k: int, n: int, dtype: str, follow: Callable[..., tuple[int, ...] | int], *extras: str) -> Task:
    """`follow(builder, product, *extras)`: "row" is an (M, N) extra, "column" an (N,), "scalar" a number, "mask" (M, N) bools."""
    builder = Builder()
    operands = builder.operands(k, n, dtype)
    made = []
    for extra in extras:
        cols, rows = ((1,) if extra == "scalar" else (n,)), (("m",) if extra in ("row", "mask") else (1,))
        made.append(builder.input(cols, "bool" if extra == "mask" else dtype, rows))
    outputs = follow(builder, builder.gemm(*operands), *made)
    return builder.task(*(outputs if isinstance(outputs, tuple) else (outputs,)))


def wide(b: Builder, x: int, function: Callable[[int], int]) -> int:
    """`function` in fp32, as Inductor's decompositions have it for half precision."""
    dtype = b.spec(x).dtype
    if dtype == "float32":
        return function(x)
    return b.op("convert", function(b.op("convert", x, dtype="float32")), dtype=dtype)


def leaky(b: Builder, x: int, slope: float) -> int:
    """leaky_relu."""
    return b.op("where", b.op("gt", x, 0.0, dtype="bool"), x, b.op("mul", x, slope))


def clamp(b: Builder, x: int, low: float, high: float) -> int:
    """clamp."""
    return b.op("minimum", b.op("maximum", x, low), high)


def cases(precisions: str) -> list[Case]:
    """In the order of what matters most, fp32 and bf16 side by side."""
    found = []
    for name, shape, follow, extras in TASKS:
        m, k, n = shape
        for dtype in ("float32", "bfloat16"):
            found.append(Case(f"{name} {m}x{k}x{n} {dtype[0]}{dtype[-2:]}", linear(k, n, dtype, follow, *extras), (m,)))
    for dtype in ("float32", "bfloat16"):
        found.append(Case(f"bmm softmax 64x512x64x512 {dtype[0]}{dtype[-2:]}", attention(dtype), (64, 512)))
    first = found[0]
    found[4:4] = [replace(first, name=f"{first.name} {fp32}", fp32=fp32) for fp32 in ("high", "mixed")]
    return [replace(case, fp32=precisions) for case in found] if precisions != "highest" else found


def attention(dtype: str) -> Task:
    """Scaled scores and their softmax."""
    b = Builder("b", "m")
    q = b.input((64,), dtype, ("b", "m"), role=InputRole.LHS)
    k = b.input((64, 512), dtype, ("b", 1), ("dense", 0, 1, "dense"), InputRole.RHS)
    return b.task(wide(b, b.gemm(q, k, alpha=0.125), b.softmax))


def _batch_norm(b: Builder, x: int) -> int:
    return wide(b, x, lambda v: b.normalised(v, "rows"))


TASKS: list[tuple[str, tuple[int, int, int], Callable[..., Any], tuple[str, ...]]] = [
    ("86 gelu", (1024, 8192, 8192), lambda b, x: wide(b, b.op("mul", x, 0.1), b.gelu), ()),
    ("22 lse mish", (1024, 8192, 8192),
     lambda b, x: wide(b, x, lambda v: b.op("mul", b.logsumexp(clamp(b, b.op("mul", v, 4.0), -10.0, 10.0)), 0.5)), ()),
    ("37 silu bias gn64", (32768, 1024, 4096),
     lambda b, x, c: wide(b, b.op("add", b.silu(x), c), lambda v: b.group_norm(v, 64)), ("column",)),
    ("40 residual", (16384, 4096, 4096), lambda b, x: b.op("add", b.op("mul", x, 0.5), x), ()),
    ("59 silu small M", (128, 32768, 32768), lambda b, x: b.op("mul", b.silu(x), 2.0), ()),
    ("30 gn16 hardtanh", (1024, 8192, 8192), lambda b, x: clamp(b, wide(b, x, lambda v: b.group_norm(v, 16)), -2.0, 2.0), ()),
    ("99 gelu softmax", (1024, 8192, 8192), lambda b, x: wide(b, wide(b, x, b.gelu), b.softmax), ()),
    ("41 bn gelu relu", (16384, 4096, 4096), lambda b, x: b.op("relu", wide(b, _batch_norm(b, x), b.gelu)), ()),
    ("28 norm add mul", (1024, 8192, 8192),
     lambda b, x, y: b.op("mul", b.op("add", wide(b, x, lambda v: b.normalised(v, (0,))), y), y), ("row",)),
    ("55 maxpool sum", (128, 32768, 32768),
     lambda b, x: b.reduce("sum", b.reshape(b.reduce("amax", b.reshape(x, 16384, 2), (1,)), 16384), (0,)), ()),
    ("66 dropout softmax", (128, 16384, 16384),
     lambda b, x, k: wide(b, b.op("where", k, b.op("mul", x, 1.25), 0.0), b.softmax), ("mask",)),
    ("88 gn256 silu", (1024, 8192, 8192),
     lambda b, x, c: b.silu(b.op("mul", b.silu(wide(b, x, lambda v: b.group_norm(v, 256))), c)), ("column",)),
    ("84 bn softmax", (1024, 8192, 8192), lambda b, x, s: wide(b, b.op("mul", _batch_norm(b, x), s), b.softmax), ("scalar",)),
    ("29 mish mish", (1024, 8192, 8192), lambda b, x: wide(b, wide(b, x, b.mish), b.mish), ()),
    ("relu", (128, 1024, 512), lambda b, x: b.op("relu", x), ()),
    ("max index", (2048, 1024, 4096), lambda b, x: (b.reduce("amax", x, (0,)), b.reduce("argmax", x, (0,))), ()),
    ("decode silu", (1, 4096, 11008), lambda b, x: b.silu(x), ()),
    ("decode norm", (16, 4096, 4096), lambda b, x, r: wide(b, b.op("add", x, r), lambda v: b.normalised(v, (0,))), ("row",)),
    ("63 relu", (2048, 8192, 8192), lambda b, x: b.op("mul", b.op("relu", x), 0.5), ()),
    ("12 leaky", (1024, 8192, 8192), lambda b, x: leaky(b, b.op("mul", x, 2.0), 0.1), ()),
]  # fmt: skip
