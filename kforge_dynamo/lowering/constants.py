"""Graph tensors that hold one number everywhere.

Rounding to a dtype is done in Python: a tensor made here would be a fake one where a pass runs under a fake mode.
"""

from __future__ import annotations

import math
import struct

import torch
import torch.fx

from kforge_dynamo.lowering.calls import arguments, name_of, tensor_of
from kforge_dynamo.records.task import Const

_CONSTANTS: dict[str, str | int] = {
    "aten.full.default": "fill_value",
    "aten.full_like.default": "fill_value",
    "aten.scalar_tensor.default": "s",
    "aten.zeros.default": 0,
    "aten.zeros_like.default": 0,
    "aten.new_zeros.default": 0,
    "aten.ones.default": 1,
    "aten.ones_like.default": 1,
}
"""Ops that fill a tensor, with the name of the argument that says with what, or the number itself."""
_SAME_CONSTANT = ("aten.expand.default", "aten.reshape.default", "aten.view.default", "aten.unsqueeze.default",
                  "prims.convert_element_type.default")  # fmt: skip


def constant_of(node: object) -> Const | None:
    """The number that fills a graph tensor, rounded to the tensor's dtype; None where it is not one number."""
    if not isinstance(node, torch.fx.Node):
        return None
    name, tensor = name_of(node), tensor_of(node)
    if tensor is None:
        return None
    value: object = None
    if name in _SAME_CONSTANT or name == "aten.neg.default":
        inner = constant_of(node.args[0])
        value = None if inner is None else -inner.value if name == "aten.neg.default" else inner.value
    elif name in _CONSTANTS:
        filler = _CONSTANTS[name]
        value = arguments(node)[filler] if isinstance(filler, str) else filler
    return rounded(value, tensor.dtype) if isinstance(value, bool | int | float) else None


def rounded(value: bool | int | float, dtype: torch.dtype) -> Const | None:
    """`value` as a tensor of `dtype` holds it; None where torch would not store it, or the dtype has no place in a task."""
    if dtype is torch.bool:
        return Const(bool(value))
    if dtype in _FLOATING:
        return Const(_nearest(float(value), dtype))
    if dtype.is_floating_point or dtype.is_complex or isinstance(value, float):
        return None
    limits = torch.iinfo(dtype)
    return Const(int(value)) if limits.min <= value <= limits.max else None


_FLOATING = (torch.float64, torch.float32, torch.float16, torch.bfloat16)


def _nearest(value: float, dtype: torch.dtype) -> float:
    """Round to nearest, ties to even; beyond the largest number, infinity."""
    if dtype is torch.float64 or not math.isfinite(value):
        return value
    try:
        single: float = struct.unpack("<f", struct.pack("<f", value))[0]
        if dtype is torch.float32:
            return single
        if dtype is torch.float16:
            half: float = struct.unpack("<e", struct.pack("<e", value))[0]
            return half
    except OverflowError:
        return math.copysign(math.inf, value)
    bits = struct.unpack("<I", struct.pack("<f", single))[0]
    bits += 0x7FFF + ((bits >> 16) & 1)
    brain: float = struct.unpack("<f", struct.pack("<I", bits & 0xFFFF0000))[0]
    return brain
