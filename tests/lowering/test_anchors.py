"""Which products become regions, what stands in their tasks, and Inductor's padding around them."""

import math

import pytest
import torch
from post_grad import Values, capture, check, judge, only, ops, reasons, trace

from kforge_dynamo.lowering.partition import partition
from kforge_dynamo.records.task import InputRole

aten = torch.ops.aten


def gemm(region):
    return region.task.anchor


def of(function, *args, **options):
    return check(trace(function, *args), list(args), **options)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float16, torch.bfloat16])
def test_mm_bmm_addmm_baddbmm_become_regions_of_their_own(dtype):
    x, w, b = torch.randn(3, 6, 16).to(dtype), torch.randn(3, 16, 8).to(dtype), torch.randn(8).to(dtype)
    for function, args in (
        (torch.mm, (x[0], w[0])),
        (torch.bmm, (x, w)),
        (torch.addmm, (b, x[0], w[0])),
        (torch.baddbmm, (b, x, w)),
    ):
        region = only(of(function, *args))
        assert ops(region) == ["gemm"]
        assert region.task.row_axes == (("m",) if args[-1].dim() == 2 else ("b", "m"))


@pytest.mark.parametrize("shape", [(8,), (1, 8), (6, 1), (6, 8), (), (1,)])
def test_bias_of_every_shape_is_the_third_operand(shape):
    x, w, b = torch.randn(6, 16), torch.randn(16, 8), torch.randn(shape)
    region = only(of(torch.addmm, b, x, w))
    assert [item.role for item in region.task.inputs] == [InputRole.LHS, InputRole.RHS, InputRole.EXTRA]
    assert len(gemm(region).args) == 3


@pytest.mark.parametrize(("alpha", "beta"), [(2.0, 0.5), (-1, 3), (0, 1), (0.1, 1)])
def test_alpha_and_beta_are_kept_exactly(alpha, beta):
    b, x, w = torch.randn(8), torch.randn(6, 16), torch.randn(16, 8)
    region = only(of(lambda b, x, w: torch.addmm(b, x, w, alpha=alpha, beta=beta), b, x, w))
    assert dict(gemm(region).attrs) == {"alpha": float(alpha), "beta": float(beta)}


def test_beta_zero_drops_the_bias_and_its_nan():
    b, x, w = torch.full((8,), math.nan), torch.randn(6, 16), torch.randn(16, 8)
    region = only(of(lambda b, x, w: torch.addmm(b, x, w, alpha=2, beta=0), b, x, w))
    assert len(region.task.inputs) == 2 and dict(gemm(region).attrs) == {"alpha": 2.0, "beta": 1.0}


REJECTED = {
    "double": (lambda: (torch.randn(4, 8).double(), torch.randn(8, 4).double()), "unsupported_dtype"),
    "integers": (lambda: (torch.ones(4, 8, dtype=torch.int64), torch.ones(8, 4, dtype=torch.int64)), "unsupported_dtype"),
    "complex": (lambda: (torch.randn(4, 8) + 0j, torch.randn(8, 4) + 0j), "unsupported_dtype"),
    "no_rows": (lambda: (torch.randn(0, 8), torch.randn(8, 4)), "empty"),
    "no_inner": (lambda: (torch.randn(4, 0), torch.randn(0, 4)), "empty"),
    "meta_device": (lambda: (torch.randn(4, 8, device="meta"), torch.randn(8, 4, device="meta")), "device"),
}


@pytest.mark.parametrize("name", REJECTED)
def test_product_that_does_not_qualify_is_left_out_with_a_reason(name):
    make, reason = REJECTED[name]
    found = partition(trace(lambda x, w: torch.mm(x, w).abs(), *make()))
    assert not found.regions and reasons(found)["aten.mm.default"] == reason


def test_product_into_another_dtype_and_other_kinds_of_product_are_left_out():
    x, w = torch.randn(16, 16).to(torch.int8), torch.randn(16, 16).to(torch.int8)
    assert reasons(partition(trace(torch._int_mm, x, w)))["aten._int_mm.default"] == "unsupported_op"


def test_product_on_a_device_that_was_not_asked_for_is_left_out():
    found = partition(trace(torch.mm, torch.randn(4, 8), torch.randn(8, 4)), device_kinds=("cuda",))
    assert reasons(found) == {"aten.mm.default": "device"} and "cpu" in found.rejections[0].sentence


def test_transposed_and_sliced_operands_are_fed_as_the_tensors_below_their_views():
    weight, x = torch.randn(8, 16), torch.randn(16, 6)
    region = only(of(lambda x, weight: torch.mm(x.t(), weight.t()), x, weight))
    assert [feed.node.op for feed in region.binding.feeds] == ["placeholder"] * 2
    assert region.binding.raw_dims == ((1, 0), (None, 1, 0))
    assert [item.strides for item in region.task.inputs] == [(1, "dense"), (0, 1, "dense")]

    wide = torch.randn(6, 40)
    region = only(of(lambda x, w: torch.mm(x[:, 3:19], w), wide, torch.randn(16, 8)))
    assert region.binding.feeds[0].node.target is aten.slice.Tensor
    assert region.task.inputs[0].strides == ("pitch", 1)


def test_expanded_operand_has_stride_zero_and_is_fed_as_its_base():
    region = only(of(lambda v, w: torch.mm(v.expand(6, 16), w), torch.randn(16), torch.randn(16, 8)))
    assert region.task.inputs[0].strides == (0, 1) and region.binding.feeds[0].node.op == "placeholder"


def test_gradient_of_a_sum_with_dynamic_rows_is_fed_as_one_number():
    layer = torch.nn.Linear(16, 8)
    graphs = capture(lambda x: Total.apply(layer(x)), torch.randn(6, 16, requires_grad=True), dynamic=[(0, 0)], train=True)
    regions = check(graphs[1]).regions
    assert any(feed.node.meta["val"].dim() == 0 for region in regions for feed in region.binding.feeds)
    assert all(
        axis.size == 6 or isinstance(axis.size, torch.SymInt) or axis.size in (8, 16)
        for region in regions
        for axis in region.binding.axes
    )


class Total(torch.autograd.Function):
    """A sum whose gradient is an expanded number, whatever stands behind it."""

    @staticmethod
    def forward(ctx, y):
        ctx.shape = y.shape
        return y.sum()

    @staticmethod
    def backward(ctx, gradient):
        return gradient.expand(ctx.shape)


def padded(x, w, bias=None, *, m=0, k=0, n=0):
    """As torch/_inductor/fx_passes/pad_mm.py writes it."""
    x = aten.constant_pad_nd(x, [0, k, 0, m]) if k or m else x
    w = aten.constant_pad_nd(w, [0, n, 0, k]) if k or n else w
    if bias is None:
        result = aten.mm(x, w)
    else:
        bias = torch.cat([bias, bias.new_zeros(n)], 0) if n else bias
        result = aten.addmm(bias, x, w)
    result = result[:-m, :] if m else result
    return result[:, :-n] if n else result


@pytest.mark.parametrize("sizes", [{"m": 3}, {"k": 5}, {"n": 2}, {"m": 3, "k": 5, "n": 2}, {"m": 3, "n": 2}])
@pytest.mark.parametrize("with_bias", [False, True])
def test_padding_around_a_product_is_seen_through(sizes, with_bias):
    args = (torch.randn(5, 11), torch.randn(11, 6), *((torch.randn(6),) if with_bias else ()))
    graph = trace(lambda *args: padded(*args, **sizes).relu(), *args)
    found = check(graph, list(args))
    region = only(found)
    assert ops(region) == ["gemm", "relu"] and not found.rejections
    assert region.binding.hints == (5,)
    assert [item.value.cols for item in region.task.inputs][:2] == [(11,), (11, 6)]


def test_padded_product_that_is_itself_returned_stays_padded():
    x, w = torch.randn(5, 11), torch.randn(11, 6)
    region = only(of(lambda x, w: padded(x, w, n=2), x, w))
    assert region.task.inputs[1].value.cols == (11, 8), "a slice of the padded product is no row-major tensor"


def test_padding_with_something_else_than_zeros_is_no_padding():
    x, w = torch.randn(5, 11), torch.randn(11, 6)

    def function(x, w):
        return aten.mm(aten.constant_pad_nd(x, [0, 5, 0, 0], 1.0), aten.constant_pad_nd(w, [0, 0, 0, 5])).relu()

    assert only(of(function, x, w)).task.inputs[0].value.cols == (16,)


def test_padded_product_read_whole_elsewhere_stays_padded():
    x, w = torch.randn(5, 11), torch.randn(11, 6)

    def function(x, w):
        whole = aten.mm(aten.constant_pad_nd(x, [0, 5, 0, 3]), aten.constant_pad_nd(w, [0, 2, 0, 5]))
        return whole[:-3, :][:, :-2].relu(), whole.sum(1)

    graph = trace(function, x, w)
    found = partition(graph)
    assert all(region.task.inputs[0].value.cols == (16,) for region in found.regions)
    run = Values(graph)
    run.run(x, w)
    for region in found.regions:
        judge(region, run.env)


def test_symbolic_inner_size_is_a_column_axis_and_symbolic_n_is_left_out():
    found = partition(trace(lambda x, w: torch.mm(x.t(), w[:, :4]), torch.randn(7, 5), torch.randn(7, 6), symbolic=True))
    region = only(found)
    assert region.task.axes == ("m", "k") and region.binding.hints == (5, 7)
    found = partition(trace(torch.mm, torch.randn(7, 5), torch.randn(5, 6), symbolic=True))
    assert reasons(found)["aten.mm.default"] == "symbolic_size" and "N is symbolic" in found.rejections[0].sentence
