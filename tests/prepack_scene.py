"""A model whose products fold, and winners that fold, without a search: what they keep of weights is what is tested."""

from __future__ import annotations

import contextlib
import tempfile
from collections.abc import Iterator
from pathlib import Path

import torch
from torch import nn

import kforge_dynamo.backend  # noqa: F401 - installs the real resolver, which is replaced below
from benchmarks.planted import winner
from kforge_dynamo import answers, ledger, runtime
from kforge_dynamo.answers import Reply
from kforge_dynamo.codegen import cpp
from kforge_dynamo.languages.base import Launcher
from kforge_dynamo.languages.table import LANGUAGES
from kforge_dynamo.records.candidate import Candidate
from kforge_dynamo.records.outcome import Winner
from kforge_dynamo.records.site import Site
from kforge_dynamo.records.target import Numerics
from kforge_dynamo.records.task import Task
from kforge_dynamo.semantics.algebra import fold
from kforge_dynamo.targets import detect

FOLDED = cpp.Schedule("dot", 12, 0, "", 4, fold=True)
_FOLDER = Path(tempfile.mkdtemp(prefix="kforge_prepack_"))


def summed(x: torch.Tensor, weight: torch.Tensor, bias: torch.Tensor, scale: torch.Tensor) -> torch.Tensor:
    """A linear layer that sums its columns. All models here take these two forms, so that few kernels are built."""
    return torch.sigmoid(nn.functional.linear(x, weight, bias).sum(-1, keepdim=True)) * scale


def averaged(x: torch.Tensor, weight: torch.Tensor) -> torch.Tensor:
    """A product that averages them."""
    return torch.tanh((x @ weight).mean(-1, keepdim=True))


class Net(nn.Module):
    """Two products that sum their columns; the second's weight is stored the other way round."""

    def __init__(self) -> None:
        super().__init__()
        self.one, self.two = nn.Linear(24, 32), nn.Parameter(torch.randn(24, 16) / 5)
        self.register_buffer("scale", torch.ones(()))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return torch.cat([summed(x, self.one.weight, self.one.bias, self.scale), averaged(x, self.two)], -1)


def candidate(task: Task) -> Candidate:
    """The folding kernel of a task."""
    target = detect(torch.device("cpu"))
    assert target is not None
    return cpp.emit(task, FOLDED, (), target, Numerics("highest", False, False, False))


def load(site: Site) -> tuple[Winner, Launcher]:
    """Builds and loads it."""
    target, made, language = detect(torch.device("cpu")), candidate(site.task), LANGUAGES["cpp"]
    assert target is not None
    artifact = language.build(made, site.task, target, _FOLDER)
    return winner(site.key, site.task, made), language.load(artifact, made, site.task, site.raw_dims)


@contextlib.contextmanager
def folding() -> Iterator[list[answers.Inquiry]]:
    """Inside, every region that folds has such a winner; the questions that were asked."""
    asked: list[answers.Inquiry] = []

    def answer(desk, inquiries):
        replies = {}
        for item in inquiries:
            asked.append(item)
            folds = fold(item.task) is not None
            won = winner(item.key, item.task, candidate(item.task)) if folds else None
            replies[item.name] = Reply(won, "winner" if folds else "no_winner", "made up", None)
        return replies

    before = answers.Desk.answer, list(runtime._resolve)
    answers.Desk.answer = answer
    runtime.install(load)
    try:
        yield asked
    finally:
        answers.Desk.answer, runtime._resolve[:] = before[0], before[1]
        runtime.forget()
        ledger.reset()
