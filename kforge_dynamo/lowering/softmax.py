"""Undoes Inductor's rewrite of `scale, then softmax`.

Its joint-graph pass turns `s - amax(s)`, `s = x * k`, into

    where(all(isfinite(s)), (x * sign(k) - amax(x * sign(k))) * (sign(k) * k), s - amax(s))

(14 nodes; `/ k` likewise, `k` a number or a tensor). Both branches are the same number in exact arithmetic, and the second is
what was asked for, so a `where` of exactly this form is its second branch.
Source: torch/_inductor/fx_passes/joint_graph.py, mul_softmax_pattern and div_softmax_pattern, torch 2.13.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

import torch.fx

from kforge_dynamo.lowering.calls import name_of
from kforge_dynamo.lowering.constants import constant_of

_SCALES = ("aten.mul.Tensor", "aten.div.Tensor")
_CONVERT = "prims.convert_element_type.default"
_ANY = ("aten.any.dims", "aten.any.dim")


def plain_branch(node: torch.fx.Node) -> torch.fx.Node | None:
    """The second branch of a `where` that has the form above, piece by piece; else None."""
    if name_of(node) != "aten.where.self":
        return None
    condition, stable, plain = node.args
    shifted = _shifted(plain)
    if shifted is None or not isinstance(plain, torch.fx.Node):
        return None
    scaled, dims = shifted
    if _all_finite(condition) != (scaled, dims) or not _is_stable_form(stable, scaled, dims):
        return None
    return plain


def _args(value: object, *names: str) -> Sequence[object] | None:
    """The arguments of a call of one of `names`."""
    return value.args if isinstance(value, torch.fx.Node) and name_of(value) in names and not value.kwargs else None


def _dims(value: object) -> tuple[int, ...] | None:
    listed = [value] if isinstance(value, int) else value
    if not isinstance(listed, Sequence) or not all(isinstance(item, int) for item in listed):
        return None
    return tuple(listed)


def _shifted(value: object) -> tuple[torch.fx.Node, tuple[int, ...]] | None:
    """`(s, dims)` where the value is `s - amax(s, dims, keepdim=True)`."""
    args = _args(value, "aten.sub.Tensor")
    peak = _args(args[1], "aten.amax.default") if args else None
    if not args or not peak or len(peak) != 3 or peak[2] is not True or peak[0] is not args[0]:
        return None
    dims = _dims(peak[1])
    return (args[0], dims) if isinstance(args[0], torch.fx.Node) and dims is not None else None


def _all_finite(value: object) -> tuple[object, tuple[int, ...] | None] | None:
    """`(s, dims)` where the value is `not any(not ((s == s) and (abs(s) != inf)), dims, keepdim=True)`."""
    outer = _args(value, "aten.logical_not.default")
    anywhere = _args(outer[0], *_ANY) if outer else None
    inner = _args(anywhere[0], "aten.logical_not.default") if anywhere and len(anywhere) == 3 and anywhere[2] is True else None
    both = _args(inner[0], "aten.mul.Tensor") if inner else None
    equal = _args(both[0], "aten.eq.Tensor") if both else None
    bounded = _args(both[1], "aten.ne.Scalar") if both else None
    size = _args(bounded[0], "aten.abs.default") if bounded and bounded[1] == math.inf else None
    if not anywhere or not equal or not size or not (equal[0] is equal[1] is size[0]):
        return None
    return size[0], _dims(anywhere[1])


def _is_stable_form(value: object, scaled: torch.fx.Node, dims: tuple[int, ...]) -> bool:
    """Whether the value is `(u - amax(u, dims)) * (sign * k)` (or `/`), where `scaled` is `x * k` and `u` is `x * sign`."""
    outer, inner = _args(value, *_SCALES), _scale_of(scaled)
    shifted = _shifted(outer[0]) if outer else None
    if not outer or inner is None or shifted is None or not isinstance(value, torch.fx.Node):
        return False
    name, x, k, dtype = inner
    signed = _args(shifted[0], "aten.mul.Tensor")
    if name_of(value) != name or shifted[1] != dims or not signed or not _is_converted(signed[0], x, dtype):
        return False
    return _is_sign(signed[1], k) and _is_product(outer[1], signed[1], k)


def _scale_of(scaled: torch.fx.Node) -> tuple[str, object, object, object] | None:
    """`(op, x, k, dtype)` where the value is `x op k`, converted to `dtype` if that is not None."""
    converted = _args(scaled, _CONVERT)
    source = converted[0] if converted else scaled
    args = _args(source, *_SCALES)
    if not args or not isinstance(source, torch.fx.Node):
        return None
    x, k = args
    return name_of(source), x, k, converted[1] if converted else None


def _is_converted(value: object, x: object, dtype: object) -> bool:
    args = _args(value, _CONVERT)
    if dtype is None or value is x:
        return value is x
    return bool(args) and args is not None and args[0] is x and args[1] == dtype


def _is_sign(value: object, k: object) -> bool:
    """Whether the value is 1 or -1 with the sign of `k`; 1 for 0."""
    if isinstance(k, int | float):
        return value == (1 if k >= 0 else -1)
    chosen = _args(value, "aten.where.self")
    positive = _args(chosen[0], "aten.ge.Scalar") if chosen else None
    if not chosen or not positive or positive[0] is not k or positive[1] != 0:
        return False
    constants = [constant_of(item) for item in chosen[1:]]
    return [None if item is None else item.value for item in constants] == [1, -1]


def _is_product(value: object, sign: object, k: object) -> bool:
    """Whether the value is `sign * k`."""
    if isinstance(k, int | float) and isinstance(sign, int | float):
        return value == sign * k
    args = _args(value, "aten.mul.Tensor")
    return args is not None and (tuple(args) == (sign, k) or tuple(args) == (k, sign))
