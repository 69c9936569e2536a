"""The process has no home folder, no user name and a user id that no account has, as in many containers.

Class: environment.
Source: pytorch/pytorch#140765, #97076, foundation-model-stack/fms-hf-tuning#367.
Right: some other cache folder, or none; the result is eager's.
"""

import pwd

import torch
import torch.nn as nn
from torch.testing import assert_close

ENV = {
    "HOME": None,
    "USER": None,
    "LOGNAME": None,
    "USERNAME": None,
    "LNAME": None,
    "XDG_CACHE_HOME": None,
    "XDG_CONFIG_HOME": None,
    "XDG_DATA_HOME": None,
    "TORCHINDUCTOR_CACHE_DIR": None,
    "TRITON_CACHE_DIR": None,
}


def run(compile_fn):
    torch.manual_seed(44)

    def nobody(uid):
        raise KeyError(f"getpwuid(): uid not found: {uid}")

    pwd.getpwuid = nobody  # what getpass.getuser() and os.path.expanduser() ask
    net = nn.Sequential(nn.Linear(12, 16), nn.ReLU(), nn.Linear(16, 5), nn.Softmax(-1)).eval()
    x = torch.randn(4, 12)
    with torch.no_grad():
        want = net(x)
        assert_close(compile_fn(net)(x), want, rtol=2e-5, atol=2e-5)
