"""Graph breaks, nested torch.compile and side effects between regions lose values or order.

Class: composition.
Source: pytorch/pytorch#156308, #117767, #197896.
Right: eager's values and side effects, for a compiled module inside a compiled module, recursion,
data-dependent branches and a try block.
"""

import torch
import torch.nn as nn
from torch.testing import assert_close


class Block(nn.Module):
    def __init__(self):
        super().__init__()
        self.linear = nn.Linear(12, 12)
        self.log = []

    def forward(self, x, depth=2):
        y = torch.relu(self.linear(x))
        self.log.append(tuple(y.shape))
        if y.mean().item() > 0.2:  # noqa: SIM108 - a graph break and two ways on
            y = y * 2
        else:
            y = y - 1
        torch._dynamo.graph_break()
        z = self.linear(y).tanh()
        if depth:
            try:
                z = self(z, depth - 1) + y
            except ValueError:
                z = z - 100
        elif y.sum() > 1e6:
            raise ValueError
        return z


class Outer(nn.Module):
    def __init__(self, block, inner):
        super().__init__()
        self.block, self.head = block, nn.Linear(12, 5)
        self.inner = [inner]

    def forward(self, x):
        x = self.inner[0](x)
        return self.head(x).log_softmax(-1), sum(t.sum() for t in (self.head(x), x.square()))


def run(compile_fn):
    torch.manual_seed(35)
    block = Block()
    plain, nested = Outer(block, block), Outer(block, compile_fn(block))
    nested.head.load_state_dict(plain.head.state_dict())
    for eager, forward in ((block, compile_fn(block)), (plain, compile_fn(nested))):
        for rows in (4, 9):
            x = torch.randn(rows, 12)
            results = []
            for f in (forward, eager):
                block.log.clear()
                results.append((f(x), list(block.log)))
            (got, got_log), (want, want_log) = results
            assert got_log == want_log, f"side effects {got_log}, in eager {want_log}"
            assert_close(got, want, rtol=5e-5, atol=5e-5)
