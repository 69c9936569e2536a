"""Outputs of which the oracle covers sampled rows only: every other row is still held to eager, or to the oracle itself."""

import weakref

import pytest
import torch

from kforge_dynamo.records.target import Numerics
from kforge_dynamo.records.task import InputRole, InputSpec, Node, Task, ValueSpec
from kforge_dynamo.sandbox import oracle, rows
from kforge_dynamo.sandbox.bench import Bench
from kforge_dynamo.sandbox.inputs import CLASSES, Seeds
from kforge_dynamo.sandbox.verify import judge_outputs
from kforge_dynamo.semantics.evaluate import Mode, Policy

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


def test_error_of_eager_on_sampled_rows_is_that_of_the_product_of_all_rows(monkeypatch):
    """A library may add up K in another order, and more exactly, where there are fewer rows."""
    plain = oracle.evaluate

    def worse_when_whole(task, inputs, axes, policy):
        found = plain(task, inputs, axes, policy)
        if policy.mode is Mode.EAGER and axes["m"] == ROWS:
            return tuple(value * (1.0 + 1e-4) if value.shape[-1:] == (WIDTH,) else value for value in found)
        return found

    monkeypatch.setattr(oracle, "evaluate", worse_when_whole)
    value, weight = ValueSpec("float32", ("m",), (WIDTH,)), ValueSpec("float32", (1,), (DEPTH, WIDTH))
    inputs = (
        InputSpec(ValueSpec("float32", ("m",), (DEPTH,)), ("dense", 1), InputRole.LHS),
        InputSpec(weight, (0, 1, "dense"), InputRole.RHS),
    )
    nodes = (Node("gemm", (0, 1), (("alpha", 1.0), ("beta", 1.0)), value), Node("neg", (2,), (), value))
    bench = Bench(
        Task(("m",), (), inputs, nodes, (3,)), Numerics("highest", False, False, False), torch.device("cpu"), Seeds(b"x" * 32)
    )
    (chosen,) = [item for item in CLASSES if item.name == "normal"]
    (truth,) = bench.truths((ROWS,), chosen, 0, bench.draw((ROWS,), chosen, 0))
    assert truth.at is not None and truth.at.numel() < ROWS
    assert truth.e0.rms / truth.oracle_rms == pytest.approx(1e-4, rel=0.01)


def test_evaluation_in_blocks_keeps_what_has_no_rows_once(monkeypatch):
    """The weight of a region may be as large as the device's memory; the blocks are of rows."""
    task = softmax_task("float32")
    both = Task(task.row_axes, (), task.inputs, task.nodes, (10, 1))
    axes, policy = {"m": ROWS}, Policy(Mode.ORACLE)
    generator = torch.Generator().manual_seed(0)
    shapes = ((ROWS, DEPTH), (1, DEPTH, WIDTH), (1, WIDTH))
    drawn = [torch.randn(shape, generator=generator) for shape in shapes]
    whole = rows.evaluate_in_blocks(both, drawn, (ROWS,), policy)
    alive = []
    plain = rows.evaluate

    def seen(*arguments):
        assert sum(item() is not None for item in alive) <= 1, "weights of earlier blocks are still held"
        found = plain(*arguments)
        alive.append(weakref.ref(found[1]))
        return found

    monkeypatch.setattr(rows, "BLOCK_BYTES", 8 * WIDTH * 100)
    monkeypatch.setattr(rows, "evaluate", seen)
    blocks = rows.evaluate_in_blocks(both, drawn, (ROWS,), policy)
    assert len(alive) > 10 and axes["m"] == ROWS
    assert all(torch.equal(left, right) for left, right in zip(blocks, whole, strict=True))
