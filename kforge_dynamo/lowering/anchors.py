"""The products that regions grow from: which GEMM nodes qualify, seen through the padding that Inductor puts around them."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass

import torch
import torch.fx

from kforge_dynamo.lowering.align import Frame
from kforge_dynamo.lowering.calls import arguments, dtype_name, name_of, tensor_of
from kforge_dynamo.lowering.constants import constant_of
from kforge_dynamo.lowering.refusal import Refused
from kforge_dynamo.lowering.scope import MAX_ELEMENTS, Scope, Value
from kforge_dynamo.lowering.sizes import Size, is_dense, is_static, product, same, sizes_of, strides_of
from kforge_dynamo.lowering.space import Col, Layout, Row, Tag, is_one, static_col
from kforge_dynamo.lowering.spec import FLOATS
from kforge_dynamo.lowering.translate import tensor_operand
from kforge_dynamo.records.region import Reason
from kforge_dynamo.records.task import Const, InputRole

_OPERANDS = {
    "aten.mm.default": ("self", "mat2", None),
    "aten.addmm.default": ("mat1", "mat2", "self"),
    "aten.bmm.default": ("self", "mat2", None),
    "aten.baddbmm.default": ("batch1", "batch2", "self"),
}
_OTHER_PRODUCTS = ("aten.mm.", "aten.addmm.", "aten.bmm.", "aten.baddbmm.", "aten._scaled_mm", "aten._int_mm", "mkldnn.", "mkl.")


@dataclass(frozen=True, slots=True)
class Anchor:
    """`alpha * lhs @ rhs + beta * bias`, of `(B, M, K)` by `(B, K, N)` or without the batch.

    `node` is the GEMM, `result` the node that holds the product (a slice behind `node` where padding was undone),
    `replaced` the nodes from one to the other, `pads` the paddings of its operands.
    """

    node: torch.fx.Node
    result: torch.fx.Node
    replaced: tuple[torch.fx.Node, ...]
    pads: tuple[torch.fx.Node, ...]
    lhs: torch.fx.Node
    rhs: torch.fx.Node
    bias: torch.fx.Node | None
    alpha: float
    beta: float

    @property
    def shape(self) -> tuple[Size, ...]:
        """The product's shape, `(M, N)` or `(B, M, N)`."""
        return (*sizes_of(self.lhs.meta["val"])[:-1], sizes_of(self.rhs.meta["val"])[-1])

    @property
    def inner(self) -> Size:
        """K."""
        return sizes_of(self.lhs.meta["val"])[-1]

    @property
    def batched(self) -> bool:
        """Whether the right operand has a batch dimension."""
        return len(self.shape) == 3


def is_product(node: torch.fx.Node) -> bool:
    """Whether the node multiplies matrices in some way."""
    name = name_of(node)
    return name in _OPERANDS or name.startswith(_OTHER_PRODUCTS)


def find_anchors(node: torch.fx.Node, device_kinds: Collection[str]) -> list[Anchor]:
    """The ways to see an anchor at a product node, the best first: without its padding, then as it stands.

    Raises: Refused where the node does not qualify.
    """
    plain = _plain_anchor(node, device_kinds)
    unpadded = _without_padding(plain)
    return [plain] if unpadded is None else [unpadded, plain]


def _plain_anchor(node: torch.fx.Node, device_kinds: Collection[str]) -> Anchor:
    name = name_of(node)
    if name not in _OPERANDS:
        raise Refused(Reason.UNSUPPORTED_OP, f"{name} is not one of {', '.join(_OPERANDS)}")
    args = arguments(node)
    lhs_name, rhs_name, bias_name = _OPERANDS[name]
    lhs, rhs, bias = args[lhs_name], args[rhs_name], None if bias_name is None else args[bias_name]
    alpha, beta = args.get("alpha", 1), args.get("beta", 1)
    if not isinstance(alpha, int | float) or not isinstance(beta, int | float):
        raise Refused(Reason.SYMBOLIC_SIZE, f"alpha={alpha} or beta={beta} is a size of the graph, not a constant")
    if bias is None:
        beta = 1.0
    elif beta == 0:
        bias, beta = None, 1.0  # torch does not read the bias then, not even its NaN
    anchor = Anchor(node, node, (node,), (), lhs, rhs, bias, float(alpha), float(beta))
    _check_operands(anchor, device_kinds)
    return anchor


def _check_operands(anchor: Anchor, device_kinds: Collection[str]) -> None:
    name = name_of(anchor.node)
    nodes = [item for item in (anchor.lhs, anchor.rhs, anchor.bias, anchor.node) if item is not None]
    tensors = [tensor_of(item) for item in nodes]
    known = [tensor for tensor in tensors if tensor is not None]
    if len(known) != len(nodes):
        raise Refused(Reason.UNSUPPORTED_LAYOUT, f"an operand of {name} is no plain strided tensor")
    devices = {tensor.device for tensor in known}
    if len(devices) != 1 or known[0].device.type not in device_kinds:
        found = " and ".join(sorted(str(device) for device in devices))
        raise Refused(Reason.DEVICE, f"{name} on {found}; kforge was asked for {', '.join(sorted(device_kinds))}")
    dtypes = {dtype_name(tensor.dtype) for tensor in known}
    if len(dtypes) != 1 or not dtypes <= set(FLOATS):
        found = " and ".join(sorted(dtypes))
        raise Refused(Reason.UNSUPPORTED_DTYPE, f"{name} of {found}; regions need one of {', '.join(FLOATS)} throughout")
    if any(tensor.is_neg() or tensor.is_conj() for tensor in known):
        raise Refused(Reason.UNSUPPORTED_LAYOUT, f"an operand of {name} is a lazily negated view")
    for tensor in known:
        sizes = sizes_of(tensor)
        if any(is_static(size) and size == 0 for size in sizes):
            raise Refused(Reason.EMPTY, f"an operand of {name} has no elements")
        if product(size for size in sizes if is_static(size)) >= MAX_ELEMENTS:
            raise Refused(Reason.UNSUPPORTED_LAYOUT, f"an operand of {name} has 2^31 elements or more")
    if not is_static(anchor.shape[-1]):
        raise Refused(Reason.SYMBOLIC_SIZE, f"{name}: N is symbolic ({anchor.shape[-1]}); mark that dimension static to fuse it")
    if not is_dense(sizes_of(known[-1]), strides_of(known[-1])):
        raise Refused(Reason.UNSUPPORTED_LAYOUT, f"{name} returns a tensor that is not row-major")


def _without_padding(anchor: Anchor) -> Anchor | None:
    """The anchor of the original size where Inductor's pad_mm wrapped it: pad, multiply, slice.

    Source: torch/_inductor/fx_passes/pad_mm.py, torch 2.13.
    """
    lhs, rhs = _unpadded(anchor.lhs), _unpadded(anchor.rhs)
    pads = [padded for padded, inner in ((anchor.lhs, lhs), (anchor.rhs, rhs)) if inner is not padded]
    if not pads or not same(sizes_of(lhs.meta["val"])[-1], sizes_of(rhs.meta["val"])[-2]):
        return None
    shape = (*sizes_of(lhs.meta["val"])[:-1], sizes_of(rhs.meta["val"])[-1])
    chain = _slices_to(anchor.node, shape)
    bias = anchor.bias
    if bias is not None and not _broadcasts(bias, shape):
        bias = _unpadded(bias)
        pads.append(anchor.bias or bias)
    if chain is None or (bias is not None and not _broadcasts(bias, shape)):
        return None
    found = Anchor(anchor.node, chain[-1], chain, tuple(pads), lhs, rhs, bias, anchor.alpha, anchor.beta)
    return found if is_static(found.shape[-1]) else None


def _broadcasts(node: torch.fx.Node, shape: Sequence[Size]) -> bool:
    sizes = sizes_of(node.meta["val"])
    pairs = zip(reversed(sizes), reversed(shape), strict=False)
    return len(sizes) <= len(shape) and all(is_one(size) or same(size, expected) for size, expected in pairs)


def _unpadded(node: torch.fx.Node) -> torch.fx.Node:
    """The tensor to which `node` only appends zeros; `node` itself otherwise."""
    name = name_of(node)
    inner: object = None
    if name == "aten.constant_pad_nd.default":
        args = arguments(node)
        before, after = list(args["pad"])[::2], list(args["pad"])[1::2]
        zeros = isinstance(args["value"], int | float) and args["value"] == 0
        appended = all(isinstance(count, int) and count >= 0 for count in after)
        inner = args["self"] if zeros and appended and not any(before) else None
    elif name == "aten.cat.default":
        tensors = list(arguments(node)["tensors"])
        filled = constant_of(tensors[-1])
        inner = tensors[0] if len(tensors) == 2 and isinstance(filled, Const) and filled.value == 0 else None
    return inner if isinstance(inner, torch.fx.Node) and tensor_of(inner) is not None else node


def _slices_to(node: torch.fx.Node, shape: Sequence[Size]) -> tuple[torch.fx.Node, ...] | None:
    """`node` and the slices behind it that end at `shape`, if nothing else reads what lies between."""
    chain = [node]
    while not _has_shape(chain[-1], shape):
        users = list(chain[-1].users)
        if len(users) != 1 or name_of(users[0]) != "aten.slice.Tensor" or not _keeps_start(users[0]):
            return None
        chain.append(users[0])
    return tuple(chain)


def _has_shape(node: torch.fx.Node, shape: Sequence[Size]) -> bool:
    return all(same(a, b) for a, b in zip(sizes_of(node.meta["val"]), shape, strict=True))


def _keeps_start(node: torch.fx.Node) -> bool:
    args = arguments(node)
    return args["start"] in (None, 0) and args["step"] == 1


def seed(anchor: Anchor, pulled: frozenset[torch.fx.Node]) -> Scope:
    """A scope that holds the product."""
    shape = anchor.shape
    total = product(shape[:-1])
    units = any(is_one(size) for size in shape[:-1])
    scope = Scope(anchor.node.meta["val"].device, total, units, pulled)
    rows = list(_row_tags(shape))
    lhs_tensor, rhs_tensor = scope.input_tensor(anchor.lhs), scope.input_tensor(anchor.rhs)
    lhs_strides, rhs_strides = strides_of(lhs_tensor), strides_of(rhs_tensor)
    lhs_rows = [(row, stride) for row, stride in zip(rows, lhs_strides[:-1], strict=True) if row is not None]
    lhs = scope.add_leaf(anchor.lhs, InputRole.LHS, lhs_rows, ((anchor.inner, lhs_strides[-1]),), unit_rows=True)
    rhs_rows = [(rows[0], rhs_strides[0])] if anchor.batched and rows[0] is not None else []
    rhs_cols = ((anchor.inner, rhs_strides[-2]), (shape[-1], rhs_strides[-1]))
    rhs = scope.add_leaf(anchor.rhs, InputRole.RHS, rhs_rows, rhs_cols, unit_rows=anchor.batched)
    tags: tuple[Tag, ...] = (*rows, Col(0))
    frame = Frame(shape, tags, 1)
    bias = None if anchor.bias is None else tensor_operand(scope, anchor.bias, frame)
    n = static_col(shape[-1])
    number = scope.emit.gemm(lhs, rhs, bias, anchor.alpha, anchor.beta, n)
    scope.commit(anchor.result, Value(number, Layout(shape, tags, (n,))))
    return scope


def _row_tags(shape: Sequence[Size]) -> list[Row | None]:
    """The anchor's own row dimensions; extents of 1 are axes without a tag."""
    inner: Size = 1
    tags: list[Row | None] = []
    for size in reversed(shape[:-1]):
        tags.append(None if is_one(size) else Row(inner, size))
        inner = product((inner, size))
    return tags[::-1]
