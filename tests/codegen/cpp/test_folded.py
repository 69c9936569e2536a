"""Kernels that reduce the right operand before the product: right on finite rows, and the whole product where one is not."""

from __future__ import annotations

import pytest
import torch

from kforge_dynamo.codegen import cpp
from kforge_dynamo.codegen.cpp import Schedule
from kforge_dynamo.codegen.cpp.folded import written
from kforge_dynamo.codegen.cpp.program import Inexpressible
from kforge_dynamo.records.task import Task
from tests.codegen.cpp.building import Building
from tests.codegen.cpp.running import NUMERICS, check, judge, launcher, random_inputs, run, target
from tests.codegen.cpp.test_epilogues import gelu

K, N = 67, 48
OWN = Schedule("own", 24, 0, "columns", 6, 2, 64, fold=True)
ROWS = Schedule("own", 64, 0, "rows", 6, 2, 64, fold=True)
DOT = Schedule("dot", 12, 0, "", 4, fold=True)


def summed(weight: str = "nk") -> Task:
    """Two outputs, one as wide as the product, and a clamp that hides what is not finite."""
    b = Building()
    row, wide = b.input((1,)), b.input((N,))
    x = b.op("mul", b.linear(K, N, weight=weight), row)
    y = b.reduce("sum", x, (0,))
    return b.task(b.op("add", gelu(b, y), wide), b.op("minimum", b.op("maximum", y, -2.0), 2.0))


def pooled(weight: str = "nk") -> Task:
    b = Building()
    shift = b.fixed((N,))
    x = b.reshape(b.op("sub", b.linear(K, N, weight=weight), shift), 12, 4)
    x = b.reshape(b.reduce("mean", x, (1,)), 12)
    return b.task(b.reduce("amax", gelu(b, x), (0,)), x)


CASES = [
    (summed("nk"), OWN),
    (summed("kn"), OWN),
    (summed("nk"), DOT),
    (pooled("nk"), OWN),
    (pooled("kn"), ROWS),
    (pooled("nk"), DOT),
]


@pytest.mark.parametrize(("task", "schedule"), CASES)
def test_folded_kernel_on_other_sizes_is_as_exact_as_eager(task, schedule):
    for m in (1, 13, 70):
        check(task, {"m": m}, schedule, seed=m)


@pytest.mark.parametrize(("task", "schedule"), CASES[:4])
@pytest.mark.parametrize("value", [float("inf"), -float("inf"), float("nan")])
def test_rows_that_are_not_finite_are_those_of_the_whole_product(task, schedule, value):
    launch, sizes = launcher(task, schedule), {"m": 29}
    lhs = task.anchor.args[0]
    for rows in ((3,), (0, 28), (5, 6, 7)):
        inputs = random_inputs(task, sizes)
        for row in rows:
            inputs[lhs][row, 1 + row] = value
        judge(task, sizes, inputs, run(task, launch, sizes, inputs), room=16.0)


@pytest.mark.parametrize("value", [float("inf"), float("nan"), 3e38])
def test_operand_that_is_not_finite_or_overflows_gives_every_row_again(value):
    task, sizes = summed(), {"m": 29}
    launch = launcher(task, OWN)
    inputs = random_inputs(task, sizes)
    _, rhs = task.anchor.args[:2]
    inputs[rhs][0, 2, 3:6] = value
    inputs[task.anchor.args[0]][4, 2] = 0.0
    judge(task, sizes, inputs, run(task, launch, sizes, inputs), room=16.0)


def test_space_of_a_reduced_product_starts_folded_and_keeps_the_whole_product_too():
    b = Building()
    task = b.task(b.reduce("sum", b.linear(512, 512), (0,)))
    found = cpp.space(task, (128,), target(), NUMERICS)
    assert found[0].fold and any(not schedule.fold for schedule in found[:8])
    near = cpp.neighbours(found[0], task, (128,), target(), NUMERICS)
    assert near and all(schedule.fold for schedule in near)


def test_task_that_does_not_fold_is_refused_folded():
    b = Building()
    task = b.task(gelu(b, b.linear(K, N)))
    with pytest.raises(Inexpressible, match="does not move into the operand"):
        written(task, OWN, target())
    assert not any(schedule.fold for schedule in cpp.space(task, (29,), target(), NUMERICS))


def test_reduced_operand_is_summed_in_fp64():
    """Columns that cancel: an fp32 sum in order would leave nothing of the small one."""
    b = Building()
    task = b.task(b.reduce("sum", b.linear(1, 4, bias=False), (0,)))
    inputs = [torch.ones(3, 1), torch.tensor([[[1e8, 1.0, -1e8, 0.5]]])]
    inputs = [given.copy_(wanted) for given, wanted in zip(random_inputs(task, {"m": 3}), inputs, strict=True)]
    (found,) = run(task, launcher(task, OWN), {"m": 3}, inputs)
    assert found.flatten().tolist() == [1.5, 1.5, 1.5]
