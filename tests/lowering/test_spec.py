"""The language of tasks: well-formed tasks pass, each malformed one is named."""

from dataclasses import replace

import pytest

from kforge_dynamo.errors import RecordError
from kforge_dynamo.lowering.spec import check, row_axis_names
from kforge_dynamo.records.task import Const, InputRole, InputSpec, Node, Task, ValueSpec
from kforge_dynamo.semantics.table import OPS

PLAIN = (("alpha", 1.0), ("beta", 1.0))


def value(*cols, rows=("m",), dtype="float32"):
    return ValueSpec(dtype, rows, cols)


def task(*nodes, outputs=None, extra=None):
    """A product of (m, 16) by (16, 8) with a bias, and `nodes` behind it; value 3 is the product."""
    inputs = (
        InputSpec(value(16), ("dense", 1), InputRole.LHS),
        InputSpec(value(16, 8, rows=(1,)), (0, "dense", 1), InputRole.RHS),
        extra or InputSpec(value(8, rows=(1,)), (0, 1), InputRole.EXTRA),
    )
    product = Node("gemm", (0, 1, 2), PLAIN, value(8))
    count = len(inputs) + 1 + len(nodes)
    return Task(("m",), (), inputs, (product, *nodes), (count - 1,) if outputs is None else outputs)


GOOD = {
    "gemm": task(),
    "pointwise": task(Node("mul", (3, Const(2.0)), (), value(8)), Node("add", (4, 2), (), value(8))),
    "comparison": task(Node("gt", (3, Const(0.0)), (), value(8, dtype="bool")), Node("where", (4, 3, Const(0.0)), (), value(8))),
    "convert": task(Node("convert", (3,), (), value(8, dtype="bfloat16"))),
    "reduction": task(Node("sum", (3,), (("axes", (0,)),), value(1))),
    "over_rows": task(Node("var", (3,), (("axes", "rows"), ("correction", 0.0)), value(8, rows=(1,)))),
    "argmax": task(Node("argmax", (3,), (("axes", (0,)),), value(1, dtype="int64"))),
    "reshape": task(Node("reshape", (3,), (), value(2, 4)), Node("amax", (4,), (("axes", (1,)),), value(2, 1))),
    "slice": task(Node("slice", (3,), (("axis", 0), ("start", 1), ("step", 2), ("stop", 7)), value(3))),
    "expand": task(Node("sum", (3,), (("axes", (0,)),), value(1)), Node("expand", (4,), (), value(5))),
    "two_outputs": task(Node("relu", (3,), (), value(8)), outputs=(4, 3)),
}


@pytest.mark.parametrize("name", GOOD)
def test_well_formed_task_passes(name):
    check(GOOD[name])


BAD = {
    "unknown op": task(Node("gelu", (3,), (), value(8))),
    "later operand": task(Node("relu", (7,), (), value(8))),
    "negative operand": task(Node("relu", (-1,), (), value(8))),
    "boolean operand": task(Node("relu", (True,), (), value(16))),
    "arity": task(Node("add", (3,), (), value(8))),
    "constants alone": task(Node("add", (Const(1.0), Const(2.0)), (), value(8))),
    "broadcast": task(Node("add", (3, 2), (), value(4))),
    "rows lost": task(Node("add", (3, 2), (), value(8, rows=(1,)))),
    "rank": task(Node("reshape", (3,), (), value(2, 4)), Node("add", (4, 3), (), value(2, 4))),
    "promotion": task(Node("convert", (3,), (), value(8, dtype="bfloat16")), Node("add", (3, 4), (), value(8))),
    "comparison's dtype": task(Node("gt", (3, Const(0.0)), (), value(8))),
    "condition's dtype": task(Node("where", (3, 3, 3), (), value(8))),
    "logic of floats": task(Node("logical_not", (3,), (), value(8, dtype="bool"))),
    "attribute missing": task(Node("var", (3,), (("axes", (0,)),), value(1))),
    "attribute unknown": task(Node("relu", (3,), (("slope", 0.1),), value(8))),
    "attribute's type": task(Node("var", (3,), (("axes", (0,)), ("correction", 0)), value(1))),
    "axes out of range": task(Node("sum", (3,), (("axes", (1,)),), value(1))),
    "axes empty": task(Node("sum", (3,), (("axes", ()),), value(8))),
    "axes' word": task(Node("sum", (3,), (("axes", "cols"),), value(1))),
    "index along rows": task(Node("argmax", (3,), (("axes", "rows"),), value(8, rows=(1,), dtype="int64"))),
    "index's dtype": task(Node("argmax", (3,), (("axes", (0,)),), value(1))),
    "dimension dropped": task(Node("sum", (3,), (("axes", (0,)),), value())),
    "reshape's count": task(Node("reshape", (3,), (), value(3, 3))),
    "slice beyond": task(Node("slice", (3,), (("axis", 0), ("start", 0), ("step", 1), ("stop", 9)), value(9))),
    "expand of more than 1": task(Node("expand", (3,), (), value(16))),
    "output twice": task(outputs=(3, 3)),
    "output is an input": task(outputs=(2,)),
    "no output": task(outputs=()),
    "bias": task(extra=InputSpec(value(7, rows=(1,)), (0, 1), InputRole.EXTRA)),
    "bias dtype": task(extra=InputSpec(value(8, rows=(1,), dtype="bfloat16"), (0, 1), InputRole.EXTRA)),
    "stride word": task(extra=InputSpec(value(8, rows=(1,)), (0, "wide"), InputRole.EXTRA)),
    "stride of 1 element": task(extra=InputSpec(value(8, rows=(1,)), (1, 1), InputRole.EXTRA)),
    "strides' number": task(extra=InputSpec(value(8, rows=(1,)), (1,), InputRole.EXTRA)),
    "foreign axis": task(extra=InputSpec(value(8, rows=("b",)), ("dense", 1), InputRole.EXTRA)),
    "named column": task(extra=InputSpec(value("n", rows=(1,)), (0, 1), InputRole.EXTRA)),
    "axis names": replace(task(), row_axes=("rows",)),
    "column axis": replace(task(), col_axes=("n",)),
}


@pytest.mark.parametrize("name", BAD)
def test_malformed_task_is_refused_with_the_value_that_is_wrong(name):
    with pytest.raises(RecordError, match=r"value %|output|axes"):
        check(BAD[name])


def test_every_op_of_the_table_is_in_a_checked_task_or_is_pointwise():
    named = {node.op for item in GOOD.values() for node in item.nodes}
    kinds = {OPS[name].kind for name in named}
    assert kinds == {op.kind for op in OPS.values()}


def test_row_axes_are_named_from_the_outside_in():
    assert [row_axis_names(count) for count in range(1, 5)] == [("m",), ("b", "m"), ("b0", "b1", "m"), ("b0", "b1", "b2", "m")]
