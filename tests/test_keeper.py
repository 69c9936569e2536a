"""Copies of weights between calls: never a stale one that was not allowed, kept where they may be, freed when they must."""

from __future__ import annotations

import copy
import gc
import threading
import time

import pytest
import torch
from torch import nn
from torch._functorch import config as functorch_config
from torch._inductor import config as inductor_config

import kforge_dynamo
from kforge_dynamo import inductor_entry, keeper
from kforge_dynamo.keeper import Keeper
from kforge_dynamo.languages.base import Prepared
from kforge_dynamo.records.candidate import Buffer
from tests.prepack_scene import Net, averaged, folding, summed

X = torch.randn(6, 24, generator=torch.Generator().manual_seed(25))


@pytest.fixture(autouse=True)
def afresh():
    torch.compiler.reset()
    gc.collect()
    with folding() as asked, inductor_config.patch(fx_graph_cache=False), functorch_config.patch(enable_autograd_cache=False):
        yield asked
    keeper.limit(None)


def compiled(model, prepack, **options):
    return torch.compile(model, backend="kforge", options={"on_miss": "fallback", "prepack": prepack, **options})


def step(net, make=lambda parameters: torch.optim.SGD(parameters, lr=0.5)):
    optimizer = make(net.parameters())
    with torch.enable_grad():
        net(torch.ones(4, 24)).square().sum().backward()
    optimizer.step()
    optimizer.zero_grad()


def load(net, assign):
    net.load_state_dict({name: torch.randn_like(value) for name, value in net.state_dict().items()}, assign=assign)


def lora_merge(net):
    net.one.weight.data += 0.1 * torch.randn(32, 4) @ torch.randn(4, 24)
    net.two.data.add_(0.1)


def new_storage(net):
    net.two.data = torch.randn(24, 16)


def new_layout(net):
    net.two.data = torch.randn(16, 24).t()


def new_parameter(net):
    net.one.bias = nn.Parameter(torch.randn(32))


def new_module(net):
    net.one = nn.Linear(24, 32)


def in_place(net):
    net.one.weight.mul_(1.5)
    net.scale.mul_(3.0)


SEEN = [step, lambda net: load(net, False), new_storage, lambda net: load(net, True), in_place, new_parameter, new_layout,
        new_module, lambda net: step(net, lambda parameters: torch.optim.AdamW(parameters, lr=0.1, fused=True))]  # fmt: skip


def check(net, run, change):
    before = net(X)
    change(net)
    want = net(X)
    assert not torch.equal(before, want)
    for _ in range(2):
        torch.testing.assert_close(run(X), want, rtol=2e-5, atol=1e-6)


def test_by_default_weights_changed_in_any_way_are_used_as_they_are():
    net = Net().eval()
    run = compiled(net, "verify")
    with torch.no_grad():
        run(X)
        for change in (*SEEN, lora_merge):
            check(net, run, change)
    stats = kforge_dynamo.stats()
    assert stats["spliced"] and stats["calls"] and not stats["prepacked"]


def test_under_trust_every_promised_change_is_noticed_and_the_copies_are_used_meanwhile():
    net = Net().eval()
    run = compiled(net, "trust")
    with torch.no_grad():
        run(X)
        assert kforge_dynamo.stats()["prepacked"] == 2 and kforge_dynamo.stats()["prepacked_bytes"] > 0
        for change in SEEN:
            check(net, run, change)
        want = run(X)
        lora_merge(net)
        assert torch.equal(run(X), want), "the launches that read the weights were left out"
        kforge_dynamo.invalidate()
        torch.testing.assert_close(run(X), net(X), rtol=2e-5, atol=1e-6)
        with torch.inference_mode():
            torch.testing.assert_close(run(X), net(X), rtol=2e-5, atol=1e-6)
    assert kforge_dynamo.stats()["repacks"]


def test_copies_of_one_graph_belong_to_their_weights():
    """Equal layers share a site, copies of a model share its code, a tied weight is one tensor: each weight has its own copy."""

    class Twins(nn.Module):
        def __init__(self):
            super().__init__()
            self.a, self.b, self.qkv = nn.Linear(24, 32), nn.Linear(24, 32), nn.Parameter(torch.randn(24, 48))
            self.tied = self.a.weight
            self.register_buffer("scale", torch.ones(()))

        def forward(self, x):
            parts = [summed(x, layer.weight, layer.bias, self.scale) for layer in (self.a, self.b)]
            parts += [averaged(x, self.qkv[:, at : at + 16]) for at in (0, 16, 32)]
            return torch.cat([*parts, summed(x, self.tied, self.b.bias, self.scale)], -1)

    net = Twins().eval()
    other = copy.deepcopy(net)
    run = compiled(lambda model, x: model(x), "trust")
    with torch.no_grad():
        for model in (net, other, net):
            torch.testing.assert_close(run(model, X), model(X), rtol=2e-5, atol=1e-6)
        assert kforge_dynamo.stats()["prepacked"] == 12
        other.a.weight.mul_(2.0)
        other.qkv.add_(1.0)
        for model in (net, other):
            torch.testing.assert_close(run(model, X), model(X), rtol=2e-5, atol=1e-6)
        run(net.double(), X.double())
        net.float()
        torch.testing.assert_close(run(net, X), net(X), rtol=2e-5, atol=1e-6)


def test_training_graphs_and_activations_are_not_kept(afresh):
    net = Net()
    run = compiled(net, "trust")
    run(X).sum().backward()
    assert not any(item.numerics.kept for item in afresh) and not kforge_dynamo.stats()["prepacked"]
    product = compiled(averaged, "trust")
    with torch.no_grad():
        weight = torch.randn(24, 16)
        for _ in range(2):
            weight.data.mul_(1.5)
            torch.testing.assert_close(product(X, weight), averaged(X, weight), rtol=2e-5, atol=1e-6)
    assert not any(item.numerics.kept for item in afresh) and kforge_dynamo.stats()["calls"]


def test_parametrized_weights_and_buffers_that_the_graph_writes_are_not_kept():
    class Moving(nn.Module):
        def __init__(self):
            super().__init__()
            self.register_buffer("state", torch.randn(24, 16))
            self.register_buffer("scale", torch.ones(()))
            self.normed = torch.nn.utils.parametrizations.weight_norm(nn.Linear(24, 32))

        def forward(self, x):
            y = averaged(x, self.state) + summed(x, self.normed.weight, self.normed.bias, self.scale)
            self.state.mul_(0.5)
            return y

    net = Moving().eval()
    twin = copy.deepcopy(net)
    run = compiled(net, "trust")
    with torch.no_grad():
        for _ in range(4):
            torch.testing.assert_close(run(X), twin(X), rtol=2e-5, atol=1e-6)
        for model in (net, twin):
            model.normed.parametrizations.weight.original0.data.fill_(2.0)
        torch.testing.assert_close(run(X), twin(X), rtol=2e-5, atol=1e-6)
    assert kforge_dynamo.stats()["calls"] and not kforge_dynamo.stats()["prepacked"]


def test_frozen_model_is_right_without_trust_and_keeps_no_more_than_it_was_asked_for(afresh):
    """On a CPU a frozen product mostly becomes one of MKL's or oneDNN's, and no region at all."""
    net = Net().eval()
    with inductor_config.patch(freezing=True), torch.no_grad():
        run = compiled(net, "verify")
        torch.testing.assert_close(run(X), net(X), rtol=2e-5, atol=1e-6)
        torch.testing.assert_close(run(X), net(X), rtol=2e-5, atol=1e-6)
    kept = [item for item in afresh if item.numerics.kept]
    assert len(kept) == len(afresh) and (kforge_dynamo.stats()["prepacked"] > 0) == bool(kept)


def test_weights_that_inductor_froze_are_known_by_their_name():
    module = nn.Module()
    module._frozen_param0, module.other = torch.randn(24, 16), torch.randn(24, 16)
    graph = torch.fx.Graph(module)
    x, frozen, other = graph.placeholder("arg0_1"), graph.get_attr("_frozen_param0"), graph.get_attr("other")
    total = graph.call_function(torch.ops.aten.mm.default, (x, frozen))
    graph.output((total, graph.call_function(torch.ops.aten.mm.default, (x, other))))
    assert inductor_entry.weights(graph, trusted=False) == {frozen}
    with graph.inserting_before(total):
        graph.call_function(torch.ops.aten.copy_.default, (frozen, other))
    assert inductor_entry.weights(graph, trusted=False) == frozenset()


def test_no_copy_is_kept_beyond_the_limit():
    net = Net().eval()
    run = compiled(net, "trust", prepack_bytes=0)
    with torch.no_grad():
        for _ in range(2):
            torch.testing.assert_close(run(X), net(X), rtol=2e-5, atol=1e-6)
    assert kforge_dynamo.stats()["calls"] == 4 and not kforge_dynamo.stats()["prepacked"]


class Doubling:
    """Prepares twice the weight; counts how often. `held` makes it wait in the middle."""

    def __init__(self, elements=8, read=1):
        self.packs, self.held, self.began = 0, None, threading.Event()
        self.prepared = Prepared(self.pack, self.rest, (Buffer("twice", "float32", str(elements)),), (1,))

    def pack(self, inputs, copies, sizes):
        self.packs += 1
        copies[0].fill_(float("nan"))
        self.began.set()
        if self.held is not None:
            assert self.held.wait(20)
        copies[0].copy_(2 * inputs[1].flatten()[: copies[0].numel()])

    def rest(self, inputs, outputs, sizes):
        raise AssertionError("only what is kept is looked at here")

    def keeper(self):
        return Keeper(self.prepared, (1,), (5,))


def test_threads_see_whole_copies_only():
    doubling, weight = Doubling(), torch.randn(8)
    kept, found = doubling.keeper(), []
    doubling.held = threading.Event()
    threads = [threading.Thread(target=lambda: found.append(kept.find([X, weight], [weight])[0].clone())) for _ in range(4)]
    threads[0].start()
    assert doubling.began.wait(20)
    for thread in threads[1:]:
        thread.start()
    assert not found
    doubling.held.set()
    for thread in threads:
        thread.join(20)
    assert doubling.packs == 1 and len(found) == 4 and all(torch.equal(item, 2 * weight) for item in found)


def test_copy_dies_with_its_weight_and_with_its_graph():
    doubling, weight = Doubling(), torch.randn(8)
    kept, before = doubling.keeper(), keeper.kept_bytes()
    assert kept.find([X, weight], [weight]) is not None and keeper.kept_bytes() == before + 32
    del weight
    assert kept.copies() == () and keeper.kept_bytes() == before
    weight = torch.randn(8)
    assert kept.find([X, weight], [weight]) is not None
    del kept
    gc.collect()
    assert keeper.kept_bytes() == before


def test_new_storage_at_the_old_address_is_another_weight():
    doubling, memory = Doubling(), torch.randn(8)
    kept, weight = doubling.keeper(), torch.empty(0)
    array = memory.numpy()
    weight.data = torch.from_numpy(array)
    assert torch.equal(kept.find([X, weight], [weight])[0], 2 * memory)
    address = weight.data_ptr()
    weight.data = torch.empty(0)
    memory.mul_(3.0)
    weight.data = torch.from_numpy(array)
    assert weight.data_ptr() == address
    assert torch.equal(kept.find([X, weight], [weight])[0], 2 * memory)


def test_best_gain_a_byte_stays_when_memory_is_short():
    large, small = Doubling(elements=64), Doubling(elements=8)
    weights = [torch.randn(64), torch.randn(64)]
    poor, rich = large.keeper(), small.keeper()  # each reads 256 bytes; one keeps 256, the other 32
    keeper.limit(keeper.kept_bytes() + 260)
    assert poor.find([X, weights[0]], [weights[0]]) is not None
    assert rich.find([X, weights[1]], [weights[1]]) is not None and poor.copies() == ()
    assert poor.find([X, weights[0]], [weights[0]]) is None and rich.copies() != ()


def test_copy_that_a_cuda_graph_reads_is_made_anew_in_its_place():
    doubling, weight = Doubling(), torch.randn(8)
    kept = doubling.keeper()
    found = kept.find([X, weight], [weight])[0]
    kept.copies()[0].captured = True
    weight.data.mul_(3.0)
    assert not torch.equal(found, 2 * weight)
    kforge_dynamo.invalidate()
    assert torch.equal(found, 2 * weight)
    keeper.limit(0)
    weight.mul_(3.0)
    assert kept.find([X, weight], [weight])[0] is found and torch.equal(found, 2 * weight)


def test_copies_that_nobody_uses_give_way(monkeypatch):
    first, second = Doubling(), Doubling()
    weights = [torch.randn(8), torch.randn(8)]
    old, new = first.keeper(), second.keeper()
    keeper.limit(keeper.kept_bytes() + 40)
    assert old.find([X, weights[0]], [weights[0]]) is not None
    assert new.find([X, weights[1]], [weights[1]]) is None, "both are worth the same, and the first was used"
    monkeypatch.setattr(keeper, "IDLE_S", 0.0)
    time.sleep(0.001)
    assert new.find([X, weights[1]], [weights[1]]) is not None and old.copies() == ()


def test_weight_that_moves_leaves_no_copy_behind():
    doubling, weight = Doubling(), torch.randn(8)
    kept = doubling.keeper()
    for _ in range(3):
        weight.data = torch.randn(8)
        assert torch.equal(kept.find([X, weight], [weight])[0], 2 * weight) and len(kept.copies()) == 1


def test_tensors_without_a_version_are_not_kept():
    doubling = Doubling()
    with torch.inference_mode():
        weight = torch.randn(8)
        assert doubling.keeper().find([X, weight], [weight]) is None
    assert doubling.packs == 0


def test_restless_weights_end_the_keeping():
    doubling, weight = Doubling(), torch.randn(8)
    kept = doubling.keeper()
    results = []
    for _ in range(40):
        weight.add_(1.0)
        found = kept.find([X, weight], [weight])
        results.append(found is None or torch.equal(found[0], 2 * weight))
    assert all(results) and found is None and doubling.packs < 40
