"""Splicing through the whole of Inductor: the call stands in the wrapper, is right, and survives Inductor's cache."""

import pytest
import torch
from torch._inductor import config
from torch._inductor.custom_graph_pass import CustomGraphPass

from kforge_dynamo import ledger, runtime
from kforge_dynamo.errors import StoreError
from kforge_dynamo.lowering import inductor
from kforge_dynamo.lowering.regions import Binding, Facts, Feed, Region
from kforge_dynamo.lowering.splice import splice
from kforge_dynamo.records.codec import from_text, to_text
from kforge_dynamo.records.outcome import CacheKey
from kforge_dynamo.records.site import Site
from kforge_dynamo.records.task import InputRole, InputSpec, Node, Task, ValueSpec
from kforge_dynamo.semantics.evaluate import evaluate

PLAIN = (("alpha", 1.0), ("beta", 1.0))
CALLS = []


def value(cols, rows=("m",)):
    return ValueSpec("float32", rows, cols)


def relu_task(two_outputs, depth=16):
    """relu(x @ w), with the product beside it where two outputs are wanted."""
    nodes = (Node("gemm", (0, 1), PLAIN, value((12,))), Node("relu", (2,), (), value((12,))))
    lhs = InputSpec(value((depth,)), ("dense", 1), InputRole.LHS)
    rhs = InputSpec(value((depth, 12), (1,)), (0, 1, "dense"), InputRole.RHS)
    return Task(("m",), (), (lhs, rhs), nodes, (2, 3) if two_outputs else (3,))


def launcher_of(task):
    def launch(inputs, outputs, sizes):
        CALLS.append(tuple(sizes))
        for out, found in zip(outputs, evaluate(task, inputs, dict(zip(task.axes, sizes, strict=True))), strict=True):
            assert out.is_contiguous()
            out.copy_(found)

    return launch


class Everywhere:
    """A domain that holds all sizes."""

    class domain:
        @staticmethod
        def holds(sizes):
            return True


@pytest.fixture(autouse=True)
def fresh(tmp_path, monkeypatch):
    monkeypatch.setenv("TORCHINDUCTOR_CACHE_DIR", str(tmp_path))
    torch.compiler.reset()
    ledger.reset()
    runtime.forget()
    CALLS.clear()
    before = list(runtime._resolve)
    runtime.install(lambda site: (Everywhere, launcher_of(site.task)))
    yield
    runtime.install(before[0]) if before else None


class SpliceRelu(CustomGraphPass):
    """Replaces every `relu(mm)` by a site."""

    def __init__(self, two_outputs):
        self.two_outputs = two_outputs
        self.task = relu_task(two_outputs)

    def __call__(self, graph):
        def describe(text):
            site = from_text(Site, text)
            return tuple(site.task.value(number).dtype for number in site.task.outputs), site.output_ranks

        def call(text, inputs, sizes, outputs):
            runner = runtime.load(text)
            runner.checked(inputs, outputs, runner.site.sizes if runner.site.fixed else sizes)

        op = inductor.register(call, describe)
        task = self.task
        moved = {}
        for relu in [node for node in graph.nodes if node.target is torch.ops.aten.relu.default]:
            mm = relu.args[0]
            rows = mm.meta["val"].shape[0]
            fixed = isinstance(rows, int)
            key = CacheKey("t", "cpu", "n", 1)
            site = Site(
                key, task, ((0, 1), (None, 0, 1)), (2,) * len(task.outputs), (rows,) if fixed else (5,), fixed, "cpu", "w"
            )
            outputs = (mm, relu) if self.two_outputs else (relu,)
            feeds = tuple(Feed(node, None, dims) for node, dims in zip(mm.args, site.raw_dims, strict=True))
            region = Region(mm, task, Binding(feeds, (), ()), (mm, relu), (), outputs, Facts(None, None, None, False))
            splice(graph, op, to_text(site), region, () if fixed else (rows,), moved)
        inductor.sort(graph)

    def uuid(self):
        return f"test-{self.two_outputs}"


def one(x, w, b):
    return torch.relu(x @ w.t()) + b


def several(x, w, b):
    product = x @ w.t()
    return torch.relu(product) + b, product.sum(0)


@pytest.mark.parametrize(("function", "two_outputs"), [(one, False), (several, True)])
def test_splice_with_fixed_sizes_calls_the_winner_and_is_right(function, two_outputs):
    x, w, b = torch.randn(5, 16), torch.randn(12, 16), torch.randn(12)
    with config.patch(post_grad_custom_pre_pass=SpliceRelu(two_outputs)):
        found = torch.compile(function)(x, w, b)
    torch.testing.assert_close(found, function(x, w, b))
    assert CALLS == [(5,)]
    assert ledger.stats()["spliced"] == 1
    assert ledger.stats()["calls"] == 1


@pytest.mark.parametrize(("function", "two_outputs"), [(one, False), (several, True)])
def test_splice_with_a_symbolic_size_passes_it_and_is_right_for_all(function, two_outputs):
    w, b = torch.randn(12, 16), torch.randn(12)
    with config.patch(post_grad_custom_pre_pass=SpliceRelu(two_outputs)):
        compiled = torch.compile(function, dynamic=True)
        for rows in (5, 2, 33):
            x = torch.randn(rows, 16)
            torch.testing.assert_close(compiled(x, w, b), function(x, w, b))
    assert CALLS == [(5,), (2,), (33,)]


def test_splice_of_a_region_fed_by_another_reads_the_spliced_value():
    def function(x, w, b):
        first = torch.relu(x @ w.t())
        return torch.relu(first @ w.t()) + b

    x, w, b = torch.randn(5, 12), torch.randn(12, 12), torch.randn(12)
    step = SpliceRelu(False)
    step.task = relu_task(False, 12)
    with config.patch(post_grad_custom_pre_pass=step):
        found = torch.compile(function)(x, w, b)
    torch.testing.assert_close(found, function(x, w, b))
    assert CALLS == [(5,), (5,)]


def test_splice_in_training_keeps_gradients_right():
    x, w, b = torch.randn(5, 16, requires_grad=True), torch.randn(12, 16, requires_grad=True), torch.randn(12)
    wanted = torch.autograd.grad(several(x, w, b)[0].square().sum(), (x, w))
    with config.patch(post_grad_custom_pre_pass=SpliceRelu(True)):
        found = torch.autograd.grad(torch.compile(several)(x, w, b)[0].square().sum(), (x, w))
    assert CALLS
    torch.testing.assert_close(found, wanted)


def test_splice_under_another_layout_gets_the_strides_it_was_made_for():
    """The input is computed by Inductor, which owns its layout: the site's call freezes it."""

    def function(x, w, b):
        return torch.relu((x.t() * 2) @ w.t()) + b

    x, w, b = torch.randn(16, 5), torch.randn(12, 16), torch.randn(12)
    with config.patch(post_grad_custom_pre_pass=SpliceRelu(False)):
        found = torch.compile(function)(x, w, b)
    torch.testing.assert_close(found, function(x, w, b))


def test_op_called_outside_inductor_computes_the_site_with_checked_strides():
    SpliceRelu(True)(torch.fx.Graph())
    key = CacheKey("t", "cpu", "n", 1)
    site = to_text(Site(key, relu_task(True), ((0, 1), (None, 0, 1)), (2, 2), (5,), True, "cpu", "w"))
    x, w = torch.randn(5, 16), torch.randn(12, 16).t()
    _, found = torch.ops.kforge.run(site, [x, w], [], [5, 12, 5, 12])
    torch.testing.assert_close(found, torch.relu(x @ w))
    assert CALLS == [(5,)]
    torch.ops.kforge.run(site, [torch.randn(16, 5).t(), w], [], [5, 12, 5, 12])
    assert CALLS == [(5,)], "a transposed input is not what the winner was verified for"
    assert ledger.stats()["fallback_calls"] == 1


def test_splice_whose_winner_is_gone_runs_its_reference():
    def missing(site):
        raise StoreError("gone")

    runtime.install(missing)
    x, w, b = torch.randn(5, 16), torch.randn(12, 16), torch.randn(12)
    with config.patch(post_grad_custom_pre_pass=SpliceRelu(True)):
        compiled = torch.compile(several)
        found = compiled(x, w, b)
    torch.testing.assert_close(found, several(x, w, b))
    assert CALLS == []
    assert ledger.stats()["fallback_calls"] == 1
    assert ledger.stats()["spliced"] == 0


def test_splice_in_a_cached_graph_is_counted_when_it_loads():
    x, w, b = torch.randn(5, 16), torch.randn(12, 16), torch.randn(12)
    with config.patch(post_grad_custom_pre_pass=SpliceRelu(False), fx_graph_cache=True):
        torch.compile(one)(x, w, b)
        torch.compiler.reset()
        ledger.reset()
        found = torch.compile(one)(x, w, b)
    torch.testing.assert_close(found, one(x, w, b))
    assert ledger.stats()["spliced"] == 1
