"""A tensor subclass is unwrapped on the way in and comes back as a plain tensor, or is misread.

Class: composition.
Source: pytorch/pytorch#176679, #128149, pytorch/ao#1600.
Right: a wrapper subclass, as weight and as input, computes what eager computes and the result has the
class it has in eager.
"""

import torch
import torch.nn.functional as F
from torch.testing import assert_close
from torch.utils import _pytree as pytree


class Pair(torch.Tensor):
    """Two tensors that go through every operation side by side."""

    @staticmethod
    def __new__(cls, a, b):
        return torch.Tensor._make_wrapper_subclass(
            cls, a.shape, strides=a.stride(), dtype=a.dtype, device=a.device, requires_grad=a.requires_grad
        )

    def __init__(self, a, b):
        self.a, self.b = a, b

    def __tensor_flatten__(self):
        return ["a", "b"], None

    @staticmethod
    def __tensor_unflatten__(inner, meta, size, stride):
        return Pair(inner["a"], inner["b"])

    @classmethod
    def __torch_dispatch__(cls, func, types, args=(), kwargs=None):
        def run(part):
            def pick(t):
                return getattr(t, part)

            return func(*pytree.tree_map_only(Pair, pick, args), **pytree.tree_map_only(Pair, pick, kwargs or {}))

        a, flat = pytree.tree_flatten(run("a"))
        b, _ = pytree.tree_flatten(run("b"))
        both = [Pair(p, q) if isinstance(p, torch.Tensor) else p for p, q in zip(a, b, strict=True)]
        return pytree.tree_unflatten(both, flat)


def work(x, w, b):
    y = F.linear(x, w, b)
    return F.gelu(y), y.softmax(-1), (y * 2).sum(-1)


def run(compile_fn):
    torch.manual_seed(39)
    x, b = torch.randn(7, 12), torch.randn(9)
    pair = Pair(torch.randn(9, 12) / 3, torch.randn(9, 12) / 3)
    inputs = Pair(x, x + 1)
    with torch.no_grad():
        compiled = compile_fn(work)
        for args in ((x, pair, b), (inputs, pair, b), (x, pair.a, b)):
            for index, (g, r) in enumerate(zip(compiled(*args), work(*args), strict=True)):
                assert type(g) is type(r), f"output {index} is a {type(g).__name__}, in eager a {type(r).__name__}"
                for p, q in ((g.a, r.a), (g.b, r.b)) if isinstance(r, Pair) else ((g, r),):
                    assert_close(p, q, rtol=2e-5, atol=2e-5)
    parameter = torch.nn.Parameter(pair.a)
    for f in (compile_fn(work), work):
        out = f(x.as_subclass(torch.nn.Parameter), parameter, b)
        assert not isinstance(out[0], torch.nn.Parameter)
