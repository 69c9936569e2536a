"""Where the user's cache lives, and whether it can be trusted and used.

A folder is refused when another user owns it or can write it (by its mode; access-control lists are not read), and not
written where its file system has no locks to rely on. A folder that can only be read is read. Where nothing usable is found,
a private folder below the platform's temporary one is used, and where even that fails there is none: the store then lives in
memory.
"""

from __future__ import annotations

import atexit
import os
import shutil
import stat
import tempfile
from dataclasses import dataclass
from pathlib import Path

import platformdirs

from kforge_dynamo.store.locks import lack

_PRIVATE = 0o700
_OTHERS_WRITE = stat.S_IWGRP | stat.S_IWOTH


@dataclass(frozen=True, slots=True)
class Folder:
    """`path` is None where no folder can be used. `problem` says what stood in the way of the one that was asked for."""

    path: Path | None
    writable: bool
    temporary: bool
    problem: str | None


def find(asked: str | None) -> Folder:
    """The folder to use: `asked`, else the platform's cache folder of this user, else a private temporary one."""
    wanted = Path(asked) if asked is not None else _platform_folder()
    if wanted is None or not wanted.is_absolute():
        return _temporary(f"this user has no home folder; set KFORGE_CACHE_DIR to a folder that only uid {_uid()} can write")
    problem = _unusable(wanted)
    if problem is not None:
        return _temporary(problem)
    if not os.access(wanted, os.W_OK | os.X_OK):
        return Folder(
            wanted, False, False, f"the cache folder {wanted} can only be read; new winners last for this process alone"
        )
    missing = lack(wanted)
    if missing is not None:
        return _temporary(
            f"the cache folder {wanted} {missing}; set KFORGE_CACHE_DIR to a local folder, and share winners as a layer "
            "(kforge cache export, KFORGE_CACHE_LAYERS)"
        )
    return Folder(wanted, True, False, None)


def _platform_folder() -> Path | None:
    try:
        return platformdirs.user_cache_path("kforge", appauthor=False)
    except (RuntimeError, KeyError, OSError):  # no home, no account; older releases return a path that begins with "~" instead
        return None


def make_private(path: Path) -> None:
    """Makes `path` and what is missing above it, for this user alone. Raises: OSError."""
    missing = [folder for folder in (path, *path.parents) if not folder.exists()]
    for folder in reversed(missing):
        folder.mkdir(mode=_PRIVATE, exist_ok=True)


def short_lived(base: Path | None, prefix: str) -> Path:
    """A new folder in `base` (None: the platform's temporary folder) that is removed when this process ends; a fork of it
    does not remove it. Raises: OSError."""
    path = Path(tempfile.mkdtemp(prefix=prefix, dir=base))
    atexit.register(_remove_if, os.getpid(), path)
    return path


def refusal(path: Path) -> str | None:
    """Why the existing folder `path` must not be trusted, None when it may."""
    facts = path.stat()
    if not stat.S_ISDIR(facts.st_mode):
        return f"the cache folder {path} is not a folder; remove it or set KFORGE_CACHE_DIR to another"
    if _uid() is None:
        return None
    if facts.st_uid != _uid():
        return f"the cache folder {path} belongs to uid {facts.st_uid}, not to uid {_uid()}; set KFORGE_CACHE_DIR to another"
    if facts.st_mode & _OTHERS_WRITE:
        mode = stat.S_IMODE(facts.st_mode)
        return f"the cache folder {path} can be written by other users (mode {mode:o}); run chmod 700 {path}"
    return None


def _unusable(path: Path) -> str | None:
    if os.path.expandvars(os.path.expanduser(path)) != str(path):
        return f"the cache folder {path} has a $ or ~ in its name, which the cache's library would replace; choose another name"
    try:
        make_private(path)
        return refusal(path)
    except OSError as error:
        return f"the cache folder {path} cannot be used ({error.strerror or error}); set KFORGE_CACHE_DIR to one that can"


def _temporary(problem: str) -> Folder:
    """The same private folder for every process of this user, so that a second one starts warm; else one for this process."""
    try:
        base = Path(tempfile.gettempdir())
        path = base / f"kforge-{_uid()}"
        path.mkdir(mode=_PRIVATE, exist_ok=True)
        if path.is_symlink() or refusal(path) is not None or not os.access(path, os.W_OK | os.X_OK):
            path = short_lived(base, "kforge-")
    except OSError as error:
        return Folder(None, False, True, f"{problem}; no temporary folder either ({error.strerror or error})")
    return Folder(path, True, True, f"{problem}; {path} is used instead")


def _remove_if(process: int, path: Path) -> None:
    if os.getpid() == process:
        shutil.rmtree(path, ignore_errors=True)


def _uid() -> int | None:
    return os.getuid() if hasattr(os, "getuid") else None
