"""In-place operations on the product, and products written into an argument, are reordered or dropped.

Class: mutation.
Source: pytorch/pytorch#94777, #98852, #93283.
Right: values read before a mutation keep the old value, aliases see the new one, arguments are mutated.
"""

import torch
import torch.nn as nn
import torch.nn.functional as F
from torch.testing import assert_close


def work(x, w, b):
    y = F.linear(x, w, b)
    before, alias, row = y.clone(), y, y[1]
    y.relu_()
    middle = y.sum(-1)
    y[:, :4].mul_(2)
    y += 1
    row.zero_()
    y.view(-1)[5:9] = -3.0
    return y, before, middle, alias.amax(-1), row


def into_arguments(x, w, buffer, out, running):
    buffer.addmm_(x, w, beta=0.5, alpha=2.0)
    torch.mm(x, w, out=out)
    running.mul_(0.9).add_(out.mean(0), alpha=0.1)
    out.clamp_(min=-0.5)
    return buffer.softmax(-1), out


def run(compile_fn):
    torch.manual_seed(21)
    x, w, b = torch.randn(11, 32) / 5, torch.randn(20, 32), torch.randn(20)
    for index, (g, r) in enumerate(zip(compile_fn(work)(x, w, b), work(x, w, b), strict=True)):
        assert_close(g, r, rtol=2e-5, atol=2e-5, msg=lambda m, i=index: f"output {i}: {m}")

    state = [torch.randn(11, 20), torch.full((11, 20), 9.0), torch.randn(20)]
    ours, theirs = [t.clone() for t in state], [t.clone() for t in state]
    compiled = compile_fn(into_arguments)
    for _ in range(3):
        got, want = compiled(x, w.t(), *ours), into_arguments(x, w.t(), *theirs)
        assert got[1] is ours[1] or got[1].data_ptr() == ours[1].data_ptr()
        for g, r in zip((*got, *ours), (*want, *theirs), strict=True):
            assert_close(g, r, rtol=2e-5, atol=2e-5)

    net = nn.Sequential(nn.Linear(32, 20), nn.ReLU(inplace=True), nn.Linear(20, 9), nn.SiLU(inplace=True))
    results = []
    for f in (net, compile_fn(net)):
        net.zero_grad()
        out = f(x)
        out.square().mean().backward()
        results.append([out.detach(), *(p.grad.clone() for p in net.parameters())])
    for g, r in zip(*reversed(results), strict=True):
        assert_close(g, r, rtol=5e-5, atol=2e-5)
