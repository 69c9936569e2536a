"""Graph forms that Inductor is known to lose something of, rewritten to equal ones it keeps.

`add(product, x, alpha=k)`: Inductor's post-grad pattern "an add of an mm is an addmm" drops `alpha` (seen in torch 2.13). The
factor becomes a multiplication of its own, which is what eager computes.

Gradients of average pooling with `ceil_mode`: Inductor's lowering divides windows that hang over the edge by the wrong count
(pytorch/pytorch#198119, seen in torch 2.13). The node calls ATen's own kernel through `kforge::avg_pool2d_backward` instead.
"""

from __future__ import annotations

import torch
from torch import fx

from kforge_dynamo.lowering import inductor

_aten = torch.ops.aten


def repair(graph: fx.Graph) -> int:
    """Rewrites in place and returns how many nodes changed. Before and after, every node computes the same value."""
    changed = 0
    for node in list(graph.nodes):
        if node.op != "call_function":
            continue
        if node.target is _aten.avg_pool2d_backward.default and len(node.args) > 5 and node.args[5]:
            node.target = inductor.average_pool_gradient()
            changed += 1
        elif node.target in (_aten.add.Tensor, _aten.sub.Tensor) and node.kwargs.get("alpha", 1) != 1:
            changed += _split_alpha(graph, node)
    return changed


def _split_alpha(graph: fx.Graph, node: fx.Node) -> int:
    """`add(a, b, alpha=k)` as `add(a, mul(b, k))`. Only for floating tensors, where the two are one rounding apart at most."""
    other = node.args[1]
    if not isinstance(other, fx.Node) or not isinstance(other.meta.get("val"), torch.Tensor):
        return 0
    value = other.meta["val"]
    if not (value.dtype.is_floating_point and node.meta["val"].dtype == value.dtype):
        return 0
    alpha = node.kwargs["alpha"]
    with graph.inserting_before(node):
        scaled = graph.call_function(_aten.mul.Tensor, (other, alpha))
    scaled.meta.update({name: item for name, item in node.meta.items() if name in ("stack_trace", "seq_nr", "nn_module_stack")})
    scaled.meta["val"] = value * alpha
    node.args = (node.args[0], scaled)
    node.kwargs = {name: item for name, item in node.kwargs.items() if name != "alpha"}
    return 1
