"""The reference evaluator against PyTorch's own functions and fp64."""

import pytest
import torch

from kforge_dynamo.records.task import Const, InputRole, InputSpec, Node, Task, ValueSpec
from kforge_dynamo.semantics.evaluate import Mode, Policy, evaluate

PLAIN = (("alpha", 1.0), ("beta", 1.0))
ORACLE = Policy(Mode.ORACLE)


def task_of(nodes, outputs, dtype="float32", k=16, n=12, extras=(), rows=("m",), batched=False):
    batch = tuple(axis if batched and axis != "m" else 1 for axis in rows)
    lhs = InputSpec(ValueSpec(dtype, rows, (k,)), ("dense",) * len(rows) + (1,), InputRole.LHS)
    strides = tuple("dense" if axis != 1 else 0 for axis in batch)
    rhs = InputSpec(ValueSpec(dtype, batch, (k, n)), (*strides, "dense", 1), InputRole.RHS)
    return Task(rows, (), (lhs, rhs, *extras), tuple(nodes), outputs)


def value(cols, rows=("m",), dtype="float32"):
    return ValueSpec(dtype, rows, cols)


def test_gemm_with_alpha_beta_and_bias_is_addmm():
    bias = InputSpec(value((12,), (1,)), (0, 1), InputRole.EXTRA)
    task = task_of([Node("gemm", (0, 1, 2), (("alpha", -1.5), ("beta", 0.5)), value((12,)))], (3,), extras=(bias,))
    x, w, b = torch.randn(5, 16), torch.randn(16, 12), torch.randn(12)
    (found,) = evaluate(task, (x, w, b), {"m": 5})
    assert torch.equal(found, torch.addmm(b, x, w, beta=0.5, alpha=-1.5))


def test_gemm_batched_with_shared_rows_is_bmm():
    rows = ("b", "m")
    task = task_of([Node("gemm", (0, 1), PLAIN, value((12,), rows))], (2,), rows=rows, batched=True)
    x, w = torch.randn(3, 5, 16), torch.randn(3, 16, 12)
    (found,) = evaluate(task, (x, w), {"b": 3, "m": 5})
    assert torch.equal(found, torch.bmm(x, w))


def test_group_norm_by_views_and_reductions_is_group_norm():
    nodes = [
        Node("gemm", (0, 1), PLAIN, value((12,))),
        Node("reshape", (2,), (), value((3, 4))),
        Node("var", (3,), (("axes", (1,)), ("correction", 0.0)), value((3, 1))),
        Node("mean", (3,), (("axes", (1,)),), value((3, 1))),
        Node("sub", (3, 5), (), value((3, 4))),
        Node("add", (4, Const(1e-5)), (), value((3, 1))),
        Node("rsqrt", (7,), (), value((3, 1))),
        Node("mul", (6, 8), (), value((3, 4))),
        Node("reshape", (9,), (), value((12,))),
    ]
    x, w = torch.randn(5, 16), torch.randn(16, 12)
    (found,) = evaluate(task_of(nodes, (10,)), (x, w), {"m": 5})
    torch.testing.assert_close(found, torch.nn.functional.group_norm(x @ w, 3))


def test_oracle_of_fp32_task_is_fp64_and_closer():
    nodes = [Node("gemm", (0, 1), PLAIN, value((12,))), Node("exp", (2,), (), value((12,)))]
    x, w = torch.randn(5, 16), torch.randn(16, 12) / 4
    (oracle,) = evaluate(task_of(nodes, (3,)), (x, w), {"m": 5}, ORACLE)
    assert oracle.dtype == torch.float64
    assert torch.equal(oracle, torch.exp(x.double() @ w.double()))


def test_oracle_keeps_a_narrowing_conversion_as_a_rounding():
    nodes = [
        Node("gemm", (0, 1), PLAIN, value((12,))),
        Node("convert", (2,), (), value((12,), dtype="bfloat16")),
        Node("convert", (3,), (), value((12,))),
    ]
    x, w = torch.randn(5, 16), torch.randn(16, 12)
    (oracle,) = evaluate(task_of(nodes, (4,)), (x, w), {"m": 5}, ORACLE)
    assert torch.equal(oracle, (x.double() @ w.double()).bfloat16().double())
    assert not torch.equal(oracle, x.double() @ w.double())


def test_oracle_of_half_task_skips_the_rounding_of_single_ops():
    nodes = [Node("gemm", (0, 1), PLAIN, value((12,), dtype="bfloat16")), Node("exp", (2,), (), value((12,), dtype="bfloat16"))]
    x, w = torch.randn(5, 16).bfloat16(), (torch.randn(16, 12) / 4).bfloat16()
    (oracle,) = evaluate(task_of(nodes, (3,), dtype="bfloat16"), (x, w), {"m": 5}, ORACLE)
    assert torch.equal(oracle, torch.exp(x.double() @ w.double()))


def test_column_reduction_covers_all_row_axes():
    rows = ("b", "m")
    nodes = [Node("gemm", (0, 1), PLAIN, value((12,), rows)), Node("mean", (2,), (("axes", "rows"),), value((12,), (1, 1)))]
    x, w = torch.randn(3, 5, 16), torch.randn(1, 1, 16, 12)
    (found,) = evaluate(task_of(nodes, (3,), rows=rows), (x, w), {"b": 3, "m": 5})
    assert found.shape == (1, 1, 12)
    torch.testing.assert_close(found[0, 0], (x @ w[0, 0]).mean((0, 1)))


def test_wide_gemm_with_rounded_operands_has_only_their_error():
    task = task_of([Node("gemm", (0, 1), PLAIN, value((12,)))], (2,))
    x, w = torch.randn(5, 16), torch.randn(16, 12)
    policy = Policy(round_operand=lambda t: t.half().float(), wide_gemm=True)
    (found,) = evaluate(task, (x, w), {"m": 5}, policy)
    assert torch.equal(found, (x.half().double() @ w.half().double()).float())


@pytest.mark.parametrize("op", ["argmax", "argmin"])
def test_index_reduction_takes_the_first_of_equals(op):
    nodes = [Node("gemm", (0, 1), PLAIN, value((12,))), Node(op, (2,), (("axes", (0,)),), value((1,), dtype="int64"))]
    (found,) = evaluate(task_of(nodes, (3,)), (torch.zeros(5, 16), torch.zeros(16, 12)), {"m": 5})
    assert torch.equal(found, torch.zeros(5, 1, dtype=torch.int64))


def test_scalar_first_operand_is_taken_in_order():
    nodes = [Node("gemm", (0, 1), PLAIN, value((12,))), Node("sub", (Const(1.0), 2), (), value((12,)))]
    x, w = torch.randn(5, 16), torch.randn(16, 12)
    (found,) = evaluate(task_of(nodes, (3,)), (x, w), {"m": 5})
    assert torch.equal(found, 1.0 - x @ w)
