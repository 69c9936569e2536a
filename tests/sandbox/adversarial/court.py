"""Judges cases with the judge itself, with any of its rules switched off."""

from __future__ import annotations

import tempfile
from dataclasses import fields, replace
from functools import partial
from pathlib import Path

import torch

from kforge_dynamo.languages.cpp import CppLanguage
from kforge_dynamo.languages.triton import TritonLanguage
from kforge_dynamo.records.guardrail import ALL, Guards
from kforge_dynamo.records.outcome import Verdict
from kforge_dynamo.records.request import Request
from kforge_dynamo.records.target import Target
from kforge_dynamo.sandbox import venue
from kforge_dynamo.sandbox.evaluation import Evaluator
from kforge_dynamo.sandbox.race import Rivals
from kforge_dynamo.semantics.evaluate import evaluate
from kforge_dynamo.targets import detect
from tests.sandbox.adversarial.cases import PLANTS, Case

RULES = tuple(item.name for item in fields(Guards))
_TRUTH = ("e0", "floor", "exact", "domains")  # rules that the truth itself depends on
_BUILD = ("source", "object", "precision")


class PlantLanguage:
    """Launchers that are functions of this process; `trapped` as those of a device language are."""

    def __init__(self, name: str, court: Court, *, device_code: bool) -> None:
        self.name, self.court, self.device_code = name, court, device_code

    def missing(self, target):
        return None

    def build(self, candidate, task, target, folder: Path) -> Path:
        return folder / candidate.source

    def load(self, artifact, candidate, task, raw_dims):
        function = PLANTS.by_name[candidate.source]
        return lambda inputs, outputs, sizes: function(task, self.court.bench, inputs, outputs, sizes)

    def toolchain(self) -> str:
        return "test"


class Court:
    """Evaluators by their rules; truths, and mutants, which no rule switches, are shared."""

    def __init__(self, device: str = "cpu") -> None:
        self.device = torch.device(device)
        self.folder = Path(tempfile.mkdtemp(prefix="kforge-adversarial-"))
        self.bench = None
        self._evaluators: dict[Guards, Evaluator] = {}
        self._kept: dict[tuple, dict] = {}
        torch.set_num_threads(2)

    def judge(self, case: Case, without: str | None = None) -> Verdict:
        """The verdict on `case`, with the rule `without` switched off."""
        guards = replace(ALL, **{without: False}) if without else ALL
        evaluator = self._evaluator(guards)
        request = Request(
            case.task, case.sizes, case.where, case.candidate, self._target(case), case.numerics, "default", "{}", case.stage,
            str(self.folder / f"{without in _BUILD and without}"), case.timed, 600.0, None
        )  # fmt: skip
        self._share(evaluator, guards, request)
        compile_rivals, venue.compile_rivals = venue.compile_rivals, _eager_rivals
        try:
            return evaluator.evaluate(request).verdict
        finally:
            venue.compile_rivals = compile_rivals

    def _target(self, case: Case) -> Target:
        """A case's own target on a CPU; on a GPU that of the device."""
        return case.target if self.device.type == "cpu" else detect(self.device)

    def _evaluator(self, guards: Guards) -> Evaluator:
        if guards not in self._evaluators:
            languages = {
                "cpp": CppLanguage(guards=guards),
                "triton": TritonLanguage(guards),
                "plant": PlantLanguage("plant", self, device_code=False),
                "trapped": PlantLanguage("trapped", self, device_code=True),
            }
            self._evaluators[guards] = Evaluator(languages, self.device, b"tests", lambda _: None, guards)
        return self._evaluators[guards]

    def _share(self, evaluator: Evaluator, guards: Guards, request: Request) -> None:
        """What depends on few of the rules is computed once for all evaluators that agree in those."""
        bench = evaluator._bench(request)
        kept = self._kept.setdefault(tuple(getattr(guards, name) for name in _TRUTH), {})
        of_task = kept.setdefault((request.task, request.numerics), (bench._truths, bench._drawn))
        bench._truths, bench._drawn = of_task
        evaluator._judged = kept.setdefault("judged", {})
        self.bench = bench


def _eager_rivals(request, device, threads) -> Rivals:
    axes = dict(zip(request.task.axes, request.sizes, strict=True))
    return Rivals(partial(_eager, request.task, axes), None, ())


def _eager(task, axes, inputs):
    return evaluate(task, inputs, axes)
