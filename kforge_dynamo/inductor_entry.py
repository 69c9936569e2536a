"""The way into Inductor: compile a Dynamo graph with our pass added, or run it through AOTAutograd alone.

Private API, read in torch 2.11.0, 2.13.0 and 2.14.1: `compile_fx.compile_fx`, `custom_graph_pass.CustomGraphPass`,
`config.post_grad_custom_pre_pass`, `exc.InvalidCxxCompiler`, `exc.CppCompileError`, `_dynamo.exc.TorchDynamoException`,
`_guards.TracingContext` (its `fw_metadata.static_input_indices` and `.tokens`). Inputs of training graphs are named
`primals_` and `tangents_`, weights that Inductor froze `_frozen_param`. A list of passes is accepted from torch 2.13 on only,
so a user's pass is composed with ours.
"""

from __future__ import annotations

import contextlib
import copy
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, Protocol, TypeVar

import torch
from torch import fx
from torch._dynamo.backends.debugging import aot_eager
from torch._dynamo.exc import BackendCompilerFailed, TorchDynamoException
from torch._functorch import config as functorch_config
from torch._guards import TracingContext
from torch._inductor import config as inductor_config
from torch._inductor import custom_graph_pass, list_mode_options
from torch._inductor import exc as inductor_exc
from torch._inductor.compile_fx import compile_fx
from torch._inductor.custom_graph_pass import CustomGraphPass

E = TypeVar("E", bound=BaseException)

_AwarePass = getattr(custom_graph_pass, "CustomInferenceAwareGraphPass", CustomGraphPass)  # from torch 2.12 on
_PASS = "post_grad_custom_pre_pass"
_NO_COMPILER = tuple(
    getattr(inductor_exc, name)
    for name in ("InvalidCxxCompiler", "TritonMissing", "GPUTooOldForTriton")
    if hasattr(inductor_exc, name)
)


class Work(Protocol):
    """What our pass does to a post-grad graph, and what identifies it to Inductor's caches."""

    @property
    def identity(self) -> str:
        """Goes into the key of Inductor's caches."""

    def run(self, graph: fx.Graph) -> None:
        """Changes the graph in place; never raises but for MissError."""


def mode_patches(mode: str | None) -> dict[str, Any]:
    """What torch.compile's `mode` sets in Inductor. Raises: RuntimeError for an unknown mode, with the known ones."""
    return dict(list_mode_options(mode)) if mode else {}


def knows_option(name: str) -> bool:
    """Whether Inductor has an option of that name."""
    return name.replace("-", "_") in inductor_config.get_config_copy()


def captures_graphs(patches: Mapping[str, Any]) -> bool:
    """Whether a graph compiled under `patches` is replayed as a CUDA graph."""
    return bool(patches.get("triton.cudagraphs", inductor_config.triton.cudagraphs))


def copy_graph(gm: fx.GraphModule) -> fx.GraphModule:
    """The graph again, sharing parameters: `compile_fx` takes ownership of what it is given."""
    return fx.GraphModule(gm, copy.deepcopy(gm.graph))


def compile_graph(
    gm: fx.GraphModule, example_inputs: Sequence[Any], patches: Mapping[str, Any], work: Work | None
) -> Callable[..., Any]:
    """Inductor's `compile_fx` under `patches`, with `work` run before its post-grad passes. A user's own pass runs first."""
    _forget_tracing()
    patched = dict(patches)
    if work is not None:
        users = patched.get(_PASS, getattr(inductor_config, _PASS))
        earlier = tuple(users) if isinstance(users, list | tuple) else () if users is None else (users,)
        patched[_PASS] = _Composed(earlier, work)
    compiled: Callable[..., Any] = compile_fx(gm, list(example_inputs), config_patches=patched)
    return compiled


def run_uncompiled(gm: fx.GraphModule, example_inputs: Sequence[Any]) -> Callable[..., Any]:
    """AOTAutograd's forward and backward graphs, run op by op."""
    _forget_tracing()
    with functorch_config.patch(enable_autograd_cache=False):
        compiled: Callable[..., Any] = aot_eager(gm, list(example_inputs))
    return compiled


UNCACHED = {"fx_graph_cache": False}
"""The patch under which Inductor compiles anew, the backward graph later too; `afresh` is AOTAutograd's part of it."""


@contextlib.contextmanager
def afresh(wanted: bool) -> Iterator[None]:
    """Inside, where it is `wanted`, AOTAutograd does not look into its cache."""
    with functorch_config.patch(enable_autograd_cache=False) if wanted else contextlib.nullcontext():
        yield


@contextlib.contextmanager
def without_caches() -> Iterator[None]:
    """Inside, Inductor and AOTAutograd compile anew, so that our pass runs for every graph."""
    with inductor_config.patch(fx_graph_cache=False), functorch_config.patch(enable_autograd_cache=False):
        yield


def no_compiler(error: BaseException) -> bool:
    """Whether `error`, or what caused it, says that this machine has no usable compiler."""
    return any(cause(error, kind) is not None for kind in _NO_COMPILER)


def steers(error: BaseException) -> bool:
    """Whether Dynamo steers itself by this exception (restarts, skips, graph breaks); those are never ours to handle."""
    return isinstance(error, TorchDynamoException) and not isinstance(error, BackendCompilerFailed)


def cause(error: BaseException, kind: type[E]) -> E | None:
    """`error` itself or the exception behind it that is a `kind`; Inductor wraps what its passes raise."""
    waiting, seen = [error], set()
    while waiting:
        item = waiting.pop()
        if isinstance(item, kind):
            return item
        seen.add(id(item))
        behind = (item.__cause__, item.__context__, getattr(item, "inner_exception", None))
        waiting += [other for other in behind if isinstance(other, BaseException) and id(other) not in seen]
    return None


def overlap_pattern(example_inputs: Sequence[Any]) -> str:
    """Which inputs share memory, and where: AOTAutograd's cache has no field for it and would mix the two cases up."""
    owners: dict[int, int] = {}
    found = []
    for position, item in enumerate(example_inputs):
        if isinstance(item, torch.Tensor) and item.layout is torch.strided:
            first = owners.setdefault(item.untyped_storage()._cdata, position)
            if first != position:
                found.append(f"{position}~{first}@{item.storage_offset()}")
    return ",".join(found)


def weights(graph: fx.Graph, trusted: bool) -> frozenset[fx.Node]:
    """The values of a post-grad graph that are weights a copy may be kept of: those that Inductor froze and, when `trusted`,
    parameters and buffers that the graph does not write. None of a training graph: its weights change with every step."""
    context = TracingContext.try_get()
    inputs = [node for node in graph.nodes if node.op == "placeholder"]
    if any(node.name.startswith(("primals_", "tangents_")) for node in inputs):
        return frozenset()
    found = {node for node in graph.nodes if node.op == "get_attr" and str(node.target).startswith("_frozen_param")}
    meta = None if context is None else context.fw_metadata
    if trusted and meta is not None and not meta.tokens:
        static = frozenset(meta.static_input_indices)
        found |= {node for place, node in enumerate(inputs) if place in static}
    return frozenset(node for node in found if not any(map(_writes, node.users)))


def _writes(node: fx.Node) -> bool:
    schema = getattr(node.target, "_schema", None)
    return node.op != "output" and (schema is None or bool(schema.is_mutable))


def _forget_tracing() -> None:
    """A compile that failed leaves its output strides behind, and the next in the same trace asserts that there are none."""
    context = TracingContext.try_get()
    if context is not None:
        context.output_strides = None


class _Composed(_AwarePass):  # type: ignore[misc, valid-type]
    """The user's own pre-passes, then ours."""

    def __init__(self, earlier: Sequence[Callable[..., Any]], work: Work) -> None:
        self._earlier = tuple(earlier)
        self._work = work

    def __call__(self, graph: fx.Graph, is_inference: bool = False) -> None:
        for item in self._earlier:
            if _AwarePass is not CustomGraphPass and isinstance(item, _AwarePass):
                item(graph, is_inference=is_inference)
            else:
                item(graph)
        self._work.run(graph)

    def uuid(self) -> Any:
        """None, and with it no caching, when a pass of the user's has no identity."""
        names = [item.uuid() if isinstance(item, CustomGraphPass) else None for item in self._earlier]
        return None if None in names else (*names, self._work.identity)
