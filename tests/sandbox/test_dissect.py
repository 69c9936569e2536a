"""Tasks taken apart: products, what follows them, and tasks with one op less."""

from __future__ import annotations

import torch
from sandbox_tasks import Builder, attention_scores, batch_norm, gelu, layer_norm, linear, relu_mask, row_max, softmax

from kforge_dynamo.records.task import Const, InputRole
from kforge_dynamo.sandbox.dissect import dependants, has_steps, is_narrowed, mutants, products, prune, row_local, tail
from kforge_dynamo.semantics.evaluate import Mode, Policy, evaluate


def drawn(task, sizes, seed=0):
    generator = torch.Generator().manual_seed(seed)
    shapes = [tuple(sizes.get(e, e) for e in item.value.shape) for item in task.inputs]
    return [torch.randn(shape, generator=generator) for shape in shapes]


def test_tail_of_head_equals_whole_task():
    for make in (gelu, softmax, layer_norm, relu_mask, batch_norm, attention_scores):
        task = make()
        sizes = {"m": 5, "b": 2}
        inputs = drawn(task, sizes)
        cut = products(task)
        values = evaluate(prune(task, cut), inputs, sizes)
        behind = tail(task, cut)
        by_number = dict(enumerate(inputs)) | dict(zip(cut, values, strict=True))
        found = evaluate(behind.task, [by_number[feed] for feed in behind.feeds], sizes)
        for left, right in zip(found, evaluate(task, inputs, sizes), strict=True):
            assert torch.equal(left, right)


def test_products_second_gemm_behind_the_first_stays_in_the_tail():
    b, first = linear(k=8, n=8, extras=(((1,), (8, 4)),))
    task = b.done(b.gemm(first, 3))
    assert products(task) == (first,)
    assert any(node.op == "gemm" for node in tail(task, products(task)).task.nodes)


def test_products_pure_epilogue_floating_inputs():
    b = Builder()
    x, keep = b.input(("m",), (8,)), b.input(("m",), (8,), dtype="bool")
    task = b.done(b.op("where", keep, x, Const(0.0)))
    assert products(task) == (x,)


def test_prune_keeps_inputs_and_drops_unused_nodes():
    task = gelu()
    smaller = prune(task, products(task))
    assert smaller.inputs == task.inputs
    assert [node.op for node in smaller.nodes] == ["gemm"]


def test_dependants_bias_alone_does_not_reach_other_inputs():
    task = layer_norm()
    assert 3 not in dependants(task, [0])
    assert task.outputs[0] in dependants(task, [3])


def test_steps_and_rows_found_where_they_are():
    assert has_steps(relu_mask()) and has_steps(row_max())
    assert not has_steps(gelu()) and not has_steps(layer_norm())
    assert row_local(gelu()) and not row_local(batch_norm())


def test_is_narrowed_conversion_on_the_way():
    b, p = linear()
    narrow = b.convert(p, "bfloat16")
    task = b.done(p, narrow)
    assert is_narrowed(task, narrow)
    assert not is_narrowed(task, p)
    half, q = linear(dtype="bfloat16")
    assert not is_narrowed(half.done(half.convert(q, "float32")), q + 1)


def test_mutants_each_pointwise_op_and_reduction_has_one():
    names = [mutant.name for mutant in mutants(softmax(), [2])]
    for op in ("mul", "amax", "sub", "exp", "sum", "div"):
        assert any(name.startswith(op) for name in names), names


def test_mutants_differ_from_their_region():
    for make in (gelu, softmax, layer_norm, relu_mask, row_max, batch_norm):
        task = make()
        sizes = {"m": 16}
        inputs = drawn(task, sizes)
        whole = evaluate(task, inputs, sizes, Policy(Mode.ORACLE))
        for mutant in mutants(task, products(task)):
            found = evaluate(mutant.task, inputs, sizes, Policy(Mode.ORACLE))
            assert [value.shape for value in found] == [value.shape for value in whole], mutant.name
            assert not all(torch.equal(a, b) for a, b in zip(found, whole, strict=True)), mutant.name


def test_mutants_comparison_has_never_and_always():
    task = relu_mask()
    sizes = {"m": 16}
    inputs = drawn(task, sizes)
    never = next(m.task for m in mutants(task, [3]) if m.name.startswith("le") and "never" in m.name)
    always = next(m.task for m in mutants(task, [3]) if m.name.startswith("le") and "always" in m.name)
    assert not evaluate(never, inputs, sizes)[1].any()
    assert evaluate(always, inputs, sizes)[1].all()


def test_mutants_gemm_loses_bias_and_coefficients():
    b = Builder()
    x = b.input(("m",), (8,), InputRole.LHS)
    w = b.input((1,), (8, 4), InputRole.RHS)
    c = b.input((1,), (4,))
    task = b.done(b.gemm(x, w, c, alpha=0.5, beta=2.0))
    assert {mutant.name.split(") ")[1] for mutant in mutants(task, ())} == {"without bias", "without alpha", "without beta"}
