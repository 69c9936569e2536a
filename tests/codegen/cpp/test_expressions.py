"""Every op of the op table has an expression here, or a sentence that refuses it."""

from __future__ import annotations

import math

import pytest
import torch

from kforge_dynamo.codegen import cpp
from kforge_dynamo.codegen.cpp.expressions import real
from kforge_dynamo.records.task import Task
from kforge_dynamo.semantics.evaluate import Mode, Policy, evaluate
from kforge_dynamo.semantics.table import OPS, Kind
from tests.codegen.cpp.building import BOOLEAN, Building
from tests.codegen.cpp.running import NONE, check, laid_out, launcher, run, target

COLS = 67
UNARY_REAL = ("neg", "abs", "sign", "reciprocal", "sqrt", "rsqrt", "exp", "exp2", "expm1", "log", "log2", "log1p", "sin", "cos",
              "tanh", "sigmoid", "erf", "relu", "floor", "ceil", "round", "trunc", "isnan", "isinf", "isfinite",
              "logical_not")  # fmt: skip
BINARY = ("add", "sub", "mul", "div", "maximum", "minimum", "eq", "ne", "lt", "le", "gt", "ge", "logical_and", "logical_or",
          "logical_xor")  # fmt: skip
REDUCTIONS = ("sum", "mean", "amax", "amin", "any", "all", "argmax", "argmin", "var")
COVERED = {*UNARY_REAL, *BINARY, *REDUCTIONS, "pow", "where", "convert", "gemm", "reshape", "slice", "expand"}

SPECIAL = [0.0, -0.0, 1.0, -1.0, math.inf, -math.inf, math.nan, 1e-45, -1e-45, 1.1754944e-38, 3.4028235e38, -3.4028235e38,
           88.7, 88.8, -87.4, -103.9, -110.0, 0.5, -0.5, 1.5, 2.5, -2.5, 1e-8, -1e-8, 20.0, -20.0, 9.1, 4.1, -4.1, 0.7071,
           1.4143, 1e10]  # fmt: skip


def test_every_op_of_the_table_is_covered():
    assert set(OPS) == COVERED


def unary_task() -> Task:
    b = Building()
    x = b.input((COLS,))
    return b.task(*(b.op(name, x) for name in UNARY_REAL))


def test_unary_ops_match_the_reference_on_special_values():
    task = unary_task()
    values = torch.tensor(SPECIAL + [math.nan] * (-len(SPECIAL) % COLS)).view(1, COLS)
    inputs = [laid_out(task.inputs[0], values, {"m": 1})]
    outputs = run(task, launcher(task, NONE), {"m": 1}, inputs)
    for name, found, eager, oracle in zip(
        UNARY_REAL, outputs, evaluate(task, inputs, {"m": 1}), evaluate(task, inputs, {"m": 1}, Policy(Mode.ORACLE)), strict=True
    ):
        if not eager.is_floating_point():
            assert torch.equal(found, eager), name
            continue
        if name in ("sin", "cos"):
            continue
        wanted = oracle.float()
        assert torch.equal(found.isnan(), eager.isnan()), name
        near = (found - wanted).abs() <= 4 * torch.finfo(torch.float32).eps * wanted.abs() + 3e-45
        assert (near | (found == wanted) | eager.isnan() | (found == eager)).all(), name


@pytest.mark.parametrize("scale", [1.0, 30.0, 1e-3])
def test_unary_ops_are_as_accurate_as_eager(scale):
    task = unary_task()
    check(task, {"m": 61}, NONE, scale=scale)


def test_binary_ops_match_on_numbers_masks_and_integers():
    b = Building()
    x, y, p = b.input((COLS,)), b.fixed((COLS,)), b.input((COLS,), dtype="bool")
    i, j = b.input((COLS,), dtype="int64"), b.fixed((COLS,), dtype="int64")
    found = [b.op(name, x, y) for name in (*BINARY, "pow")]
    found += [b.op(name, x, 0.5) for name in (*BINARY, "pow")]
    found += [b.op("pow", x, value) for value in (0.0, 1.0, 2.0, 3.0, -1.0, -2.0, -0.5)]
    q = b.op("gt", x, 0.0)
    found += [b.op(name, p, q) for name in BINARY if name not in ("sub", "div")]
    found += [b.op(name, i, j) for name in BINARY if name != "div"]
    found += [b.op(name, i) for name in ("neg", "abs", "sign", "relu", "isnan", "isfinite", "floor", "logical_not")]
    check(b.task(*found), {"m": 33}, NONE)


def test_where_and_conversions_match():
    b = Building()
    x, y, p, i = b.input((COLS,)), b.fixed((COLS,)), b.input((COLS,), dtype="bool"), b.input((COLS,), dtype="int64")
    h, g = b.input((COLS,), dtype="bfloat16"), b.fixed((COLS,), dtype="float16")
    found = [b.op("where", p, x, y), b.op("where", b.op("gt", x, 0.0), x, 0.25), b.op("where", p, i, i)]
    for value in (x, p, i, h, g):
        found += [b.op("convert", value, dtype=dtype) for dtype in ("float32", "bfloat16", "float16", "bool", "int64")]
    wide = b.op("convert", h, dtype="float32")
    found += [b.op("convert", b.op("mul", wide, 1.2345), dtype="bfloat16"), b.op("convert", b.op("exp", x), dtype="float16")]
    check(b.task(*found), {"m": 29}, NONE)


def test_conversions_round_to_nearest_even_and_keep_nan():
    b = Building()
    x = b.input((COLS,))
    task = b.task(b.op("convert", x, dtype="bfloat16"), b.op("convert", x, dtype="float16"))
    ties = [1.00390625, 1.01171875, 65519.0, 65520.0, 6e-8, 2.9e-8, 3.1e-8, 1e-7, 5.97e-8, 1.00048828125, 1.00146484375]
    values = torch.tensor((ties + SPECIAL + [0.0] * COLS)[:COLS]).view(1, COLS)
    inputs = [laid_out(task.inputs[0], values, {"m": 1})]
    for found, wanted in zip(run(task, launcher(task, NONE), {"m": 1}, inputs), evaluate(task, inputs, {"m": 1}), strict=True):
        assert torch.equal(found.isnan(), wanted.isnan())
        assert torch.equal(found.nan_to_num(7.0, 8.0, -8.0), wanted.nan_to_num(7.0, 8.0, -8.0))


def test_reductions_match_over_all_kinds_of_values():
    b = Building()
    x, p, i = b.input((5, COLS)), b.input((5, COLS), dtype="bool"), b.input((5, COLS), dtype="int64")
    found = [b.reduce(name, x, (1,)) for name in REDUCTIONS] + [b.reduce(name, x, (0,)) for name in REDUCTIONS]
    found += [b.reduce(name, x, (0, 1)) for name in REDUCTIONS if not name.startswith("arg")]
    found += [b.reduce(name, p, axes) for name in ("any", "all") for axes in ((0,), (1,), (0, 1))]
    found += [b.reduce(name, i, axes) for name in ("sum", "amax", "amin", "any", "all") for axes in ((0,), (1,))]
    check(b.task(*found), {"m": 7}, NONE)


@pytest.mark.parametrize("name", ["maximum", "minimum", "amax", "amin", "argmax", "argmin", "relu"])
def test_nan_wins_where_it_wins_in_torch(name):
    b = Building()
    x = b.input((40,))
    second = () if name == "relu" else (0.0,)
    task = b.task(b.reduce(name, x, (0,)) if OPS[name].kind is Kind.REDUCTION else b.op(name, x, *second))
    values = torch.randn(5, 40)
    values[0, 3], values[1, 39], values[2, 17], values[2, 20] = math.nan, math.nan, math.inf, math.nan
    values[3, :] = 2.0
    values[4, :] = -math.inf
    inputs = [laid_out(task.inputs[0], values, {"m": 5})]
    (found,) = run(task, launcher(task, NONE), {"m": 5}, inputs)
    (wanted,) = evaluate(task, inputs, {"m": 5})
    assert torch.equal(found.isnan(), wanted.isnan()) and torch.equal(found.nan_to_num(3.0), wanted.nan_to_num(3.0))


@pytest.mark.parametrize(("name", "dtype"), [("exp", "int64"), ("sub", "bool"), ("argmax", "int64"), ("mean", "int64")])
def test_an_op_without_expression_is_refused_with_its_name(name, dtype):
    b = Building()
    x = b.input((8,), dtype=dtype)
    out = b.reduce(name, x, (0,)) if OPS[name].kind is Kind.REDUCTION else b.op(name, x, *((x,) if name == "sub" else ()))
    sentence = cpp.rejects(b.task(out), target())
    assert sentence is not None and name in sentence


@pytest.mark.parametrize(
    ("value", "text"), [(0.1, "0x1.99999a0000000p-4f"), (math.inf, "__builtin_inff()"), (1e300, "__builtin_inff()")]
)
def test_literals_are_the_nearest_fp32_number(value, text):
    assert real(value) == text


def test_boolean_names_are_those_that_return_bool():
    assert set(OPS) >= BOOLEAN
