"""How a site becomes code inside Inductor's wrapper: the only file that touches Inductor's IR.

`kforge::run` stands for a site in the post-grad graph. Its lowering freezes the layout of every input to the strides the
winner was verified for and emits a direct call of the site's runner into the generated wrapper, without the dispatcher.
The op itself is called only where a graph with sites is run outside Inductor.

Private API, read in torch 2.11.0, 2.12, 2.13.0 and 2.14.1: `ir.ExternKernelOut`, `ir.ExternKernelAlloc`, `ir.MultiOutput`,
`ir.MultiOutputLayout`, `ir.FixedLayout`, `lowering.register_lowering`, `lowering.make_fallback`, `virtualized.V`,
`pattern_matcher.stable_topological_sort`.
"""

from __future__ import annotations

import functools
import hashlib
from collections.abc import Callable, Sequence
from typing import Any

import sympy
import torch
from torch._inductor import config, ir
from torch._inductor.lowering import constrain_to_fx_strides, make_fallback, register_lowering
from torch._inductor.pattern_matcher import stable_topological_sort
from torch._inductor.virtualized import V

from kforge_dynamo.records.codec import from_text
from kforge_dynamo.records.site import Site

_TAGS = (torch.Tag.needs_exact_strides, torch.Tag.pt2_compliant_tag)
_library: Any = torch.library.Library("kforge", "FRAGMENT")  # type: ignore[no-untyped-call]
_registered: list[torch._ops.OpOverload] = []
_gradient: list[torch._ops.OpOverload] = []

Shapes = Sequence[Sequence[int | torch.SymInt]]
Call = Callable[[str, Sequence[torch.Tensor], Sequence[int], Sequence[torch.Tensor]], None]
Describe = Callable[[str], tuple[tuple[str, ...], tuple[int, ...]]]


def average_pool_gradient() -> torch._ops.OpOverload:
    """`kforge::avg_pool2d_backward`: ATen's gradient under a name for which Inductor has no lowering of its own."""
    if len(_gradient) == 0:
        _library.define(
            "avg_pool2d_backward(Tensor grad, Tensor x, SymInt[2] kernel, SymInt[2] stride, SymInt[2] padding, bool ceil_mode, "
            "bool count_include_pad, int? divisor_override) -> Tensor",
            tags=_TAGS,
        )
        compute = torch.ops.aten.avg_pool2d_backward.default
        _library.impl("avg_pool2d_backward", compute, "CompositeExplicitAutograd")
        torch.library.register_fake("kforge::avg_pool2d_backward", compute, lib=_library)
        op = torch.ops.kforge.avg_pool2d_backward.default
        make_fallback(op, constrain_to_fx_strides, warn=False)
        _gradient.append(op)
    return _gradient[0]


def python_wrapper() -> bool:
    """Whether Inductor writes a Python wrapper now. In C++ and FX wrappers (AOTInductor) a graph is Inductor's alone: the call
    of a runner is Python, and the C++ wrapper of torch 2.13 crashes on a Python op that returns a list."""
    return not (config.cpp_wrapper or config.fx_wrapper)


def register(call: Call, describe: Describe) -> torch._ops.OpOverload:
    """Registers `kforge::run(str site, Tensor[] inputs, SymInt[] sizes, SymInt[] shapes) -> Tensor[]` once a process.

    `call(site, inputs, sizes, outputs)` computes a site through the dispatcher; `describe(site)` gives the outputs'
    dtypes and ranks. `shapes` holds the extents of all outputs, one after the other.
    """
    if _registered:
        return _registered[0]
    _library.define("run(str site, Tensor[] inputs, SymInt[] sizes, SymInt[] shapes) -> Tensor[]", tags=_TAGS)

    def allocate(site: str, inputs: Sequence[torch.Tensor], shapes: Sequence[int]) -> list[torch.Tensor]:
        dtypes, ranks = describe(site)
        outputs, start = [], 0
        for dtype, rank in zip(dtypes, ranks, strict=True):
            shape = tuple(shapes[start : start + rank])
            outputs.append(torch.empty(shape, dtype=getattr(torch, dtype), device=inputs[0].device))
            start += rank
        return outputs

    def run(site: str, inputs: Sequence[torch.Tensor], sizes: Sequence[int], shapes: Sequence[int]) -> list[torch.Tensor]:
        outputs = allocate(site, inputs, shapes)
        call(site, inputs, sizes, outputs)
        return outputs

    def fake(site: str, inputs: Sequence[torch.Tensor], sizes: Sequence[int], shapes: Sequence[int]) -> list[torch.Tensor]:
        return allocate(site, inputs, shapes)

    _library.impl("run", run, "CompositeExplicitAutograd")
    torch.library.register_fake("kforge::run", fake, lib=_library)
    op = torch.ops.kforge.run.default
    _registered.append(op)
    register_lowering(op, type_promotion_kind=None)(_lower)
    return op


def operator() -> torch._ops.OpOverload:
    """`kforge::run`, once `register` was called."""
    return _registered[0]


def sort(graph: torch.fx.Graph) -> None:
    """Puts every node behind its arguments, keeping the order otherwise."""
    stable_topological_sort(graph)


def _lower(site: str, inputs: Sequence[Any], sizes: Sequence[Any], shapes: Sequence[Any]) -> list[Any]:
    node = V.graph.current_node
    exact = node.meta.get("eager_input_vals")  # a later pass may have dropped it
    values = exact[0][1] if exact else [item.meta["val"] for item in node.args[1]]
    strides = [value.stride() for value in values]
    frozen = [
        ir.ExternKernel.require_exact_strides(ir.ExternKernel.realize_input(item), exact)
        for item, exact in zip(inputs, strides, strict=True)
    ]
    constants = tuple(_expression(size) for size in sizes)
    layouts = [_layout(value) for value in node.meta["val"]]
    if len(layouts) == 1:
        return [ir.TensorBox.create(_Single(site, layouts[0], frozen, constants))]
    parent = _Several(site, layouts[0].device, frozen, constants)
    parent.children = [_Child(layout, parent, [(list, index)]) for index, layout in enumerate(layouts)]
    return [ir.TensorBox.create(child) for child in parent.children]


def _layout(value: torch.Tensor) -> Any:
    size = [_expression(extent) for extent in value.shape]
    stride = [_expression(extent) for extent in value.stride()]
    return ir.FixedLayout(value.device, value.dtype, size, stride)


def _expression(size: Any) -> Any:
    if isinstance(size, torch.SymInt):
        return size.node.expr
    return size if isinstance(size, sympy.Expr) else sympy.Integer(size)


def function_name(site: str) -> str:
    """The name of the runner in generated code: readable, and one a site."""
    return f"kforge_{hashlib.sha256(site.encode()).hexdigest()[:16]}"


def _declare(wrapper: Any, site: str) -> str:
    """Writes the load of the site's runner into the module's head, once a module; returns the runner's name."""
    root = wrapper.get_root_graph() if hasattr(wrapper, "get_root_graph") else wrapper
    known = root.__dict__.setdefault("_kforge_sites", set())
    name = function_name(site)
    if not known:
        root.header.writeline("from kforge_dynamo.runtime import entry as kforge_entry")
    if name not in known:
        known.add(name)
        root.header.writeline(f"{name} = kforge_entry({site!r})")
    return name


def _call(node: Any, name: str, outputs: Sequence[str]) -> str:
    """The call of `runtime.entry`'s function: inputs, outputs, sizes that vary, the tensors that weights are views of, all by
    position."""
    arguments = node.codegen_args()
    inputs = len(node.inputs)
    bases = [_base(node.inputs[number]) for number in _weights(node.site)]
    return f"{name}({', '.join([*arguments[:inputs], *outputs, *arguments[inputs:], *bases])})"


@functools.lru_cache(maxsize=256)
def _weights(site: str) -> tuple[int, ...]:
    return from_text(Site, site).weights


def _base(value: Any) -> str:
    """The graph's own input or constant behind a value; None where there is a buffer of the graph between."""
    name: str = value.get_name()
    return name if name in V.graph.graph_inputs or name in V.graph.constants else "None"


class _Single(ir.ExternKernelOut):  # type: ignore[misc]
    """A site with one output, which Inductor allocates (and may place in memory it reuses)."""

    def __init__(self, site: str, layout: Any, inputs: Sequence[Any], sizes: tuple[Any, ...]) -> None:
        super().__init__(layout, inputs, sizes, python_kernel_name=function_name(site))
        self.site = site

    def codegen(self, wrapper: Any) -> None:
        name = _declare(wrapper, self.site)
        self.codegen_comment(wrapper)
        wrapper.writeline(_call(self, name, [self.get_name()]))


class _Several(ir.ExternKernelAlloc):  # type: ignore[misc]
    """A site with several outputs. Its children are allocated by Inductor before the call, which fills them."""

    children: Sequence[Any] = ()

    def __init__(self, site: str, device: torch.device, inputs: Sequence[Any], sizes: tuple[Any, ...]) -> None:
        super().__init__(ir.MultiOutputLayout(device=device), inputs, sizes, python_kernel_name=function_name(site))
        self.site = site

    def codegen(self, wrapper: Any) -> None:
        name = _declare(wrapper, self.site)
        self.codegen_comment(wrapper)
        for child in self.children:
            wrapper.codegen_allocation(child)
        call = _call(self, name, [child.get_name() for child in self.children])
        wrapper.writeline(f"{self.get_name()} = {call}")


class _Child(ir.MultiOutput):  # type: ignore[misc]
    """One output of a `_Several`: a buffer of its own, filled by the parent's call, nothing to unpack."""

    def should_allocate(self) -> bool:
        return True

    def codegen(self, wrapper: Any) -> None:
        self.codegen_size_asserts(wrapper)
