"""Winners without a search, so that every region is spliced whatever a clock would say: for tests of everything around it.

Two kinds. `evaluator` is a language of its own whose kernel is the reference evaluator: it takes every task. `generated`
builds one candidate of the built-in generator for each task, drawn from its space by the task's digest, unverified: what a
search would have rejected shows up as a wrong result.

    with planted("evaluator"):
        torch.compile(model, backend="kforge")(x)
"""

from __future__ import annotations

import contextlib
import random
import tempfile
from collections.abc import Callable, Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any, cast

import torch

import kforge_dynamo.backend  # noqa: F401 - installs the real resolver, which is replaced below
from kforge_dynamo import answers, ledger, runtime
from kforge_dynamo.answers import Desk, Inquiry, Reply
from kforge_dynamo.codegen import cpp
from kforge_dynamo.languages.base import Launcher, RawDims
from kforge_dynamo.languages.table import LANGUAGES
from kforge_dynamo.records.candidate import Candidate, LaunchPlan
from kforge_dynamo.records.codec import digest
from kforge_dynamo.records.outcome import CacheKey, Measurement, Provenance, Status, Timings, Trial, Verdict, Winner
from kforge_dynamo.records.site import Site
from kforge_dynamo.records.task import AxisRange, Domain, Task
from kforge_dynamo.semantics.evaluate import evaluate, shape_of
from kforge_dynamo.settings import Settings
from kforge_dynamo.targets import detect, numerics

KINDS = ("evaluator", "generated")
EVALUATOR = Candidate("evaluator", "", LaunchPlan((), ()), "", "ieee", "test")
_FAST, _SLOW = Measurement((1.0,), "made up"), Measurement((100.0,), "made up")
_TIMINGS = tuple(Timings(regime, "default", _FAST, _SLOW, None) for regime in ("wall", "replay"))

Resolve = Callable[[Site], tuple[Winner, Launcher]]


def winner(key: CacheKey, task: Task, candidate: Candidate = EVALUATOR) -> Winner:
    """A winner for any sizes."""
    domain = Domain(tuple(AxisRange(axis, 0, 2**31) for axis in task.axes))
    trial = Trial(candidate, Verdict(Status.PASSED, 1.0, None, "", ""), _TIMINGS)
    return Winner(key, "", domain, trial, Provenance("", candidate.language, "", "", "", ""))


def evaluating(task: Task, raw_dims: RawDims) -> Launcher:
    """Evaluates the task on the tensors, read by their strides as a kernel would."""

    def launch(inputs: Sequence[torch.Tensor], outputs: Sequence[torch.Tensor], sizes: Sequence[int]) -> None:
        axes = dict(zip(task.axes, sizes, strict=True))
        shaped = [
            tensor.as_strided(shape_of(spec.value.shape, axes), [0 if dim is None else tensor.stride(dim) for dim in dims])
            for spec, dims, tensor in zip(task.inputs, raw_dims, inputs, strict=True)
        ]
        with torch.no_grad():
            for target, value in zip(outputs, evaluate(task, shaped, axes), strict=True):
                target.copy_(value.reshape(target.shape))

    return launch


def _evaluated(site: Site) -> tuple[Winner, Launcher]:
    return winner(site.key, site.task), evaluating(site.task, site.raw_dims)


class _Generated:
    """Candidates of the C++ room, built below `folder`."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder

    def resolve(self, site: Site) -> tuple[Winner, Launcher]:
        """The candidate that the task's digest draws from its space, built and loaded."""
        target = detect(torch.device("cpu"))
        assert target is not None
        rules = numerics(Settings.parse({})[0].precision, target)
        space = cpp.space(site.task, site.sizes, target, rules)
        schedule = random.Random(digest(site.task)).choice(space)
        candidate = cpp.emit(site.task, schedule, site.sizes, target, rules)
        language = LANGUAGES["cpp"]
        folder = self._folder / digest(candidate)[:24]
        folder.mkdir(parents=True, exist_ok=True)
        artifact = language.build(candidate, site.task, target, folder)
        return winner(site.key, site.task, candidate), language.load(artifact, candidate, site.task, site.raw_dims)


def _answer(desk: Desk, inquiries: Iterable[Inquiry]) -> dict[str, Reply]:
    """Every inquiry has a winner."""
    items = list(inquiries)
    ledger.count("hits", len(items))
    return {item.name: Reply(winner(item.key, item.task), "winner", "made up", None) for item in items}


def _answer_what_the_generator_takes(desk: Desk, inquiries: Iterable[Inquiry]) -> dict[str, Reply]:
    """Every inquiry that the built-in generator writes for has a winner."""
    replies = {}
    for item in inquiries:
        refused = cpp.rejects(item.task, item.target)
        ledger.count("misses" if refused else "hits")
        found = None if refused else winner(item.key, item.task)
        replies[item.name] = Reply(found, "rejected" if refused else "winner", refused or "made up", None)
    return replies


def install(kind: str = "evaluator", folder: Path | None = None) -> Callable[[], None]:
    """Plants from now on, until the function that is returned is called. `folder` keeps what `generated` builds."""
    desk = cast(Any, answers.Desk)
    kept = desk.answer, desk.refuses, list(runtime._resolve)
    if kind == "evaluator":
        desk.answer, desk.refuses = _answer, lambda *_: None
        resolve: Resolve = _evaluated
    else:
        desk.answer = _answer_what_the_generator_takes
        resolve = _Generated(folder or Path(tempfile.mkdtemp(prefix="kforge-planted-"))).resolve
    runtime.forget()
    runtime.install(resolve)

    def restore() -> None:
        desk.answer, desk.refuses, runtime._resolve[:] = kept
        runtime.forget()

    return restore


@contextlib.contextmanager
def planted(kind: str = "evaluator", folder: Path | None = None) -> Iterator[None]:
    """Inside, every region has a winner of this kind."""
    restore = install(kind, folder)
    try:
        yield
    finally:
        restore()
