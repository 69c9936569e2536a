"""The 37 workloads: each is one region from the product to the last value, in eval mode and in training."""

from dataclasses import replace

import pytest
import torch
from post_grad import capture, check, reasons

from benchmarks.workloads import build, facts
from kforge_dynamo.records.codec import digest

FACTS = {fact.id: fact for fact in facts("small")}
TRIMMED = {75: "crosses_rows"}
"""A parameter of shape (1, N, 1, 1) turns rows into the third dimension: the region ends before."""


def tiny(number, rows=8, dtype=torch.float32, train=False):
    fact = FACTS[number]
    sizes = replace(
        fact.sizes,
        M=rows,
        K=24,
        N=32,
        groups=4 if fact.sizes.groups else 0,
        N2=16 if fact.sizes.N2 else 0,
        pool=4 if fact.sizes.pool else 0,
    )
    case = build(replace(fact, sizes=sizes), "cpu")
    return case.module.train(train).to(dtype), tuple(value.to(dtype) for value in case.inputs)


def last_value(graph):
    """The first output of the graph, behind views."""
    node = graph.output_node().args[0][0]
    while node.target in (torch.ops.aten.reshape.default, torch.ops.aten.squeeze.dim):
        node = node.args[0]
    return node


@pytest.mark.parametrize("number", FACTS)
def test_workload_in_eval_mode_is_one_region_to_its_last_value(number):
    module, inputs = tiny(number)
    (graph,) = capture(module, *inputs)
    found = check(graph)
    products = 2 if "linear_n2" in FACTS[number].steps else 1
    assert len(found.regions) == products
    if number in TRIMMED:
        assert reasons(found)["aten.add.Tensor"] == TRIMMED[number]
    else:
        assert last_value(graph) in found.regions[-1].outputs
        assert {item.reason.value for item in found.rejections} <= {"no_anchor"}


NO_TAIL_IN_TRAINING = {55: "the pooling keeps its indices for the backward pass"}


@pytest.mark.parametrize("number", FACTS)
def test_workload_in_training_with_dynamic_rows_is_right_forwards_and_backwards(number):
    module, inputs = tiny(number, train=True)
    graphs = capture(module, *inputs, dynamic=[(index, 0) for index in range(len(inputs))], train=True)
    forward, *backward = [check(graph) for graph in graphs]
    if number not in TRIMMED and number not in NO_TAIL_IN_TRAINING:
        assert last_value(graphs[0]) in forward.regions[-1].outputs
    assert backward and all(found.regions for found in backward)


@pytest.mark.parametrize("number", [14, 22, 30, 37, 45, 66, 84, 98])
def test_workload_in_bf16_is_the_same_region(number):
    module, inputs = tiny(number, dtype=torch.bfloat16)
    (graph,) = capture(module, *inputs)
    assert check(graph).regions[-1].task.anchor.out.dtype == "bfloat16"


@pytest.mark.parametrize("number", [30, 33, 45])
def test_workload_at_two_batch_sizes_and_with_dynamic_rows_has_one_digest(number):
    digests = set()
    for rows, dynamic in ((8, ()), (21, ()), (8, ((0, 0),))):
        module, inputs = tiny(number, rows)
        (graph,) = capture(module, *inputs, dynamic=dynamic)
        digests.add(tuple(digest(region.task) for region in check(graph).regions))
    assert len(digests) == 1
