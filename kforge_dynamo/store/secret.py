"""The key that vouches for entries of the user's cache: 32 random bytes in a file that only this user can read.

It is made at first use: written whole into a file of its own, then linked to its name, so that of several processes that
start at once one wins and all read the same key, and a process killed in between leaves no half key. A key that is damaged,
or that another user could have read or written, is put aside; the entries it vouched for are misses from then on.
"""

from __future__ import annotations

import hashlib
import hmac
import os
import secrets
import stat
from dataclasses import dataclass
from pathlib import Path

from kforge_dynamo.store.notes import say_once

NAME = "key"
_BYTES = 32
_FLAGS = os.O_RDONLY | sum(getattr(os, name, 0) for name in ("O_NOFOLLOW", "O_NONBLOCK", "O_BINARY"))
_ATTEMPTS = 8  # each repeats only when another process changed the file in between


@dataclass(frozen=True, slots=True, repr=False)
class Secret:
    """The key. `key_id` names it in entries without giving it away."""

    material: bytes

    @property
    def key_id(self) -> str:
        """16 hexadecimal digits of a digest of the key."""
        return hashlib.sha256(b"kforge key id" + self.material).hexdigest()[:16]

    def tag(self, text: str) -> str:
        """HMAC-SHA256 of `text` as 64 hexadecimal digits."""
        return hmac.new(self.material, text.encode(), hashlib.sha256).hexdigest()


def ephemeral() -> Secret:
    """A key for entries that live no longer than this process."""
    return Secret(secrets.token_bytes(_BYTES))


def load(folder: Path) -> Secret | None:
    """The key of `folder`, None where it has none that may be used."""
    material, _ = read(folder / NAME)
    return Secret(material) if material is not None else None


def load_or_make(folder: Path) -> Secret:
    """The key of `folder`, made where there is none or none that may be used. Raises: OSError."""
    path = folder / NAME
    for _ in range(_ATTEMPTS):
        material, problem = read(path)
        if material is not None:
            return Secret(material)
        if problem is not None:
            say_once(f"the cache's key {path} {problem}; it was put aside, and entries made with it are searched again")
            _put_aside(path)
        make(path)
    raise OSError(f"the cache's key {path} changes while it is read")


def read(path: Path) -> tuple[bytes | None, str | None]:
    """The 32 bytes in a file of this user alone, or why the file there cannot hold a key; neither where there is no file."""
    try:
        handle = os.open(path, _FLAGS)
    except FileNotFoundError:
        return None, None
    except OSError as error:
        return None, f"cannot be read ({error.strerror})"
    try:
        facts = os.fstat(handle)
        if not stat.S_ISREG(facts.st_mode):
            return None, "is not a file"
        if hasattr(os, "getuid") and (facts.st_uid != os.getuid() or facts.st_mode & 0o077):
            return None, "is not this user's alone"
        material = os.read(handle, _BYTES + 1)
    finally:
        os.close(handle)
    return (material, None) if len(material) == _BYTES else (None, "is damaged")


def make(path: Path) -> None:
    """Writes 32 random bytes to `path`, for this user alone; what is there already stays. Raises: OSError."""
    fresh = path.with_name(f".{path.name}-{os.getpid()}-{secrets.token_hex(8)}")
    handle = os.open(fresh, os.O_WRONLY | os.O_CREAT | os.O_EXCL | getattr(os, "O_BINARY", 0), 0o600)
    try:
        with os.fdopen(handle, "wb") as stream:
            stream.write(secrets.token_bytes(_BYTES))
            stream.flush()
            os.fsync(stream.fileno())
        try:
            os.link(fresh, path)
        except FileExistsError:
            return
        except (
            OSError
        ):  # a file system without hard links: the rename may replace a key made a moment ago, the next read settles it
            if not path.exists():
                os.replace(fresh, path)
    finally:
        fresh.unlink(missing_ok=True)


def _put_aside(path: Path) -> None:
    """Moves the file away unless another process has done so already."""
    try:
        path.rename(path.with_name(f"{path.name}.aside-{secrets.token_hex(4)}"))
    except FileNotFoundError:
        return
