"""Every op that may join a region means in the task what it means in ATen, in fp32 and bf16."""

import math

import pytest
import torch
import torch.nn.functional as F
from post_grad import check, only, ops, reasons, trace

from kforge_dynamo.lowering.composites import COMPOSITES
from kforge_dynamo.lowering.constants import rounded
from kforge_dynamo.lowering.pointwise import RULES
from kforge_dynamo.lowering.reductions import REDUCTIONS
from kforge_dynamo.lowering.translate import is_view
from kforge_dynamo.lowering.views import VIEWS

aten, prims = torch.ops.aten, torch.ops.prims
M, K, N = 6, 16, 24


def operands(dtype=torch.float32):
    generator = torch.Generator().manual_seed(1)
    return [torch.randn(M, K, generator=generator).to(dtype), torch.randn(K, N, generator=generator).to(dtype)]


def positive(y):
    return y.abs() + 0.5


def inside(function, dtype=torch.float32, **options):
    """The region of a product with `function` behind it, judged on real values; it must hold the whole function."""
    graph = trace(lambda x, w: function(x @ w), *operands(dtype))
    found = check(graph, operands(dtype), **options)
    region = only(found)
    assert region.outputs == tuple(behind_views(node) for node in graph.output_node().all_input_nodes), found.rejections
    return region


def behind_views(node):
    """A region's last views stay in the graph."""
    while is_view(node) and node.args[0].op == "call_function" and node.args[0].meta["val"].numel() == node.meta["val"].numel():
        node = node.args[0]
    return node


UNARY = {
    "neg": aten.neg, "abs": aten.abs, "sign": aten.sign, "exp": aten.exp, "exp2": aten.exp2, "expm1": aten.expm1,
    "sin": aten.sin, "cos": aten.cos, "tanh": aten.tanh, "sigmoid": aten.sigmoid, "erf": aten.erf, "relu": aten.relu,
    "floor": aten.floor, "ceil": aten.ceil, "round": aten.round, "trunc": aten.trunc,
    "reciprocal": lambda y: aten.reciprocal(positive(y)), "sqrt": lambda y: aten.sqrt(positive(y)),
    "rsqrt": lambda y: aten.rsqrt(positive(y)), "log": lambda y: aten.log(positive(y)),
    "log2": lambda y: aten.log2(positive(y)), "log1p": lambda y: aten.log1p(positive(y)),
    "isnan": lambda y: aten.isnan(aten.log(y)), "isinf": lambda y: aten.isinf(aten.exp(y * 1e3)),
    "logical_not": lambda y: aten.logical_not(y > 0),
}  # fmt: skip


@pytest.mark.parametrize("name", UNARY)
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_unary_op_after_a_product_is_the_op_of_that_name(name, dtype):
    assert name in ops(inside(UNARY[name], dtype))


ACTIVATIONS = {
    "silu": aten.silu.default,
    "gelu": aten.gelu.default,
    "gelu_tanh": lambda y: aten.gelu.default(y, approximate="tanh"),
    "mish": aten.mish.default,
    "softplus": lambda y: aten.softplus.default(y, 2.0, 3.0),
    "elu": lambda y: aten.elu.default(y, 1.5, 1.1, 0.7),
    "leaky_relu": lambda y: aten.leaky_relu.default(y, 0.2),
    "hardtanh": lambda y: aten.hardtanh.default(y, -0.5, 0.7),
    "hardsigmoid": aten.hardsigmoid.default,
    "hardswish": aten.hardswish.default,
    "relu6": aten.relu6.default,
    "threshold_backward": lambda y: aten.threshold_backward.default(y, y * 2, 0.3),
    "sigmoid_backward": lambda y: aten.sigmoid_backward.default(y, y.sigmoid()),
    "tanh_backward": lambda y: aten.tanh_backward.default(y, y.tanh()),
}


@pytest.mark.parametrize("name", ACTIVATIONS)
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_activation_that_came_undecomposed_is_said_in_the_op_table(name, dtype):
    inside(ACTIVATIONS[name], dtype)


ARITHMETIC = {
    "add_alpha": lambda y: aten.add.Tensor(y, y.tanh(), alpha=3),
    "add_scalar": lambda y: aten.add.Scalar(y, 2),
    "sub_alpha": lambda y: aten.sub.Tensor(y, y.tanh(), alpha=0.5),
    "rsub": lambda y: aten.rsub.Scalar(y, 2.5, 3),
    "rsub_tensor": lambda y: aten.rsub.Tensor(y, y.tanh(), alpha=2),
    "div_scalar": lambda y: aten.div.Scalar(y, 3),
    "div_tensor": lambda y: y / positive(y),
    "reciprocal_of": lambda y: 2.0 / positive(y),
    "pow_scalar": lambda y: aten.pow.Tensor_Scalar(y, 3),
    "pow_tensor": lambda y: aten.pow.Tensor_Tensor(positive(y), y),
    "pow_base": lambda y: aten.pow.Scalar(2.0, y),
    "square": aten.square.default,
    "clamp": lambda y: aten.clamp.default(y, -0.3, 0.4),
    "clamp_low": lambda y: aten.clamp.default(y, min=0.1),
    "clamp_crossed": lambda y: aten.clamp.default(y, 0.5, -0.5),
    "clamp_min": lambda y: aten.clamp_min.default(y, 0.1),
    "clamp_max": lambda y: aten.clamp_max.default(y, 0.1),
    "clamp_tensor": lambda y: aten.clamp.Tensor(y, y * 0.5, y * 0.5 + 0.1),
    "clamp_min_tensor": lambda y: aten.clamp_min.Tensor(y, y.tanh()),
    "clamp_max_tensor": lambda y: aten.clamp_max.Tensor(y, y.tanh()),
    "maximum": lambda y: aten.maximum.default(y, y.tanh()),
    "minimum": lambda y: aten.minimum.default(y, y.tanh()),
    "addcmul": lambda y: aten.addcmul.default(y, y.tanh(), y.sigmoid(), value=2),
    "addcdiv": lambda y: aten.addcdiv.default(y, y.tanh(), positive(y), value=0.5),
    "where": lambda y: aten.where.self(y > 0, y, y.tanh()),
    "where_scalar": lambda y: aten.where.ScalarOther(y > 0, y, -1.0),
    "where_scalar_self": lambda y: aten.where.ScalarSelf(y > 0, 2.0, y),
    "masked_fill": lambda y: aten.masked_fill.Scalar(y, y > 0.2, -math.inf),
    "full_scalar": lambda y: aten.where.self(y > 0, aten.full.default([], 3.0, dtype=y.dtype), y),
    "full": lambda y: aten.minimum.default(y, aten.full.default([M, N], 0.25, dtype=y.dtype)),
    "scalar_tensor": lambda y: y * aten.scalar_tensor.default(1.5, dtype=y.dtype),
    "comparison": lambda y: (y > y.tanh()).logical_and(y <= 0.3).logical_or(y != y).logical_xor(aten.eq.Scalar(y, 0.5)),
    "bitwise": lambda y: aten.bitwise_and.Tensor(y > 0, y < 1) | aten.bitwise_not.default(y >= -1),
    "mask_product": lambda y: (y > 0) * y,
    "mask_sum": lambda y: ((y > 0) + (y < -1)).logical_not(),
    "constants": lambda y: torch.where(y > 0, 0.0, -math.inf).to(y.dtype) + y,
    "to_bool": lambda y: y.relu().to(torch.bool),
    "clone": lambda y: y.clone().detach() * 2,
}


@pytest.mark.parametrize("name", ARITHMETIC)
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_arithmetic_in_all_overloads_is_said_in_the_op_table(name, dtype):
    inside(ARITHMETIC[name], dtype)


REDUCED = {
    "sum": lambda y: y.sum(1),
    "sum_keepdim": lambda y: y.sum(-1, keepdim=True),
    "sum_all": lambda y: y.sum(),
    "sum_rows": lambda y: y.sum(0),
    "sum_into_f32": lambda y: aten.sum.dim_IntList(y, [1], dtype=torch.float32),
    "mean": lambda y: y.mean(1),
    "mean_rows": lambda y: y - y.mean(0, keepdim=True),
    "mean_all": lambda y: y.mean(),
    "amax": lambda y: y.amax(1),
    "amin": lambda y: y.amin(1, keepdim=True),
    "max_all": lambda y: y.max(),
    "argmax": lambda y: y.argmax(1),
    "argmin": lambda y: y.argmin(-1, keepdim=True),
    "max_dim": lambda y: torch.max(y, 1)[0],
    "max_dim_both": lambda y: tuple(torch.max(y, 1, keepdim=True)),
    "min_dim_both": lambda y: tuple(torch.min(y, 1)),
    "any": lambda y: (y > 3).any(1),
    "any_dims": lambda y: aten.any.dims(y > 3, [0, 1]),
    "all": lambda y: (y > -3).all(-1, keepdim=True),
    "var": lambda y: y.var(1),
    "var_rows": lambda y: y.var(0, correction=0),
    "var_mean": lambda y: tuple(torch.var_mean(y, 1, keepdim=True, correction=0)),
    "logsumexp": lambda y: torch.logsumexp(y, 1),
    "logsumexp_keepdim": lambda y: aten.logsumexp.default(y, [-1], True),
    "softmax": lambda y: aten._softmax.default(y, -1, False),
    "log_softmax": lambda y: aten._log_softmax.default(y, 1, False),
    "online_softmax": lambda y: tuple(prims.prepare_softmax_online.default(y, 1)),
    "grouped": lambda y: y.view(M, 4, 6).sum(2),
    "grouped_both": lambda y: (y.view(M, 4, 6) - y.view(M, 4, 6).mean([1, 2], keepdim=True)).view(M, N),
    "one_element": lambda y: y.sum(1, keepdim=True).amax(1, keepdim=True).mean(1),
    "avg_pool1d": lambda y: F.avg_pool1d(y.unsqueeze(1), 4).squeeze(1),
    "avg_pool_rest": lambda y: F.avg_pool1d(y, 5),
    "avg_pool2d": lambda y: F.avg_pool2d(y.view(M, 1, 4, 6), 2).sum(1) * 2,
    "max_pool": lambda y: F.max_pool2d(y.view(M, 1, 4, 6), (2, 3)).squeeze(1) * 1.5,
}


@pytest.mark.parametrize("name", REDUCED)
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_reduction_over_a_row_its_groups_or_all_rows_joins(name, dtype):
    inside(REDUCED[name], dtype)


SEEN = {
    "slice": lambda y: y[:, 3:20:2] * 2,
    "select": lambda y: y[:, 5] * 2,
    "chunk": lambda y: torch.chunk(y, 2, 1)[0] * torch.chunk(y, 2, 1)[1].sigmoid(),
    "split": lambda y: aten.split.Tensor(y, 10, 1)[2] * 2,
    "split_sizes": lambda y: aten.split_with_sizes.default(y, [8, 16], 1)[1].tanh(),
    "unbind": lambda y: aten.unbind.int(y.view(M, 2, 12), 1)[1].tanh(),
    "unsqueeze": lambda y: (y.unsqueeze(0).unsqueeze(2) * 2).squeeze(2).squeeze(0) + 1,
    "squeeze_all": lambda y: (y.unsqueeze(1) * 2).squeeze() + 1,
    "rows_split": lambda y: y.view(2, 3, N).softmax(-1) * 2,
    "columns_split": lambda y: y.view(M, 4, 6).softmax(-1).view(M, N) * 2,
    "expand_columns": lambda y: y.sum(1, keepdim=True).expand(M, N) * y,
    "expand_same": lambda y: y.expand(M, N) * 2,
    "transposed_twice": lambda y: (y.t() * 2).t() + y,
    "permuted_columns": lambda y: (y.view(M, 4, 6).permute(0, 2, 1) * 2).permute(0, 2, 1).reshape(M, N) + y,
    "as_strided": lambda y: aten.as_strided.default(y * 2, [M, 4, 6], [N, 6, 1]) + 1,
}


@pytest.mark.parametrize("name", SEEN)
def test_view_that_keeps_rows_and_columns_apart_joins(name):
    inside(SEEN[name])


EXTRAS = {
    "vector": (N,), "row": (1, N), "column": (M, 1), "scalar": (), "one": (1,), "residual": (M, N), "leading": (1, M, N),
}  # fmt: skip


@pytest.mark.parametrize("name", EXTRAS)
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_extra_input_broadcasts_over_rows_or_columns(name, dtype):
    x, w = operands(dtype)
    extra = torch.randn(EXTRAS[name]).to(dtype)
    graph = trace(lambda x, w, e: (x @ w).tanh() * e + e, x, w, extra)
    region = only(check(graph, [x, w, extra]))
    assert len(region.task.inputs) == 3 and region.outputs == tuple(graph.output_node().all_input_nodes)


def test_extra_input_of_another_dtype_is_converted_as_torch_promotes():
    x, w = operands(torch.bfloat16)
    mask, scale, zero_dim = torch.rand(M, N) > 0.5, torch.randn(N), torch.tensor(2.0)
    graph = trace(lambda x, w, m, s, z: ((x @ w) * z * m + s, ((x @ w) > s)), x, w, mask, scale, zero_dim)
    region = only(check(graph, [x, w, mask, scale, zero_dim]))
    assert [node.out.dtype for node in region.task.nodes if node.op == "convert"].count("float32") >= 1
    assert [item.value.dtype for item in region.task.inputs] == ["bfloat16", "bfloat16", "float32", "bool", "float32"]


def test_narrowing_conversion_stays_a_rounding():
    x, w = operands()
    region = only(check(trace(lambda x, w: (x @ w).to(torch.bfloat16).to(torch.float32) + 1, x, w), [x, w]))
    assert ops(region).count("convert") == 2


def test_multiplication_by_one_is_dropped_and_addition_of_zero_is_not():
    x, w = operands()
    assert ops(only(check(trace(lambda x, w: (x @ w) * 1 / 1, x, w), [x, w]))) == ["gemm"]
    assert ops(only(check(trace(lambda x, w: (x @ w) + 0, x, w), [x, w]))) == ["gemm", "add"]
    assert ops(only(check(trace(lambda x, w: ((x @ w) - 0) * 2, x, w), [x, w]))) == ["gemm", "mul"]


LEFT_OUT = {
    "flip": (lambda y: y.flip(1), "unsupported_op"),
    "roll": (lambda y: y.roll(1, 1), "unsupported_op"),
    "cat": (lambda y: torch.cat([y, y], 1), "unsupported_op"),
    "gather": (lambda y: y.gather(1, torch.zeros(M, 2, dtype=torch.int64)), "unsupported_op"),
    "cumsum": (lambda y: y.cumsum(1), "unsupported_op"),
    "mean_of_some_rows": (lambda y: y.view(2, 3, N).mean(1), "crosses_rows"),
    "softmax_of_rows": (lambda y: aten._softmax.default(y, 0, False), "crosses_rows"),
    "argmax_of_rows": (lambda y: y.argmax(0), "crosses_rows"),
    "argmax_of_all": (lambda y: y.argmax(), "not_expressible"),
    "mixed_reshape": (lambda y: y.reshape(M * 2, N // 2) * 2, "crosses_rows"),
    "sliced_rows": (lambda y: y[1:] * 2, "crosses_rows"),
    "outer_rows": (lambda y: y.sum(1)[:, None] * y.sum(1)[None, :], "crosses_rows"),
    "double": (lambda y: y.double() * 2, "unsupported_dtype"),
    "integers": (lambda y: y.to(torch.int64) * 2, "unsupported_dtype"),
    "rounded_division": (lambda y: aten.div.Tensor_mode(y, 0.5, rounding_mode="floor"), "unsupported_op"),
    "overlapping_pool": (lambda y: F.avg_pool1d(y, 4, 2), "not_expressible"),
    "padded_pool": (lambda y: F.avg_pool1d(y, 4, padding=1), "not_expressible"),
    "ceil_pool": (lambda y: F.avg_pool1d(y, 5, ceil_mode=True), "not_expressible"),
    "pool_indices": (lambda y: F.max_pool2d(y.view(M, 1, 4, 6), 2, return_indices=True), "not_expressible"),
    "strided_otherwise": (lambda y: aten.as_strided.default(y, [M, N], [1, M]) * 2, "unsupported_layout"),
    "dropout": (lambda y: aten.native_dropout.default(y, 0.5, True)[0], "random"),
    "sum_of_masks": (lambda y: y.isnan().sum(1), "unsupported_dtype"),
}


@pytest.mark.parametrize("name", LEFT_OUT)
def test_node_without_a_place_in_a_region_is_left_out_with_a_reason(name):
    function, reason = LEFT_OUT[name]
    x, w = operands()
    graph = trace(lambda x, w: function((x @ w).sin()), x, w)
    found = check(graph, [x, w])
    assert ops(only(found))[:2] == ["gemm", "sin"]
    assert reason in reasons(found).values(), reasons(found)
    assert all(len(rejection.sentence) > 15 for rejection in found.rejections)


def test_layer_norm_and_group_norm_undecomposed_join_with_their_statistics():
    x, w = operands(torch.bfloat16)
    weight, bias = torch.randn(N).bfloat16(), torch.randn(N).bfloat16()

    def norms(x, w, weight, bias):
        y = x @ w
        return (*aten.native_layer_norm.default(y, [N], weight, bias, 1e-5),
                *aten.native_group_norm.default(y, weight, bias, M, N, 1, 4, 1e-5))  # fmt: skip

    region = only(check(trace(norms, x, w, weight, bias), [x, w, weight, bias]))
    assert len(region.outputs) == 6 and ops(region).count("var") == 2


def test_rules_name_ops_that_exist():
    for name in (*RULES, *REDUCTIONS, *VIEWS, *COMPOSITES):
        namespace, op, overload = name.split(".")
        if namespace == "aten":
            assert hasattr(getattr(aten, op), overload), name


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32, torch.float16, torch.bfloat16, torch.bool, torch.int32])
def test_constant_is_rounded_as_torch_stores_it(dtype):
    values = [
        0,
        1,
        -3,
        0.1,
        -0.1,
        1e-45,
        6e-8,
        65504,
        65520,
        1e5,
        3.3e38,
        3.4028236e38,
        1e39,
        -1e39,
        math.inf,
        1.00390625,
        1.01171875,
    ]
    for value in values:
        found = rounded(value, dtype)
        if dtype is torch.int32 and (isinstance(value, float) or abs(value) > 2**31):
            assert found is None
            continue
        assert found.value == torch.tensor(value, dtype=torch.float64).to(dtype).item(), value
    assert dtype in (torch.bool, torch.int32) or math.isnan(rounded(math.nan, dtype).value)


@pytest.mark.parametrize("dim", [-1, 0])
@pytest.mark.parametrize(
    "reduce",
    [
        lambda y, dim: y.sum(dim), lambda y, dim: y.mean(dim, keepdim=True), lambda y, dim: y.amax(dim),
        lambda y, dim: y.argmax(dim), lambda y, dim: torch.max(y, dim)[0],
        lambda y, dim: torch.softmax(y, dim), lambda y, dim: y.var(dim, correction=0),
        lambda y, dim: torch.logsumexp(y, dim), lambda y, dim: (y > 0).any(dim), lambda y, dim: torch.transpose(y, dim, dim),
    ],
)  # fmt: skip
def test_scalar_behind_a_product_is_reduced_along_its_dimension(reduce, dim):
    graph = trace(lambda x, w: reduce((x @ w).sum(), dim), *operands())
    assert ops(only(check(graph, operands())))[0] == "gemm"
