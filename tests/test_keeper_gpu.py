"""Kept copies on a GPU: split weights, several streams, and CUDA graphs that the user captures."""

from __future__ import annotations

import pytest
import torch
from torch import nn
from torch._functorch import config as functorch_config
from torch._inductor import config as inductor_config

import kforge_dynamo
import kforge_dynamo.backend  # installs the real resolver, which is replaced below
from benchmarks.planted import winner
from kforge_dynamo import answers, keeper, ledger, runtime
from kforge_dynamo.answers import Reply
from kforge_dynamo.codegen import triton as generator
from kforge_dynamo.languages.table import LANGUAGES
from kforge_dynamo.records.target import Numerics
from kforge_dynamo.targets import detect

pytestmark = [pytest.mark.gpu, pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")]
HIGHEST = Numerics("highest", fp16_reduced=False, bf16_reduced=False, deterministic=False)
SPLIT = generator.Schedule("fp16x3", 64, 64, 64, 8, 4, 3, copies="both", promote=256)


@pytest.fixture
def net(tmp_path, monkeypatch):
    """A layer, compiled under trust, whose product runs on copies of both operands."""

    def made(task):
        return generator.emit(task, SPLIT, (256,), detect(torch.device("cuda", 0)), HIGHEST)

    def load(site):
        candidate, target, language = made(site.task), detect(torch.device("cuda", 0)), LANGUAGES["triton"]
        artifact = language.build(candidate, site.task, target, tmp_path)
        return winner(site.key, site.task, candidate), language.load(artifact, candidate, site.task, site.raw_dims)

    def answer(desk, inquiries):
        return {item.name: Reply(winner(item.key, item.task, made(item.task)), "winner", "made up", None) for item in inquiries}

    monkeypatch.setattr(answers.Desk, "answer", answer)
    monkeypatch.setattr(runtime, "_resolve", [load])
    torch.compiler.reset()
    ledger.reset()
    model = nn.Sequential(nn.Linear(512, 512), nn.GELU()).cuda().eval()
    uncached = inductor_config.patch(fx_graph_cache=False), functorch_config.patch(enable_autograd_cache=False)
    with torch.no_grad(), uncached[0], uncached[1]:
        yield model, torch.compile(model, backend="kforge", options={"prepack": "trust", "on_miss": "fallback"})
    runtime.forget()
    keeper.limit(None)


def near(got, want):
    torch.testing.assert_close(got, want, rtol=1e-4, atol=1e-3)


def test_weight_is_split_once_and_again_when_it_has_changed(net):
    model, run = net
    x = torch.randn(256, 512, device="cuda")
    near(run(x), model(x))
    stats = kforge_dynamo.stats()
    assert stats["prepacked"] == 1 and stats["prepacked_bytes"] >= 512 * 512 * 4
    want = run(x)
    model[0].weight.data.mul_(2.0)
    assert torch.equal(run(x), want), "the split was left out"
    kforge_dynamo.invalidate()
    near(run(x), model(x))
    model[0].weight.add_(0.1)
    near(run(x), model(x))
    model[0].weight.data = torch.randn_like(model[0].weight)
    near(run(x), model(x))
    assert kforge_dynamo.stats()["prepacked"] == 1


def test_copy_made_on_one_stream_is_whole_on_others(net):
    model, run = net
    x = torch.randn(256, 512, device="cuda")
    want = model(x)
    streams = [torch.cuda.Stream() for _ in range(3)]
    torch.cuda.synchronize()
    for _ in range(20):
        results = []
        kforge_dynamo.invalidate()
        for stream in streams:
            with torch.cuda.stream(stream):
                results.append(run(x))
        torch.cuda.synchronize()
        for got in results:
            near(got, want)


@pytest.mark.parametrize("packed_before", [True, False])
def test_captured_graph_follows_promised_changes(net, packed_before):
    model, run = net
    x = torch.randn(256, 512, device="cuda")
    side = torch.cuda.Stream()
    side.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(side):
        run(x)  # compiles, and makes the copy
        if not packed_before:
            kforge_dynamo.invalidate()
    torch.cuda.synchronize()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        y = run(x)
    state = {name: torch.randn_like(value) for name, value in model.state_dict().items()}
    changes = [
        lambda: model.load_state_dict(state),
        lambda: (model[0].weight.data.mul_(3.0), kforge_dynamo.invalidate()),
    ]
    for change in changes:
        change()
        graph.replay()
        near(y, model(x))
    with torch.enable_grad():
        model(x).square().mean().backward()
        torch.optim.AdamW(model.parameters(), lr=0.1, fused=True).step()
    graph.replay()
    near(y, model(x))
    torch.compiler.reset()
    junk = [torch.full((1 << 20,), float("nan"), device="cuda") for _ in range(16)]
    graph.replay()
    near(y, model(x))
    del junk


def test_nothing_is_kept_where_inductor_captures(net, monkeypatch):
    monkeypatch.setenv("KFORGE_PREPACK", "trust")
    monkeypatch.setenv("KFORGE_ON_MISS", "fallback")
    model, _ = net
    x = torch.randn(256, 512, device="cuda")
    run = torch.compile(model, backend="kforge", mode="reduce-overhead")
    for _ in range(4):
        near(run(x).clone(), model(x))
    model[0].weight.data.mul_(2.0)
    near(run(x).clone(), model(x))
    assert not kforge_dynamo.stats()["prepacked"] and kforge_dynamo.stats()["spliced"]
