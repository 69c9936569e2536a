"""Products whose operands are not plain matrices: vectors, unit batches, broadcast batches, rank four.

Class: sizes.
Source: torch-spyre/torch-spyre#4373, pytorch/pytorch#93372, pytorch/helion#511.
Right: the eager result; in particular a unit batch must not make every row read row zero.
"""

import torch
import torch.nn.functional as F
from torch.testing import assert_close


def work(v, m, w, b, unit, ones, four, left, right):
    return (
        F.relu(F.linear(v, w, b)),  # rank 1 input
        torch.tanh(v @ w.t()),  # vector by matrix
        torch.sigmoid(m @ v),  # matrix by vector
        torch.exp(-(v @ v) / 50),  # to a scalar
        F.gelu(unit @ w.t() + b).sum(-1),  # [1, M, K] by a shared weight
        F.gelu(F.linear(ones, w, b)),  # [B, 1, K]
        F.linear(four, w, b).softmax(-1),  # rank 4
        torch.matmul(left, right).amax(-1),  # batches [2, 1] and [3] broadcast
        torch.outer(v, v).relu().sum(-1),  # depth one
    )


def run(compile_fn):
    torch.manual_seed(8)
    k, n = 40, 28
    args = (
        torch.randn(k),
        torch.randn(19, k) / 6,
        torch.randn(n, k) / 6,
        torch.randn(n),
        torch.randn(1, 23, k),
        torch.randn(9, 1, k),
        torch.randn(2, 3, 5, k),
        torch.randn(2, 1, 7, k) / 6,
        torch.randn(3, k, 11),
    )
    want = work(*args)
    got = compile_fn(work)(*args)
    for index, (g, r) in enumerate(zip(got, want, strict=True)):
        assert_close(g, r, rtol=2e-5, atol=2e-5, msg=lambda m, i=index: f"output {i}: {m}")
