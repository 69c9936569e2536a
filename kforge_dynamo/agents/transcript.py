"""A run on disk: a folder with `run.json` (what was asked, of whom, within which budget) and `events.jsonl`, a line an event.

Events are written and flushed one by one, so what a killed run leaves is whole but for its last line, which is dropped when
the run is read. They are keyed by (step, index, stage): a step is one request of the generation agent (step 0: the seeds),
`index` counts its candidates. Kinds: `prompt`, `reply`, `failure` (of a model), `proposal`, `trial`, `diagnosis`, `spent`,
`lesson`, `end`.
"""

from __future__ import annotations

import json
import logging
import os
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime, timezone
from pathlib import Path
from typing import Any

from kforge_dynamo.agents.model import Reply
from kforge_dynamo.errors import RecordError, StoreError
from kforge_dynamo.records.assignment import Assignment
from kforge_dynamo.records.codec import from_plain, plain
from kforge_dynamo.records.diagnosis import Lesson
from kforge_dynamo.records.outcome import Trial
from kforge_dynamo.records.spending import Budget, Spent
from kforge_dynamo.records.target import Target

FORMAT = "kforge-run-1"
HEADER, EVENTS = "run.json", "events.jsonl"
_log = logging.getLogger("kforge")


@dataclass(frozen=True, slots=True)
class Header:
    """What a run was started with. `plan` is the text of a `strategies.Plan`, `seeding` and `lessons` what it was given."""

    assignment: Assignment
    target: Target
    model: str
    analyst: str
    plan: str
    budget: Budget
    languages: tuple[str, ...]
    prompt_tokens: int
    reply_tokens: int
    floor_us: float | None
    lessons: tuple[Lesson, ...]
    reference: str
    reference_language: str
    created: str


def now_text() -> str:
    """The time in UTC, to the millisecond."""
    return datetime.now(timezone.utc).isoformat(timespec="milliseconds")


class Transcript:
    """Writes the events of a run."""

    def __init__(self, folder: Path, clock: Callable[[], str] = now_text) -> None:
        self.folder = folder
        self._clock = clock
        self._broken = False

    @staticmethod
    def begin(root: Path, header: Header) -> Transcript:
        """A new folder below `root`, named by time, task and model. Raises: StoreError."""
        words = "".join(letter if letter.isalnum() else "-" for letter in f"{header.assignment.title[:24]}-{header.model[:24]}")
        stem = f"{header.created[:19].replace(':', '').replace('T', '-')}-{words}"
        for number in range(1000):
            folder = root / (f"{stem}-{number}" if number else stem)
            try:
                folder.mkdir(parents=True, mode=0o700)
                data = {"format": FORMAT} | plain(header)
                (folder / HEADER).write_text(json.dumps(data, indent=1) + "\n", encoding="utf-8")
            except FileExistsError:
                continue
            except OSError as error:
                raise StoreError(f"the run cannot be recorded in {folder}: {error}") from error
            return Transcript(folder)
        raise StoreError(f"{root} holds a thousand runs called {stem}")

    def write(self, event: str, step: int, **data: Any) -> None:
        """Appends one event. Where the disk takes no more the run goes on without a record, and one line says so."""
        line = json.dumps({"event": event, "step": step, "at": self._clock()} | data)
        try:
            with open(self.folder / EVENTS, "a", encoding="utf-8") as file:
                file.write(line + "\n")
                file.flush()
                os.fsync(file.fileno())
        except OSError as error:
            if not self._broken:
                _log.warning("the record of the run in %s cannot be written on: %s", self.folder, error)
            self._broken = True


@dataclass(slots=True)
class Recorded:
    """The events of a run, by their keys. `tail` is the number of bytes that hold whole events."""

    header: Header
    events: list[dict[str, Any]] = field(default_factory=list)
    tail: int = 0

    def find(self, event: str, step: int, **keys: Any) -> dict[str, Any] | None:
        """The first event of a kind at a step with these values."""
        return next(
            (
                item
                for item in self.events
                if item["event"] == event
                and item["step"] == step
                and all(item.get(name) == value for name, value in keys.items())
            ),
            None,
        )

    def trial(self, step: int, index: int, stage: str) -> Trial | None:
        """A recorded trial. Raises: RecordError."""
        item = self.find("trial", step, index=index, stage=stage)
        return None if item is None else from_plain(Trial, item["trial"])

    def trials(self, step: int, stage: str) -> list[Trial]:
        """All trials of a step, in order."""
        chosen = [item for item in self.events if (item["event"], item["step"], item.get("stage")) == ("trial", step, stage)]
        return [from_plain(Trial, item["trial"]) for item in chosen]

    def reply(self, step: int, role: str) -> Reply | None:
        """A recorded reply."""
        item = self.find("reply", step, role=role)
        return None if item is None else from_plain(Reply, item["reply"])

    def spent(self, step: int) -> Spent | None:
        """What was spent when a step began."""
        item = self.find("spent", step)
        return None if item is None else from_plain(Spent, item["spent"])

    @property
    def steps(self) -> int:
        """The last step of the record."""
        return max((item["step"] for item in self.events), default=0)

    @property
    def ending(self) -> str | None:
        """Why the run ended; None for one that was killed."""
        item = next((item for item in reversed(self.events) if item["event"] == "end"), None)
        return None if item is None else str(item["reason"])


def read(folder: Path) -> Recorded:
    """The record in `folder`. Raises: RecordError in one sentence for a folder that is none, or damaged before its last line."""
    try:
        data = json.loads((folder / HEADER).read_text(encoding="utf-8"))
        lines = (folder / EVENTS).read_bytes() if (folder / EVENTS).exists() else b""
    except (OSError, ValueError) as error:
        raise RecordError(f"{folder} is no run: {error}; `kforge runs list` shows those there are") from error
    if not isinstance(data, dict) or data.pop("format", None) != FORMAT:
        raise RecordError(f"{folder / HEADER} is not of the format {FORMAT}")
    recorded = Recorded(from_plain(Header, data))
    for number, line in enumerate(lines.split(b"\n"), 1):
        if len(line) + recorded.tail >= len(lines):
            break  # the rest after the last line end: a line that was being written
        try:
            item = json.loads(line)
            good = isinstance(item, dict) and isinstance(item.get("event"), str) and type(item.get("step")) is int
        except ValueError:
            good = False
        if not good:
            raise RecordError(f"{folder / EVENTS}: line {number} is damaged")
        recorded.events.append(item)
        recorded.tail += len(line) + 1
    return recorded


def cut(folder: Path, recorded: Recorded) -> None:
    """Drops the half line that a killed run left, and its end, so that events can be appended. Raises: OSError."""
    path = folder / EVENTS
    kept = [item for item in recorded.events if item["event"] not in ("end", "failure")]
    if path.exists() and (path.stat().st_size != recorded.tail or len(kept) != len(recorded.events)):
        fresh = path.with_name(f".{EVENTS}-{os.getpid()}")
        fresh.write_text("".join(json.dumps(item) + "\n" for item in kept), encoding="utf-8")
        os.replace(fresh, path)
    recorded.events = kept


def runs(root: Path) -> list[Path]:
    """The run folders below `root`, the oldest first; `root` itself where it is one."""
    if (root / HEADER).exists():
        return [root]
    return sorted(path.parent for path in root.glob(f"*/{HEADER}")) if root.is_dir() else []


def comparable(events: Sequence[Mapping[str, Any]]) -> list[dict[str, Any]]:
    """Events without their times: what a replay must reproduce."""
    return [{name: value for name, value in item.items() if name != "at"} for item in events]
