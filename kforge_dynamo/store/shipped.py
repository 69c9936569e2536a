"""The layer that ships with kforge: winners as files, read-only, each checked against a manifest before it is used.

    kernel_cache/manifest.json                             digests of all files, and which entry answers for what
    kernel_cache/<device>/<task name>-<digest>/winner.json the entry, without its source
    kernel_cache/<device>/<task name>-<digest>/kernel.*    the source

The digest of the manifest stands in `store.pinned`, inside the package. A manifest with another digest is not used at all.
An installed wheel has the folder inside the package, an editable install beside it.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from kforge_dynamo.records.codec import digest
from kforge_dynamo.records.outcome import CacheKey, State, Winner
from kforge_dynamo.records.task import Domain
from kforge_dynamo.store.entries import Current, Entry, Found, judge, narrowness
from kforge_dynamo.store.envelope import MANIFEST, SCHEMA, Refused, parse, record_of
from kforge_dynamo.store.notes import say_once
from kforge_dynamo.store.pinned import MANIFEST_SHA256

NAME = "manifest.json"
WINNER = "winner.json"
"""Name of an entry's file in its folder."""


@dataclass(frozen=True, slots=True)
class ShippedLine:
    """One entry: the folder it is in, what it answers for, and the digests of its two files."""

    folder: str
    key: CacheKey
    domain: Domain
    winner_sha256: str
    source: str
    source_sha256: str


@dataclass(frozen=True, slots=True)
class Manifest:
    """All entries, sorted by folder."""

    schema: int
    entries: tuple[ShippedLine, ...]


def folder() -> Path | None:
    """Where the shipped winners are: in the package, or beside it in a source tree; None where there are none."""
    package = Path(__file__).resolve().parents[1]
    return next((path for path in (package / "kernel_cache", package.parent / "kernel_cache") if (path / NAME).is_file()), None)


class Shipped:
    """The winners in `home`, whose manifest has to have the digest `pinned`."""

    def __init__(self, home: Path | None, pinned: str = MANIFEST_SHA256) -> None:
        self.home = home
        self.version = pinned
        self.problem: str | None = None
        self._lines: dict[str, list[ShippedLine]] = {}
        self._memo: dict[str, Winner] = {}
        if home is None:
            self.problem = "no kernel_cache is installed beside the package; reinstall kforge-dynamo"
            return
        try:
            for line in read_manifest(home, pinned).entries:
                self._lines.setdefault(digest(line.key), []).append(line)
        except Refused as error:
            self.problem = f"the shipped winners in {home} are not used: their manifest {error}; reinstall kforge-dynamo"
            say_once(self.problem)

    def lookup(self, key: CacheKey, sizes: tuple[int, ...], current: Current | None) -> Found | None:
        """The narrowest winner of the present toolchain for `sizes`, else a stale one, else None."""
        stale: Found | None = None
        held = [line for line in self._lines.get(digest(key), ()) if line.domain.holds(sizes)]
        for line in sorted(held, key=lambda item: narrowness(item.domain)):
            winner = self._try(line)
            if winner is None:
                continue
            found = judge(winner, digest(winner), "shipped", current, None)
            if found.state is State.WINNER:
                return found
            stale = stale or found
        return stale

    def by_candidate(self, key: CacheKey, candidate: str) -> Winner | None:
        """The winner of `key` whose candidate has this digest."""
        for line in self._lines.get(digest(key), ()):
            winner = self._try(line)
            if winner is not None and digest(winner.trial.candidate) == candidate:
                return winner
        return None

    def all(self) -> Iterator[Entry]:
        """Every entry, each checked anew."""
        for lines in self._lines.values():
            for line in lines:
                self._memo.pop(line.folder, None)
                try:
                    winner = self._load(line)
                    yield Entry(digest(winner), "winner", line.key, line.domain, winner, None)
                except Refused as error:
                    yield Entry(line.winner_sha256, "winner", line.key, line.domain, None, f"{line.folder} {error}")

    def keys(self) -> Iterator[tuple[CacheKey, tuple[tuple[State, Domain], ...]]]:
        """Every key with the domains of its winners."""
        for lines in self._lines.values():
            yield lines[0].key, tuple((State.WINNER, line.domain) for line in lines)

    def _try(self, line: ShippedLine) -> Winner | None:
        try:
            return self._load(line)
        except Refused as error:
            say_once(f"the shipped winner {line.folder} {error}; it is not used")
            return None

    def _load(self, line: ShippedLine) -> Winner:
        """Raises: Refused."""
        known = self._memo.get(line.folder)
        if known is None:
            assert self.home is not None
            known = self._memo[line.folder] = read_winner(self.home, line)
        return known


def read_manifest(home: Path, pinned: str) -> Manifest:
    """The manifest in `home`. Raises: Refused where it has not the digest `pinned` or another schema."""
    text = _text(home / NAME, pinned)
    manifest: Manifest = record_of(Manifest, parse(text))
    if manifest.schema != SCHEMA:
        raise Refused(f"has the schema {manifest.schema}, not {SCHEMA}")
    return manifest


def read_winner(home: Path, line: ShippedLine) -> Winner:
    """The winner of a line, with its source. Raises: Refused."""
    if any(part in ("..", "") or "\\" in part for part in (*line.folder.split("/"), line.source)) or "/" in line.source:
        raise Refused("lies outside its layer")
    envelope = parse(_text(home / line.folder / WINNER, line.winner_sha256))
    source = _text(home / line.folder / line.source, line.source_sha256)
    winner = join_source(envelope, source)
    if winner.key != line.key or winner.domain != line.domain:
        raise Refused("answers for something else than its manifest says")
    return winner


def join_source(envelope: Any, source: str) -> Winner:
    """The winner whose entry leaves its source to a file of its own. Raises: Refused."""
    try:
        if envelope["schema"] != SCHEMA or envelope["authentication"]["method"] != MANIFEST:
            raise Refused(f"is not an entry of schema {SCHEMA} under a manifest")
        candidate = envelope["winner"]["trial"]["candidate"]
        if candidate["source"] != "":
            raise Refused("has its source twice")
        candidate["source"] = source
        return record_of(Winner, envelope["winner"])
    except (KeyError, TypeError) as error:
        raise Refused("has not the fields of an entry") from error


def _text(path: Path, sha256: str) -> str:
    try:
        data = path.read_bytes()
    except OSError as error:
        raise Refused(f"cannot be read ({error.strerror})") from error
    if hashlib.sha256(data).hexdigest() != sha256:
        raise Refused("was changed after it was shipped")
    try:
        return data.decode()
    except ValueError as error:
        raise Refused("is not UTF-8 text") from error
