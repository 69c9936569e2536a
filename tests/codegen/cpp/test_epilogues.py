"""Row programs: reductions over groups and rows, views, broadcasting, several outputs, several types."""

from __future__ import annotations

import pytest

from kforge_dynamo.codegen.cpp import Schedule
from kforge_dynamo.records.task import Task
from tests.codegen.cpp.building import Building
from tests.codegen.cpp.running import NONE, check

WHOLE = Schedule("library_whole", 16)


def softmax(b: Building, x: int) -> int:
    shifted = b.op("sub", x, b.reduce("amax", x, (0,)))
    powers = b.op("exp", shifted)
    return b.op("div", powers, b.reduce("sum", powers, (0,)))


def normalised(b: Building, x: int, axes: tuple[int, ...]) -> int:
    var, mean = b.reduce("var", x, axes, correction=0.0), b.reduce("mean", x, axes)
    return b.op("mul", b.op("sub", x, mean), b.op("rsqrt", b.op("add", var, 1e-5)))


def group_norm(b: Building, x: int, groups: int) -> int:
    (n,) = b.value(x).cols
    return b.reshape(normalised(b, b.reshape(x, groups, int(n) // groups), (1,)), int(n))


def gelu(b: Building, x: int) -> int:
    return b.op("mul", b.op("mul", x, 0.5), b.op("add", b.op("erf", b.op("mul", x, 0.7071067811865476)), 1.0))


def log_sum_exp(b: Building, x: int) -> int:
    top = b.reduce("amax", x, (0,))
    return b.op("add", b.op("log", b.reduce("sum", b.op("exp", b.op("sub", x, top)), (0,))), top)


def mish(b: Building, x: int) -> int:
    soft = b.op("where", b.op("gt", x, 20.0), x, b.op("log1p", b.op("exp", x)))
    return b.op("mul", x, b.op("tanh", soft))


@pytest.mark.parametrize("scale", [1.0, 40.0])
def test_row_reductions_after_a_product_match(scale):
    b = Building()
    x = b.linear(24, 100)
    task = b.task(
        softmax(b, gelu(b, x)),
        log_sum_exp(b, x),
        softmax(b, b.op("mul", x, 3.0)),
        mish(b, mish(b, x)),
        b.reduce("argmax", x, (0,)),
    )
    check(task, {"m": 45}, WHOLE, scale=scale)


def groups_task(sizes: tuple[tuple[int, int], ...]) -> Task:
    b = Building()
    inputs = [b.input((groups * size,)) for groups, size in sizes]
    found = [group_norm(b, x, groups) for x, (groups, _) in zip(inputs, sizes, strict=True)]
    pooled = [b.reduce("amax", b.reshape(x, g, s), (1,)) for x, (g, s) in zip(inputs, sizes, strict=True)]
    means = [b.reduce("mean", b.reshape(x, g, s), (1,)) for x, (g, s) in zip(inputs, sizes, strict=True)]
    return b.task(*found, *(b.reshape(x, int(b.value(x).cols[0])) for x in pooled), *(b.reduce("sum", x, (0,)) for x in means))


def test_groups_of_any_size_match():
    """Shorter than a vector (powers of two and not), a vector, longer, with and without a tail."""
    task = groups_task(((8, 16), (5, 20), (32, 4), (50, 2), (10, 6), (3, 33), (17, 8), (1, 40), (40, 1), (6, 64), (2, 130)))
    check(task, {"m": 13}, NONE)


def test_reductions_over_inner_middle_and_outer_columns_match():
    b = Building()
    x, y = b.input((6, 5, 34)), b.input((4, 8, 2))
    found = [
        b.reduce(name, v, axes) for v in (x, y) for name in ("sum", "amax") for axes in ((0,), (1,), (2,), (0, 1), (1, 2), (0, 2))
    ]
    found += [b.reduce("argmin", v, (axis,)) for v in (x, y) for axis in range(3)]
    check(b.task(*found, normalised(b, x, (1,)), normalised(b, x, (0, 2)), normalised(b, y, (1, 2))), {"m": 9}, NONE)


def test_views_of_computed_values_match():
    b = Building()
    x = b.linear(16, 96)
    left, right = b.slice(x, 0, 0, 48), b.slice(x, 0, 48, 96)
    gated = b.op("mul", left, b.op("sigmoid", right))
    even, odd = b.slice(x, 0, 0, 96, 2), b.slice(x, 0, 1, 96, 2)
    halves = b.slice(b.reshape(gated, 6, 8), 1, 2, 7)
    spread = b.reshape(b.expand(b.reduce("mean", b.reshape(x, 12, 8), (1,)), 12, 8), 96)
    turned = b.op("add", b.op("mul", even, 2.0), odd)
    awkward = b.op("add", b.reshape(b.reshape(x, 6, 16), 16, 6), b.reshape(b.op("exp", b.reshape(x, 4, 24)), 16, 6))
    task = b.task(gated, turned, b.op("mul", halves, 3.0), b.op("sub", x, spread), awkward, even, b.reshape(x, 8, 12))
    check(task, {"m": 21}, WHOLE)


def test_extras_of_every_stride_class_match():
    b = Building(("b", "m"))
    task_rows = ("b", "m")
    x = b.input((4, 10))
    extras = [
        b.input((4, 10), rows=task_rows, strides=("pitch", "pitch", "pitch", 1)),
        b.input((4, 10), rows=task_rows, strides=("dense", 1, "dense", "dense")),
        b.input((4, 10), rows=task_rows, strides=("dense", "dense", 1, "dense")),
        b.input((4, 10), rows=task_rows, strides=(0, "dense", 0, 1)),
        b.input((4, 10), rows=("b", 1), strides=("dense", 0, "dense", 1)),
        b.input((1, 10), rows=(1, "m"), strides=(0, "dense", 0, 1)),
        b.input((4, 1), rows=(1, "m"), strides=(0, "pitch", 1, 0)),
        b.fixed((4, 10), strides=(0, 0, 1, "dense")),
        b.fixed((1, 1), strides=(0, 0, 0, 0)),
        b.input((4, 10), rows=task_rows, dtype="bfloat16", strides=("pitch", "dense", "dense", 1)),
    ]
    mask = b.input((4, 10), rows=("b", 1), dtype="bool", strides=("dense", 0, 1, "dense"))
    total = x
    for number in extras:
        extra = b.op("convert", number, dtype="float32") if b.value(number).dtype != "float32" else number
        total = b.op("add", b.op("mul", total, 0.5), extra)
    flat = b.reshape(total, 40)
    check(b.task(total, b.op("where", mask, total, -1.0), b.op("mul", flat, flat)), {"b": 3, "m": 7}, NONE)


def test_values_without_rows_are_computed_once_and_may_be_outputs():
    b = Building()
    x, w, v = b.input((30,)), b.fixed((30,)), b.fixed((30,))
    scale = b.op("div", w, b.op("sqrt", b.op("add", b.op("mul", v, v), 0.1)))
    total = b.reduce("sum", scale, (0,))
    check(b.task(b.op("mul", x, scale), scale, b.op("mul", x, total), b.reshape(total, 1), w), {"m": 11}, NONE)


@pytest.mark.parametrize("n", [15, 32, 47, 100])
def test_long_chains_with_reductions_behind_them_match(n):
    b = Building()
    x = b.input((n,))
    y = mish(b, gelu(b, mish(b, x)))
    check(b.task(b.reduce("sum", y, (0,)), b.reduce("amax", y, (0,)), b.reduce("argmax", y, (0,)), y), {"m": 9}, NONE)


def test_half_precision_outputs_are_rounded_once():
    b = Building()
    x = b.input((50,), dtype="bfloat16")
    wide = b.op("convert", x, dtype="float32")
    found = [b.op("convert", b.op("tanh", wide), dtype=dtype) for dtype in ("bfloat16", "float16", "float32")]
    check(b.task(*found, b.op("mul", x, x), b.reduce("sum", x, (0,))), {"m": 17}, NONE)


@pytest.mark.parametrize("n", [1, 2, 15, 16, 17, 31, 257])
def test_rows_of_any_length_match(n):
    b = Building()
    x = b.linear(3, n)
    check(b.task(softmax(b, x), gelu(b, x), normalised(b, x, (0,)), x), {"m": 5}, WHOLE)


def test_the_product_used_twice_and_returned_matches():
    b = Building()
    x = b.linear(20, 40)
    y = b.op("mul", b.op("sigmoid", x), x)
    check(b.task(x, y, x, b.op("add", y, x)), {"m": 33}, Schedule("library", 8))


def test_alpha_and_beta_scale_product_and_bias():
    b = Building()
    x = b.linear(20, 40, alpha=0.5, beta=-2.0)
    check(b.task(x), {"m": 6}, Schedule("library", 8))
    b = Building()
    x = b.linear(20, 40, beta=0.0)
    check(b.task(b.op("relu", x)), {"m": 6}, Schedule("library", 8))
