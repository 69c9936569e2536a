"""`explain` against golden texts, one a model: `python test_explain_partition.py` in this folder writes them anew."""

import pathlib

import pytest
import torch
import torch.nn.functional as F
from post_grad import capture, check
from torch import nn

from kforge_dynamo.lowering.explain import explain
from kforge_dynamo.lowering.partition import partition

EXPECTED = pathlib.Path(__file__).with_name("expected")
WRITTEN_WITH = "2.13."
"""Decompositions differ between versions of torch, and the texts with them."""


class Block(nn.Module):
    """A pre-norm transformer layer with masked attention written out."""

    def __init__(self, heads=2, width=16):
        super().__init__()
        self.heads = heads
        self.first, self.second = nn.LayerNorm(width), nn.LayerNorm(width)
        self.qkv, self.out = nn.Linear(width, 3 * width), nn.Linear(width, width)
        self.up, self.down = nn.Linear(width, 2 * width), nn.Linear(2 * width, width)

    def forward(self, x, mask):
        q, k, v = (part.unflatten(-1, (self.heads, -1)).transpose(1, 2) for part in self.qkv(self.first(x)).chunk(3, -1))
        weights = torch.softmax(q @ k.transpose(-1, -2) * 0.5 + mask, -1)
        x = x + self.out((weights @ v).transpose(1, 2).flatten(2))
        return x + self.down(F.gelu(self.up(self.second(x))))


class Gated(nn.Module):
    """RMS norm and a gated layer, as Llama has them."""

    def __init__(self, width=16):
        super().__init__()
        self.norm = nn.RMSNorm(width)
        self.gate, self.up = nn.Linear(width, 24, bias=False), nn.Linear(width, 24, bias=False)
        self.down = nn.Linear(24, width, bias=False)

    def forward(self, x):
        y = self.norm(x)
        return self.norm(x + self.down(F.silu(self.gate(y)) * self.up(y)))


def convolution_mixed_in(x):
    y = F.relu(F.linear(x, torch.ones(8, 16)))
    return F.dropout(y.flip(1), 0.5, True) @ torch.ones(8, 4, dtype=torch.float32), y.double() @ torch.ones(8, 2).double()


MODELS = {
    "mlp": lambda: (nn.Sequential(nn.Linear(16, 32), nn.GELU(), nn.Linear(32, 8)), (torch.randn(6, 16),), {}),
    "block": lambda: (Block(), (torch.randn(2, 5, 16), torch.zeros(2, 1, 5, 5)), {}),
    "gated_bf16": lambda: (Gated().bfloat16(), (torch.randn(3, 4, 16).bfloat16(),), {}),
    "group_norm_dynamic": lambda: (
        nn.Sequential(nn.Linear(16, 24), nn.GroupNorm(4, 24), nn.Hardtanh()),
        (torch.randn(6, 16),),
        {"dynamic": [(0, 0)]},
    ),
    "batch_norm_training": lambda: (
        nn.Sequential(nn.Linear(16, 8), nn.BatchNorm1d(8), nn.ReLU()),
        (torch.randn(6, 16),),
        {"train": True},
    ),
    "left_out": lambda: (convolution_mixed_in, (torch.randn(6, 16),), {}),
}


def text_of(name):
    torch.manual_seed(0)
    model, args, options = MODELS[name]()
    return "\n".join(explain(partition(graph)) for graph in capture(model, *args, **options))


@pytest.mark.skipif(not torch.__version__.startswith(WRITTEN_WITH), reason=f"texts were written with torch {WRITTEN_WITH}x")
@pytest.mark.parametrize("name", MODELS)
def test_explain_is_the_golden_text(name):
    assert text_of(name) == (EXPECTED / f"{name}.txt").read_text(encoding="utf-8")


@pytest.mark.parametrize("name", MODELS)
def test_model_of_a_golden_text_is_right(name):
    torch.manual_seed(0)
    model, args, options = MODELS[name]()
    for graph in capture(model, *args, **options):
        check(graph)


def test_title_names_what_people_know():
    def function(x, w):
        y = torch.softmax(F.gelu(x @ w), -1)
        return F.silu(y) + F.mish(y)

    (graph,) = capture(function, torch.randn(6, 16), torch.randn(16, 8))
    assert partition(graph).regions[0].title == "gemm + gelu(erf) + softmax + silu + mish + add, m x 8 x 16, f32"


if __name__ == "__main__":
    EXPECTED.mkdir(exist_ok=True)
    for chosen in MODELS:
        (EXPECTED / f"{chosen}.txt").write_text(text_of(chosen), encoding="utf-8")
