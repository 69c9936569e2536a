"""Captures the graphs that Inductor's post-grad passes see, and judges every region of a partition on real values.

Private torch API: `compile_fx(inner_compile=)`, `view_to_reshape`, `post_grad_passes`; read in torch 2.11 and 2.13.
"""

from __future__ import annotations

import contextlib
import operator
from dataclasses import dataclass, field

import torch
from functorch.compile import make_boxed_func
from torch import fx
from torch._inductor import config
from torch._inductor.compile_fx import compile_fx
from torch._inductor.custom_graph_pass import CustomGraphPass
from torch._inductor.fx_passes.post_grad import post_grad_passes, view_to_reshape
from torch._inductor.pattern_matcher import stable_topological_sort
from torch.fx.experimental.proxy_tensor import make_fx

from kforge_dynamo.lowering.partition import partition
from kforge_dynamo.lowering.sizes import size_of
from kforge_dynamo.records.task import InputSpec
from kforge_dynamo.runtime import strides_match
from kforge_dynamo.semantics.evaluate import evaluate, shape_of

TOLERANCE = {torch.float32: 2e-5, torch.bfloat16: 2e-2, torch.float16: 3e-3}
"""Largest difference between a region and its nodes over the largest value: both run the same ops in the same dtypes."""


class Seen(Exception):
    """Ends the post-grad passes once the graph was recorded."""


@dataclass
class Recorder(CustomGraphPass):
    """Takes the graphs as our own pass would see them; nothing after it runs, and no code is generated."""

    graphs: list[fx.Graph] = field(default_factory=list)

    def __call__(self, graph: fx.Graph) -> None:
        self.graphs.append(graph)
        raise Seen

    def uuid(self) -> None:
        return None

    def compile(self, gm: fx.GraphModule, inputs, is_inference=False, **_):
        view_to_reshape(gm)
        with contextlib.suppress(Seen), config.patch(post_grad_custom_pre_pass=self):
            post_grad_passes(gm, is_inference=is_inference)
        return make_boxed_func(gm.forward)

    def backend(self, gm: fx.GraphModule, inputs):
        return compile_fx(gm, inputs, inner_compile=self.compile)


def capture(function, *args, dynamic=(), train=False) -> list[fx.Graph]:
    """The graphs of one call, with the backward pass of the sum of its outputs under `train`.

    `dynamic` lists (argument, dimension) pairs to mark dynamic.
    """
    torch._dynamo.reset()
    recorder = Recorder()
    for index, dim in dynamic:
        torch._dynamo.mark_dynamic(args[index], dim)
    with torch.set_grad_enabled(train):
        result = torch.compile(function, backend=recorder.backend)(*args)
    if train:
        found = [item for item in _tensors(result) if item.requires_grad]
        sum(item.float().square().sum() for item in found).backward()
    torch._dynamo.reset()
    return recorder.graphs


def trace(function, *args, symbolic=False) -> fx.Graph:
    """The ATen graph of a function without any decomposition; every size is symbolic under `symbolic`."""
    return make_fx(function, tracing_mode="symbolic" if symbolic else "fake")(*args).graph


def only(partition):
    """The one region of a partition."""
    (region,) = partition.regions
    return region


def ops(region) -> list[str]:
    """The ops of a region's task, in order."""
    return [node.op for node in region.task.nodes]


def reasons(partition) -> dict[str, str]:
    """Why nodes were left out, by the op they call."""
    return {rejection.op: rejection.reason.value for rejection in partition.rejections}


def _tensors(result) -> list[torch.Tensor]:
    if isinstance(result, torch.Tensor):
        return [result]
    values = result.values() if isinstance(result, dict) else result
    return [item for value in values if isinstance(value, torch.Tensor | tuple | list | dict) for item in _tensors(value)]


class Values(fx.Interpreter):
    """Runs a graph and keeps what every node returned; its final writes to inputs are left out."""

    def __init__(self, graph: fx.Graph, root=None) -> None:
        super().__init__(root or graph.owning_module, graph=graph, garbage_collect_values=False)

    def call_function(self, target, args, kwargs):
        if target is torch.ops.aten.copy_.default:
            return args[1]
        return super().call_function(target, args, kwargs)


def synthetic(graph: fx.Graph, seed: int = 0) -> list:
    """Values for the graph's inputs: vectors positive (variances and scales are), the rest normal, sizes as traced."""
    generator = torch.Generator().manual_seed(seed)
    return [_value(node.meta["val"], generator) for node in graph.find_nodes(op="placeholder")]


def _value(example, generator):
    if not isinstance(example, torch.Tensor):
        return example.node.hint if isinstance(example, torch.SymInt) else example
    shape = [size.node.hint if isinstance(size, torch.SymInt) else size for size in example.shape]
    strides = [size.node.hint if isinstance(size, torch.SymInt) else size for size in example.stride()]
    span = 1 + sum((size - 1) * stride for size, stride in zip(shape, strides, strict=True))
    if example.dtype.is_floating_point:
        memory = torch.randn(span, generator=generator)
        memory = (memory.abs() + 0.5 if len(shape) < 2 else memory).to(example.dtype)
    elif example.dtype is torch.bool:
        memory = torch.rand(span, generator=generator) < 0.5
    else:
        memory = torch.randint(0, 2, (span,), generator=generator).to(example.dtype)
    return memory.as_strided(shape, strides)


def check(graph: fx.Graph, inputs: list | None = None, **options):
    """Partitions `graph` and compares each region's task, fed as its binding says, with what its nodes computed.

    Returns the partition, whose every call is placed exactly once.
    """
    found = partition(graph, **options)
    run = Values(graph)
    with torch.no_grad():
        run.run(*(synthetic(graph) if inputs is None else inputs))
    for region in found.regions:
        judge(region, run.env)
    _check_placed(graph, found)
    return found


def replace_all(graph: fx.Graph, found) -> None:
    """Puts one call of the evaluator in each region's place, as splicing does, and drops what is dead then."""
    instead: dict[fx.Node, fx.Node] = {}
    for region in found.regions:
        feeds = [instead.get(feed.node, feed.node) for feed in region.binding.feeds]
        with graph.inserting_before(graph.output_node()):
            call = graph.call_function(_evaluator(region), (feeds,))
            items = [graph.call_function(operator.getitem, (call, index)) for index in range(len(region.outputs))]
        for output, item in zip(region.outputs, items, strict=True):
            output.replace_all_uses_with(item)
            instead[output] = item
        for node in reversed((*region.absorbed, *region.nodes)):
            if not node.users:
                graph.erase_node(node)
    stable_topological_sort(graph)
    graph.lint()
    assert not {node for region in found.regions for node in region.nodes} & set(graph.nodes), "a replaced node is still read"


def _evaluator(region):
    def compute(fed):
        fed = [
            tensor if feed.view is None else tensor.view([_number(size) for size in feed.view])
            for feed, tensor in zip(region.binding.feeds, fed, strict=True)
        ]
        axes = dict(zip(region.task.axes, region.binding.hints, strict=True))
        results = evaluate(region.task, shaped(region, fed, axes), axes)
        expected = [node.meta["val"] for node in region.outputs]
        return [result.reshape(value.shape).contiguous() for result, value in zip(results, expected, strict=True)]

    return compute


def judge(region, env) -> None:
    """Raises: AssertionError where a region does not compute what its nodes did."""
    fed, sizes = fed_tensors(region, env)
    axes = dict(zip(region.task.axes, sizes, strict=True))
    for item, dims, tensor in zip(region.task.inputs, region.binding.raw_dims, fed, strict=True):
        assert isinstance(item, InputSpec) and str(tensor.dtype) == f"torch.{item.value.dtype}"
        assert strides_match(item, dims, tensor.stride(), axes), f"{item} does not describe strides {tensor.stride()} of {dims}"
    results = evaluate(region.task, shaped(region, fed, axes), axes)
    for node, shape, result in zip(region.outputs, region.binding.shapes, results, strict=True):
        expected = env[node]
        assert result.dtype == expected.dtype and len(shape) == expected.dim()
        assert result.is_contiguous() or result.numel() == expected.numel()
        close(result.reshape(expected.shape), expected, f"{region.title}: {node}")


def shaped(region, fed, axes):
    """The fed tensors as the task's inputs, by the strides that a kernel would read."""
    views = []
    for item, dims, tensor in zip(region.task.inputs, region.binding.raw_dims, fed, strict=True):
        strides = [0 if dim is None else tensor.stride(dim) for dim in dims]
        views.append(tensor.as_strided(shape_of(item.value.shape, axes), strides))
    return views


def fed_tensors(region, env):
    """What a call would pass: tensors and sizes, read as the binding says."""
    fed = []
    for feed in region.binding.feeds:
        tensor = env[feed.node]
        fed.append(tensor if feed.view is None else tensor.view([_number(size) for size in feed.view]))
    sizes = []
    for axis in region.binding.axes:
        size = 1
        for number, dim in axis.factors:
            size *= fed[number].shape[dim]
        assert not axis.factors or size == axis.hint == _number(axis.size)
        sizes.append(axis.hint)
    return fed, tuple(sizes)


def _number(size) -> int:
    if isinstance(size, int):
        return size
    return size.node.hint if size.node.has_hint() else int(size_of(size))


def close(result: torch.Tensor, expected: torch.Tensor, what: str) -> None:
    if not expected.is_floating_point():
        assert torch.equal(result, expected), what
        return
    finite = torch.isfinite(expected)
    assert torch.equal(result[~finite].isnan(), expected[~finite].isnan()), what
    if finite.any():
        scale = expected[finite].abs().double().amax().clamp_min(1e-6)
        error = (result[finite].double() - expected[finite].double()).abs().amax() / scale
        assert error < TOLERANCE[expected.dtype], f"{what}: error {error:.2e}"


def _check_placed(graph: fx.Graph, found) -> None:
    replaced = [node for region in found.regions for node in region.nodes]
    assert len(set(replaced)) == len(replaced), "a node is in two regions"
    rejected = [rejection.node for rejection in found.rejections]
    assert len(set(rejected)) == len(rejected)
    absorbed = {node.name for region in found.regions for node in region.absorbed}
    named = {node.name for node in replaced} | set(rejected) | absorbed
    assert named == {node.name for node in graph.nodes if node.op == "call_function"}
    for region in found.regions:
        inside = set(region.nodes)
        for node in region.nodes:
            if node not in region.outputs:
                assert all(user in inside for user in node.users), f"{node} is read outside and is no output"
