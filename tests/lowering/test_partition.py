"""How regions grow and where they end: convexity, several products, outputs, producers, writes to memory."""

import pytest
import torch
import torch.nn.functional as F
from post_grad import capture, check, only, ops, reasons, trace
from torch import nn

from kforge_dynamo.lowering.growth import Graph
from kforge_dynamo.lowering.partition import partition
from kforge_dynamo.lowering.shape_reads import free_sizes
from kforge_dynamo.records.region import Reason
from kforge_dynamo.records.task import InputRole

aten = torch.ops.aten
X, W, V = torch.randn(6, 16), torch.randn(16, 16), torch.randn(16, 16)


def of(function, *args, **options):
    return check(trace(function, *args), list(args), **options)


def outputs(region):
    return [node.name for node in region.outputs]


def test_residual_around_two_layers_joins_the_second_region():
    def block(x, w, v):
        return x + torch.mm(torch.mm(x, w).relu(), v)

    first, second = of(block, X, W, V).regions
    assert (ops(first), ops(second)) == (["gemm", "relu"], ["gemm", "add"])
    assert second.binding.feeds[0].node in first.outputs


def test_node_whose_other_operand_needs_the_region_first_stays_out_as_not_convex():
    def function(x, w):
        y = x @ w
        return y + y.flip(1)

    found = of(function, X, W)
    assert ops(only(found)) == ["gemm"]
    assert reasons(found)["aten.add.Tensor"] == "not_convex"
    sentence = next(item.sentence for item in found.rejections if item.op == "aten.add.Tensor")
    assert "flip" in sentence


def test_node_that_joins_two_products_lands_in_the_later_region():
    def gated(x, w, v):
        return (x @ w).sigmoid() * (x @ v)

    first, second = of(gated, X, W, V).regions
    assert (ops(first), ops(second)) == (["gemm", "sigmoid"], ["gemm", "mul"])
    assert [item.role for item in second.task.inputs] == [InputRole.LHS, InputRole.RHS, InputRole.EXTRA]


def test_same_product_computed_twice_is_one_region():
    def function(x, w):
        return torch.mm(x, w).amax(1) - torch.mm(x, w).mean(1)

    assert ops(only(of(function, X, W))) == ["gemm", "amax", "mean", "sub"]


def test_same_product_computed_twice_and_returned_both_times_is_two_tensors():
    found = of(lambda x, w: (torch.mm(x, w), torch.mm(x, w), torch.mm(x, w).relu()), X, W)
    assert sorted(name for region in found.regions for name in outputs(region)) == ["mm", "mm_1", "relu"]


def test_two_regions_never_need_each_other_first():
    """a -> b2 and b -> a2: each region alone is convex, both together would be a cycle."""

    def function(x, w, v):
        a, b = x @ w, x @ v
        a1, b1 = a.sin(), b.cos()
        return a1.sum(1, keepdim=True) * b.tanh(), b1.sum(1, keepdim=True) * a.tanh(), a1, b1

    graph = trace(function, X, W, V)
    found = check(graph, [X, W, V])
    unit = {node: region for region in found.regions for node in region.nodes}
    seen, done = set(), set()

    def visit(item):
        assert item not in seen, "the regions form a cycle"
        if item in done:
            return
        seen.add(item)
        nodes = item.nodes if hasattr(item, "nodes") else (item,)
        for source in {source for node in nodes for source in node.all_input_nodes} - set(nodes):
            visit(unit.get(source, source))
        seen.remove(item)
        done.add(item)

    for node in graph.nodes:
        visit(unit.get(node, node))


def test_value_needed_outside_is_an_output_and_the_view_of_it_stays():
    def function(x, w):
        y = (x @ w).view(2, 3, 16)
        return y.tanh(), y.transpose(0, 1)

    region = only(of(function, X, W))
    assert outputs(region) == ["mm", "tanh"]
    assert [tuple(shape) for shape in region.binding.shapes] == [(6, 16), (2, 3, 16)]


def test_trailing_views_stay_with_inductor():
    found = of(lambda x, w: (x @ w).relu().view(2, 3, 4, 4).permute(0, 2, 1, 3), X, W)
    assert outputs(only(found)) == ["relu"]
    assert {item.op: item.reason for item in found.rejections} == dict.fromkeys(
        ("aten.view.default", "aten.permute.default"), Reason.NO_ANCHOR
    )


def test_result_that_is_not_row_major_is_no_output():
    found = of(lambda x, w: (x @ w).sin().t() * 2, X, W)
    assert outputs(only(found)) == ["sin"] and reasons(found)["aten.mul.Tensor"] == "unsupported_layout"


def test_columns_before_rows_are_no_output():
    def function(x, w, bias):
        return (x @ w).amin(1, keepdim=True) + bias

    found = of(function, X, W, torch.randn(1, 5, 1, 1))
    assert outputs(only(found)) == ["amin"] and reasons(found)["aten.add.Tensor"] == "crosses_rows"


def test_widening_for_a_fusible_reader_outside_stays_outside():
    x, w = X.bfloat16(), W.bfloat16()
    found = of(lambda x, w: (x @ w).relu().float().topk(2), x, w)
    assert ops(only(found)) == ["gemm", "relu", "convert"], "topk is no op that Inductor computes in registers"
    found = of(lambda x, w: (x @ w).relu().float().view(2, 3, 16).mean(1), x, w)
    assert ops(only(found)) == ["gemm", "relu"]


def test_cheap_producers_read_by_the_region_alone_are_computed_inside():
    def batch_norm(x, w, mean, variance):
        return ((x @ w) - mean) * (variance + 1e-5).sqrt().reciprocal()

    mean, variance = torch.randn(16), torch.rand(16) + 0.5
    region = only(of(batch_norm, X, W, mean, variance))
    assert ops(region) == ["gemm", "sub", "add", "sqrt", "reciprocal", "mul"]
    assert {feed.node.op for feed in region.binding.feeds} == {"placeholder"}


def test_producers_that_others_read_or_that_inductor_fuses_further_stay_outside():
    def function(x, w, mask):
        shared = mask.exp()
        return (x @ w) * mask.sum(0).cos() * shared * mask.tanh(), shared + 1

    region = only(of(function, X, W, torch.rand(6, 16)))
    fed = {feed.node.name for feed in region.binding.feeds}
    assert "cos" in fed, "its own operand would have to pass through memory"
    assert "exp" in fed, "somebody else reads it"
    assert "tanh" not in fed


def test_dropout_mask_is_an_input_and_its_random_numbers_stay_outside():
    layer = nn.Linear(16, 16)
    (graph,) = capture(lambda x: F.dropout(layer(x), 0.5, True).relu(), X)
    found = check(graph)
    region = only(found)
    assert "bool" in [item.value.dtype for item in region.task.inputs]
    assert reasons(found)["prims.inductor_random.default"] == "random"


def test_batch_statistics_join_and_the_writes_of_running_ones_do_not():
    layer = nn.Sequential(nn.Linear(16, 8), nn.BatchNorm1d(8), nn.ReLU())
    (graph,) = capture(layer, X)
    found = check(graph)
    region = only(found)
    assert [node.attr("axes") for node in region.task.nodes if node.op == "var"] == ["rows"]
    assert len(region.outputs) == 3 and reasons(found)["aten.copy_.default"] == "mutation"


def test_sizes_read_from_the_product_are_read_from_the_inputs():
    layer = nn.Sequential(nn.Linear(16, 8), nn.BatchNorm1d(8), nn.ReLU())
    (graph,) = capture(layer, X.clone(), dynamic=[(0, 0)])
    product = next(node for node in graph.nodes if node.target is aten.addmm.default)
    assert product in only(partition(graph)).outputs
    assert free_sizes(graph) == 1
    graph.lint()
    assert product not in only(check(graph)).outputs
    assert free_sizes(graph) == 0


def test_nothing_joins_across_a_write_to_memory():
    def function(x, w, buffer):
        y = x @ w
        buffer.add_(1)
        return y * buffer

    found = partition(trace(function, X, W, torch.randn(16)))
    assert ops(only(found)) == ["gemm"] and reasons(found)["aten.mul.Tensor"] == "mutation"


def test_barriers_count_up_at_each_write():
    graph = trace(lambda x: x.clone().add_(1).mul_(2).sin(), X)
    epochs = list(Graph(tuple(graph.nodes)).epoch.values())
    assert epochs == sorted(epochs) and epochs[-1] == 2


def test_region_gives_up_what_nobody_writes_kernels_for():
    def function(x, w):
        y = (x @ w).sin()
        return (y - y.mean(0)).softmax(-1)

    graph = trace(function, X, W)

    def against(*words):
        def refuse(task, device):
            assert device.type == "cpu"
            text = str(task)
            return next((f"no {word}" for word in words if word in text), None)

        return refuse

    sizes = [len(ops(only(check(graph, [X, W], refuse=refuse)))) for refuse in (
        None, against("nothing"), against("'rows'"), against("'axes'"), against("sin"), lambda task, device: "never",
    )]  # fmt: skip
    assert sizes == [9, 9, 2, 2, 1, 1]
    found = partition(graph, refuse=against("'rows'"))
    assert any("no 'rows'" in item.sentence for item in found.rejections)


def test_facts_count_bytes_flop_and_readers():
    region = only(of(lambda x, w, r: (x @ w + r).relu().flip(0), X, W, torch.randn(6, 16)))
    assert region.facts.bytes_read == 4 * (6 * 16 + 16 * 16 + 6 * 16)
    assert region.facts.bytes_written == 4 * 6 * 16 and region.facts.flop == 2 * 6 * 16 * 16
    assert not region.facts.fused_consumer

    def consumer(x, w, r):
        return (x @ w + r).relu().view(12, 8).softmax(0)

    facts = only(of(consumer, X, W, torch.randn(6, 16))).facts
    assert facts.fused_consumer and facts.removed_bytes == 4 * 6 * 16, "product and extra read, the output read instead"


@pytest.mark.parametrize("train", [False, True])
@pytest.mark.parametrize("dynamic", [(), ((0, 0),)])
def test_transformer_block_has_a_region_for_each_layer(train, dynamic):
    class Block(nn.Module):
        def __init__(self):
            super().__init__()
            self.norm, self.up, self.down = nn.LayerNorm(16), nn.Linear(16, 32), nn.Linear(32, 16)
            self.after = nn.LayerNorm(16)

        def forward(self, x):
            x = x + self.down(F.gelu(self.up(self.norm(x))))
            return self.after(x)

    graphs = capture(Block(), torch.randn(2, 5, 16, requires_grad=train), dynamic=dynamic, train=train)
    forward = check(graphs[0])
    assert ["gelu" in region.title for region in forward.regions] == [True, False]
    assert "norm" in forward.regions[1].title
    for graph in graphs[1:]:
        backward = check(graph)
        assert len(backward.regions) == 4
        assert any("erf" in ops(region) for region in backward.regions), "gelu's derivative is computed at its product"
