"""Once a function has been compiled too often, later shapes fail instead of running uncompiled.

Class: dynamic shapes.
Source: microsoft/dion#23, vllm-project/vllm#27178, pytorch/pytorch#135458.
Right: no exception without fullgraph; every shape gives eager's result, earlier ones still do, and so
does another function that was never over the limit.
"""

import torch
from torch.testing import assert_close


def work(x, w):
    return torch.relu(x @ w), (x @ w).logsumexp(-1)


def other(x, w):
    return (x @ w).tanh().sum(-1)


def run(compile_fn):
    torch.manual_seed(42)
    with torch._dynamo.config.patch(recompile_limit=3):
        compiled, second = compile_fn(work, dynamic=False), compile_fn(other)
        for rows, depth in ((2, 8), (3, 8), (3, 16), (4, 24), (5, 40), (2, 8), (3, 16), (6, 8)):
            x, w = torch.randn(rows, depth) / depth**0.5, torch.randn(depth, 12)
            assert_close(
                compiled(x, w), work(x, w), rtol=2e-5, atol=2e-5, msg=lambda m, what=f"{rows} by {depth}": f"{what}: {m}"
            )
        assert_close(second(x, w), other(x, w), rtol=2e-5, atol=2e-5)
