"""The text of a task as a PyTorch function computes what the evaluator computes, for every op of the table."""

import pytest
import torch
from test_evaluate import PLAIN, task_of, value

from kforge_dynamo.records.task import Const, InputRole, InputSpec, Node
from kforge_dynamo.semantics import pytorch
from kforge_dynamo.semantics.evaluate import evaluate
from kforge_dynamo.semantics.table import OPS, Kind

BOOL = {
    "eq",
    "ne",
    "lt",
    "le",
    "gt",
    "ge",
    "isnan",
    "isinf",
    "isfinite",
    "logical_not",
    "logical_and",
    "logical_or",
    "logical_xor",
}
GEMM = Node("gemm", (0, 1), PLAIN, value((12,)))


def same(task, inputs, sizes):
    scope = {"torch": torch}
    exec(pytorch.source(task), scope)
    expected = evaluate(task, inputs, sizes)
    found = scope["reference"](*inputs, **sizes)
    assert len(found) == len(expected)
    for mine, theirs in zip(found, expected, strict=True):
        assert (mine.dtype, mine.shape) == (theirs.dtype, theirs.shape)
        assert torch.equal(mine.nan_to_num(), theirs.nan_to_num())
        if mine.is_floating_point():
            assert torch.equal(mine.isnan(), theirs.isnan())


def operands(dtype=torch.float32, batch=()):
    generator = torch.Generator().manual_seed(1)
    return [torch.randn((*shape, *rest), generator=generator).to(dtype) for shape, rest in ((batch, (5, 16)), (batch, (16, 12)))]


def dtype_of(name):
    return "bool" if name in BOOL else "int64" if name.startswith("arg") else "float32"


ARGUMENTS = {"one": (2,), "two": (2, 3), "scalar right": (2, Const(0.5)), "scalar left": (Const(0.5), 2)}


def applied(name, form):
    second = Node("mul", (2, Const(0.25)), (), value((12,)))
    return task_of([GEMM, second, Node(name, ARGUMENTS[form], (), value((12,), dtype=dtype_of(name)))], (4,))


def fits(name, form):
    """Whether the op takes so many operands."""
    try:
        evaluate(applied(name, form), operands(), {"m": 5})
    except TypeError:
        return False
    return True


POINTWISE = [op.name for op in OPS.values() if op.kind is Kind.POINTWISE and op.name not in ("where", "convert")]
APPLIED = [(name, form) for name in POINTWISE for form in ARGUMENTS if fits(name, form)]


def test_every_pointwise_op_is_applied_in_some_form():
    assert {name for name, _ in APPLIED} == set(POINTWISE)


@pytest.mark.parametrize("name, form", APPLIED)
def test_source_pointwise_op_equals_evaluator(name, form):
    same(applied(name, form), operands(), {"m": 5})


@pytest.mark.parametrize("name", [op.name for op in OPS.values() if op.kind is Kind.REDUCTION])
@pytest.mark.parametrize("axes", [(0,), "rows"])
def test_source_reduction_equals_evaluator(name, axes):
    attrs = (("axes", axes), ("correction", 1.0)) if name == "var" else (("axes", axes),)
    flags = Node("gt", (2, Const(0.0)), (), value((12,), dtype="bool"))
    out = value((12,) if axes == "rows" else (1,), (1,) if axes == "rows" else ("m",), dtype_of(name))
    operand = 2
    if name in ("any", "all"):
        operand, out = 3, value(out.cols, out.rows, "bool")
    same(task_of([GEMM, flags, Node(name, (operand,), attrs, out)], (4,)), operands(), {"m": 5})


def test_source_views_conversion_choice_and_infinity_equal_evaluator():
    nodes = [
        GEMM,
        Node("reshape", (2,), (), value((3, 4))),
        Node("slice", (3,), (("axis", 1), ("start", 1), ("step", 2), ("stop", 4)), value((3, 2))),
        Node("mean", (4,), (("axes", (1,)),), value((3, 1))),
        Node("expand", (5,), (), value((3, 2))),
        Node("gt", (4, 6), (), value((3, 2), dtype="bool")),
        Node("where", (7, 4, Const(float("-inf"))), (), value((3, 2))),
        Node("convert", (8,), (), value((3, 2), dtype="bfloat16")),
    ]
    same(task_of(nodes, (9, 8)), operands(), {"m": 5})


@pytest.mark.parametrize("by_row", [False, True])
@pytest.mark.parametrize("batched", [False, True])
def test_source_product_with_bias_and_coefficients_equals_evaluator(by_row, batched):
    rows = ("b", "m") if batched else ("m",)
    spec = value((12,), rows if by_row else tuple(1 for _ in rows))
    strides = tuple("dense" if extent != 1 else 0 for extent in spec.rows)
    bias = InputSpec(spec, (*strides, 1), InputRole.EXTRA)
    node = Node("gemm", (0, 1, 2), (("alpha", -1.5), ("beta", 0.5)), value((12,), rows))
    sizes = {"b": 3, "m": 5} if batched else {"m": 5}
    shape = [sizes[extent] if isinstance(extent, str) else extent for extent in spec.shape]
    inputs = [*operands(batch=(3,) if batched else ()), torch.randn(shape, generator=torch.Generator().manual_seed(2))]
    same(task_of([node], (3,), extras=(bias,), rows=rows, batched=batched), inputs, sizes)
