"""A language model as the agents see it: a prompt in, a reply out. And a model that speaks from a script.

`Model.ask` has one time limit. Whatever goes wrong is a `ModelError`, a sentence that ends the run with the best so far.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

from kforge_dynamo.errors import ModelError, SettingsError

ROLES = ("generator", "analyst")


@dataclass(frozen=True, slots=True)
class Ask:
    """One request. `step` and `role` identify it within a run; `reply_tokens` bounds the reply.

    `images` are PNG or JPEG pictures as `data:` addresses, for models that see.
    """

    step: int
    role: str
    system: str
    user: str
    reply_tokens: int
    images: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class Reply:
    """What came back. Tokens and money (US dollars) are None where nobody knows them."""

    text: str
    prompt_tokens: int | None = None
    reply_tokens: int | None = None
    money: float | None = None
    seconds: float = 0.0


class Model(Protocol):
    """Answers prompts."""

    name: str

    def ask(self, ask: Ask, timeout_s: float) -> Reply:
        """The reply, within `timeout_s`. Raises: ModelError."""


@dataclass(frozen=True, slots=True)
class Line:
    """One entry of a script: a reply's text, or the kind and sentence of a ModelError."""

    text: str
    role: str = "generator"
    error: str = ""


class ScriptedModel:
    """Gives the replies of a script in order, each role its own; the end of the script is a ModelError."""

    def __init__(self, lines: Sequence[Line | str], name: str = "scripted") -> None:
        self.name = name
        self._left = [Line(line) if isinstance(line, str) else line for line in lines]
        self.asked: list[Ask] = []

    def ask(self, ask: Ask, timeout_s: float) -> Reply:
        """The next reply of the script for this role."""
        self.asked.append(ask)
        line = next((line for line in self._left if line.role == ask.role), None)
        if line is None:
            raise ModelError("missing", f"the script of {self.name!r} has no further reply for the {ask.role}")
        self._left.remove(line)
        if line.error:
            raise ModelError(line.error, line.text)
        return Reply(line.text)


def read_script(path: Path) -> list[Line]:
    """The lines of a script: a folder of text files in the order of their names (those with "analyst" in their name are the
    analyst's), or a JSON list of texts or of objects with `text`, `role` and `error`.

    Raises: SettingsError in one sentence.
    """
    try:
        if path.is_dir():
            files = sorted(item for item in path.iterdir() if item.is_file())
            return [Line(file.read_text(encoding="utf-8"), ROLES["analyst" in file.name]) for file in files]
        data = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        raise SettingsError(f"script {path}: expected a folder of texts or a JSON list of replies; {error}") from error
    if not isinstance(data, list):
        raise SettingsError(f"script {path}: expected a JSON list of replies, found {type(data).__name__}")
    return [_line(path, number, item) for number, item in enumerate(data)]


def _line(path: Path, number: int, item: object) -> Line:
    if isinstance(item, str):
        return Line(item)
    if isinstance(item, dict) and set(item) <= {"text", "role", "error"} and item.get("role", "generator") in ROLES:
        values = {name: str(value) for name, value in item.items()}
        return Line(values.get("text", ""), values.get("role", "generator"), values.get("error", ""))
    raise SettingsError(f"script {path}: entry {number} is neither a text nor an object with text, role and error")
