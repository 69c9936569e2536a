"""Inductor's own version of a region and of the bare GEMM, as callables with as little around them as generated code has.

The task is traced from the reference evaluator, decomposed as Inductor does, and given to Inductor's inner compiler under
the user's mode and options: what follows (post-grad passes, fusion, code) is what the region meets inside a real graph.
CUDA graphs are off here: replay is timed with a graph captured around all contestants alike.

What a graph pays once, and not for each region in it, is left out: the compiled function is called past the object around
it, and without the checks of a graph's inputs.

Private API, read in torch 2.11.0, 2.12, 2.13.0 and 2.14.1:
`torch._inductor.compile_fx.compile_fx_inner(gm, inputs, is_inference=)`, `CompiledFxGraph.current_callable`,
`torch._inductor.decomposition.select_decomp_table`, `torch._inductor.config.patch`, `torch._inductor.list_mode_options`,
`torch._guards.TracingContext`, `torch._subclasses.fake_tensor.FakeTensorMode`, `OutputCode.__call__` (takes a list of
inputs and empties it).
"""

from __future__ import annotations

import contextlib
import json
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

import torch
from torch._guards import TracingContext, tracing
from torch._inductor import config, list_mode_options
from torch._inductor.compile_fx import compile_fx_inner
from torch._inductor.decomposition import select_decomp_table
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.fx.experimental.proxy_tensor import make_fx

from kforge_dynamo.records.task import InputSpec, Task
from kforge_dynamo.sandbox.dissect import prune
from kforge_dynamo.sandbox.inputs import full_shape
from kforge_dynamo.sandbox.layout import TIMED_PAD, strides_of
from kforge_dynamo.semantics.evaluate import dtype_of, evaluate

Compiled = Callable[[list[torch.Tensor]], Sequence[torch.Tensor]]
"""Takes the task's inputs as a list, which it empties, and returns the outputs."""

_OFF: dict[str, Any] = {
    "triton.cudagraphs": False, "cpp_wrapper": False, "fx_wrapper": False, "size_asserts": False, "alignment_asserts": False
}  # fmt: skip
_PASSES = ("post_grad_custom_pre_pass", "post_grad_custom_post_pass", "joint_custom_pre_pass", "joint_custom_post_pass")


def compile_region(task: Task, sizes: Sequence[int], device: torch.device, mode: str, options: str, threads: int) -> Compiled:
    """The region compiled by Inductor for these sizes and the strides of the task's inputs.

    `mode` is torch.compile's, "default" for none; `options` a JSON object of Inductor's options; `threads` what C++ code is
    made for (torch's number would be read in this thread, where it may differ). Raises what Inductor raises.
    """
    axes = dict(zip(task.axes, sizes, strict=True))

    def region(*tensors: torch.Tensor) -> tuple[torch.Tensor, ...]:
        return evaluate(task, tensors, axes)

    fake = FakeTensorMode()
    with fake, torch.no_grad():
        fakes = [_example(item, full_shape(item, axes), device) for item in task.inputs]
        graph = make_fx(region, decomposition_table=select_decomp_table(), tracing_mode="real")(*fakes)
    with torch.no_grad(), config.patch(_patches(mode, options, threads)), fake, tracing(TracingContext(fake)):
        output = compile_fx_inner(graph, fakes, is_inference=True)
    compiled: Compiled = getattr(output, "current_callable", None) or output
    return compiled


def warm_up(device: torch.device) -> None:
    """Lets Inductor make what it makes once a machine and process (precompiled headers, its thread pool), so that the first
    region's budget does not pay for it. A machine on which Inductor cannot compile is left to the first region to report."""
    fake = FakeTensorMode()
    with contextlib.suppress(Exception), torch.no_grad(), fake, tracing(TracingContext(fake)):
        example = torch.empty(16, device=device)
        compile_fx_inner(make_fx(lambda x: x.exp() + 1)(example), [example], is_inference=True)


def _example(item: InputSpec, shape: tuple[int, ...], device: torch.device) -> torch.Tensor:
    return torch.empty_strided(shape, strides_of(item, shape, TIMED_PAD), dtype=dtype_of(item.value.dtype), device=device)


def anchor_of(task: Task) -> tuple[Task, tuple[int, ...]] | None:
    """The bare GEMM of the task (with its bias, coefficients and operands as they come), and which inputs it takes.

    None for a task without a GEMM, or whose GEMM reads computed operands: the prologue would be timed with it.
    """
    if task.anchor is None:
        return None
    number = len(task.inputs) + task.nodes.index(task.anchor)
    bare = prune(task, (number,))
    if len(bare.nodes) != 1:
        return None
    used = tuple(sorted({arg for arg in bare.nodes[0].args if isinstance(arg, int)}))
    renamed = {old: new for new, old in enumerate(used)}
    node = replace(bare.nodes[0], args=tuple(renamed[arg] for arg in bare.nodes[0].args if isinstance(arg, int)))
    return replace(bare, inputs=tuple(task.inputs[old] for old in used), nodes=(node,), outputs=(len(used),)), used


def _patches(mode: str, options: str, threads: int) -> dict[str, Any]:
    chosen: dict[str, Any] = {"cpp.threads": threads}
    chosen |= {} if mode in ("", "default") else dict(list_mode_options(mode))
    chosen.update(json.loads(options or "{}"))
    for name in _PASSES:
        chosen.pop(name, None)
    return chosen | _OFF
