"""From a trial that passed to the same trial with its profile."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

from kforge_dynamo.languages.base import Describing, Language, Launcher
from kforge_dynamo.records.outcome import Trial
from kforge_dynamo.records.profile import Capture, Profile
from kforge_dynamo.records.request import Request
from kforge_dynamo.sandbox.bench import Bench
from kforge_dynamo.sandbox.profile.calls import bound_call
from kforge_dynamo.sandbox.profile.instruments import BY_NAME
from kforge_dynamo.sandbox.profile.occupancy import occupancy
from kforge_dynamo.sandbox.profile.roofline import roofline
from kforge_dynamo.sandbox.profile.torch_profiler import profile_calls


def attach(trial: Trial, request: Request, language: Language, launcher: Launcher, bench: Bench) -> Trial:
    """`trial` with what its compiler says and what was asked for by `request.profile` inside this process.

    `launcher` is the one that was verified. A trial that did not pass comes back as it is. Whatever goes wrong here is a note:
    it never changes a verdict.
    """
    if not trial.verdict.passed:
        return trial
    profile = _described(request, language, launcher)
    line = roofline(request.task, request.sizes, request.target, request.candidate.scheme, trial.timings)
    captures, notes = [], [*profile.notes]
    for name in request.profile:
        instrument = BY_NAME.get(name)
        if instrument is None:
            notes.append(f"no instrument {name!r}; known are {', '.join(BY_NAME)}")
        elif instrument.inside:
            captures.append(_captured(name, request, language, launcher, bench))
    return replace(trial, profile=replace(profile, roofline=line, captures=tuple(captures), notes=tuple(notes)))


def _described(request: Request, language: Language, launcher: Launcher) -> Profile:
    if not isinstance(language, Describing):
        return Profile(notes=(f"the language {language.name} says nothing of its kernels",))
    try:  # the build is there already and only names its artifact
        artifact = language.build(request.candidate, request.task, request.target, Path(request.artifact_folder))
        profile = language.facts(artifact, launcher)
    except Exception as error:  # noqa: BLE001 (a tool's odd output must not cost a verdict that stands)
        return Profile(notes=(f"the compiler's facts could not be read: {type(error).__name__}: {str(error)[:200]}",))
    arch = request.target.arch
    return replace(profile, kernels=tuple(replace(item, occupancy=occupancy(item, arch)) for item in profile.kernels))


def _captured(name: str, request: Request, language: Language, launcher: Launcher, bench: Bench) -> Capture:
    try:
        if name == "torch":
            return profile_calls(bound_call(request, launcher, bench), request.target.kind)
        if isinstance(language, Describing):
            return language.remarks(request.candidate, request.target, launcher, Path(request.artifact_folder))
    except Exception as error:  # noqa: BLE001 (an instrument that fails is a note, not a verdict)
        return Capture(name, "failed", notes=(f"{type(error).__name__}: {str(error)[:200]}",))
    return Capture(name, "not asked", notes=(f"the language {language.name} has no compiler to ask",))
