"""The backward graph meets a gradient whose strides it was not compiled for, or returns a shared buffer.

Class: gradients.
Source: pytorch/pytorch#120759, #96693, #184101.
Right: expanded, transposed, stepped and zero incoming gradients work; results do not alias one another,
so accumulating into one never changes another.
"""

import torch
import torch.nn.functional as F
from torch.testing import assert_close


def work(x, w, b):
    return F.gelu(F.linear(x, w, b)), x @ w.t()


def run(compile_fn):
    torch.manual_seed(29)
    base = [torch.randn(12, 20) / 4, torch.randn(16, 20), torch.randn(16)]
    dense = torch.randn(12, 16)
    gradients = [
        dense,
        dense.sum().expand(12, 16),
        torch.randn(16, 12).t(),
        torch.randn(24, 32)[::2, ::2],
        torch.zeros(12, 16),
        torch.randn(1, 16).expand(12, 16),
    ]
    compiled = compile_fn(work)
    for index, gradient in enumerate(gradients):
        results = []
        for f in (compiled, work):
            leaves = [t.clone().requires_grad_() for t in base]
            first, second = f(*leaves)
            torch.autograd.backward([first, second] if index % 2 else [first], [gradient] * (1 + index % 2))
            results.append([leaf.grad for leaf in leaves])
        for g, r in zip(*results, strict=True):
            assert_close(g, r, rtol=5e-5, atol=5e-5, msg=lambda m, index=index: f"incoming gradient {index}: {m}")
    results = []
    for f in (compiled, work):  # no zeroing in between, then partial edits
        leaves = [t.clone().requires_grad_() for t in base]
        for _step in range(3):
            f(*leaves)[0].sum().backward()
            leaves[0].grad[0].zero_()
            leaves[1].grad.mul_(0.5)
        results.append([leaf.grad for leaf in leaves])
    for g, r in zip(*results, strict=True):
        assert_close(g, r, rtol=5e-5, atol=5e-5, msg=lambda m: f"accumulated: {m}")
