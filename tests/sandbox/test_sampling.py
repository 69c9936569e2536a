"""Outputs of which the oracle covers sampled rows only: every other row is still held to eager, or to the oracle itself."""

import pytest
import torch

from kforge_dynamo.records.target import Numerics
from kforge_dynamo.records.task import InputRole, InputSpec, Node, Task, ValueSpec
from kforge_dynamo.sandbox import rows
from kforge_dynamo.sandbox.bench import Bench
from kforge_dynamo.sandbox.inputs import CLASSES, Seeds
from kforge_dynamo.sandbox.verify import judge_outputs

ROWS, DEPTH, WIDTH = 1500, 64, 256


def softmax_task(dtype):
    """softmax(x @ w + b) with the product rounded to `dtype`, the softmax in fp32."""

    def value(cols, kind="float32", varies=("m",)):
        return ValueSpec(kind, varies, cols)

    inputs = (
        InputSpec(value((DEPTH,), dtype), ("dense", 1), InputRole.LHS),
        InputSpec(value((DEPTH, WIDTH), dtype, (1,)), (0, 1, "dense"), InputRole.RHS),
        InputSpec(value((WIDTH,), dtype, (1,)), (0, 1), InputRole.EXTRA),
    )
    nodes = (
        Node("gemm", (0, 1, 2), (("alpha", 1.0), ("beta", 1.0)), value((WIDTH,), dtype)),
        Node("convert", (3,), (), value((WIDTH,))),
        Node("amax", (4,), (("axes", (0,)),), value((1,))),
        Node("sub", (4, 5), (), value((WIDTH,))),
        Node("exp", (6,), (), value((WIDTH,))),
        Node("sum", (7,), (("axes", (0,)),), value((1,))),
        Node("div", (7, 8), (), value((WIDTH,))),
        Node("convert", (9,), (), value((WIDTH,), dtype)),
    )
    return Task(("m",), (), inputs, nodes, (10,))


def honest(inputs, dtype):
    """Another order of summation than eager's."""
    x, w, bias = (item.float() for item in inputs)
    half = DEPTH // 2
    product = x[:, :half] @ w[0, :half] + x[:, half:] @ w[0, half:] + bias
    return torch.softmax(product.to(dtype).float(), -1).to(dtype)


@pytest.fixture(autouse=True)
def sampled(monkeypatch):
    monkeypatch.setattr(rows, "ORACLE_FLOP", 1)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_honest_kernel_on_sampled_rows_passes_every_class_and_a_wrong_unsampled_row_fails(dtype):
    task = softmax_task(str(dtype).removeprefix("torch."))
    bench = Bench(task, Numerics("highest", False, False, False), torch.device("cpu"), Seeds(b"x" * 32))
    caught = 0
    for chosen in CLASSES:
        drawn = bench.draw((ROWS,), chosen, 0)
        truths = bench.truths((ROWS,), chosen, 0, drawn)
        assert truths[0].at is not None
        unsampled = sorted(set(range(ROWS)) - set(truths[0].at.tolist()))
        output = honest(bench.expanded((ROWS,), drawn), dtype)
        assert judge_outputs(task, [[output]], [truths]).passed, chosen.name
        wrong = output.clone()
        wrong[unsampled[0]] = output[unsampled[1]]
        caught += not judge_outputs(task, [[wrong]], [truths]).passed
    assert caught >= len(CLASSES) - 3, "equal rows, and values so small that bf16 rounds all softmaxes alike, tell nothing"


def test_rows_holding_gives_the_cross_product_of_the_indices_that_occur():
    task = softmax_task("float32")
    found = rows.rows_holding(task, (ROWS,), torch.tensor([7, 3, 1400]))
    assert found.flat.tolist() == [3, 7, 1400]
    assert found.sizes == (3,)
