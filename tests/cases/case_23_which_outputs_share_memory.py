"""Outputs that are views of one another come back as copies, or copies come back as views.

Class: aliasing.
Source: pytorch/pytorch#195451, #104505, #139789.
Right: outputs (and arguments) share storage exactly where they do in eager, so that writing to one
afterwards is seen, or not seen, in the same places.
"""

import torch
import torch.nn.functional as F
from torch.testing import assert_close


def work(x, w):
    h = F.relu(x @ w)
    return h, h.view(-1), h[:, :3], h.clone(), x, x.t(), x[1], h, (x @ w).t(), h + 0, x.clone()


def sharing(tensors):
    keys = [t.untyped_storage().data_ptr() for t in tensors]
    return [[a == b for b in keys] for a in keys]


def run(compile_fn):
    torch.manual_seed(23)
    x, w = torch.randn(7, 16) / 4, torch.randn(16, 10)
    xs = x.clone(), x.clone()
    with torch.no_grad():
        got, want = compile_fn(work)(xs[0], w), work(xs[1], w)
        ours, theirs = [*got, xs[0]], [*want, xs[1]]
        for index, (g, r) in enumerate(zip(sharing(ours), sharing(theirs), strict=True)):
            assert g == r, f"output {index} shares memory with {g}, in eager with {r}"
        for index in (1, 2, 5, 8):  # write through views
            ours[index].add_(index)
            theirs[index].add_(index)
            for g, r in zip(ours, theirs, strict=True):
                assert_close(g, r, rtol=2e-5, atol=2e-5, msg=lambda m, index=index: f"after writing to output {index}: {m}")
