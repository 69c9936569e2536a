"""Two products with what follows them: an example for `kforge warm examples/mlp.py:make --shapes 64x256`."""

import torch


def make() -> torch.nn.Module:
    """The feed-forward block of a small transformer, `(M, 256)` to `(M, 256)`."""
    torch.manual_seed(0)
    return torch.nn.Sequential(torch.nn.Linear(256, 512), torch.nn.GELU(), torch.nn.Linear(512, 256), torch.nn.ReLU())
