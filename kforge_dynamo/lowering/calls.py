"""What a graph node calls, with its arguments by name; and the kinds of nodes that never stand in a region.

Private torch API: `OpOverload._schema`; read in torch 2.11 to 2.14.
"""

from __future__ import annotations

import operator
from typing import Any

import torch
import torch.fx

from kforge_dynamo.lowering.refusal import Refused
from kforge_dynamo.records.region import Reason

GETITEM = "getitem"


def name_of(node: torch.fx.Node) -> str:
    """The op's name with its overload, e.g. "aten.add.Tensor"; "getitem"; a function's own name otherwise; "" if not a call."""
    if node.op != "call_function":
        return ""
    if node.target is operator.getitem:
        return GETITEM
    if isinstance(node.target, torch._ops.OpOverload):
        return str(node.target)
    return str(getattr(node.target, "__name__", node.target))


def arguments(node: torch.fx.Node) -> dict[str, Any]:
    """Arguments by the names of the op's schema, defaults filled in."""
    target = node.target
    if not isinstance(target, torch._ops.OpOverload):
        raise Refused(Reason.UNSUPPORTED_OP, f"{name_of(node)} is not an operator of PyTorch")
    bound: dict[str, Any] = {}
    for position, argument in enumerate(target._schema.arguments):
        if position < len(node.args):
            bound[argument.name] = node.args[position]
        elif argument.name in node.kwargs:
            bound[argument.name] = node.kwargs[argument.name]
        else:
            bound[argument.name] = argument.default_value if argument.has_default_value() else None
    return bound


def tensor_of(value: object) -> torch.Tensor | None:
    """The plain strided (fake) tensor that a node stands for, None for anything else."""
    if not isinstance(value, torch.fx.Node):
        return None
    example = value.meta.get("val")
    if not isinstance(example, torch.Tensor) or example.layout is not torch.strided or example.is_nested:
        return None
    return example


def dtype_name(dtype: torch.dtype) -> str:
    """torch's name of a dtype without the prefix."""
    return str(dtype).removeprefix("torch.")


def is_random(node: torch.fx.Node) -> bool:
    """Whether the node draws random numbers (or reads a seed), so that it may neither be moved nor repeated."""
    name = name_of(node)
    seeded = isinstance(node.target, torch._ops.OpOverload) and torch.Tag.nondeterministic_seeded in node.target.tags
    return seeded or name.startswith(("prims.inductor_seed", "prims.inductor_lookup_seed", "prims.inductor_random"))


def is_barrier(node: torch.fx.Node) -> bool:
    """Whether the node may write to memory that others read: nothing moves from one side of it to the other."""
    if node.op == "call_function" and isinstance(node.target, torch._ops.OpOverload):
        return bool(node.target._schema.is_mutable)
    return isinstance(node.target, torch._ops.HigherOrderOperator)


def makes_size(node: torch.fx.Node) -> bool:
    """Whether the node computes a number of the host (a size), not a tensor."""
    example = node.meta.get("val")
    return isinstance(example, int | float | torch.SymInt | torch.SymFloat | torch.SymBool)


_FUSED_BY_INDUCTOR = (
    "aten.sum", "aten.mean", "aten.amax", "aten.amin", "aten.max", "aten.min", "aten.argmax", "aten.argmin", "aten.any",
    "aten.all", "aten.var", "aten.prod", "aten.where", "aten._softmax", "aten._log_softmax", "aten.native_layer_norm",
    "prims.convert_element_type", "aten.clone", "aten.cat", "aten.index", "aten.constant_pad_nd",
    "prims.prepare_softmax_online", "prims.inductor_random", "aten.embedding", "aten.gather", "aten.avg_pool2d",
    "aten.full", "aten.copy_", "aten.cumsum",
)  # fmt: skip


def inductor_fuses(node: torch.fx.Node) -> bool:
    """Whether Inductor makes this node part of a kernel of its own (and so could fuse it with its producers)."""
    if not isinstance(node.target, torch._ops.OpOverload):
        return False
    name = str(node.target)
    return torch.Tag.pointwise in node.target.tags or any(name.startswith(f"{op}.") for op in _FUSED_BY_INDUCTOR)
