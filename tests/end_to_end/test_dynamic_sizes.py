"""One compiled module through many batch sizes: right for each, few compiles, few variants of a region."""

import pytest
import torch
import torch.nn.functional as F
from torch import nn

import kforge_dynamo
from benchmarks.planted import planted
from benchmarks.random_graphs.running import route
from kforge_dynamo import ledger

pytestmark = pytest.mark.slow

SIZES = (13, 2, 7, 1, 0, 4097, 64, 33, 128, 13, 1)


class Net(nn.Module):
    """Two regions, one of which reduces."""

    def __init__(self):
        super().__init__()
        self.one, self.two = nn.Linear(12, 48), nn.Linear(48, 6)

    def forward(self, x):
        return F.log_softmax(self.two(F.gelu(self.one(x))), -1)


@pytest.fixture(autouse=True)
def spliced():
    """Every region has a winner for any size."""
    torch._dynamo.reset()
    torch._dynamo.utils.counters.clear()
    ledger.reset()
    with route("interpreted"), planted("evaluator"):
        yield
    torch._dynamo.reset()


def through_all(model, compiled, mark):
    torch.manual_seed(0)
    for rows in SIZES:
        x = torch.randn(rows, 12)
        if mark and rows > 1:
            torch._dynamo.mark_dynamic(x, 0)
        torch.testing.assert_close(compiled(x), model(x))


@pytest.mark.parametrize("mark", [True, False], ids=["marked", "automatic"])
def test_many_batches_are_right_with_a_bounded_number_of_compiles(mark):
    torch.manual_seed(0)
    model = Net().eval()
    with torch.no_grad():
        through_all(model, torch.compile(model, backend="kforge"), mark)
    compiles = torch._dynamo.utils.counters["stats"]["unique_graphs"]
    stats = kforge_dynamo.stats()
    # one for symbolic rows, one each for 0 and 1, and without marking one for the first size met
    assert compiles <= (3 if mark else 4)
    assert 2 * (compiles - 1) <= stats["regions"] == stats["winners"] <= 2 * compiles, "no region for a batch of nothing"
    assert stats["calls"] == 2 * sum(rows > 0 for rows in SIZES) and not stats["fallback_calls"]
    assert len({item.task for item in kforge_dynamo.report()}) <= 2, "all sizes share the tasks"


def test_many_batches_in_training_are_right_with_a_bounded_number_of_compiles():
    torch.manual_seed(0)
    model = Net()
    compiled = torch.compile(model, backend="kforge")
    for rows in SIZES:
        x = torch.randn(rows, 12)
        grads = []
        for function in (compiled, model):
            model.zero_grad()
            function(x).square().sum().backward()
            grads.append([parameter.grad.clone() for parameter in model.parameters()])
        for found, wanted in zip(*grads, strict=True):
            torch.testing.assert_close(found, wanted, rtol=1e-4, atol=1e-4)
    assert torch._dynamo.utils.counters["stats"]["unique_graphs"] <= 4
    stats = kforge_dynamo.stats()
    assert 10 <= stats["regions"] == stats["winners"] <= 4 * 5 and not stats["fallback_calls"]
