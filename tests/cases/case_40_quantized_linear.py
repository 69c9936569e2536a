"""A dynamically quantised linear layer has no weight tensor; its packed weights break the compiler.

Class: dtypes, composition.
Source: pytorch/pytorch#100817, pytorch/pytorch#144705.
Right: eager's result, by falling back if need be; the same for hand-written int8 weights with scales.
"""

import warnings

import torch
import torch.nn as nn
from torch.testing import assert_close


def weight_only(x, q, scale, zero):
    w = (q.to(x.dtype) - zero) * scale
    return torch.relu(x @ w.t()), (x @ q.to(x.dtype).t()) * scale.t()


def integer_product(a, q, scale):
    return torch._int_mm(a, q).to(torch.float32) * scale


def run(compile_fn):
    torch.manual_seed(40)
    x = torch.randn(20, 32)
    q = torch.randint(-128, 128, (24, 32), dtype=torch.int8)
    scale, zero = torch.rand(24, 1) / 100, torch.randint(-3, 4, (24, 1)).float()
    for g, r in zip(compile_fn(weight_only)(x, q, scale, zero), weight_only(x, q, scale, zero), strict=True):
        assert_close(g, r, rtol=5e-5, atol=5e-5)
    a = torch.randint(-128, 128, (20, 32), dtype=torch.int8)
    args = (a, q.t().contiguous(), scale.t())
    assert_close(compile_fn(integer_product)(*args), integer_product(*args), rtol=1e-6, atol=0)

    if hasattr(torch.ao.quantization, "quantize_dynamic") and x.device.type == "cpu":
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            net = nn.Sequential(nn.Linear(32, 24), nn.GELU(), nn.Linear(24, 8), nn.Softmax(-1)).eval()
            net = torch.ao.quantization.quantize_dynamic(net, {nn.Linear}, dtype=torch.qint8)
            with torch.no_grad():
                assert_close(compile_fn(net)(x), net(x), rtol=1e-4, atol=1e-5)
