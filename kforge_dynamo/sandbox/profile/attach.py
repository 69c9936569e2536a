"""From a trial that passed to the same trial with its profile."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import torch

from kforge_dynamo.languages.base import Describing, Language, Launcher
from kforge_dynamo.records.outcome import Trial
from kforge_dynamo.records.profile import Capture, Profile
from kforge_dynamo.records.request import Request
from kforge_dynamo.sandbox.profile.instruments import BY_NAME
from kforge_dynamo.sandbox.profile.occupancy import occupancy
from kforge_dynamo.sandbox.profile.roofline import roofline
from kforge_dynamo.sandbox.profile.torch_profiler import profile_calls


@dataclass(frozen=True, slots=True)
class Loaded:
    """A candidate that was built and loaded, and by whom."""

    language: Language
    artifact: Path
    launcher: Launcher


Call = Callable[[], Sequence[torch.Tensor]]
"""Runs the candidate once on inputs at hand."""


def attach(trial: Trial, request: Request, loaded: Loaded, call: Call) -> Trial:
    """`trial` with what its compiler says and what was asked for by `request.profile` inside this process.

    A trial that did not pass comes back as it is. Whatever goes wrong here is a note: it never changes a verdict.
    """
    if not trial.verdict.passed:
        return trial
    profile = _described(loaded, request.target.arch)
    line = roofline(request.task, request.sizes, request.target, request.candidate.scheme, trial.timings)
    captures, notes = [], [*profile.notes]
    for name in request.profile:
        instrument = BY_NAME.get(name)
        if instrument is None:
            notes.append(f"no instrument {name!r}; known are {', '.join(BY_NAME)}")
        elif instrument.inside:
            captures.append(_captured(name, request, loaded, call))
    return replace(trial, profile=replace(profile, roofline=line, captures=tuple(captures), notes=tuple(notes)))


def _described(loaded: Loaded, arch: str) -> Profile:
    if not isinstance(loaded.language, Describing):
        return Profile(notes=(f"the language {loaded.language.name} says nothing of its kernels",))
    try:
        profile = loaded.language.facts(loaded.artifact, loaded.launcher)
    except Exception as error:  # noqa: BLE001 (a tool's odd output must not cost a verdict that stands)
        return Profile(notes=(f"the compiler's facts could not be read: {type(error).__name__}: {str(error)[:200]}",))
    return replace(profile, kernels=tuple(replace(item, occupancy=occupancy(item, arch)) for item in profile.kernels))


def _captured(name: str, request: Request, loaded: Loaded, call: Call) -> Capture:
    try:
        if name == "torch":
            return profile_calls(call, request.target.kind)
        if isinstance(loaded.language, Describing):
            return loaded.language.remarks(request.candidate, request.target, loaded.launcher, Path(request.artifact_folder))
    except Exception as error:  # noqa: BLE001 (an instrument that fails is a note, not a verdict)
        return Capture(name, "failed", notes=(f"{type(error).__name__}: {str(error)[:200]}",))
    return Capture(name, "not asked", notes=(f"the language {loaded.language.name} has no compiler to ask",))
