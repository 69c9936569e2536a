"""Ops that stand for several of the op table: pooling over features, and norms and softmaxes that came undecomposed."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch.fx

from kforge_dynamo.lowering.align import Frame
from kforge_dynamo.lowering.calls import arguments, dtype_name, name_of, tensor_of
from kforge_dynamo.lowering.reductions import Over, over, reduced
from kforge_dynamo.lowering.refusal import Refused
from kforge_dynamo.lowering.scope import Bound, Scope, Value
from kforge_dynamo.lowering.sizes import is_static
from kforge_dynamo.lowering.space import Col, Layout
from kforge_dynamo.lowering.spec import FLOATS
from kforge_dynamo.lowering.views import in_shape, part
from kforge_dynamo.records.region import Reason

CompositeRule = Callable[[Scope, Value, torch.fx.Node], Bound]


def _pairs(value: object, count: int) -> list[int]:
    listed: list[Any] = list(value) if isinstance(value, Sequence) else [value]
    if not all(isinstance(item, int) for item in listed):
        raise Refused(Reason.SYMBOLIC_SIZE, "the pooling window is symbolic")
    return listed * count if len(listed) == 1 else listed


def _pool(op: str, spatial: int) -> Callable[[Scope, Value, dict[str, Any]], Value]:
    def rule(scope: Scope, value: Value, args: dict[str, Any]) -> Value:
        kernel = _pairs(args["kernel_size"], spatial)
        stride = _pairs(args["stride"] or args["kernel_size"], spatial)
        plain = (
            kernel == stride
            and not any(_pairs(args.get("padding") or 0, spatial))
            and not args.get("ceil_mode")
            and set(_pairs(args.get("dilation") or 1, spatial)) == {1}
            and args.get("divisor_override") is None
        )
        if not plain:
            raise Refused(
                Reason.NOT_EXPRESSIBLE, "only pooling with kernel = stride, no padding, dilation or ceil_mode is a reshape"
            )
        for back, length in enumerate(reversed(kernel), start=1):
            if length != 1:
                value = _pool_dimension(scope, value, len(value.layout.sizes) - back, length, op)
        return value

    return rule


def _pool_dimension(scope: Scope, value: Value, dim: int, length: int, op: str) -> Value:
    """Windows of `length` along one dimension: a rest is cut off, the windows become columns, `op` reduces them."""
    size = value.layout.sizes[dim]
    if not is_static(size) or not isinstance(value.layout.tags[dim], Col):
        raise Refused(Reason.CROSSES_ROWS, "the pooling windows span rows of the product")
    count = size // length
    if count * length != size:
        value = part(scope, value, dim, 0, count * length)
    sizes = value.layout.sizes
    windows = in_shape(scope, value, (*sizes[:dim], count, length, *sizes[dim + 1 :]))
    where = over(windows, dim + 1, keepdim=False)
    return _without_columns(scope, reduced(scope, op, windows.number, where), where)


def _without_columns(scope: Scope, number: int, where: Over) -> Value:
    """The reduced value without the columns that were reduced away."""
    kept = [index for index in range(len(where.layout.cols)) if index not in where.axes]
    cols = tuple(where.layout.cols[index] for index in kept) or (1,)
    tags = tuple(
        (Col(kept.index(tag.index)) if tag.index in kept else None) if isinstance(tag, Col) else tag for tag in where.layout.tags
    )
    return Value(scope.emit.reshape(number, cols), Layout(where.layout.sizes, tags, cols))


def _average(spatial: int) -> CompositeRule:
    pool = _pool("mean", spatial)
    return lambda scope, value, node: pool(scope, value, arguments(node))


def _maximum(scope: Scope, value: Value, node: torch.fx.Node) -> Bound:
    """The indices have no counterpart: the node joins only where nobody reads them."""
    return _pool("amax", 2)(scope, value, arguments(node)), None


def _columns(value: Value, dims: object, what: str) -> Over:
    where = over(value, dims, keepdim=True)
    if where.rows or not where.axes:
        raise Refused(Reason.CROSSES_ROWS, f"{what} along rows of the product")
    return where


def _softmax(logarithm: bool) -> CompositeRule:
    def rule(scope: Scope, value: Value, node: torch.fx.Node) -> Bound:
        where = _columns(value, arguments(node)["dim"], "a softmax")
        e, result = scope.emit, _result_dtype(node)
        x = e.convert(value.number, "float32")
        shifted = e("sub", x, e.reduce("amax", x, where.axes))
        total = e.reduce("sum", e("exp", shifted), where.axes)
        number = e("sub", shifted, e("log", total)) if logarithm else e("div", e("exp", shifted), total)
        return Value(e.convert(number, result), value.layout)

    return rule


def _result_dtype(node: torch.fx.Node) -> str:
    tensor = tensor_of(node)
    if tensor is None or dtype_name(tensor.dtype) not in FLOATS:
        raise Refused(Reason.UNSUPPORTED_DTYPE, f"{name_of(node)} does not return a tensor that regions hold")
    return dtype_name(tensor.dtype)


def _part_dtypes(node: torch.fx.Node) -> list[str]:
    example = node.meta.get("val")
    if not isinstance(example, tuple | list) or not all(isinstance(item, torch.Tensor) for item in example):
        raise Refused(Reason.UNSUPPORTED_LAYOUT, f"{name_of(node)} does not return plain tensors")
    return [dtype_name(item.dtype) for item in example]


def _affine(scope: Scope, node: torch.fx.Node, number: int, frame: Frame, names: tuple[str, str]) -> int:
    """`number * weight + bias` in fp32, either of which may be None."""
    args, e = arguments(node), scope.emit
    for name, op in zip(names, ("mul", "add"), strict=True):
        operand = args[name]
        if operand is None:
            continue
        if operand in scope.bound:
            raise Refused(Reason.NOT_EXPRESSIBLE, f"the {name} of {name_of(node)} is computed from the product")
        number = e(op, number, e.convert(scope.leaf(operand, frame), "float32"))
    return number


def _normalised(scope: Scope, x: int, axes: Sequence[int], eps: float) -> tuple[int, int, int]:
    """`(x - mean) * rstd`, mean and rstd over columns, in fp32."""
    e = scope.emit
    mean = e.reduce("mean", x, axes)
    rstd = e("rsqrt", e("add", e.reduce("var", x, axes, correction=0.0), float(eps)))
    return e("mul", e("sub", x, mean), rstd), mean, rstd


def _layer_norm(scope: Scope, value: Value, node: torch.fx.Node) -> Bound:
    args, e, dtypes = arguments(node), scope.emit, _part_dtypes(node)
    rank = len(value.layout.sizes)
    where = _columns(value, list(range(rank - len(args["normalized_shape"]), rank)), "a layer norm")
    y, mean, rstd = _normalised(scope, e.convert(value.number, "float32"), where.axes, args["eps"])
    frame = Frame(value.layout.sizes, value.layout.tags, len(value.layout.cols))
    y = _affine(scope, node, y, frame, ("weight", "bias"))
    parts = (Value(y, value.layout), Value(mean, where.layout), Value(rstd, where.layout))
    return tuple(Value(e.convert(item.number, dtype), item.layout) for item, dtype in zip(parts, dtypes, strict=True))


def _group_norm(scope: Scope, value: Value, node: torch.fx.Node) -> Bound:
    args, e, dtypes = arguments(node), scope.emit, _part_dtypes(node)
    batch, channels, group = value.layout.sizes[0], args["C"], args["group"]
    if args["HxW"] != 1 or not isinstance(channels, int) or len(value.layout.sizes) < 2:
        raise Refused(Reason.NOT_EXPRESSIBLE, "a group norm of images is left to Inductor")
    grouped = in_shape(scope, value, (batch, group, channels // group))
    where = _columns(grouped, 2, "a group norm")
    y, mean, rstd = _normalised(scope, e.convert(grouped.number, "float32"), where.axes, args["eps"])
    flat = in_shape(scope, Value(y, grouped.layout), (batch, channels))
    frame = Frame(flat.layout.sizes, flat.layout.tags, len(flat.layout.cols))
    flat = Value(_affine(scope, node, flat.number, frame, ("weight", "bias")), flat.layout)
    result = in_shape(scope, flat, value.layout.sizes)
    statistics = over(grouped, 2, keepdim=False).layout
    parts = (result, Value(mean, statistics), Value(rstd, statistics))
    return tuple(Value(e.convert(item.number, dtype), item.layout) for item, dtype in zip(parts, dtypes, strict=True))


COMPOSITES: dict[str, CompositeRule] = {
    "aten.avg_pool1d.default": _average(1),
    "aten.avg_pool2d.default": _average(2),
    "prims._low_memory_max_pool_with_offsets.default": _maximum,
    "aten.max_pool2d_with_indices.default": _maximum,
    "aten._softmax.default": _softmax(False),
    "aten._log_softmax.default": _softmax(True),
    "aten.native_layer_norm.default": _layer_norm,
    "aten.native_group_norm.default": _group_norm,
}
"""By the op's full name."""
