"""Rows of text by name: on disk by diskcache, read-only by SQLite, or in memory.

Concurrency: any number of threads and processes may read and change the same rows. A change runs inside one SQLite
transaction (write-ahead log, one writer at a time, readers never wait), so it is seen whole or not at all, also when its
process is killed in the middle. SQLite's locks are needed: the folder must be on a local disk.

Whatever fails on disk (read-only, full, locked for longer than `_WAIT_S`, damaged) is logged once and happens in memory
instead; a damaged database is put aside under a lock, after a second look, and a new one is made.
"""

from __future__ import annotations

import contextlib
import os
import secrets
import sqlite3
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, Protocol

import diskcache

from kforge_dynamo.store.folder import make_private
from kforge_dynamo.store.notes import say_once

try:
    import fcntl
except ImportError:  # Windows has none; two processes may then both put a damaged database aside, and lose misses only
    fcntl = None  # type: ignore[assignment]

_WAIT_S = 20.0
_RETRY_S = 30.0  # after a failure the disk is left alone for so long
_PENDING = 4096
_INLINE_BYTES = 1 << 30  # all values stand in the database itself: no second file that a crash could leave without its row
_SETTINGS = {
    "eviction_policy": "none",
    "cull_limit": 0,
    "size_limit": 1 << 50,
    "statistics": 0,
    "sqlite_mmap_size": 0,  # a mapped file that is cut short kills its readers
    "disk_min_file_size": _INLINE_BYTES,
}
_FAILURES = (sqlite3.Error, diskcache.Timeout, OSError, ValueError, TypeError)


class Rows(Protocol):
    """What a change sees."""

    def get(self, name: str) -> str | None:
        """The row's text."""

    def set(self, name: str, text: str) -> None:
        """Writes a row."""

    def delete(self, name: str) -> None:
        """Removes a row, if it is there."""


Change = Callable[[Rows], None]


class TextDisk(diskcache.Disk):  # type: ignore[misc]  # diskcache has no types
    """Text keys and text values; nothing is ever pickled or unpickled (CVE-2025-69872), no value lives in a file of its own."""

    def put(self, key: Any) -> tuple[str, bool]:
        """Raises: TypeError for a key that is not text."""
        if type(key) is not str:
            raise TypeError(f"a row's name is text, found {type(key).__name__}")
        return key, True

    def get(self, key: Any, raw: bool) -> str:
        """Raises: ValueError for a key that is not text."""
        if not raw or type(key) is not str:
            raise ValueError("the row's name is not text; it was not written by kforge")
        return key

    def store(self, value: Any, read: bool, key: Any = diskcache.UNKNOWN) -> Any:
        """Raises: TypeError for a value that is not text."""
        if type(value) is not str or read:
            raise TypeError(f"a row's value is text, found {type(value).__name__}")
        return super().store(value, read, key=key)

    def fetch(self, mode: int, filename: str | None, value: Any, read: bool) -> str:
        """Raises: ValueError for a value that is not text in its row."""
        if mode != diskcache.core.MODE_RAW or filename is not None or type(value) is not str:
            raise ValueError("the row's value is not text; it was not written by kforge")
        return value


class Index:
    """The rows in `folder`, under what could only be kept in memory. `folder` is None for memory alone."""

    def __init__(self, folder: Path | None, writable: bool) -> None:
        self._folder = folder
        self._writable = writable
        self._cache: diskcache.Cache | None = None
        self._identity: tuple[int, int] | None = None
        self._memory: dict[str, str | None] = {}
        self._pending: list[Change] = []
        self._retry_at = 0.0
        self._lock = threading.RLock()

    def get(self, name: str) -> str | None:
        """The row's text, None where there is no row or it cannot be read."""
        if name in self._memory:
            return self._memory[name]
        text: str | None = self._read(lambda: self._disk_get(name))
        return text

    def names(self, prefix: str) -> list[str]:
        """The names of all rows that begin with `prefix`, sorted."""
        found = set(self._read(self._disk_names) or ())
        with self._lock:
            found = {name for name in found if self._memory.get(name, "") is not None}
            found |= {name for name, text in self._memory.items() if text is not None}
        return sorted(name for name in found if name.startswith(prefix))

    def edit(self, change: Change) -> bool:
        """Runs `change` as one transaction; True when it is on disk, False when it lasts for this process alone.

        `change` may run twice and must depend on nothing but the rows.
        """
        if self._folder is not None and self._writable and time.monotonic() >= self._retry_at:
            try:
                self._to_disk(change)
                return True
            except _FAILURES as error:
                self._retry_at = time.monotonic() + _RETRY_S
                self._failed(error)
        with self._lock:
            change(_MemoryRows(self))
            self._pending.append(change)
            del self._pending[:-_PENDING]
        return False

    def _to_disk(self, change: Change) -> None:
        """Earlier changes that could only be kept in memory go first, in the same transaction."""
        self._refresh()
        cache = self._open()
        with self._lock:
            pending = list(self._pending)
        with cache.transact():
            for each in (*pending, change):
                each(_DiskRows(cache))
        if pending:
            with self._lock:
                self._pending.clear()
                self._memory.clear()

    def health(self) -> str | None:
        """What is wrong with the rows on disk, None when nothing is."""
        if self._folder is None:
            return "there is no folder; entries live in memory"
        path = self._folder / "cache.db"
        try:
            with contextlib.closing(sqlite3.connect(f"{path.as_uri()}?mode=ro", uri=True)) as connection:
                answer = str(connection.execute("PRAGMA quick_check(1)").fetchone()[0])
                connection.execute("SELECT key, raw, mode, filename, value FROM Cache LIMIT 1").fetchone()
            return None if answer == "ok" else answer
        except sqlite3.Error as error:
            return None if not path.exists() else str(error)

    def _read(self, read: Callable[[], Any]) -> Any:
        if self._folder is None:
            return None
        try:
            return read()
        except _FAILURES as error:
            self._failed(error)
            return None

    def _disk_get(self, name: str) -> str | None:
        if self._writable:
            text: str | None = self._open().get(name, default=None)
            return text
        with self._frozen() as connection:
            row = connection.execute("SELECT value FROM Cache WHERE key = ? AND raw = 1 AND mode = 1", (name,)).fetchone()
        return row[0] if row is not None and type(row[0]) is str else None

    def _disk_names(self) -> list[str]:
        with self._frozen() as connection:
            return [row[0] for row in connection.execute("SELECT key FROM Cache WHERE raw = 1") if type(row[0]) is str]

    def _open(self) -> diskcache.Cache:
        with self._lock:
            if self._cache is None:
                assert self._folder is not None
                make_private(self._folder)
                self._cache = diskcache.Cache(str(self._folder), timeout=_WAIT_S, disk=TextDisk, **_SETTINGS)
                self._identity = self._file()
            return self._cache

    def _file(self) -> tuple[int, int] | None:
        assert self._folder is not None
        try:
            facts = os.stat(self._folder / "cache.db")
        except OSError:
            return None
        return facts.st_dev, facts.st_ino

    def _refresh(self) -> None:
        """Another process may have removed the database or put it aside: what is written to the old file would be lost."""
        if self._cache is not None and self._file() != self._identity:
            self._close()

    def _close(self) -> None:
        with self._lock:
            cache, self._cache = self._cache, None
        if cache is not None:
            with contextlib.suppress(*_FAILURES):
                cache.close()

    @contextlib.contextmanager
    def _frozen(self) -> Iterator[sqlite3.Connection]:
        """A connection to a database that cannot be written. Its log cannot be read on a read-only disk: then without it."""
        assert self._folder is not None
        path = self._folder / "cache.db"
        if not path.exists():
            raise FileNotFoundError(path)
        for mode in ("mode=ro", "mode=ro&immutable=1"):
            with contextlib.closing(sqlite3.connect(f"{path.as_uri()}?{mode}", uri=True, timeout=_WAIT_S)) as connection:
                try:
                    connection.execute("SELECT count(*) FROM Settings").fetchone()
                except sqlite3.OperationalError:
                    continue
                yield connection
                return
        raise sqlite3.OperationalError("the database cannot be read")

    def _failed(self, error: BaseException) -> None:
        if isinstance(error, FileNotFoundError):
            return
        if _is_damage(error) and self._writable:
            self._put_aside(error)
            return
        words = str(error) or f"another process held it for {_WAIT_S:g} s"
        say_once(f"the cache in {self._folder} cannot be used as it should ({words}); what it lacks is searched again")

    def _put_aside(self, error: BaseException) -> None:
        assert self._folder is not None
        self._close()
        try:
            with _locked(self._folder.parent / "lock"):
                if self.health() is None:
                    return
                self._folder.rename(self._folder.with_name(f"{self._folder.name}.damaged-{secrets.token_hex(4)}"))
        except OSError as problem:
            say_once(f"the cache in {self._folder} is damaged ({error}) and cannot be put aside ({problem}); remove it")
            self._folder = None
            return
        say_once(f"the cache in {self._folder} was damaged ({error}); it was put aside and a new one was made")


class _DiskRows:
    def __init__(self, cache: diskcache.Cache) -> None:
        self._cache = cache

    def get(self, name: str) -> str | None:
        text: str | None = self._cache.get(name, default=None)
        return text

    def set(self, name: str, text: str) -> None:
        self._cache.set(name, text)

    def delete(self, name: str) -> None:
        self._cache.delete(name)


class _MemoryRows:
    def __init__(self, index: Index) -> None:
        self._index = index

    def get(self, name: str) -> str | None:
        return self._index.get(name)

    def set(self, name: str, text: str) -> None:
        self._index._memory[name] = text

    def delete(self, name: str) -> None:
        self._index._memory[name] = None


def _is_damage(error: BaseException) -> bool:
    """Whether the database itself is broken, rather than busy, full or forbidden."""
    if isinstance(error, sqlite3.OperationalError):
        return "no such table" in str(error) or "no such column" in str(error)
    return isinstance(error, sqlite3.DatabaseError)


@contextlib.contextmanager
def _locked(path: Path) -> Iterator[None]:
    """Holds an advisory lock that ends with the process."""
    with path.open("a") as stream:
        if fcntl is not None:
            fcntl.flock(stream, fcntl.LOCK_EX)
        yield
