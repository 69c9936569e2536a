"""Weights copied, packed or folded at compile time go on being used after they have changed.

Class: state.
Source: pytorch/pytorch#129362, #104984, pytorch/TensorRT#4664, huggingface/diffusers#9279.
Right: each call uses the weights as they are now, whichever way they were changed.
"""

import copy

import torch
import torch.nn as nn
from torch.testing import assert_close


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.one, self.two = nn.Linear(24, 32), nn.Linear(32, 10)
        self.register_buffer("scale", torch.ones(()))

    def forward(self, x):
        return (self.two(torch.relu(self.one(x))) * self.scale).softmax(-1)


def optimizer_step(net):
    net.train()
    optimizer = torch.optim.SGD(net.parameters(), lr=0.5)
    with torch.enable_grad():
        net(torch.ones(4, 24)).square().sum().backward()
    optimizer.step()
    optimizer.zero_grad()
    net.eval()


def load(net, assign):
    state = {k: torch.full_like(v, 0.5) if k == "scale" else torch.randn_like(v) for k, v in net.state_dict().items()}
    net.load_state_dict(state, assign=assign)


def lora_merge(net):
    a, b = torch.randn(4, 24), torch.randn(32, 4)
    net.one.weight.data += 0.1 * (b @ a)


def new_storage(net):
    net.two.weight.data = torch.randn(10, 32)


def new_layout(net):
    net.two.weight.data = torch.randn(32, 10).t()


def new_parameter(net):
    net.one.bias = nn.Parameter(torch.randn(32))


def new_module(net):
    net.two = nn.Linear(32, 10)


def buffer_in_place(net):
    net.scale.mul_(3.0)


CHANGES = [
    optimizer_step,
    lambda n: load(n, False),
    lora_merge,
    new_storage,
    lambda n: load(n, True),
    buffer_in_place,
    new_parameter,
    new_layout,
    new_module,
]


def run(compile_fn):
    torch.manual_seed(25)
    net = Net().eval()
    x = torch.randn(6, 24)
    compiled = compile_fn(net)
    with torch.no_grad():
        assert_close(compiled(x), net(x), rtol=2e-5, atol=1e-6)
        for step, change in enumerate(CHANGES):
            before = net(x)
            change(net)
            want = net(x)
            assert not torch.equal(before, want)
            assert_close(compiled(x), want, rtol=2e-5, atol=1e-6, msg=lambda m, s=step: f"change {s}: {m}")
    with torch.inference_mode():
        assert_close(copy.deepcopy(net)(x), compiled(x), rtol=2e-5, atol=1e-6)
