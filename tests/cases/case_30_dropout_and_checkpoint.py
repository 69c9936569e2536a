"""Dropout behind a product uses another mask in backward than in forward, or the same one every call.

Class: random numbers, gradients.
Source: pytorch/pytorch#190758, #113717, #174078.
Right: a compiled graph may draw other numbers than eager, but: kept values are scaled by 1 / (1 - p);
the gradient passes exactly where the value passed, with and without activation checkpointing; two
calls differ; the same seed repeats a call; evaluation mode drops nothing.
"""

import torch
import torch.nn as nn
import torch.nn.functional as F
from torch.testing import assert_close
from torch.utils.checkpoint import checkpoint

P = 0.4


class Net(nn.Module):
    def __init__(self, remat):
        super().__init__()
        self.remat = remat
        self.linear = nn.Linear(16, 64)

    def body(self, x, probe):
        y = F.softplus(self.linear(x)) + 1.0  # at least one, so 0 means dropped
        return F.dropout(y * probe, P, self.training), y

    def forward(self, x, probe):
        if self.remat:
            return checkpoint(self.body, x, probe, use_reentrant=False)
        return self.body(x, probe)


def run(compile_fn):
    for remat in (False, True):
        torch.manual_seed(30)
        net, x = Net(remat), torch.randn(32, 16)
        compiled = compile_fn(net)
        masks = []
        for seed in (1, 2, 1):
            torch.manual_seed(seed)
            probe = torch.ones(32, 64, requires_grad=True)  # d out / d probe shows backward's mask
            out, y = compiled(x, probe)
            kept = out != 0
            masks.append(kept)
            assert_close(out[kept], (y / (1 - P))[kept], rtol=2e-5, atol=1e-6)
            assert 0.5 < kept.float().mean() < 0.7, f"kept {kept.float().mean():.2f} of the values"
            assert kept.any(0).float().mean() > 0.95 and kept.any(1).all(), "whole rows or columns are dropped"
            out.sum().backward()
            assert torch.equal(probe.grad != 0, kept), "backward drops other values than forward"
            assert_close(probe.grad[kept], (y / (1 - P))[kept].detach(), rtol=2e-5, atol=1e-6)
        assert not torch.equal(masks[0], masks[1]), "two calls drop the same values"
        assert torch.equal(masks[0], masks[2]), "the same seed drops other values"
        net.eval()
        assert_close(compiled(x, torch.ones(32, 64))[0], net(x, torch.ones(32, 64))[0], rtol=2e-5, atol=2e-5)
        net.train()
