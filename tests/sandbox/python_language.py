"""A test language: a candidate is Python source that defines `run(inputs, outputs, sizes)`; torch is in scope."""

from __future__ import annotations

import hashlib
from pathlib import Path

import torch

from kforge_dynamo.errors import BuildError
from kforge_dynamo.records.candidate import Candidate, LaunchPlan


class PythonLanguage:
    name = "python"

    def missing(self, target):
        return None

    def build(self, candidate, task, target, folder: Path) -> Path:
        try:
            compile(candidate.source, "candidate", "exec")
        except SyntaxError as error:
            raise BuildError(f"candidate: {error}") from error
        folder.mkdir(parents=True, exist_ok=True)
        artifact = folder / f"{hashlib.sha256(candidate.source.encode()).hexdigest()[:16]}.py"
        artifact.write_text(candidate.source)
        return artifact

    def load(self, artifact: Path, candidate, task, raw_dims):
        scope = {"torch": torch, "F": torch.nn.functional}
        exec(compile(artifact.read_text(), "candidate", "exec"), scope)
        return scope["run"]

    def toolchain(self) -> str:
        return "python"


LANGUAGES = {"python": PythonLanguage()}


def candidate(source: str, atomics: bool = False) -> Candidate:
    plan = LaunchPlan(buffers=(), launches=(), atomics=atomics)
    return Candidate("python", source, plan, "", "ieee", "test", None)
