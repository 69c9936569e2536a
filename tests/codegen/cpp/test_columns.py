"""Reductions over the rows: passes, what is kept between them, means far from zero."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

from kforge_dynamo.codegen import cpp
from kforge_dynamo.codegen.cpp import Schedule
from kforge_dynamo.languages.base import canonical_dims
from kforge_dynamo.languages.cpp import CppLanguage
from kforge_dynamo.records.task import Task
from tests.codegen.cpp.building import Building
from tests.codegen.cpp.running import NONE, NUMERICS, check, judge, launcher, random_inputs, run, target
from tests.codegen.cpp.test_epilogues import gelu, softmax

SCHEDULES = (
    Schedule("library", 16),
    Schedule("library_whole", 16),
    Schedule("own", 24, 0, "columns", 8, 2, 64),
    Schedule("own", 40, 48, "rows", 6, 1, 64),
)


def batch_norm(b: Building, x: int) -> tuple[int, int, int]:
    var, mean = b.reduce("var", x, "rows", correction=0.0), b.reduce("mean", x, "rows")
    return b.op("mul", b.op("sub", x, mean), b.op("rsqrt", b.op("add", var, 1e-5))), mean, var


def norm_task() -> Task:
    b = Building()
    x = b.op("mul", b.linear(24, 70), 1.5)
    y, mean, var = batch_norm(b, x)
    return b.task(softmax(b, gelu(b, y)), mean, var, b.reduce("amax", b.op("tanh", x), "rows"))


@pytest.mark.parametrize("schedule", SCHEDULES, ids=lambda s: f"{s.product}-{s.side}")
def test_batch_statistics_match_for_any_number_of_rows(schedule):
    task = norm_task()
    launch = launcher(task, schedule)
    for m in (2, 15, 16, 17, 100, 333):
        for threads in (1, 2):
            inputs = random_inputs(task, {"m": m}, seed=m)
            judge(task, {"m": m}, inputs, run(task, launch, {"m": m}, inputs, threads))


def test_statistics_of_values_far_from_zero_keep_their_digits():
    b = Building()
    x = b.input((40,))
    y, mean, var = batch_norm(b, x)
    task = b.task(y, mean, var)
    inputs = random_inputs(task, {"m": 500})
    inputs[0] += 1000.0
    judge(task, {"m": 500}, inputs, run(task, launcher(task, NONE), {"m": 500}, inputs))


def test_all_reductions_over_rows_match():
    b = Building()
    x = b.input((3, 20))
    found = [b.reduce(name, x, "rows") for name in ("sum", "mean", "amax", "amin", "var")]
    again = b.reduce("sum", b.op("mul", x, b.op("sub", x, found[1])), "rows")
    check(b.task(*found, again, b.op("div", x, b.op("add", b.op("abs", again), 1.0))), {"m": 150}, NONE)


def test_reductions_over_rows_of_rows_reductions_match():
    """A sum over the row first, then over the rows, with a batch of row axes."""
    b = Building(("b", "m"))
    x = b.input((30,))
    total = b.reduce("sum", b.op("exp", x), (0,))
    spread = b.reduce("amax", total, "rows")
    check(b.task(b.op("div", total, spread), b.op("mul", x, spread)), {"b": 3, "m": 9}, NONE)


def test_only_statistics_as_outputs_match():
    b = Building()
    x = b.linear(24, 33)
    check(b.task(b.reduce("mean", x, "rows"), b.reduce("var", b.op("relu", x), "rows", correction=1.0)), {"m": 90}, SCHEDULES[0])


def test_a_value_that_is_returned_and_reduced_matches():
    """As in the backward pass of a layer: the gradient, and its sum for the bias; in fp32 and rounded."""
    for dtype in ("float32", "bfloat16"):
        b = Building()
        y = b.input((33,))
        g = b.op("mul", b.linear(24, 33, bias=False), b.op("mul", y, b.op("sub", 1.0, y)))
        g = b.op("convert", g, dtype=dtype)
        total = b.reduce("sum", b.op("convert", g, dtype="float32") if dtype != "float32" else g, "rows")
        check(b.task(g, total), {"m": 90}, SCHEDULES[2])


def test_the_bare_product_may_be_reduced_kept_and_returned_twice():
    b = Building()
    x = b.linear(24, 33, bias=False)
    mean = b.reduce("mean", x, "rows")
    check(b.task(mean, b.reduce("sum", x, (0,))), {"m": 90}, SCHEDULES[2])
    check(b.task(x, b.op("sub", x, mean), x), {"m": 90}, SCHEDULES[0])
    check(b.task(x, b.op("relu", x), x), {"m": 90}, SCHEDULES[3])


def test_a_kernel_without_the_compilers_openmp_calls_the_runtime_of_torch(tmp_path):
    """What clang++ builds: its own OpenMP flag would bring a second runtime."""
    runtime = Path(torch.__file__).parent / "lib" / "libgomp.so.1"
    if not runtime.exists():
        pytest.skip("torch ships no libgomp here")

    class Bare(CppLanguage):
        def _flags(self, target):
            return (*(flag for flag in super()._flags(target) if flag != "-fopenmp"), str(runtime))

    task, language = norm_task(), Bare()
    candidate = cpp.emit(task, SCHEDULES[3], (), target(), NUMERICS)
    artifact = language.build(candidate, task, target(), tmp_path)
    launch = language.load(artifact, candidate, task, canonical_dims(task))
    inputs = random_inputs(task, {"m": 333})
    judge(task, {"m": 333}, inputs, run(task, launch, {"m": 333}, inputs))


def test_rows_with_nan_spoil_only_their_columns():
    b = Building()
    x = b.input((20,))
    task = b.task(*batch_norm(b, x), b.reduce("amax", x, "rows"))
    inputs = random_inputs(task, {"m": 40})
    inputs[0][7, 3] = float("nan")
    judge(task, {"m": 40}, inputs, run(task, launcher(task, NONE), {"m": 40}, inputs))


def test_bits_of_statistics_are_the_same_in_every_run():
    task = norm_task()
    launch = launcher(task, SCHEDULES[2])
    inputs = random_inputs(task, {"m": 333})
    first = run(task, launch, {"m": 333}, inputs)
    for _ in range(5):
        assert all(torch.equal(a, b) for a, b in zip(first, run(task, launch, {"m": 333}, inputs), strict=True))


def test_a_reduction_over_rows_that_is_not_written_is_refused():
    b = Building()
    x = b.input((20,))
    sentence = cpp.rejects(b.task(b.reduce("argmax", x, "rows")), target())
    assert sentence is not None and "argmax over the rows" in sentence
