"""Lessons of the agents, kept beside the winners: one sealed file each, authenticated like an entry.

A lesson goes into prompts only and is never executed; a file that was changed outside kforge is left out all the same.
"""

from __future__ import annotations

import os
from pathlib import Path

from kforge_dynamo.records.codec import digest
from kforge_dynamo.records.diagnosis import Lesson
from kforge_dynamo.store.envelope import Refused, seal, unseal
from kforge_dynamo.store.notes import say_once
from kforge_dynamo.store.secret import Secret

MOST = 2000
"""Lessons that are kept; the oldest go first."""


class Lessons:
    """The lessons in `folder`; None where nothing can be kept."""

    def __init__(self, folder: Path | None, secret: Secret, writable: bool) -> None:
        self._folder, self._secret, self._writable = folder, secret, writable

    def all(self) -> list[Lesson]:
        """Every lesson that is authentic, in the order of their digests."""
        found = []
        for path in self._paths():
            try:
                found.append(unseal("lesson", Lesson, path.read_text(encoding="utf-8"), self._secret, path.stem))
            except (Refused, OSError, UnicodeDecodeError) as error:
                say_once(f"the lesson {path.name} {error}; it is left out")
        return found

    def add(self, lesson: Lesson) -> bool:
        """Keeps a lesson; False where it cannot be written."""
        if self._folder is None or not self._writable:
            return False
        try:
            self._folder.mkdir(parents=True, exist_ok=True, mode=0o700)
            path = self._folder / f"{digest(lesson)}.json"
            temporary = path.with_name(f".{path.name}-{os.getpid()}")
            temporary.write_text(seal("lesson", lesson, self._secret), encoding="utf-8")
            os.replace(temporary, path)
            for old in sorted(self._paths(), key=lambda item: item.stat().st_mtime)[:-MOST]:
                old.unlink(missing_ok=True)
        except OSError as error:
            say_once(f"a lesson could not be kept: {error}")
            return False
        return True

    def clear(self) -> int:
        """Forgets all lessons; how many there were."""
        paths = self._paths()
        for path in paths:
            path.unlink(missing_ok=True)
        return len(paths)

    def _paths(self) -> list[Path]:
        return sorted(self._folder.glob("*.json")) if self._folder is not None and self._folder.is_dir() else []
