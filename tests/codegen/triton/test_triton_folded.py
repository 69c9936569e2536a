"""Launches that reduce the right operand before the product: as exact as eager, and exact rows where one is not finite."""

from __future__ import annotations

import pytest
from triton_ahead import HOPPER
from triton_interpreter import HIGHEST
from triton_tasks import Builder, gate

from kforge_dynamo.codegen import triton as generator
from kforge_dynamo.codegen.triton import Schedule
from kforge_dynamo.codegen.triton.forms import Unsupported
from kforge_dynamo.records.task import Task

PLAIN = Schedule("ieee", 16, 16, 32, 4, 4, 2, fold=True)
SPLIT = Schedule("ieee", 16, 16, 32, 4, 4, 2, split=2, fold=True)
SINGLE = Schedule("tf32x3", 32, 32, 32, 4, 4, 2, fold=True)


def summed() -> Task:
    """Two outputs, one as wide as the product, and a clamp that hides what is not finite."""
    builder = Builder("m")
    row, wide = builder.input((1,)), builder.input((48,))
    x = builder.op("mul", builder.linear(40, 48), row)
    y = builder.reduce("sum", x, (0,))
    clamped = builder.op("minimum", builder.op("maximum", y, -2.0), 2.0)
    return builder.task(builder.op("add", builder.gelu(y), wide), clamped)


def unreduced() -> Task:
    builder = Builder("m")
    return builder.task(builder.gelu(builder.linear(512, 512)))


def pooled() -> Task:
    builder = Builder("m")
    x = builder.reshape(builder.linear(40, 48), 12, 4)
    x = builder.reshape(builder.reduce("mean", x, (1,)), 12)
    return builder.task(builder.reduce("amax", builder.gelu(x), (0,)), x)


CASES = {
    "summed": (summed, PLAIN),
    "summed in parts": (summed, SPLIT),
    "pooled": (pooled, PLAIN),
    "pooled, guarded": (pooled, SINGLE),
}


@pytest.mark.parametrize("case", CASES)
@pytest.mark.parametrize("fill", ["normal", "edges", "same sign"])
def test_folded_launches_are_as_exact_as_eager_and_lost_rows_the_whole_product(interpret, case, fill):
    make, schedule = CASES[case]
    gate(interpret(make(), schedule, (33,), fill=fill))


@pytest.mark.parametrize("case", ["summed in parts", "pooled, guarded"])
def test_what_is_folded_serves_later_calls(interpret, case):
    make, schedule = CASES[case]
    assert interpret(make(), schedule, (33,), halves=True)["halves"]


def test_operand_is_read_by_as_many_programs_as_keep_the_memory_busy():
    builder = Builder("m")
    task = builder.task(builder.reduce("sum", builder.linear(8192, 8192), (0,)))
    made = generator.emit(task, PLAIN, (1024,), HOPPER, HIGHEST)
    first, second, third, *rest = made.plan.launches
    assert (first.kernel, second.kernel, third.kernel) == ("reduce1", "add_right", "reduce2")
    assert all(launch.weights_only == (launch in (first, second, third)) for launch in made.plan.launches) and rest
    assert int(first.grid[0]) * int(first.grid[1]) >= 8 * HOPPER.units


def test_space_of_a_reduced_product_starts_folded():
    builder = Builder("m")
    task = builder.task(builder.reduce("sum", builder.linear(8192, 8192), (0,)))
    found = generator.space(task, (1024,), HOPPER, HIGHEST)
    assert found[0].fold and any(not schedule.fold for schedule in found[:8])
    assert all(schedule.fold for schedule in generator.neighbours(found[0], task, (1024,), HOPPER, HIGHEST))


def test_task_that_does_not_fold_is_refused_folded():
    with pytest.raises(Unsupported, match="does not move into the operand"):
        generator.emit(unreduced(), PLAIN, (64,), HOPPER, HIGHEST)
    assert not any(schedule.fold for schedule in generator.space(unreduced(), (512,), HOPPER, HIGHEST))
