"""No C or C++ compiler can be found on the machine.

Class: environment.
Source: pytorch/pytorch#92745, vllm-project/vllm#47756, MIC-DKFZ/nnUNet#2268.
Right: run uncompiled, with one warning that says why; the result is eager's. At worst, an exception
whose text names the missing compiler: eager would have worked. kforge runs uncompiled, with one line that says why.
"""

import torch
import torch.nn as nn
from torch.testing import assert_close

ENV = {
    "PATH": "{tmp}/empty",
    "CXX": "/nonexistent/c++",
    "CC": "/nonexistent/cc",
    "TORCHINDUCTOR_CACHE_DIR": "{tmp}/inductor",
    "HOME": "{tmp}/home",
    "XDG_CACHE_HOME": "{tmp}/xdg",
}


def run(compile_fn):
    torch.manual_seed(47)
    net = nn.Sequential(nn.Linear(12, 16), nn.GELU(), nn.Linear(16, 5), nn.Softmax(-1)).eval()
    x = torch.randn(4, 12)
    with torch.no_grad():
        assert_close(compile_fn(net)(x), net(x), rtol=2e-5, atol=2e-5)
