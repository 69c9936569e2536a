"""Kernels of every form against the reference evaluator in fp64, in Triton's interpreter."""

from __future__ import annotations

import pytest
from triton_tasks import Builder, gate, named_tasks

from kforge_dynamo.codegen.triton import Schedule
from kforge_dynamo.codegen.triton.expressions import EXPRESSIONS
from kforge_dynamo.records.task import Const, InputRole, Node, ValueSpec
from kforge_dynamo.semantics.table import OPS, Kind


def schedule(**choices) -> Schedule:
    """A small one; choices override."""
    base = {"scheme": "ieee", "block_m": 32, "block_n": 32, "block_k": 32, "group": 4, "warps": 4, "stages": 2}
    return Schedule(**(base | choices))


WALKING = {"descriptors": True, "persistent": True, "flatten": True}
FORMS = {
    "pointers": {},
    "split": {"split": 3},
    "wide": {"block_n": 128},
    "short": {"block_m": 16, "block_k": 16},
    "pieces": {"block_n": 128, "cuts": 4},
    "rows": {"reduce": "rows"},
    "guarded": {"scheme": "tf32x3"},
    "guarded split": {"scheme": "tf32x3", "split": 2},
}
TASKS = named_tasks()


THOROUGH = ("gelu", "softmax", "logsumexp", "groups", "normalised", "pooled", "residual")
RUNS = [(name, form) for name in TASKS for form in FORMS if name in THOROUGH or form in ("pointers", "guarded")]


@pytest.mark.parametrize(("name", "form"), RUNS)
def test_kernel_of_named_task_matches_the_oracle(interpret, name, form):
    task, sizes = TASKS[name]
    gate(interpret(task, schedule(**FORMS[form]), sizes))


STORES = {
    "pointer": {},
    "descriptor": {"store": "descriptor"},
    "halves": {"store": "halves"},
    "pieces": {"store": "descriptor", "cuts": 2, "block_n": 64},
}


@pytest.mark.parametrize("store", STORES)
@pytest.mark.parametrize("name", ["gelu", "logsumexp", "softmax", "groups", "residual", "statistics"])
def test_descriptors_match_the_oracle_where_the_matrix_allows_them(interpret, name, store):
    task, sizes = TASKS[name]
    gate(interpret(task, schedule(**(WALKING | STORES[store])), sizes))


@pytest.mark.parametrize("strides", [(1, "dense"), ("dense", 1), ("pitch", 1), (1, "pitch"), ("pitch", "pitch"), (0, 1)])
@pytest.mark.parametrize("side", ["lhs", "rhs", "residual"])
def test_operand_strides_are_followed(interpret, side, strides):
    builder = Builder()
    flat = {"lhs": ("dense", 1), "rhs": (1, "dense"), "residual": ("dense", 1)} | {side: strides}
    x = builder.input((40,), rows=("m",), strides=flat["lhs"], role=InputRole.LHS)
    w = builder.input((40, 56), strides=(0, *flat["rhs"]), role=InputRole.RHS)
    r = builder.input((56,), rows=("m",), strides=flat["residual"])
    task = builder.task(builder.op("add", builder.gemm(x, w), r))
    gate(interpret(task, schedule(), (45,)))


@pytest.mark.parametrize("order", [("dense", "dense", 1), ("dense", 1, "dense"), ("pitch", "pitch", 1), (0, "dense", 1)])
def test_batched_product_follows_its_strides(interpret, order):
    builder = Builder("b", "m")
    x = builder.input((24,), rows=("b", "m"), strides=order, role=InputRole.LHS)
    w = builder.input((24, 40), rows=("b", 1), strides=("dense", 0, 1, "dense"), role=InputRole.RHS)
    task = builder.task(builder.softmax(builder.gemm(x, w, alpha=0.5)))
    gate(interpret(task, schedule(), (3, 37)))
    gate(interpret(task, schedule(scheme="tf32x3", split=2), (3, 37)))


def test_weight_without_batch_serves_several_row_axes(interpret):
    builder = Builder("b0", "b1", "m")
    x = builder.linear(24, 40)
    gate(interpret(builder.task(builder.softmax(x)), schedule(), (2, 3, 7)))


@pytest.mark.parametrize("split", [1, 2])
def test_symbolic_depth_is_read_at_the_call(interpret, split):
    builder = Builder(cols=("k",))
    x = builder.linear("k", 40)
    task = builder.task(builder.op("relu", x))
    for depth in (1, 31, 64, 100):
        gate(interpret(task, schedule(split=split), (33, depth)))


@pytest.mark.parametrize("dtype", ["float16", "bfloat16"])
@pytest.mark.parametrize("name", ["gelu", "softmax", "logsumexp", "normalised"])
def test_half_precision_accumulates_in_fp32(interpret, dtype, name):
    builder = Builder()
    x = builder.op("convert", builder.linear(64, 64, dtype), dtype="float32")
    y = {"gelu": builder.gelu, "softmax": builder.softmax, "logsumexp": builder.logsumexp}.get(
        name, lambda value: builder.normalised(value, (0,))
    )(x)
    task = builder.task(builder.op("convert", y, dtype=dtype), x)
    # the interpreter truncates where a device rounds to bfloat16: two units in the last place instead of a half
    gate(interpret(task, schedule(scheme="native"), (33,)), slack=5.0)


@pytest.mark.parametrize("m", [1, 2, 31, 32, 33, 65])
@pytest.mark.parametrize("n", [1, 5, 32, 50])
def test_ragged_sizes_touch_nothing_outside(interpret, m, n):
    builder = Builder()
    x = builder.linear(7, n)
    gate(interpret(builder.task(builder.op("tanh", x), builder.reduce("amax", x, (0,))), schedule(), (m,)))


@pytest.mark.parametrize(
    "op", sorted(name for name, op in OPS.items() if op.kind is Kind.POINTWISE and name not in ("convert", "pow"))
)
def test_pointwise_op_matches_torch(interpret, op):
    assert op in EXPRESSIONS, f"{op} has no Triton expression and no test that names it as rejected"
    builder = Builder()
    x = builder.input((70,), rows=("m",))
    y = builder.input((70,), rows=("m",))
    if op in ("floor", "ceil", "round", "trunc", "eq", "ne", "lt", "le", "gt", "ge", "logical_and", "logical_or", "logical_xor"):
        x, y = (builder.op("mul", builder.op("round", builder.op("mul", value, 2.0)), 0.5) for value in (x, y))
    if op in ("eq", "ne", "lt", "le", "gt", "ge", "isnan", "isinf", "isfinite") or op.startswith("logical"):
        arguments, dtype = ((x,) if op in ("isnan", "isinf", "isfinite", "logical_not") else (x, y)), "bool"
    elif op == "where":
        arguments, dtype = (builder.op("gt", x, 0.25, dtype="bool"), x, y), None
    else:
        binary = op in ("add", "sub", "mul", "div", "maximum", "minimum")
        arguments, dtype = ((x, y) if binary else (x,)), None
    task = builder.task(builder.op(op, *arguments, dtype=dtype))
    positive = op in ("sqrt", "rsqrt", "log", "log2", "log1p", "reciprocal")
    for fill in ("positive" if positive else "normal", "edges"):
        gate(interpret(task, schedule(), (9,), fill=fill))


@pytest.mark.parametrize("op", ["log", "log1p", "expm1", "tanh", "exp", "sigmoid", "log2"])
@pytest.mark.parametrize("scale", [1e-30, 1e-6, 1e-2, 0.6, 1.0, 30.0, 1e5])
def test_precise_functions_keep_their_relative_error_small(interpret, op, scale):
    builder = Builder()
    x = builder.input((64,), rows=("m",))
    y = builder.op("mul", x, scale)
    gate(interpret(builder.task(builder.op(op, y)), schedule(), (8,), fill="positive"))


@pytest.mark.parametrize("exponent", [2.0, 3.0, -1.0, 0.5, -0.5, 0.0, 7.0])
def test_pow_with_a_constant_exponent_matches_torch(interpret, exponent):
    builder = Builder()
    x = builder.input((40,), rows=("m",))
    gate(interpret(builder.task(builder.op("pow", x, exponent)), schedule(), (8,), fill="positive"))


@pytest.mark.parametrize(("source", "target"), [("float32", "float16"), ("float32", "int32"), ("float32", "bool"),
                                                ("int64", "float32"), ("bool", "float32"), ("float16", "float32")])  # fmt: skip
def test_convert_rounds_and_truncates_like_torch(interpret, source, target):
    builder = Builder()
    x = builder.input((40,), source, rows=("m",))
    gate(interpret(builder.task(builder.op("convert", x, dtype=target)), schedule(), (8,)))


def test_integer_constants_and_sums_stay_integers(interpret):
    builder = Builder()
    x = builder.input((40,), "int64", rows=("m",))
    y = builder.op("add", builder.op("mul", x, Const(3)), Const(-1))
    total = builder.node(Node("sum", (y,), (("axes", (0,)),), ValueSpec("int64", ("m",), (1,))))
    result = interpret(builder.task(y, total), schedule(), (8,))
    assert all(output["error"] == 0 for output in result["outputs"])


REDUCTIONS = ["sum", "mean", "amax", "amin", "any", "all", "argmax", "argmin", "var"]


@pytest.mark.parametrize("form", ["pointers", "rows", "wide", "split"])
@pytest.mark.parametrize("fill", ["normal", "edges", "integers"])
def test_every_row_reduction_matches_torch_in_every_form(interpret, form, fill):
    builder = Builder()
    x = builder.op("add", builder.linear(20, 72), 0.0)
    task = builder.task(*[builder.reduce(name, x, (0,)) for name in REDUCTIONS])
    gate(interpret(task, schedule(**FORMS[form]), (19,), fill=fill))


@pytest.mark.parametrize("fill", ["normal", "edges"])
def test_every_column_statistic_matches_torch(interpret, fill):
    builder = Builder()
    x = builder.linear(20, 40)
    names = [name for name in REDUCTIONS if not name.startswith("arg")]
    statistics = [builder.reduce(name, x, "rows") for name in names]
    follows = builder.op("sub", x, statistics[1])
    task = builder.task(*statistics, builder.op("rsqrt", builder.op("add", statistics[-1], 1e-5)), follows)
    gate(interpret(task, schedule(), (75,), fill=fill))


@pytest.mark.parametrize("op", ["argmax", "argmin"])
def test_index_of_equal_values_is_the_first(interpret, op):
    builder = Builder()
    x = builder.linear(4, 100)
    task = builder.task(builder.reduce(op, builder.op("round", builder.op("mul", x, 0.2)), (0,)))
    for form in ("pointers", "rows"):
        result = interpret(task, schedule(**FORMS[form]), (40,), fill="integers")
        assert result["outputs"][0]["error"] == 0


@pytest.mark.parametrize("scheme", ["ieee", "tf32x3"])
@pytest.mark.parametrize("name", ["gelu", "logsumexp", "softmax", "groups", "normalised", "mish"])
def test_infinities_and_nans_appear_where_eager_has_them(interpret, scheme, name):
    task, sizes = TASKS[name]
    result = interpret(task, schedule(scheme=scheme), sizes, fill="edges")
    assert all(output["classes"] for output in result["outputs"]), result


def test_statistics_of_one_row_cancel_the_value_that_is_kept_in_half_precision(interpret):
    builder = Builder()
    x = builder.op("convert", builder.linear(16, 40, "float16"), dtype="float32")
    result = interpret(builder.task(builder.normalised(x, "rows")), schedule(scheme="native"), (1,))
    assert result["outputs"][0]["error"] == 0.0


def test_bias_with_beta_zero_is_ignored(interpret):
    builder = Builder()
    operands = builder.operands(16, 24)
    task = builder.task(builder.gemm(*operands, alpha=2.0, beta=0.0))
    gate(interpret(task, schedule(), (8,)))


def test_long_rows_are_walked_over_in_chunks(interpret):
    builder = Builder()
    x = builder.input((33000,), rows=("m",))
    y = builder.normalised(x, (0,))
    task = builder.task(builder.op("mul", y, builder.reduce("sum", y, (0,))), builder.reduce("any", x, (0,)))
    gate(interpret(task, schedule(), (1,)))


def test_index_over_a_long_row_survives_the_chunks(interpret):
    builder = Builder()
    x = builder.input((33000,), rows=("m",))
    gate(interpret(builder.task(builder.reduce("argmin", x, (0,))), schedule(), (1,)))
