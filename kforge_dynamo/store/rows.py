"""Rows of text by name, on disk, and in memory where the disk fails.

Concurrency: any number of threads and processes may read and change the same rows. A change runs inside one SQLite
transaction (write-ahead log, one writer at a time, readers never wait), so it is seen whole or not at all, also when its
process is killed in the middle. SQLite's locks are needed: the folder must be on a local disk.

What fails on disk (read-only, full, locked for longer than `database.WAIT_S`, damaged) is logged once and happens in memory
instead; it is written together with the next change that succeeds. A damaged database is put aside under a lock, after a
second look, and a new one is made.
"""

from __future__ import annotations

import secrets
import sqlite3
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import TypeVar

import diskcache

from kforge_dynamo.store.database import Change, Reader, Writer, health, is_damage
from kforge_dynamo.store.notes import say_once
from kforge_dynamo.store.usage import locked

T = TypeVar("T")

_RETRY_S = 30.0  # after a failed write the disk is left alone for so long
_PENDING = 4096
_FAILURES = (sqlite3.Error, diskcache.Timeout, OSError, ValueError, TypeError)


class Index:
    """The rows in `folder`, under what could only be kept in memory. `folder` is None for memory alone."""

    def __init__(self, folder: Path | None, writable: bool) -> None:
        self._folder = folder
        self._reader = Reader(folder, writable) if folder is not None else None
        self._writer = Writer(folder) if folder is not None and writable else None
        self._memory: dict[str, str | None] = {}
        self._pending: list[Change] = []
        self._retry_at = 0.0
        self._lock = threading.RLock()

    def get(self, name: str) -> str | None:
        """The row's text, None where there is no row or it cannot be read."""
        if name in self._memory:
            return self._memory[name]
        return self._read(lambda reader: reader.get(name))

    def names(self, prefix: str) -> list[str]:
        """The names of all rows that begin with `prefix`, sorted."""
        found = set(self._read(Reader.names) or ())
        with self._lock:
            found = {name for name in found if self._memory.get(name, "") is not None}
            found |= {name for name, text in self._memory.items() if text is not None}
        return sorted(name for name in found if name.startswith(prefix))

    def sizes(self, prefix: str) -> dict[str, tuple[int, float]]:
        """Bytes and time of writing (seconds since the epoch) of the rows on disk that begin with `prefix`."""
        return self._read(lambda reader: reader.sizes(prefix)) or {}

    def edit(self, change: Change) -> bool:
        """Runs `change` as one transaction; True when it is on disk, False when it lasts for this process alone.

        `change` may run twice and must depend on nothing but the rows.
        """
        writer = self._writer
        if writer is not None and time.monotonic() >= self._retry_at:
            with self._lock:
                pending = list(self._pending)
            for _ in range(2):  # again where the first attempt met a damaged database and put it aside
                try:
                    writer.run([*pending, change])
                except _FAILURES as error:
                    if self._failed(error):
                        continue
                    break
                with self._lock:
                    self._pending = [item for item in self._pending if item not in pending]
                    if not self._pending:
                        self._memory.clear()
                return True
            self._retry_at = time.monotonic() + _RETRY_S
        with self._lock:
            change(_MemoryRows(self, self._memory))
            self._pending.append(change)
            del self._pending[:-_PENDING]
        return False

    def health(self) -> str | None:
        """What is wrong with the rows on disk, None when nothing is."""
        if self._folder is None:
            return "there is no folder; entries live in memory"
        if self._pending:
            return f"{len(self._pending)} changes could not be written and live in memory"
        return health(self._folder)

    def close(self) -> None:
        """Closes this thread's connections; they are opened again when needed."""
        for side in (self._reader, self._writer):
            if side is not None:
                side.close()

    def _read(self, question: Callable[[Reader], T]) -> T | None:
        if self._reader is None:
            return None
        try:
            return question(self._reader)
        except _FAILURES as error:
            self._failed(error)
            return None

    def _failed(self, error: BaseException) -> bool:
        """Says what happened; True where the database was damaged and is out of the way now."""
        assert self._folder is not None
        if self._writer is not None and is_damage(error, self._folder):
            return self._put_aside(self._folder, error)
        words = "it cannot be locked for writing" if isinstance(error, diskcache.Timeout) else str(error)
        say_once(f"the cache in {self._folder} cannot be used as it should ({words}); what it lacks is searched again")
        return False

    def _put_aside(self, folder: Path, error: BaseException) -> bool:
        self.close()
        try:
            with locked(folder.parent / "lock", shared=False):
                if health(folder) is None:  # another process was first
                    return True
                folder.rename(folder.with_name(f"{folder.name}.damaged-{secrets.token_hex(4)}"))
        except OSError as problem:
            say_once(f"the cache in {folder} is damaged ({error}) and cannot be put aside ({problem}); remove it")
            self._reader = self._writer = None
            return False
        say_once(f"the cache in {folder} was damaged ({error}); it was put aside and a new one is made")
        return True


class _MemoryRows:
    def __init__(self, index: Index, memory: dict[str, str | None]) -> None:
        self._index = index
        self._memory = memory

    def get(self, name: str) -> str | None:
        return self._index.get(name)

    def set(self, name: str, text: str) -> None:
        self._memory[name] = text

    def delete(self, name: str) -> None:
        self._memory[name] = None
