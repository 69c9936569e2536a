"""Graphs as they should not be: partition reads them, leaves out what it cannot use, and never raises."""

import pytest
import torch
from post_grad import check, only, ops, trace
from torch import fx

from kforge_dynamo.lowering.explain import explain
from kforge_dynamo.lowering.partition import partition

aten = torch.ops.aten


def graph_of(build):
    """A graph built by hand; `build` gets it with nodes for a product of (6, 16) by (16, 8)."""
    source = trace(torch.mm, torch.randn(6, 16), torch.randn(16, 8))
    product = next(node for node in source.nodes if node.op == "call_function")
    output = source.output_node()
    with source.inserting_before(output):
        output.args = (build(source, product),)
    return source


def call(graph, target, args, value, **kwargs):
    node = graph.call_function(target, args, kwargs)
    if value is not Ellipsis:
        node.meta["val"] = value
    return node


def fake(product, *shape, dtype=torch.float32, strides=None):
    with product.meta["val"].fake_mode:
        return torch.empty(shape, dtype=dtype) if strides is None else torch.empty_strided(shape, strides, dtype=dtype)


STRANGE = {
    "no value": lambda g, p: call(g, aten.relu.default, (p,), ...),
    "None": lambda g, p: call(g, aten.relu.default, (p,), None),
    "a number": lambda g, p: call(g, aten.relu.default, (p,), 3),
    "a list": lambda g, p: call(g, aten.relu.default, (p,), [p.meta["val"]]),
    "an object": lambda g, p: call(g, aten.relu.default, (p,), object()),
    "a sparse tensor": lambda g, p: call(g, aten.relu.default, (p,), torch.eye(6).to_sparse()),
    "another shape": lambda g, p: call(g, aten.relu.default, (p,), fake(p, 7, 9)),
    "a Python function": lambda g, p: call(g, torch.relu, (p,), fake(p, 6, 8)),
    "a builtin": lambda g, p: call(g, len, (p,), 6),
    "a part of nothing": lambda g, p: call(g, __import__("operator").getitem, (p, 0), fake(p, 8)),
    "a method": lambda g, p: g.call_method("relu", (p,)),
    "a symbolic factor": lambda g, p: call(g, aten.mul.Tensor, (p, call(g, aten.sym_size.int, (p, 0), 6)), fake(p, 6, 8)),
    "column strides": lambda g, p: call(g, aten.relu.default, (p,), fake(p, 6, 8, strides=(1, 6))),
    "overlapping strides": lambda g, p: call(g, aten.relu.default, (p,), fake(p, 6, 8, strides=(1, 1))),
    "no dims": lambda g, p: call(g, aten.sum.dim_IntList, (p, []), fake(p)),
    "zero elements": lambda g, p: call(g, aten.slice.Tensor, (p, 1, 3, 3), fake(p, 6, 0)),
}


@pytest.mark.parametrize("name", STRANGE)
def test_strange_node_behind_a_product_is_left_out_or_joins_but_never_raises(name):
    graph = graph_of(STRANGE[name])
    found = partition(graph)
    assert ops(only(found))[0] == "gemm"
    assert explain(found)


OPERANDS = {
    "no value": lambda g, p: None,
    "a sparse tensor": lambda g, p: torch.eye(16).to_sparse(),
    "an object": lambda g, p: object(),
    "a nested tensor": lambda g, p: torch.nested.nested_tensor([torch.randn(2, 8)]),
}


@pytest.mark.parametrize("name", OPERANDS)
def test_product_of_a_strange_operand_is_left_out(name):
    graph = graph_of(lambda g, p: p)
    graph.find_nodes(op="placeholder")[1].meta["val"] = OPERANDS[name](graph, None)
    found = partition(graph)
    assert not found.regions and [item.op for item in found.rejections] == ["aten.mm.default"]


def test_graph_without_products_and_empty_graph_have_no_region():
    assert partition(trace(lambda x: x.sin() + 1, torch.randn(3))).regions == ()
    empty = fx.Graph()
    empty.output(())
    assert explain(partition(empty)).startswith("no region")


def test_size_that_depends_on_data_is_an_axis_without_a_hint():
    def function(x, w, mask):
        rows = x[mask]
        return torch.mm(rows, w).relu()

    with torch._dynamo.config.patch(capture_dynamic_output_shape_ops=True):
        graph = trace(function, torch.randn(6, 16), torch.randn(16, 8), torch.ones(6, dtype=torch.bool), symbolic=True)
    found = partition(graph)
    assert not found.regions or found.regions[0].binding.hints is None or isinstance(found.regions[0].binding.hints, tuple)


def test_higher_order_op_is_a_barrier():
    def function(x, w, flag):
        y = x @ w
        z = torch.cond(flag, lambda v: v.sin(), lambda v: v.cos(), (x,))
        return y.tanh(), z

    graph = trace(function, torch.randn(6, 16), torch.randn(16, 8), torch.tensor(True))
    found = partition(graph)
    assert ops(only(found)) == ["gemm"]


def test_node_of_a_lazily_negated_operand_is_left_out():
    def function(x, w, c):
        return torch.mm(x, w) + torch.imag(c.conj())

    args = torch.randn(6, 16), torch.randn(16, 8), torch.randn(6, 8) + 1j
    found = partition(trace(function, *args))
    assert ops(only(found)) in (["gemm"], ["gemm", "add"])


def test_non_finite_values_pass_through_as_in_eager():
    x, w = torch.randn(6, 16), torch.randn(16, 8)
    x[0, 0], x[1, 1], x[2, 2] = torch.inf, -torch.inf, torch.nan

    def function(x, w):
        y = x @ w
        return torch.softmax(y * 0.5, -1), torch.logsumexp(y, 1), y.clamp(-1, 1), y.amax(1), y.argmax(1), y.relu()

    assert len(only(check(trace(function, x, w), [x, w])).outputs) == 6
