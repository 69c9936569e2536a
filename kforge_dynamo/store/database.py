"""The database behind the rows: written by diskcache, read by SQLite.

diskcache takes write locks when it opens a database, and writes nothing but what it is given; so it is opened at the first
write and not before, and never where another process holds the lock for long. Reading needs neither: a process whose
answers are all there opens no more than one connection a thread.
"""

from __future__ import annotations

import contextlib
import os
import sqlite3
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any, Protocol, TypeVar

import diskcache

from kforge_dynamo.store.folder import make_private

T = TypeVar("T")

NAME = "cache.db"
WAIT_S = 10.0
_INLINE_BYTES = 1 << 30  # all values stand in the database itself: no second file that a crash could leave without its row
_SETTINGS = {
    "eviction_policy": "none",
    "cull_limit": 0,
    "size_limit": 1 << 50,
    "statistics": 0,
    "sqlite_mmap_size": 0,  # a mapped file that is cut short kills its readers
    "disk_min_file_size": _INLINE_BYTES,
}
_GET = "SELECT value FROM Cache WHERE key = ? AND raw = 1 AND mode = 1 AND filename IS NULL"  # mode 1: diskcache's MODE_RAW
_NAMES = "SELECT key FROM Cache WHERE raw = 1"

_SIZES = "SELECT key, length(value), store_time FROM Cache WHERE raw = 1 AND key >= ? AND key < ?"


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


class Writer:
    """Changes the database in `folder`, made where there is none."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._cache: diskcache.Cache | None = None
        self._identity: tuple[int, int] | None = None
        self._lock = threading.Lock()

    def run(self, changes: list[Change]) -> None:
        """All of `changes` in one transaction. Raises: sqlite3.Error, diskcache.Timeout, OSError."""
        cache = self._open()
        try:
            with cache.transact():
                rows = _DiskRows(cache)
                for change in changes:
                    change(rows)
        except BaseException:
            self.close()  # a commit that failed leaves its transaction open in this connection
            raise

    def close(self) -> None:
        """Closes this thread's connection."""
        with self._lock:
            cache, self._cache = self._cache, None
        if cache is not None:
            with contextlib.suppress(sqlite3.Error):
                cache.close()

    def _open(self) -> diskcache.Cache:
        path = self._folder / NAME
        if self._cache is not None and _identity(path) != self._identity:
            self.close()  # another process has put it aside: what is written to the old file would be lost
        with self._lock:
            if self._cache is None:
                make_private(self._folder)
                _wait_for_lock(path)
                self._cache = diskcache.Cache(str(self._folder), timeout=WAIT_S, disk=TextDisk, **_SETTINGS)
                self._identity = _identity(path)
            return self._cache


class Reader:
    """Reads the database in `folder`, which may be on a read-only disk."""

    def __init__(self, folder: Path, writable: bool) -> None:
        self._path = folder / NAME
        self._modes = ("mode=rw",) if writable else ("mode=ro", "mode=ro&immutable=1")
        self._local = threading.local()

    def get(self, name: str) -> str | None:
        """The row's text, None where there is none. Raises: sqlite3.Error, OSError."""
        row = self._ask(lambda connection: connection.execute(_GET, (name,)).fetchone())
        return row[0] if row is not None and type(row[0]) is str else None

    def names(self) -> list[str]:
        """The names of all rows. Raises: sqlite3.Error, OSError."""
        rows = self._ask(lambda connection: connection.execute(_NAMES).fetchall()) or []
        return [row[0] for row in rows if type(row[0]) is str]

    def sizes(self, prefix: str) -> dict[str, tuple[int, float]]:
        """Bytes and time of writing of the rows that begin with `prefix`. Raises: sqlite3.Error, OSError."""
        rows = self._ask(lambda connection: connection.execute(_SIZES, (prefix, prefix + "\U0010ffff")).fetchall()) or []
        return {name: (int(size or 0), float(made or 0.0)) for name, size, made in rows if type(name) is str}

    def close(self) -> None:
        """Closes this thread's connection."""
        connection = getattr(self._local, "connection", None)
        self._local.connection = None
        if connection is not None:
            with contextlib.suppress(sqlite3.Error):
                connection.close()

    def _ask(self, question: Callable[[sqlite3.Connection], T]) -> T | None:
        """The answer, None where there is no database."""
        holder = (os.getpid(), _identity(self._path))
        if holder[1] is None:
            return None
        if getattr(self._local, "connection", None) is None or self._local.holder != holder:
            self.close()
            self._local.connection, self._local.holder = self._connect(), holder
        try:
            return question(self._local.connection)
        except sqlite3.Error as error:
            self.close()
            if _is_being_made(error):
                return None
            raise

    def _connect(self) -> sqlite3.Connection:
        """On a read-only disk the database's log cannot be opened: what stands in it alone is then missing."""
        problem: sqlite3.Error | None = None
        for mode in self._modes:
            connection = sqlite3.connect(f"{self._path.as_uri()}?{mode}", uri=True, timeout=WAIT_S, isolation_level=None)
            try:
                connection.execute("PRAGMA query_only = 1")
                connection.execute("SELECT 1 FROM sqlite_master LIMIT 1").fetchone()
            except sqlite3.Error as error:
                connection.close()
                problem = error
            else:
                return connection
        assert problem is not None
        raise problem


def health(folder: Path) -> str | None:
    """What is wrong with the database in `folder`, None when nothing is or there is none."""
    path = folder / NAME
    if not path.exists():
        return None
    try:
        with contextlib.closing(sqlite3.connect(f"{path.as_uri()}?mode=ro", uri=True, timeout=WAIT_S)) as connection:
            answer = str(connection.execute("PRAGMA quick_check(1)").fetchone()[0])
            connection.execute("SELECT key, raw, mode, filename, value FROM Cache LIMIT 1").fetchone()
    except sqlite3.Error as error:
        return None if _is_being_made(error) else str(error)
    return None if answer == "ok" else answer


def is_damage(error: BaseException, folder: Path) -> bool:
    """Whether the database itself is broken, rather than busy, full or forbidden."""
    path = folder / NAME
    if path.exists() and not path.is_file():
        return True
    if isinstance(error, sqlite3.OperationalError):
        return "no such column" in str(error)
    return isinstance(error, sqlite3.DatabaseError)


class _DiskRows:
    def __init__(self, cache: diskcache.Cache) -> None:
        self._cache = cache

    def get(self, name: str) -> str | None:
        try:
            text: str | None = self._cache.get(name, default=None)
        except ValueError:  # a row that kforge did not write counts as missing, and is written over
            return None
        return text

    def set(self, name: str, text: str) -> None:
        self._cache.set(name, text)

    def delete(self, name: str) -> None:
        self._cache.delete(name)


def _is_being_made(error: sqlite3.Error) -> bool:
    """Whether the database has no tables yet: its maker is at work, or was killed there, and the next writer goes on."""
    return isinstance(error, sqlite3.OperationalError) and "no such table" in str(error)


def _identity(path: Path) -> tuple[int, int] | None:
    try:
        facts = os.stat(path)
    except OSError:
        return None
    return facts.st_dev, facts.st_ino


def _wait_for_lock(path: Path) -> None:
    """Waits at most `WAIT_S` for the write lock: diskcache would wait for a minute at each of its first statements.

    Raises: diskcache.Timeout, sqlite3.Error.
    """
    if not path.exists():
        return
    with contextlib.closing(sqlite3.connect(path, timeout=WAIT_S, isolation_level=None)) as connection:
        try:
            connection.execute("BEGIN IMMEDIATE")
            connection.execute("ROLLBACK")
        except sqlite3.OperationalError as error:
            if "locked" in str(error):
                raise diskcache.Timeout from error
            raise
