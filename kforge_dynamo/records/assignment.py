"""Tasks and candidates as files that people and agents write by hand: the public format of `kforge task` and `kforge verify`.

A task file is a JSON object: `"format": "kforge-task-1"`, the fields of `Assignment`, and `"digest"`, which tells that nobody
changed the rest (leave it out to vouch for a change). A candidate file is a JSON object: `"format": "kforge-candidate-1"` and
the fields of `Candidate`. A plan is the `"plan"` of one; it may stand in a file of its own beside the source. What has a
default may be left out, a plan of a C++ source altogether. Floats are `{"f": "0x1.8p+1"}` (`float.hex()`), which loses no bit.
"""

from __future__ import annotations

import dataclasses
import json
import types
import typing
from dataclasses import dataclass
from typing import Any

from kforge_dynamo.errors import RecordError
from kforge_dynamo.records.candidate import Candidate, Launch, LaunchPlan
from kforge_dynamo.records.codec import digest, from_plain, plain
from kforge_dynamo.records.target import Numerics
from kforge_dynamo.records.task import Domain, Task

TASK_FORMAT = "kforge-task-1"
CANDIDATE_FORMAT = "kforge-candidate-1"
SOURCES = {".cpp": "cpp", ".cc": "cpp", ".py": "triton"}
"""The language of a bare source file, by its suffix."""

_CPP_PLAN = LaunchPlan((), (Launch("kforge_entry", ("1",), ()),))
_DEFAULTS = {"schedule": "", "scheme": "ieee", "author": "hand", "parent": None}


@dataclass(frozen=True, slots=True)
class Assignment:
    """A task bound to what it is judged on: `sizes` (timed), `domain` (all sizes it must be right for), `numerics` (how exact)
    and `device`, torch's device type."""

    title: str
    device: str
    task: Task
    sizes: tuple[int, ...]
    domain: Domain
    numerics: Numerics

    def __post_init__(self) -> None:
        if not self.domain.holds(self.sizes):
            raise ValueError(f"sizes {self.sizes} lie outside the domain {self.domain}")


def task_text(assignment: Assignment) -> str:
    """The task file of `assignment`."""
    data = {"format": TASK_FORMAT, "digest": digest(assignment)} | plain(assignment)
    return json.dumps(data, indent=1) + "\n"


def read_task(text: str, name: str) -> Assignment:
    """The assignment in a task file called `name`. Raises: RecordError in one sentence with the next step."""
    data = _object(text, name, TASK_FORMAT, "kforge task export writes such a file")
    expected = data.pop("digest", None)
    try:
        found: Assignment = from_plain(Assignment, data)
    except RecordError as error:
        raise RecordError(f"{name} is no task: {error}; kforge task export writes one") from error
    if expected is not None and expected != digest(found):
        raise RecordError(
            f"{name} was changed after it was written: its digest says {str(expected)[:12]}, its content has "
            f'{digest(found)[:12]}; export the task again, or take the line "digest" out to vouch for the change'
        )
    return found


def candidate_text(candidate: Candidate) -> str:
    """The candidate file of `candidate`."""
    return json.dumps({"format": CANDIDATE_FORMAT} | plain(candidate), indent=1) + "\n"


def read_candidate(text: str, name: str) -> Candidate:
    """The candidate in a file called `name`. Raises: RecordError in one sentence with the next step."""
    data = _object(text, name, CANDIDATE_FORMAT, "kforge task export shows one in its folder example")
    try:
        found: Candidate = from_plain(Candidate, _filled(Candidate, _DEFAULTS | data))
    except RecordError as error:
        raise RecordError(f"{name} is no candidate: {error}; the folder that kforge task export writes has one") from error
    return found


def candidate_of_source(source: str, language: str, plan: str | None, name: str) -> Candidate:
    """The candidate of a bare source and the text of the plan beside it; a C++ source needs none.

    Raises: RecordError in one sentence with the next step.
    """
    if plan is None and language != "cpp":
        raise RecordError(
            f"{name} needs its launch plan beside it, in plan.json; the folder that kforge task export writes has one"
        )
    data: dict[str, Any] = {"plan": plain(_CPP_PLAN)}
    if plan is not None:
        data = _object(plan, f"the plan of {name}", None, "the folder that kforge task export writes has one")
        data = data if "plan" in data else {"plan": data}
    data |= {"format": CANDIDATE_FORMAT, "language": language, "source": source}
    return read_candidate(json.dumps(data), name)


def _object(text: str, name: str, form: str | None, hint: str) -> dict[str, Any]:
    try:
        data = json.loads(text)
    except ValueError as error:
        raise RecordError(f"{name} is not JSON ({error}); {hint}") from error
    if not isinstance(data, dict):
        raise RecordError(f"{name} holds a JSON {type(data).__name__}, expected an object; {hint}")
    if form is not None and data.pop("format", None) != form:
        raise RecordError(f'{name} does not say "format": "{form}"; {hint}')
    return data


def _filled(kind: Any, data: Any) -> Any:
    """`data` with the defaults of the records in it."""
    if isinstance(data, list):
        members = [member for member in typing.get_args(kind) if member is not Ellipsis]
        return [_filled(members[0], item) for item in data] if members and typing.get_origin(kind) is tuple else data
    if not isinstance(data, dict) or not dataclasses.is_dataclass(kind) or isinstance(kind, types.GenericAlias):
        return data
    hints = typing.get_type_hints(kind)
    found = {name: _filled(hints.get(name), value) for name, value in data.items()}
    for field in dataclasses.fields(kind):
        if field.name not in found and field.default is not dataclasses.MISSING:
            found[field.name] = plain(field.default)
    return found
