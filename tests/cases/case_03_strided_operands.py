"""A kernel that trusts shapes but not strides reads the wrong elements.

Class: operand layout.
Source: hidet-org/hidet#56, pytorch/TensorRT#4509, pytorch/pytorch#179505, huggingface/candle#3744.
Right: transposed, stepped, expanded (stride 0) and overlapping operands give the eager result.
"""

import torch
import torch.nn.functional as F
from torch.testing import assert_close

M, N, K = 18, 26, 32


def work(triples, batches):
    out = []
    for x, w, b in triples:
        y = F.gelu(F.linear(x, w, b))
        out += [y, y.amax(-1)]
    for p, q in batches:
        out.append(torch.bmm(p, q).softmax(-1))
    return out


def run(compile_fn):
    torch.manual_seed(3)
    x, w, b = torch.randn(M, K), torch.randn(N, K) / 6, torch.randn(N)
    long = torch.randn(3 * M, 3 * K)
    triples = [
        (torch.randn(K, M).t(), w, b),  # columns are contiguous
        (x, torch.randn(K, N).div(6).t(), b),
        (long[::3, :K], w, b),  # rows apart
        (long[:M, 1::3], w, b),  # every third column, from an odd offset
        (long[2 : 2 + M, 5 : 5 + K], w, b),  # a window of a larger tensor
        (torch.randn(1, K).expand(M, K), w, b),  # all rows are one row
        (x, (torch.randn(1, K) / 6).expand(N, K), b),
        (torch.randn(M + K).unfold(0, K, 1)[:M], w, b),  # rows overlap in memory
        (x, w, torch.randn(1).expand(N)),
        (x, w, torch.randn(2 * N)[::2]),
    ]
    p, q = torch.randn(4, 8, 16) / 4, torch.randn(4, 16, 10)
    batches = [
        (p[:1].expand(4, 8, 16), q),
        (p, q[:1].expand(4, 16, 10)),
        (torch.randn(8, 4, 16).div(4).transpose(0, 1), torch.randn(4, 10, 16).transpose(1, 2)),
    ]
    want = work(triples, batches)
    got = compile_fn(work)(triples, batches)
    for index, (g, r) in enumerate(zip(got, want, strict=True)):
        assert_close(g, r, rtol=2e-5, atol=2e-5, msg=lambda m, i=index: f"output {i}: {m}")
