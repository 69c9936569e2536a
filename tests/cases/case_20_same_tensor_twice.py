"""One tensor plays two parts: input and residual, both factors, or input and weight.

Class: dataflow around a fused region.
Source: pytorch/pytorch#149475, #105212.
Right: eager values, and gradients that add up over both uses.
"""

import torch
import torch.nn.functional as F
from torch.testing import assert_close


def work(x, w, b, cube):
    residual = F.linear(x, w, b) + x
    return (
        residual,
        F.relu(F.linear(residual, w, b) + residual) + x,
        torch.tanh(F.linear(x, w, b)) * x,
        torch.bmm(cube, cube).softmax(-1),
        x @ x.t() + x.sum(),
        (x @ x) - x,
        F.linear(x, x).relu(),
        torch.addmm(x, x, x, alpha=0.5).sum(-1),
    )


def run(compile_fn):
    torch.manual_seed(20)
    x, w, b = torch.randn(24, 24) / 5, torch.randn(24, 24) / 5, torch.randn(24)
    cube = torch.randn(3, 12, 12) / 3

    def values_and_grads(f):
        leaves = [t.clone().requires_grad_() for t in (x, w, b, cube)]
        out = f(*leaves)
        sum((o.sin()).sum() for o in out).backward()
        return [*out, *(leaf.grad for leaf in leaves)]

    for index, (g, r) in enumerate(zip(values_and_grads(compile_fn(work)), values_and_grads(work), strict=True)):
        assert_close(g, r, rtol=1e-4, atol=1e-4, msg=lambda m, i=index: f"item {i}: {m}")
