"""Scaling factors of addmm-like operations get lost when products and sums are split or joined.

Class: gemm arguments.
Source: pytorch/pytorch#167313 (also #196577, #122382).
Right: beta and alpha apply exactly as in eager, for every member of the family, and so does the alpha of
a separate add or sub that could be joined with a product.
"""

import torch
from torch.testing import assert_close


def work(bias, a, b, batch_bias, x, y, full, vec):
    return {
        "addmm, relu": torch.relu(torch.addmm(bias, a, b, beta=0.5, alpha=-1.25)),
        "baddbmm, softmax": torch.baddbmm(batch_bias, x, y, beta=-0.75, alpha=0.3).softmax(-1),
        "addbmm, amax": torch.addbmm(full, x, y, beta=2, alpha=0.125).amax(-1),
        "addmv, tanh": torch.addmv(vec, a, b[:, 0], alpha=3, beta=0.25).tanh(),
        "mm, sub with alpha": torch.sub(bias, a @ b, alpha=1.5).sigmoid(),
        "mm, add of a scaled product": torch.add(bias, a @ b, alpha=0.25).sum(-1),
        "mm, add with alpha": torch.add(a @ b, bias, alpha=0.875).sum(-1),
    }


def run(compile_fn):
    torch.manual_seed(1)
    args = (
        torch.randn(48),
        torch.randn(33, 64) / 8,
        torch.randn(64, 48),
        torch.randn(3, 1, 40),
        torch.randn(3, 20, 32) / 6,
        torch.randn(3, 32, 40),
        torch.randn(20, 40),
        torch.randn(33),
    )
    want = work(*args)
    got = compile_fn(work)(*args)
    for name in want:
        assert_close(got[name], want[name], rtol=2e-5, atol=2e-5, msg=lambda m, name=name: f"{name}: {m}")
