"""Keeping the user's cache below its limit: what was not used for longest goes first, what is in use stays.

An entry, a built kernel and a copy of a remote file each count with their bytes and the time of their last use. Built kernels
and copies can be made again, entries cost a search; all go by the same order, because one in use protects the other.
"""

from __future__ import annotations

import contextlib
import shutil
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from kforge_dynamo.store.artifacts import Artifacts
from kforge_dynamo.store.database import Change, Rows
from kforge_dynamo.store.entries import Entries
from kforge_dynamo.store.rows import Index
from kforge_dynamo.store.usage import Usage

SHARE = 0.9
"""An automatic prune goes down to this part of the limit, so that the next write does not prune again."""


@dataclass(frozen=True, slots=True)
class Pruned:
    """What a prune removed, and the size before and after; `in_use` were spared although their turn had come."""

    entries: int
    kernels: int
    copies: int
    in_use: int
    before_bytes: int
    after_bytes: int


@dataclass(frozen=True, slots=True)
class Parts:
    """The parts of a user's cache in `home`."""

    home: Path
    index: Index
    entries: Entries
    artifacts: Artifacts
    usage: Usage

    def size_bytes(self) -> int:
        """What rows, built kernels and copies take, without what the database keeps free for itself."""
        rows = sum(size for size, _ in self.index.sizes("").values())
        return rows + self.artifacts.size_bytes() + sum(path.stat().st_size for path in _copies(self))


@dataclass(frozen=True, slots=True)
class _Item:
    name: str
    size_bytes: int
    used_s: float


def prune(parts: Parts, limit_bytes: float, unused_s: float | None = None) -> Pruned:
    """Removes what was put aside; then, longest unused first, until the cache has at most `limit_bytes`, and with `unused_s`
    also what nobody used for so many seconds."""
    before = parts.size_bytes()
    _put_away(parts)
    with parts.usage.kept():
        items = _items(parts)
        held = parts.usage.held()
        over = parts.size_bytes() - limit_bytes
        oldest = time.time() - unused_s if unused_s is not None else None
        gone: set[str] = set()
        spared = 0
        for item in sorted(items, key=lambda item: item.used_s):
            if over <= 0 and (oldest is None or item.used_s >= oldest):
                continue
            if item.name in held:
                spared += 1
                continue
            gone.add(item.name)
            over -= item.size_bytes
        counts = _remove(parts, gone)
        _remember(parts, {item.name: item.used_s for item in items if item.name not in gone})
    return Pruned(*counts, spared, before, parts.size_bytes())


def _items(parts: Parts) -> list[_Item]:
    known = {name.removeprefix("used:"): _seconds(parts.index.get(name)) for name in parts.index.names("used:")}
    seen = parts.usage.last_used()

    def used(name: str, made_s: float) -> float:
        return max(made_s, known.get(name, 0.0), seen.get(name, 0.0))

    items = [_Item(name, size, used(name, made)) for name, (size, made) in parts.index.sizes("entry:").items()]
    for home, size, made in parts.artifacts.sizes():
        items.append(_Item(f"kernel:{home.name}", size, used(f"kernel:{home.name}", made)))
    for path in _copies(parts):
        with contextlib.suppress(OSError):
            facts = path.stat()
            items.append(_Item(f"copy:{path.name}", facts.st_size, used(f"copy:{path.name}", facts.st_mtime)))
    return items


def _remove(parts: Parts, gone: set[str]) -> tuple[int, int, int]:
    def counted(kind: str, remove: Callable[[str], None]) -> int:
        names = [name.removeprefix(kind) for name in gone if name.startswith(kind)]
        for name in names:
            remove(name)
        return len(names)

    listed = {name.removeprefix("entry:") for name in gone if name.startswith("entry:")}
    entries = parts.entries.evict(lambda name, key, domain: name in listed)
    unlisted = [f"entry:{name}" for name in listed if parts.index.get(f"entry:{name}") is not None]
    if unlisted:  # entries that no line lists: their writer was killed, or their list was damaged
        parts.index.edit(_deletion(unlisted))
    kernels = counted("kernel:", parts.artifacts.remove)
    copies = counted("copy:", lambda name: (parts.home / "remote" / name).unlink(missing_ok=True))
    return entries + len(unlisted), kernels, copies


def _remember(parts: Parts, used: dict[str, float]) -> None:
    """Moves what files of ended processes say into rows, and drops rows of what is gone."""
    rows_now = set(parts.index.names("used:"))
    wanted = {f"used:{name}": repr(round(when, 3)) for name, when in used.items()}

    def change(rows: Rows) -> None:
        for name in rows_now - set(wanted):
            rows.delete(name)
        for name, text in wanted.items():
            rows.set(name, text)

    if parts.index.edit(change):
        parts.usage.forget_ended()


def _put_away(parts: Parts) -> None:
    """What was put aside because it was damaged or refused: nothing reads it."""
    names = parts.index.names("aside:")
    if names:
        parts.index.edit(_deletion(names))
    for path in parts.home.glob("*.damaged-*"):
        shutil.rmtree(path, ignore_errors=True)


def _deletion(names: list[str]) -> Change:
    def change(rows: Rows) -> None:
        for name in names:
            rows.delete(name)

    return change


def _copies(parts: Parts) -> list[Path]:
    with contextlib.suppress(OSError):
        return [path for path in (parts.home / "remote").iterdir() if path.is_file()]
    return []


def _seconds(text: str | None) -> float:
    try:
        return float(text or 0.0)
    except ValueError:
        return 0.0
