"""Task and candidate files from the words of a command line."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import torch
import typer

from kforge_dynamo.errors import RecordError, SettingsError
from kforge_dynamo.languages.table import LANGUAGES
from kforge_dynamo.records.assignment import SOURCES, Assignment, candidate_of_source, read_candidate, read_task
from kforge_dynamo.records.candidate import Candidate
from kforge_dynamo.records.target import Target
from kforge_dynamo.targets import detect, unknown_reason

TASK_FILE = "task.json"
PLAN_FILE = "plan.json"
CANDIDATE_FILE = "candidate.json"
KERNEL = "kernel"
MOST_BYTES = 4 << 20
"""The largest file that is read; a kernel of that size is a mistake."""

TaskPath = Annotated[Path, typer.Argument(metavar="TASK", help="a task file, or the folder that kforge task export wrote")]
CandidatePath = Annotated[
    Path,
    typer.Argument(
        metavar="CANDIDATE", help="a candidate file, a source (.cpp, .py) with plan.json beside it, or a folder that holds either"
    ),
]


def load_task(path: Path) -> Assignment:
    """The task in a file or folder. Raises: SettingsError, RecordError in one sentence with the next step."""
    place = path / TASK_FILE if path.is_dir() else path
    return read_task(_text(place, "task", "kforge task export TARGET writes one"), str(place))


def load_candidate(path: Path) -> Candidate:
    """The candidate in a file or folder. Raises: SettingsError, RecordError in one sentence with the next step."""
    place = _in_folder(path) if path.is_dir() else path
    text = _text(place, "candidate", "kforge task export TARGET writes an example of one")
    if place.suffix in SOURCES:
        found = candidate_of_source(text, SOURCES[place.suffix], _plan_beside(place), str(place))
    else:
        found = read_candidate(text, str(place))
    if found.language not in LANGUAGES:
        raise RecordError(f"{place} is written in {found.language!r}; kforge judges {', '.join(sorted(LANGUAGES))}")
    return found


def device_of(assignment: Assignment, wanted: str | None) -> tuple[torch.device, Target]:
    """The device a task is judged on, and its description. Raises: SettingsError where it is not here, or another kind."""
    device = torch.device(wanted or assignment.device)
    if device.type != assignment.device:
        raise SettingsError(
            f"the task is for {assignment.device}, and --device asks for {device}; export it again with --device {device.type}"
        )
    target = detect(device)
    if target is None:
        raise SettingsError(f"the task is for {assignment.device}, which is not here: {unknown_reason(device)}")
    if device.type == "cuda" and device.index is None:
        device = torch.device("cuda", torch.cuda.current_device())
    return device, target


def _text(path: Path, kind: str, hint: str) -> str:
    if not path.is_file():
        raise SettingsError(f"{kind} file {str(path)!r} does not exist; {hint}")
    size = path.stat().st_size
    if size > MOST_BYTES:
        raise SettingsError(f"{kind} file {str(path)!r} has {size >> 20} MiB, expected at most {MOST_BYTES >> 20}; {hint}")
    try:
        text = path.read_text(encoding="utf-8")
    except UnicodeDecodeError as error:
        raise SettingsError(f"{kind} file {str(path)!r} is not text ({error.reason} at byte {error.start}); {hint}") from error
    except OSError as error:
        raise SettingsError(f"{kind} file {str(path)!r} cannot be read: {error.strerror}; check its permissions") from error
    if not text.strip():
        raise SettingsError(f"{kind} file {str(path)!r} is empty; {hint}")
    return text


def _in_folder(folder: Path) -> Path:
    """The candidate file of a folder: candidate.json, or kernel.cpp, kernel.py."""
    names = [CANDIDATE_FILE, *(f"{KERNEL}{suffix}" for suffix in SOURCES)]
    found = next((folder / name for name in names if (folder / name).is_file()), None)
    if found is None:
        raise SettingsError(f"folder {str(folder)!r} holds no candidate: it was looked for {', '.join(names)}")
    return found


def _plan_beside(source: Path) -> str | None:
    """The text of `plan.json`, or of `NAME.plan.json` where several sources share a folder."""
    for place in (source.with_name(f"{source.stem}.{PLAN_FILE}"), source.with_name(PLAN_FILE)):
        if place.is_file():
            return _text(place, "plan", "the folder that kforge task export writes has one")
    return None
