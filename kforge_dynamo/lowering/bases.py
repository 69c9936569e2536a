"""Through pure views to the tensor whose memory a node shows."""

from __future__ import annotations

from collections.abc import Iterator

import torch.fx

from kforge_dynamo.lowering.calls import name_of, tensor_of
from kforge_dynamo.lowering.sizes import same, size_of, sizes_of, strides_of, view_strides

_ALWAYS_VIEWS = (
    "aten.permute.default", "aten.transpose.int", "aten.t.default", "aten.expand.default", "aten.unsqueeze.default",
    "aten.squeeze.default", "aten.squeeze.dim", "aten.squeeze.dims", "aten.alias.default", "aten.detach.default",
)  # fmt: skip
_VIEWS_IF_STRIDES_ALLOW = ("aten.reshape.default", "aten.view.default", "aten._unsafe_view.default")


def view_chain(node: torch.fx.Node) -> Iterator[torch.fx.Node]:
    """`node`, then the tensor it is a pure view of (same memory, same offset), and so on to the deepest."""
    yield node
    while (below := _viewed(node)) is not None:
        node = below
        yield node


def base_of(node: torch.fx.Node) -> torch.fx.Node:
    """The deepest tensor that `node` is a pure view of; itself when it is none."""
    *_, base = view_chain(node)
    return base


def _viewed(node: torch.fx.Node) -> torch.fx.Node | None:
    name = name_of(node)
    if name not in _ALWAYS_VIEWS and name not in _VIEWS_IF_STRIDES_ALLOW:
        return None
    below = node.args[0] if node.args else None
    source, shown = tensor_of(below), tensor_of(node)
    if source is None or shown is None or not isinstance(below, torch.fx.Node):
        return None
    if source.is_neg() or not same(size_of(source.storage_offset()), size_of(shown.storage_offset())):
        return None
    if name in _VIEWS_IF_STRIDES_ALLOW:
        strides = view_strides(sizes_of(source), strides_of(source), sizes_of(shown))
        if strides is None or not _agree(strides, shown):
            return None
    return below


def _agree(strides: tuple[object, ...], shown: torch.Tensor) -> bool:
    """Whether the traced strides are those of the view (extents of 1 aside): a reshape that copied has others."""
    pairs = zip(strides, strides_of(shown), sizes_of(shown), strict=True)
    return all((isinstance(size, int) and size == 1) or same(a, b) for a, b, size in pairs)
