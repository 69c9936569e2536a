"""Training with every region spliced, forward and backward: parameters and gradients are eager's within its own error."""

import copy
import subprocess
import sys
import warnings
from pathlib import Path

import pytest
import torch
import torch.nn.functional as F
from runs import finish
from torch import nn
from torch.utils.checkpoint import checkpoint

import kforge_dynamo
from benchmarks.planted import planted
from benchmarks.random_graphs.running import route
from kforge_dynamo import ledger

pytestmark = pytest.mark.slow


class Net(nn.Module):
    """Linear layers with what stands between them: a residual, norms, a gate, a softmax."""

    def __init__(self, remat=False):
        super().__init__()
        self.up, self.gate, self.down = nn.Linear(12, 24), nn.Linear(12, 24), nn.Linear(24, 12)
        self.norm, self.head, self.remat = nn.LayerNorm(12), nn.Linear(12, 6), remat

    def block(self, x):
        return x + self.down(F.silu(self.gate(x)) * self.up(x))

    def forward(self, x):
        h = checkpoint(self.block, x, use_reentrant=False) if self.remat else self.block(x)
        return F.gelu(self.head(self.norm(h))).log_softmax(-1)


@pytest.fixture(autouse=True)
def spliced():
    """Every region has a winner, and generated code is left out: the graphs are run node by node."""
    torch._dynamo.reset()
    ledger.reset()
    with route("interpreted"), planted("evaluator"), warnings.catch_warnings():
        warnings.simplefilter("ignore")
        yield
    torch._dynamo.reset()


def net(**options):
    torch.manual_seed(0)
    return Net(**options)


def batches(count=2, rows=7):
    torch.manual_seed(1)
    return [(torch.randn(rows, 12), torch.randint(0, 6, (rows,))) for _ in range(count)]


def loss_of(function, x, y):
    return F.nll_loss(function(x).float(), y)


def gradients_of(model, function, data):
    """Accumulated over the batches."""
    model.zero_grad(set_to_none=True)
    for x, y in data:
        loss_of(function, x, y).backward()
    return {name: parameter.grad.clone() for name, parameter in model.named_parameters()}


def within_budget(found, eager, exact):
    """Each result is at most twice as far from fp64 as eager's, or half a unit of its largest number."""
    for name, truth in exact.items():
        off = (eager[name].double() - truth).square().mean().sqrt()
        error = (found[name].double() - truth).square().mean().sqrt()
        assert error <= 2 * off + torch.finfo(eager[name].dtype).eps * truth.abs().max(), f"{name}: {error:.2e}, eager {off:.2e}"


def exact_gradients(model, data):
    wide = copy.deepcopy(model).double()
    return gradients_of(wide, wide, [(x.double(), y) for x, y in data])


def expect(forward, backward):
    """Regions of the forward and of the backward graph, all spliced and called, none by its reference."""
    found = kforge_dynamo.stats()
    assert found["regions"] == found["winners"] == forward + backward
    assert found["calls"] > 0 and not found["fallback_calls"] and not found["fallbacks"] and not ledger._said


def test_forward_and_backward_regions_over_accumulated_batches():
    model, data = net(), batches(3)
    found = gradients_of(model, torch.compile(model, backend="kforge"), data)
    expect(forward=4, backward=6)  # of every layer the gradient of its weight, of the last two that of their input
    within_budget(found, gradients_of(model, model, data), exact_gradients(model, data))
    assert kforge_dynamo.stats()["calls"] == 3 * kforge_dynamo.stats()["winners"]


def test_checkpointed_block_is_recomputed_by_the_same_regions():
    model, data = net(remat=True), batches()
    found = gradients_of(model, torch.compile(model, backend="kforge"), data)
    within_budget(found, gradients_of(model, model, data), exact_gradients(model, data))
    stats = kforge_dynamo.stats()
    assert stats["regions"] == stats["winners"] > 10 and stats["calls"] == 2 * stats["winners"]


def test_autocast_in_bf16_is_as_near_to_fp64_as_eager():
    model, data = net(), batches()
    compiled = torch.compile(model, backend="kforge")

    def autocast(function):
        def call(x):
            with torch.autocast("cpu", dtype=torch.bfloat16):
                return function(x)

        return call

    found = gradients_of(model, autocast(compiled), data)
    stats = kforge_dynamo.stats()
    assert stats["regions"] == stats["winners"] >= 10 and not stats["fallback_calls"]
    within_budget(found, gradients_of(model, autocast(model), data), exact_gradients(model, data))


def test_double_backward_is_refused_with_pytorchs_own_sentence_and_leaves_nothing_broken():
    model, ((x, _),) = net(), batches(1)
    compiled = torch.compile(model, backend="kforge")
    x.requires_grad_()
    (first,) = torch.autograd.grad(compiled(x).sum(), x, create_graph=True)
    with pytest.raises(RuntimeError, match="double backward"):
        first.sum().backward()
    torch.testing.assert_close(torch.autograd.grad(compiled(x).sum(), x)[0], torch.autograd.grad(model(x).sum(), x)[0])


OPTIMIZERS = {
    "sgd, one by one": lambda p: torch.optim.SGD(p, lr=0.1, momentum=0.9, foreach=False),
    "adamw, foreach": lambda p: torch.optim.AdamW(p, lr=1e-2, foreach=True),
    "adamw, fused": lambda p: torch.optim.AdamW(p, lr=1e-2, fused=True),
}


@pytest.mark.parametrize("name", OPTIMIZERS)
def test_steps_of_an_optimizer_between_calls_of_one_compiled_model(name):
    results = {}
    for kind in ("kforge", "eager", "exact"):
        model, data = net(), batches(4)
        if kind == "exact":
            model, data = model.double(), [(x.double(), y) for x, y in data]
        function = torch.compile(model, backend="kforge") if kind == "kforge" else model
        optimizer = OPTIMIZERS[name](model.parameters())
        for x, y in data:
            loss_of(function, x, y).backward()
            optimizer.step()
            optimizer.zero_grad()
        results[kind] = {key: value.detach() for key, value in model.named_parameters()}
    for key, truth in results["exact"].items():  # an optimizer of the Adam kind turns rounding of a zero gradient into a step
        torch.testing.assert_close(results["kforge"][key].double(), truth, rtol=2e-4, atol=2e-4)
        torch.testing.assert_close(results["eager"][key].double(), truth, rtol=2e-4, atol=2e-4)
    expect(forward=4, backward=6)


def test_step_compiled_with_its_optimizer():
    results = []
    for compiled in (True, False):
        model, data = net(), batches(3)
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1, foreach=False)  # foreach ops need generated code

        def step(x, y, model=model, optimizer=optimizer):
            loss = loss_of(model, x, y)
            loss.backward()
            optimizer.step()
            optimizer.zero_grad()
            return loss.detach()

        function = torch.compile(step, backend="kforge") if compiled else step
        results.append([function(x, y) for x, y in data] + [parameter.detach() for parameter in model.parameters()])
    for found, wanted in zip(*results, strict=True):
        torch.testing.assert_close(found, wanted, rtol=1e-5, atol=1e-6)
    assert kforge_dynamo.stats()["calls"] > 0


def test_frozen_half_of_a_model_has_no_gradient_regions():
    model, data = net(), batches(1)
    for layer in (model.up, model.gate, model.down):
        layer.requires_grad_(False)
    compiled = torch.compile(model, backend="kforge")
    loss_of(compiled, *data[0]).backward()
    found = model.head.weight.grad.clone()
    model.zero_grad()
    loss_of(model, *data[0]).backward()
    torch.testing.assert_close(found, model.head.weight.grad)
    assert model.up.weight.grad is None
    stats = kforge_dynamo.stats()
    assert stats["regions"] == stats["winners"] == 6, "four forward; backward the head's weight and the norm's input"


REPLICA = """
import json, os, sys, warnings
warnings.simplefilter("ignore")
sys.path[:0] = {paths!r}
import torch, torch.distributed as dist
import kforge_dynamo
from benchmarks.planted import planted
from benchmarks.random_graphs.running import route
from test_training import batches, loss_of, net

dist.init_process_group("gloo", init_method="file://{store}", rank=int(sys.argv[1]), world_size=2)
model = net()
replica = torch.nn.parallel.DistributedDataParallel(model)
with route("interpreted"), planted("evaluator"):
    compiled = torch.compile(replica, backend="kforge")
    x, y = batches(2)[dist.get_rank()]
    loss_of(compiled, x, y).backward()
expected = net()
sum(loss_of(expected, x, y) for x, y in batches(2)).div(2).backward()
error = max((a.grad - b.grad).abs().max().item() for a, b in zip(model.parameters(), expected.parameters()))
print("RESULT " + json.dumps(dict(kforge_dynamo.stats(), error=error)))
dist.destroy_process_group()
"""


@pytest.mark.skipif(not torch.distributed.is_available(), reason="this torch has no distributed package")
def test_two_replicas_over_gloo_average_the_gradients_that_regions_computed(tmp_path):
    here = Path(__file__).resolve()
    script = REPLICA.format(paths=[str(here.parents[2]), str(here.parent)], store=tmp_path / "store")
    ranks = [
        subprocess.Popen([sys.executable, "-c", script, str(rank)], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
        for rank in range(2)
    ]
    for found in map(finish, ranks):
        assert found["error"] < 1e-5
        assert found["regions"] == found["winners"] == 10 and found["calls"] == 10 and not found["fallback_calls"]
