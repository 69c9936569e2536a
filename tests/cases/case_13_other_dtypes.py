"""Dtypes a float32 kernel does not cover are computed in float32 anyway, or crash the compiler.

Class: dtypes.
Source: pytorch/pytorch#101684 (float64 constants), #144705 (integers), #171850 (complex).
Right: full double precision including its range, wrapping integer arithmetic, complex products, half:
whatever is not supported falls back and is as eager.
"""

import torch
from torch.testing import assert_close


def doubles(x, w, b):
    y = torch.addmm(b, x, w)
    return y.tanh(), (y + 2e50).sum(-1), y.logsumexp(-1), ((y * 1e-200) * 1e-100) * 1e300, y.var(-1)


def integers(a, b, c):
    y = a @ b
    return y.relu().sum(-1), y.clamp(-5, 5) + c, y.amax(-1), (y % 7 == 3), y.sum(), y.argmin(-1)


def complexes(x, w, b):
    y = torch.addmm(b, x, w)
    return y, y.abs().amax(-1), y.real.softmax(-1), (y * y.conj()).sum(-1), y.sum(0)


def halves(x, w):
    y = torch.relu(x @ w)
    return y, y.sum(-1)


def compare(compile_fn, f, args, **tolerance):
    for g, r in zip(compile_fn(f)(*args), f(*args), strict=True):
        assert g.dtype == r.dtype, f"{f.__name__}: {g.dtype}, eager has {r.dtype}"
        assert_close(g, r, msg=lambda m: f"{f.__name__}: {m}", **tolerance)


def run(compile_fn):
    torch.manual_seed(13)
    d = torch.float64
    compare(
        compile_fn,
        doubles,
        (torch.randn(9, 40, dtype=d), torch.randn(40, 17, dtype=d) / 6, torch.randn(17, dtype=d)),
        rtol=1e-12,
        atol=1e-12,
    )
    small = torch.randint(-9, 10, (9, 21)), torch.randint(-9, 10, (21, 13)), torch.randint(-9, 10, (13,))
    compare(compile_fn, integers, small, rtol=0, atol=0)
    large = torch.full((4, 5), 2**30, dtype=torch.int32), torch.full((5, 6), 3, dtype=torch.int32)
    compare(compile_fn, integers, (*large, torch.ones(6, dtype=torch.int32)), rtol=0, atol=0)  # wraps
    c = torch.complex64
    compare(
        compile_fn,
        complexes,
        (torch.randn(7, 24, dtype=c) / 5, torch.randn(24, 11, dtype=c), torch.randn(11, dtype=c)),
        rtol=5e-5,
        atol=5e-5,
    )
    for dtype in (torch.float16, torch.bfloat16):
        x = torch.randint(-3, 4, (6, 16)).to(dtype)  # exact products and sums
        compare(compile_fn, halves, (x, torch.randint(-2, 3, (16, 10)).to(dtype)), rtol=0, atol=0)
