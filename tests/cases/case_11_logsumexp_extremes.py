"""logsumexp and log_softmax without the running maximum overflow; with it they make NaN of infinities.

Class: overflow, non-finite values.
Source: tenstorrent/pytorch2.0_ttnn#1341, rusty1s/pytorch_scatter#369, tracel-ai/burn#4697.
Right: finite for logits near +-1e4, -inf for a row that is all -inf, +inf for a row with +inf, and a
finite log-probability where the probability itself underflows.
The products are of small integers, hence exact in any summation order.
"""

import torch
from torch.testing import assert_close


def work(x, w, offset, hide):
    y = x @ w + offset
    z = y.masked_fill(hide, float("-inf"))
    return (
        y.logsumexp(-1),
        y.log_softmax(-1),
        y.softmax(-1),
        z.logsumexp(-1),
        z.logsumexp(-1, keepdim=True) - 1,
        z[:4].log_softmax(-1),
        z.softmax(-1),
        y.exp().sum(-1).log(),
        torch.logaddexp(y, y - 1).amax(-1),
    )


def run(compile_fn):
    torch.manual_seed(11)
    x = torch.randint(-3, 4, (10, 24)).float()
    w = torch.randint(-3, 4, (24, 45)).float()
    offset = torch.zeros(10, 1)
    offset[1], offset[2], offset[3], offset[5] = 1e4, -1e4, 700.0, float("inf")
    hide = torch.rand(10, 45) > 0.5
    hide[:4, 0] = False
    hide[6] = True  # nothing left in this row
    args = (x, w, offset, hide)
    want = work(*args)
    assert torch.isfinite(want[0][:5]).all() and want[3][6] == float("-inf")
    got = compile_fn(work)(*args)
    for index, (g, r) in enumerate(zip(got, want, strict=True)):
        assert_close(g, r, rtol=2e-5, atol=2e-5, equal_nan=True, msg=lambda m, i=index: f"output {i}: {m}")
