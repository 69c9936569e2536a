"""Tile remainders are wrong: odd M and N, a depth K that no tile divides, and dimensions of one.

Class: sizes.
Source: triton-lang/triton#630, NVlabs/COAT#19, intel/intel-xpu-backend-for-triton#7078.
Right: the eager result for every size, not only for multiples of a tile.
"""

import torch
from torch.testing import assert_close

SIZES = [(1, 1, 1), (1, 37, 19), (33, 1, 17), (17, 31, 1), (5, 65, 127), (63, 47, 65)]


def work(pairs):
    out = []
    for a, b in pairs:
        y = torch.nn.functional.silu(a @ b)
        out.append((y, y.mean(-1), y.softmax(-1)))
    return out


def run(compile_fn):
    torch.manual_seed(5)
    pairs = [(torch.randn(m, k) / k**0.5, torch.randn(k, n)) for m, n, k in SIZES]
    want = work(pairs)
    got = compile_fn(work)(pairs)
    for size, g, w in zip(SIZES, got, want, strict=True):
        assert_close(g, w, rtol=2e-5, atol=2e-5, msg=lambda m, s=size: f"M, N, K = {s}: {m}")
