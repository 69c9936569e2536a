"""The rule that moves a reduction over the product's columns into an operand: when it fires, and that it means the same."""

from __future__ import annotations

import random
from dataclasses import replace

import pytest
import torch

from kforge_dynamo.records.target import Peak
from kforge_dynamo.records.task import Task
from kforge_dynamo.sandbox.timing import roofline_us
from kforge_dynamo.semantics.algebra import Folded, fold
from kforge_dynamo.semantics.evaluate import Mode, Policy, evaluate, shape_of
from tests.codegen.cpp.building import Building
from tests.codegen.cpp.running import target

ORACLE = Policy(Mode.ORACLE)
M, K, N = 7, 11, 24


def inputs_of(task: Task, seed: int = 0) -> list[torch.Tensor]:
    generator = torch.Generator().manual_seed(seed)
    return [torch.randn(tuple(map(int, shape_of(item.value.shape, {"m": M}))), generator=generator) for item in task.inputs]


def reduced(folded: Folded, inputs: list[torch.Tensor]) -> list[torch.Tensor]:
    """The inputs of the folded task."""
    found = list(inputs)
    for number in (folded.rhs, *folded.vectors):
        wide = inputs[number].double().unflatten(-1, (folded.groups, folded.width))
        summed = wide.mean(-1) if folded.mean else wide.sum(-1)
        found[number] = summed.view(tuple(map(int, folded.task.inputs[number].value.shape)))
    return found


def agree(task: Task, seed: int = 0) -> Folded:
    """The folded task, after its outputs were found equal to the original's in fp64."""
    folded = fold(task)
    assert folded is not None
    inputs = inputs_of(task, seed)
    found = evaluate(folded.task, reduced(folded, inputs), {"m": M}, ORACLE)
    wanted = evaluate(task, inputs, {"m": M}, ORACLE)
    for ours, theirs in zip(found, wanted, strict=False):
        torch.testing.assert_close(ours.double(), theirs.double(), rtol=1e-9, atol=1e-9)
    return folded


@pytest.mark.parametrize("op", ["sum", "mean"])
@pytest.mark.parametrize("alpha, beta", [(1.0, 1.0), (-1.5, 0.25), (2.0, 0.0)])
def test_sum_or_mean_of_a_linear_layer_folds(op, alpha, beta):
    b = Building()
    x = b.linear(K, N, alpha=alpha, beta=beta)
    folded = agree(b.task(b.op("tanh", b.reduce(op, x, (0,)))))
    assert (folded.groups, folded.width, folded.mean) == (1, N, op == "mean")
    assert folded.vectors == (() if beta == 0.0 else (2,))


@pytest.mark.parametrize("op", ["sum", "mean"])
def test_groups_of_neighbouring_columns_fold_behind_linear_steps(op):
    b = Building()
    row, vector, scalar = b.input((1,)), b.fixed((N,)), b.fixed((1,))
    x = b.linear(K, N)
    x = b.op("sub", b.op("mul", row, x), vector)
    x = b.op("add", b.op("neg", b.op("div", x, scalar)), 3.0)
    x = b.op("sub", 2.0, b.reshape(x, 6, 4))
    folded = agree(b.task(b.op("exp", b.reduce(op, x, (1,)))))
    assert (folded.groups, folded.width) == (6, 4)


def test_factors_of_each_group_stay_outside():
    b = Building()
    factor = b.fixed((6, 1))
    x = b.op("mul", b.reshape(b.linear(K, N), 6, 4), factor)
    agree(b.task(b.reduce("sum", x, (1,))))


def test_addend_that_is_repeated_inside_a_group_counts_as_often():
    b = Building()
    row = b.input((1,))
    agree(b.task(b.reduce("sum", b.op("add", b.linear(K, N), row), (0,))))


def unfit():
    def of(make):
        b = Building()
        return make(b)

    def shared(b):
        x = b.linear(K, N)
        return b.task(b.op("add", x, b.reduce("sum", x, (0,))))

    def returned(b):
        x = b.linear(K, N)
        return b.task(x, b.reduce("sum", x, (0,)))

    def by_column(b):
        scale = b.fixed((N,))
        return b.task(b.reduce("sum", b.op("mul", b.linear(K, N), scale), (0,)))

    def divided_by(b):
        return b.task(b.reduce("sum", b.op("div", 1.0, b.linear(K, N)), (0,)))

    def squared(b):
        x = b.linear(K, N)
        return b.task(b.reduce("sum", b.op("mul", x, x), (0,)))

    def weight_read_again(b):
        x = b.linear(N, N, bias=False)
        return b.task(b.reduce("sum", x, (0,)), b.op("exp", 1))

    def leading_axis(b):
        return b.task(b.reduce("sum", b.reshape(b.linear(K, N), 6, 4), (0,)))

    found = {
        "half precision": of(lambda b: b.task(b.reduce("sum", b.linear(K, N, dtype="bfloat16"), (0,)))),
        "a maximum": of(lambda b: b.task(b.reduce("amax", b.linear(K, N), (0,)))),
        "not linear": of(lambda b: b.task(b.reduce("sum", b.op("relu", b.linear(K, N)), (0,)))),
        "one column": of(lambda b: b.task(b.reduce("sum", b.linear(K, 1), (0,)))),
        "over the rows": of(lambda b: b.task(b.reduce("sum", b.linear(K, N), "rows"))),
        "over the rows later": of(lambda b: b.task(b.reduce("sum", b.reduce("sum", b.linear(K, N), (0,)), "rows"))),
    }
    for make in (shared, returned, by_column, divided_by, squared, weight_read_again, leading_axis):
        found[make.__name__] = of(make)
    return found


@pytest.mark.parametrize("name", unfit())
def test_tasks_that_need_the_whole_product_do_not_fold(name):
    assert fold(unfit()[name]) is None


def test_random_chains_mean_the_same_in_fp64():
    chance = random.Random(5)
    for seed in range(40):
        b = Building()
        row, vector, scalar = b.input((1,)), b.fixed((N,)), b.fixed((1,))
        x = b.linear(K, N, bias=chance.random() < 0.5, alpha=chance.choice([1.0, -0.5]))
        for _ in range(chance.randrange(5)):
            op = chance.choice(["add", "sub", "mul", "div", "neg"])
            if op == "neg":
                x = b.op("neg", x)
                continue
            other = chance.choice([row, scalar, 1.5] if op in ("mul", "div") else [row, vector, scalar, -0.5])
            x = b.op(op, x, other) if op == "div" or chance.random() < 0.5 else b.op(op, other, x)
        width = chance.choice([2, 4, N])
        if width < N:
            x = b.reshape(x, N // width, width)
        x = b.reduce(chance.choice(["sum", "mean"]), x, (0,) if width == N else (1,))
        agree(b.task(b.op("sigmoid", x), x), seed)


@pytest.mark.parametrize("value", [float("inf"), float("nan"), 3e38])
@pytest.mark.parametrize("where", [0, 1, 2])
def test_what_is_not_finite_shows_in_the_reduced_value(where, value):
    """Rows that the original ends in infinity or NaN, also behind a clamp, are told by the folded task's last output."""
    b = Building()
    x = b.linear(K, N)
    plain = b.reduce("sum", x, (0,))
    task = b.task(b.op("minimum", b.op("maximum", plain, -1.0), 1.0))
    folded = fold(task)
    assert folded is not None
    inputs = inputs_of(task)
    inputs[where].view(-1)[3] = value
    inputs[0][1, 1:3] = 0.0
    told = evaluate(folded.task, [x.float() for x in reduced(folded, inputs)], {"m": M})[-1].isfinite()
    product = evaluate(replace(task, outputs=(len(task.inputs),)), inputs, {"m": M})[0]
    bad = ~product.sum(-1, keepdim=True).isfinite() if value != 3e38 else torch.zeros_like(told)
    assert not (bad & told).any() and (bad.any() or value == 3e38)


def test_roofline_of_a_folded_task_counts_the_small_product():
    b = Building()
    extra = b.input((N,))
    whole = b.task(b.op("add", b.reduce("sum", b.linear(4096, N), (0,)), extra))
    kept = replace(whole, nodes=(*whole.nodes[:1], replace(whole.nodes[1], op="amax"), *whole.nodes[2:]))
    on = replace(target(), peaks=(Peak("fp32_flops", 1e9, "flop/s", "a test"),))
    assert roofline_us(kept, (M,), on) == pytest.approx(N * roofline_us(whole, (M,), on), rel=1e-6)
