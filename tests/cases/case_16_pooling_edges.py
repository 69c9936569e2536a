"""Pooling windows that hang over the edge are divided by, or filled with, the wrong thing.

Class: pooling.
Source: pytorch/pytorch#198119, #100987, #94775.
Right: eager values and eager gradients for ceil_mode, padding, count_include_pad and adaptive pooling.
"""

import torch
import torch.nn.functional as F
from torch.testing import assert_close


def work(x, w):
    y = F.linear(x, w)  # [6, 30]
    rows = y.unsqueeze(1)  # [6, 1, 30]
    image = y.view(1, 6, 5, 6)
    return (
        F.max_pool1d(rows, 4, 3, ceil_mode=True),
        F.max_pool2d(image, 2, 2, ceil_mode=True),
        F.avg_pool1d(rows, 3, 2, padding=1, count_include_pad=False),
        F.avg_pool2d(image, 2, divisor_override=3),
        F.adaptive_avg_pool1d(rows, 7),
        F.adaptive_max_pool2d(image, (3, 4)),
        F.lp_pool1d(rows.abs() + 0.1, 2, 4),
    )


def overhanging(x, w):
    y = F.linear(x, w)
    return (F.avg_pool1d(y.unsqueeze(1), 4, 3, ceil_mode=True), F.avg_pool2d(y.view(1, 6, 5, 6), 3, 2, padding=1, ceil_mode=True))


def run(compile_fn):
    torch.manual_seed(16)
    x, w = torch.randn(6, 24) / 5, torch.randn(30, 24)

    def values_and_grads(f):
        leaves = x.clone().requires_grad_(), w.clone().requires_grad_()
        out = f(*leaves)
        weights = torch.arange(1.0, 1.0 + max(o.numel() for o in out)).sin()
        sum((o * weights[: o.numel()].view_as(o)).sum() for o in out).backward()
        return [*out, *(leaf.grad for leaf in leaves)]

    for f in (work, overhanging):
        want, got = values_and_grads(f), values_and_grads(compile_fn(f))
        names = [*(f"output {i}" for i in range(len(want) - 2)), "gradient of x", "gradient of w"]
        for name, g, r in zip(names, got, want, strict=True):
            assert_close(g, r, rtol=5e-5, atol=5e-5, msg=lambda m, what=f"{f.__name__}, {name}": f"{what}: {m}")
