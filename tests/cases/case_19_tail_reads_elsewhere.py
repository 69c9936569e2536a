"""The tail reads the product at another index than it writes, yet is fused as if both were the same.

Class: dataflow around a fused region.
Source: pytorch/pytorch#135661, #184247.
Right: window partition, transpose, roll, flip, shuffle, shifts and gathers between product and output
give the eager result.
"""

import torch
import torch.nn.functional as F
from torch.testing import assert_close


def work(x, w, b, table, index):
    y = F.linear(x, w, b)  # [64, 24]
    windows = y.view(2, 2, 4, 2, 2, 24).permute(0, 1, 3, 2, 4, 5).reshape(-1, 16, 24)
    return (
        (windows + table).softmax(-1),
        y.t().contiguous() * 2,
        torch.roll(y, 3, 0).relu() + y,
        y.flip(-1).tanh(),
        y.view(64, 4, 6).transpose(1, 2).reshape(64, 24) - b,
        (y[1:] - y[:-1]).abs().sum(-1),
        y[index].sigmoid(),
        F.pixel_shuffle(y.t().reshape(1, 24, 8, 8), 2).amax(-1),
        F.pad(y, (2, 1, 0, 3), value=-1.0).cumsum(-1),
        torch.cat([y[:, 12:], y[:, :12]], -1).relu(),
        F.glu(y),
        y.unfold(-1, 4, 2).sum(-1),
        y.tril(-1).sum(0),
    )


def run(compile_fn):
    torch.manual_seed(19)
    args = (torch.randn(64, 32) / 6, torch.randn(24, 32), torch.randn(24), torch.randn(16, 24), torch.randint(0, 64, (19,)))
    want = work(*args)
    got = compile_fn(work)(*args)
    for index, (g, r) in enumerate(zip(got, want, strict=True)):
        assert_close(g, r, rtol=5e-5, atol=5e-5, msg=lambda m, i=index: f"output {i}: {m}")
