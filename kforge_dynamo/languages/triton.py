"""Triton: `@triton.jit` functions as text, compiled by Triton at the first call for sizes, strides and alignment.

`build` checks the source (`triton_syntax`) and writes it; it needs no device. Compilation needs the argument values that
Triton specialises for, so it happens in the launcher's first call (a BuildError from there is a compile error); Triton's own
disk cache makes it a load in later processes. Under `TRITON_INTERPRET=1` kernels run on CPU tensors.
"""

from __future__ import annotations

import hashlib
import importlib.util
import os
import re
import sys
import tempfile
from pathlib import Path
from typing import Any

import torch

from kforge_dynamo.errors import BuildError, ToolchainError
from kforge_dynamo.languages import triton_calls, triton_facts, triton_offline, triton_proof, triton_syntax
from kforge_dynamo.languages.base import Launcher, Point, RawDims, canonical_dims
from kforge_dynamo.languages.text_rules import check_text
from kforge_dynamo.records.candidate import Candidate
from kforge_dynamo.records.guardrail import ALL, Guards
from kforge_dynamo.records.profile import Capture, Profile
from kforge_dynamo.records.target import Target
from kforge_dynamo.records.task import Task

EXAMPLE = """import triton
import triton.language as tl


@triton.jit
def scaled(in0, out0, n_m, N: tl.constexpr, BLOCK: tl.constexpr):
    row = tl.program_id(0).to(tl.int64)
    column = tl.program_id(1) * BLOCK + tl.arange(0, BLOCK)
    mask = (row < n_m) & (column < N)
    x = tl.load(in0 + row * N + column, mask=mask, other=0.0)
    tl.store(out0 + row * N + column, x * 2.0, mask=mask)
"""
"""A worked example: `Launch("scaled", ("m", "cdiv(256, 128)"), ("in:0", "out:0", "size:m"), (("BLOCK", 128), ("N", 256)))`."""

_OLDEST_NVIDIA = 75


class TritonLanguage:
    """See `languages.base.Language`."""

    name = "triton"

    @property
    def device_code(self) -> bool:
        """Whether launches run on the device alone: the interpreter computes with torch and numpy."""
        return not triton_calls.is_interpreted()

    def __init__(self, guards: Guards = ALL) -> None:
        self._guards = guards

    def missing(self, target: Target) -> str | None:
        """What keeps Triton from `target` here."""
        if importlib.util.find_spec("triton") is None:
            return "Triton is not installed; on Linux `pip install triton` brings it"
        if triton_calls.is_interpreted():
            return None
        if target.kind != "cuda":
            return f"Triton here compiles for CUDA and ROCm devices, not for {target.kind}"
        if not torch.cuda.is_available():
            return "Triton needs a GPU that torch can see, and torch.cuda.is_available() is false; check driver and torch build"
        return _unsupported(target)

    def build(self, candidate: Candidate, task: Task, target: Target, folder: Path) -> Path:
        """Checks the source and writes it under its digest. Raises: GuardrailError, BuildError."""
        self._check(candidate, task)
        names = set(re.findall(r"^def (\w+)\(", candidate.source, re.MULTILINE))
        unknown = [launch.kernel for launch in candidate.plan.launches if launch.kernel not in names]
        if unknown:
            raise BuildError(f"the plan launches {unknown[0]}, and the source defines {sorted(names)}")
        text = _text(candidate)
        folder.mkdir(parents=True, exist_ok=True)
        path = folder / f"kernel_{hashlib.sha256(text.encode()).hexdigest()[:24]}.py"
        if not path.exists():
            handle, temporary = tempfile.mkstemp(dir=folder, suffix=".tmp")
            with os.fdopen(handle, "w", encoding="utf-8") as file:
                file.write(text)
            os.replace(temporary, path)
        return path

    def load(self, artifact: Path, candidate: Candidate, task: Task, raw_dims: RawDims) -> Launcher:
        """The launcher; kernels compile in its first call. Raises: ToolchainError without Triton, BuildError when the file
        is not the candidate's."""
        if importlib.util.find_spec("triton") is None:
            raise ToolchainError("Triton is not installed; on Linux `pip install triton` brings it")
        if artifact.read_text(encoding="utf-8") != _text(candidate):
            raise BuildError(f"{artifact.name} does not hold the candidate's source; build it again")
        self._check(candidate, task)
        spec = importlib.util.spec_from_file_location(f"kforge_triton_{artifact.stem}", artifact)
        assert spec is not None and spec.loader is not None
        module = importlib.util.module_from_spec(spec)
        sys.modules[spec.name] = module  # Triton finds a function's module by its name
        spec.loader.exec_module(module)
        return triton_calls.TritonLauncher(module, candidate.plan, task, raw_dims)

    def compile_ahead(self, candidate: Candidate, task: Task, target: Target, folder: Path, point: Point) -> None:
        """See `languages.base.Ahead`: fills Triton's cache."""
        if triton_calls.is_interpreted() or not triton_offline.go_offline(target):
            return
        launcher = self.load(self.build(candidate, task, target, folder), candidate, task, canonical_dims(task))
        assert isinstance(launcher, triton_calls.TritonLauncher)
        proven = launcher.proven()
        watching = [] if proven is None else [proven.run]
        for each in (launcher, *watching):
            assert isinstance(each, triton_calls.TritonLauncher)
            each.prepare(*point, torch.device("cpu"))
            for _, kernel in each.compiled():
                triton_offline.build_launch(kernel)

    def facts(self, artifact: Path, launcher: Launcher) -> Profile:
        """See `languages.base.Describing`: registers, private and shared memory of each kernel that ran."""
        del artifact
        if triton_calls.is_interpreted():
            return Profile(notes=("Triton's interpreter ran the kernel: there is no machine code to describe",))
        return triton_facts.facts(_compiled(launcher))

    def remarks(self, candidate: Candidate, target: Target, launcher: Launcher, folder: Path) -> Capture:
        """See `languages.base.Describing`: spills and warnings of `ptxas -v`."""
        del candidate, target, folder
        if triton_calls.is_interpreted():
            return Capture("compiler", "ptxas -v", notes=("Triton's interpreter ran the kernel: nothing was compiled",))
        return triton_facts.remarks(_compiled(launcher))

    def _check(self, candidate: Candidate, task: Task) -> None:
        """Raises: GuardrailError, BuildError."""
        source = candidate.source
        taken = [name for name in triton_proof.NAMES if re.search(rf"\b{name}\b", source)]
        if candidate.plan.proof and taken:
            raise BuildError(f"{taken[0]} is the name of kforge's own kernel, which a plan with a proof is given; use another")
        if self._guards.source:
            check_text(source, triton_syntax.GUARDRAILS, lambda: triton_syntax.violations(source))
        if self._guards.precision:
            check_text(source, triton_syntax.GUARDRAILS, lambda: triton_syntax.downcasts(source, task, candidate.scheme))

    def toolchain(self) -> str:
        """Triton's version."""
        try:
            return f"triton {importlib.import_module('triton').__version__}"
        except ImportError:
            return "triton not installed"


def _text(candidate: Candidate) -> str:
    """What is written for a candidate: its source, and behind it what watches weights where the plan has a proof."""
    return candidate.source + (triton_proof.SOURCE if candidate.plan.proof else "")


def _compiled(launcher: Launcher) -> list[tuple[str, Any]]:
    return launcher.compiled() if isinstance(launcher, triton_calls.TritonLauncher) else []


def _unsupported(target: Target) -> str | None:
    nvidia = re.fullmatch(r"sm_(\d+)", target.arch)
    if nvidia is not None:
        too_old = int(nvidia.group(1)) < _OLDEST_NVIDIA
        return f"Triton compiles for sm_{_OLDEST_NVIDIA} and newer, and this device is {target.arch}" if too_old else None
    if re.fullmatch(r"gfx(9[04]\w+|95\w+|1[012]\w+)", target.arch):
        return None
    return f"Triton has no back end here for {target.arch}"


LANGUAGE = TritonLanguage()
