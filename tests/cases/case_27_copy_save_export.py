"""A compiled model cannot be copied, saved, loaded or exported, or its copy shares compiled weights.

Class: composition.
Source: pytorch/pytorch#128121, #101107, #149894, #150926.
Right: a deep copy is independent, state dicts move both ways, Module.compile() leaves a model picklable,
and the original module can still be exported; the exported program can be compiled.
"""

import copy
import io

import torch
import torch.nn as nn
from torch.testing import assert_close


def make():
    return nn.Sequential(nn.Linear(16, 24), nn.GELU(), nn.Linear(24, 7), nn.LogSoftmax(-1))


def run(compile_fn):
    torch.manual_seed(27)
    net, x = make().eval(), torch.randn(5, 16)

    def close(got, want, what):
        assert_close(got, want, rtol=2e-5, atol=2e-5, msg=lambda m: f"{what}: {m}")

    with torch.no_grad():
        compiled = compile_fn(net)
        want = net(x)
        close(compiled(x), want, "compiled")

        twin = copy.deepcopy(compiled)
        for parameter in twin.parameters():
            parameter.mul_(0.5)
        close(compiled(x), want, "the original after its copy changed")
        halved = copy.deepcopy(net)
        for parameter in halved.parameters():
            parameter.mul_(0.5)
        close(twin(x), halved(x), "the copy")

        plain = make().eval()
        plain.load_state_dict({k.removeprefix("_orig_mod."): v for k, v in twin.state_dict().items()})
        close(plain(x), halved(x), "state dict of the copy")
        compiled.load_state_dict({"_orig_mod." + k: v for k, v in plain.state_dict().items()})
        close(compiled(x), halved(x), "state dict into the compiled model")

        in_place = make().eval()
        in_place.compile(**compile_fn.keywords)
        close(in_place(x), make_like(in_place)(x), "Module.compile()")
        file = io.BytesIO()
        torch.save(in_place, file)
        file.seek(0)
        close(torch.load(file, weights_only=False)(x), in_place(x), "saved and loaded")

        exported = torch.export.export(net, (x,))
        close(exported.module()(x), net(x), "exported after compiling")
        close(compile_fn(exported.module())(x), net(x), "compiled after exporting")


def make_like(net):
    other = make().eval()
    other.load_state_dict(net.state_dict())
    return other
