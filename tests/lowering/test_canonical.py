"""Task identity: equal computations give equal tasks whatever their rows, layers and models; different ones do not."""

import pytest
import torch
import torch.nn.functional as F
from post_grad import capture, check, only, ops, trace
from torch import nn

from kforge_dynamo.lowering.partition import partition
from kforge_dynamo.records.codec import digest, from_text, to_text
from kforge_dynamo.records.task import Task

aten = torch.ops.aten


def task_of(function, *args, **options):
    return only(partition(trace(function, *args, **options))).task


def mlp(x, w, b, r):
    return F.linear(x, w, b).tanh() + r


def arguments(*rows, k=16, n=8):
    return torch.randn(*rows, k), torch.randn(n, k), torch.randn(n), torch.randn(*rows, n)


@pytest.mark.parametrize("rows", [(2,), (7,), (3, 5), (2, 3, 4), (1, 6), (6, 1)])
def test_rows_of_any_number_and_shape_are_one_axis_where_strides_allow(rows):
    assert digest(task_of(mlp, *arguments(*rows))) == digest(task_of(mlp, *arguments(13)))


def test_one_row_is_the_same_task_as_many():
    assert digest(task_of(mlp, *arguments(1))) == digest(task_of(mlp, *arguments(13)))
    bmm = (torch.randn(1, 1, 16), torch.randn(1, 16, 8))
    assert digest(task_of(torch.bmm, *bmm)) == digest(task_of(torch.bmm, torch.randn(4, 6, 16), torch.randn(4, 16, 8)))


def test_symbolic_rows_are_the_same_task_as_fixed_ones():
    x, w, b = torch.randn(5, 16), torch.randn(8, 16), torch.randn(8)

    def function(x):
        return F.linear(x, w, b).softmax(-1)

    (static,), (dynamic,) = capture(function, x), capture(function, x, dynamic=[(0, 0)])
    found = [only(partition(graph)) for graph in (static, dynamic)]
    assert digest(found[0].task) == digest(found[1].task)
    assert [region.binding.axes[0].hint for region in found] == [5, 5]
    assert isinstance(found[1].binding.axes[0].size, torch.SymInt)


def test_layers_of_a_model_and_two_models_share_their_tasks():
    first = nn.Sequential(*(nn.Sequential(nn.Linear(16, 16), nn.GELU()) for _ in range(3)))
    second = nn.Sequential(nn.ReLU(), nn.Linear(16, 16), nn.GELU(), nn.Linear(16, 4))
    tasks = []
    for model, rows in ((first, 6), (second, 9)):
        (graph,) = capture(model.eval(), torch.randn(rows, 16))
        tasks.append([digest(region.task) for region in partition(graph).regions])
    assert len(tasks[0]) == 3 and len(set(tasks[0])) == 1
    assert tasks[1][0] == tasks[0][0] != tasks[1][1]


def test_names_and_order_of_independent_nodes_leave_no_trace():
    def one(x, w, r):
        a, y = r.sum(), x @ w
        return y.tanh() * y.sigmoid() + a

    def other(x, w, r):
        y = x @ w
        s, t = y.sigmoid(), y.tanh()
        return t * s + r.sum()

    args = torch.randn(4, 16), torch.randn(16, 8), torch.randn(3)
    assert digest(task_of(one, *args)) == digest(task_of(other, *args))


DIFFERENT = {
    "n": lambda x, w, b, r: F.linear(x, w[:4], b[:4]),
    "k": lambda x, w, b, r: F.linear(x[:, :8].contiguous(), w[:, :8].contiguous(), b),
    "dtype": lambda x, w, b, r: F.linear(x.bfloat16(), w.bfloat16(), b.bfloat16()),
    "no_bias": lambda x, w, b, r: F.linear(x, w),
    "bias_of_one_column": lambda x, w, b, r: torch.addmm(b[:1], x, w.t()),
    "bias_that_varies_by_row": lambda x, w, b, r: torch.addmm(r, x, w.t()),
    "alpha": lambda x, w, b, r: torch.addmm(b, x, w.t(), alpha=2),
    "beta": lambda x, w, b, r: torch.addmm(b, x, w.t(), beta=2),
    "row_major_weight": lambda x, w, b, r: torch.addmm(b, x, w.t().contiguous()),
    "transposed_input": lambda x, w, b, r: F.linear(x.t().contiguous().t(), w, b),
    "strided_input": lambda x, w, b, r: F.linear(torch.cat([x, x], 1)[:, :16], w, b),
    "epilogue": lambda x, w, b, r: F.linear(x, w, b).relu(),
    "constant": lambda x, w, b, r: F.linear(x, w, b) * 2,
    "other_constant": lambda x, w, b, r: F.linear(x, w, b) * 2.5,
    "negative_zero": lambda x, w, b, r: F.linear(x, w, b) * -0.0,
    "zero": lambda x, w, b, r: F.linear(x, w, b) * 0.0,
    "two_outputs": lambda x, w, b, r: (F.linear(x, w, b), F.linear(x, w, b).relu()),
}


def test_tasks_that_differ_in_anything_have_different_digests():
    args = arguments(6)
    tasks = [task_of(mlp, *args), task_of(lambda x, w, b, r: F.linear(x, w, b), *args)]
    tasks += [task_of(function, *args) for function in DIFFERENT.values()]
    assert len({digest(task) for task in tasks}) == len(tasks)
    assert all(from_text(Task, to_text(task)) == task for task in tasks)


def test_row_axes_split_only_where_a_value_tells_them_apart():
    x, w = torch.randn(2, 3, 16), torch.randn(8, 16)
    position, batch = torch.randn(3, 8), torch.randn(2, 1, 1)

    def axes(function, *extra):
        region = only(check(trace(function, x, w, *extra), [x, w, *extra]))
        return region.task.row_axes, [item.value.rows for item in region.task.inputs]

    assert axes(lambda x, w, p: F.linear(x, w) + p, position) == (("b", "m"), [("b", "m"), (1, 1), (1, "m")])
    assert axes(lambda x, w, p: F.linear(x, w) * p, batch) == (("b", "m"), [("b", "m"), (1, 1), ("b", 1)])
    assert axes(lambda x, w, p: F.linear(x, w) + p, torch.randn(8))[0] == ("m",)
    transposed = torch.randn(3, 2, 8).transpose(0, 1)
    assert axes(lambda x, w, p: F.linear(x, w) + p, transposed)[0] == ("b", "m"), "rows that cannot be merged in memory"


def test_three_row_axes_have_numbered_names():
    q, k, mask = torch.randn(2, 3, 4, 16), torch.randn(2, 3, 4, 16), torch.randn(2, 1, 4, 4)

    def scores(q, k, mask):
        return torch.softmax(q @ k.transpose(-1, -2) + mask, -1)

    region = only(check(trace(scores, q, k, mask), [q, k, mask]))
    assert region.task.row_axes == ("b0", "b1", "m")
    assert [item.value.rows for item in region.task.inputs] == [("b0", "b1", "m"), ("b0", "b1", 1), ("b0", 1, "m")]
    assert [axis.hint for axis in region.binding.axes] == [2, 3, 4]


def test_input_whose_rows_are_not_split_in_memory_is_fed_through_a_view():
    x, w, p = torch.randn(6, 16), torch.randn(8, 16), torch.randn(3, 8)
    region = only(check(trace(lambda x, w, p: F.linear(x, w).view(2, 3, 8) + p, x, w, p), [x, w, p]))
    assert region.task.row_axes == ("b", "m")
    assert [feed.view for feed in region.binding.feeds] == [(2, 3, 16), None, None]


def test_equal_values_are_computed_once_and_dead_ones_not_at_all():
    def function(x, w):
        y = x @ w
        y.sin()
        return (y * 2).tanh() + (y * 2).tanh()

    args = torch.randn(4, 16), torch.randn(16, 8)
    assert ops(only(check(trace(function, *args), list(args)))) == ["gemm", "mul", "tanh", "add"]


def test_two_outputs_of_one_value_are_two_values():
    args = torch.randn(4, 16), torch.randn(16, 8)

    def function(x, w):
        y = x @ w
        return y.tanh(), y.tanh()

    region = only(check(trace(function, *args), list(args)))
    assert len(set(region.task.outputs)) == 2


def test_same_tensor_as_operand_and_residual_is_two_inputs():
    x, w = torch.randn(8, 8), torch.randn(8, 8)
    region = only(check(trace(lambda x, w: x + torch.mm(x, w) + x.tanh(), x, w), [x, w]))
    assert [feed.node.name for feed in region.binding.feeds].count("x_1") == 2


def test_reshapes_are_merged_and_vectors_enter_flat():
    x, w, scale = torch.randn(6, 16), torch.randn(16, 24), torch.randn(24)

    def function(x, w, scale):
        y = (x @ w).view(6, 2, 12).view(6, 2, 3, 4) * scale.view(2, 3, 4)
        return y.view(6, 24).relu()

    region = only(check(trace(function, x, w, scale), [x, w, scale]))
    assert ops(region) == ["gemm", "reshape", "reshape", "mul", "reshape", "relu"]
    assert region.task.inputs[2].value.cols == (24,)


def test_stride_classes_say_the_whole_layout_or_pitch():
    x, w = torch.randn(2, 3, 16), torch.randn(16, 8)
    extra = torch.randn(3, 2, 8).transpose(0, 1)
    sliced = torch.randn(2, 3, 20)[..., :8]
    task = task_of(lambda x, w, e, s: (x.reshape(6, 16) @ w).view(2, 3, 8) + e * s, x, w, extra, sliced)
    assert task.inputs[2].strides == ("pitch", "pitch", 1), "dense, but in another order than rows and columns"
    assert task.inputs[3].strides == ("pitch", "pitch", 1)
    assert task.inputs[0].strides == ("dense", "dense", 1)
