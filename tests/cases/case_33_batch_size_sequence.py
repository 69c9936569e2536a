"""A kernel made for one batch size is reused for another, in particular after a first call with one row.

Class: dynamic shapes.
Source: pytorch/pytorch#186893, daisytuner/docc#924, vllm-project/vllm#53366.
Right: eager's result for every size, whether the dimension is automatic or marked dynamic.
"""

import torch
import torch.nn.functional as F
from torch.testing import assert_close


def work(x, w, b):
    y = F.linear(x, w, b)
    return F.gelu(y) / x.shape[0], y.softmax(0).sum(-1), y.view(-1, 2, 12).amax(-1)


def run(compile_fn):
    torch.manual_seed(33)
    w, b = torch.randn(24, 16) / 4, torch.randn(24)

    def check(f, compiled, x, *rest, what):
        for index, (g, r) in enumerate(zip(compiled(x, *rest), f(x, *rest), strict=True)):
            assert_close(g, r, rtol=2e-5, atol=2e-5, msg=lambda m, index=index: f"{what}, output {index}: {m}")

    automatic = compile_fn(work)
    for rows in (1, 7, 64, 2, 33, 1):
        check(work, automatic, torch.randn(rows, 16), w, b, what=f"automatic, {rows} rows")

    torch._dynamo.reset()
    marked = compile_fn(work)
    for rows in (8, 7, 3, 65):
        x = torch.randn(rows, 16)
        if rows == 8:
            torch._dynamo.mark_dynamic(x, 0)
        check(work, marked, x, w, b, what=f"marked, {rows} rows")
