"""Who uses what: each process names the entries and built kernels it runs in a file of its own, and holds a lock on it.

The lock ends with the process, however it ends, so a file without a lock is the last word of a process that is gone: when it
was written is when its names were last used. Nothing on the path of a lookup is written but one line at the first use.

Where the file system has no locks a file counts as held for `_HELD_S` after its last line. `kept` must be held while
entries are removed: a process that starts to use one waits for it, and then sees that the entry is gone.
"""

from __future__ import annotations

import contextlib
import os
import secrets
import threading
import time
from collections.abc import Iterator
from pathlib import Path

from kforge_dynamo.store.folder import make_private

try:
    import fcntl
except ImportError:  # Windows has none; see above
    fcntl = None  # type: ignore[assignment]

_HELD_S = 30 * 86400.0
_LOCK = "lock"


class Usage:
    """The use of what lies below `home`; None where nothing can be noted."""

    def __init__(self, home: Path | None) -> None:
        self._home = home
        self._folder = home / "use" if home is not None else None
        self._mine: tuple[int, int, Path] | None = None
        self._names: set[str] = set()
        self._lock = threading.Lock()

    def note(self, name: str) -> bool:
        """Says that this process uses `name` until it ends; True the first time, when the caller should look whether it is
        still there. Never raises."""
        with self._lock:
            if self._folder is None:
                return False
            if self._mine is None or self._mine[0] != os.getpid():
                self._names = set()  # a fork holds its parent's file too, and begins one of its own
            if name in self._names:
                return False
            self._names.add(name)
            with contextlib.suppress(OSError), locked(self._folder.parent / _LOCK, shared=True):
                os.write(self._handle(self._folder), f"{name}\n".encode())
                return True
            return False

    def held(self) -> set[str]:
        """The names in use by processes that live."""
        return {name for path in self._files() if _is_held(path) for name in _names(path)}

    def last_used(self) -> dict[str, float]:
        """When each name was last used, in seconds since the epoch, as far as files tell."""
        found: dict[str, float] = {}
        for path in self._files():
            with contextlib.suppress(OSError):
                when = path.stat().st_mtime
                for name in _names(path):
                    found[name] = max(when, found.get(name, 0.0))
        return found

    def forget_ended(self) -> None:
        """Removes the files of processes that are gone; what they say should have been kept elsewhere."""
        for path in self._files():
            if not _is_held(path):
                with contextlib.suppress(OSError):
                    path.unlink()

    def count(self) -> int:
        """How many files there are."""
        return len(self._files())

    @contextlib.contextmanager
    def kept(self) -> Iterator[None]:
        """Holds off processes that begin to use something. Where there are no locks, nothing."""
        if self._home is None:
            yield
            return
        with contextlib.ExitStack() as stack:
            with contextlib.suppress(OSError):
                stack.enter_context(locked(self._home / _LOCK, shared=False))
            yield

    def _files(self) -> list[Path]:
        with contextlib.suppress(OSError):
            return sorted(self._folder.glob("*.use")) if self._folder is not None else []
        return []

    def _handle(self, folder: Path) -> int:
        if self._mine is None or self._mine[0] != os.getpid() or not self._mine[2].exists():
            make_private(folder)
            path = folder / f"{os.getpid()}-{secrets.token_hex(6)}.use"
            handle = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600)
            if fcntl is not None:
                with contextlib.suppress(OSError):
                    fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
            self._mine = (os.getpid(), handle, path)
        return self._mine[1]


@contextlib.contextmanager
def locked(path: Path, shared: bool) -> Iterator[None]:
    """Holds an advisory lock that ends with the process; none where the file system has none. Raises: OSError."""
    with path.open("a") as stream:
        if fcntl is not None:
            with contextlib.suppress(OSError):
                fcntl.flock(stream, fcntl.LOCK_SH if shared else fcntl.LOCK_EX)
        yield


def _is_held(path: Path) -> bool:
    try:
        with path.open("rb") as stream:
            if fcntl is not None:
                try:
                    fcntl.flock(stream, fcntl.LOCK_EX | fcntl.LOCK_NB)
                except BlockingIOError:
                    return True
                except OSError:
                    pass
                else:
                    return False
            return time.time() - path.stat().st_mtime < _HELD_S
    except OSError:
        return False


def _names(path: Path) -> list[str]:
    """The whole lines of a file; a line that was cut off names nothing."""
    with contextlib.suppress(OSError):
        return path.read_text(errors="replace").split("\n")[:-1]
    return []
