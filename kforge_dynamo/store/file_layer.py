"""A layer as files, read-only: each is checked against a manifest before it is used, and the manifest against a digest.

    manifest.json                             digests of all files, and which entry answers for what
    <device>/<task name>-<digest>/winner.json the entry (key, domain, verdict, measurements, plan), without its source
    <device>/<task name>-<digest>/kernel.*    the source

Who vouches for the manifest's digest is the caller's affair: the package for what ships, a signature or the user's word for
a shared layer. Binaries are never part of a layer.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

from kforge_dynamo.records.codec import digest
from kforge_dynamo.records.outcome import CacheKey, Standing, State, Terms, Winner
from kforge_dynamo.records.task import Domain
from kforge_dynamo.store.entries import Current, Entry, Found, better, judge, narrowness
from kforge_dynamo.store.envelope import MANIFEST, SCHEMA, Refused, canonical, named, parse, record_of
from kforge_dynamo.store.notes import say_once
from kforge_dynamo.store.places import Files

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


class FileLayer:
    """The winners in `files` under the manifest with the digest `pinned`, and beside them `standings`.

    `name` is how people are told of the layer. Raises: Refused where the manifest is not
    the one with this digest.
    """

    def __init__(self, files: Files, pinned: str, name: str, standings: Sequence[Standing] = (), manifest: str = NAME) -> None:
        self.name = name
        self._pinned = pinned
        self._files = files
        self._lines: dict[str, list[ShippedLine | dict[str, Any]]] = {}  # JSON data until a line is asked for
        self._standings: dict[str, list[Standing]] = {}
        self._memo: dict[str, tuple[Winner, str]] = {}
        for data in _entries(parse(text_of(files, manifest, pinned))):
            self._lines.setdefault(named(CacheKey, canonical(data["key"])), []).append(data)
        for standing in standings:
            self._standings.setdefault(digest(standing.key), []).append(standing)

    def lookup(self, key: CacheKey, sizes: tuple[int, ...], current: Current | None, terms: Terms | None = None) -> Found | None:
        """The narrowest winner of the present toolchain for `sizes`, else a "no winner", else a stale winner, else None."""
        name = digest(key)
        best: Found | None = None
        held = [line for line in self._of(name) if line.domain.holds(sizes)]
        for line in sorted(held, key=lambda item: narrowness(item.domain)):
            loaded = self._try(line)
            if loaded is None:
                continue
            found = judge(*loaded, self.name, current, None)
            if found.state is State.WINNER:
                return found
            best = better(best, found)
        for standing in self._standings.get(name, ()):
            if standing.key == key and standing.domain.holds(sizes):
                best = better(best, judge(standing, digest(standing), self.name, current, terms))
        return best

    def by_candidate(self, key: CacheKey, candidate: str) -> Winner | None:
        """The winner of `key` whose candidate has this digest."""
        for line in self._of(digest(key)):
            loaded = self._try(line)
            if loaded is not None and digest(loaded[0].trial.candidate) == candidate:
                return loaded[0]
        return None

    def all(self) -> Iterator[Entry]:
        """Every entry, each checked anew."""
        for key_name in self._lines:
            for line in self._of(key_name):
                self._memo.pop(line.folder, None)
                try:
                    winner, name = self._load(line)
                    yield Entry(name, "winner", line.key, line.domain, winner, None)
                except Refused as error:
                    yield Entry(line.winner_sha256, "winner", line.key, line.domain, None, f"{line.folder} {error}")
        for standings in self._standings.values():
            for standing in standings:
                yield Entry(digest(standing), "standing", standing.key, standing.domain, standing, None)

    def keys(self) -> Iterator[tuple[CacheKey, tuple[tuple[State, Domain], ...]]]:
        """Every key with the domains of its winners."""
        for name in self._lines:
            lines = self._of(name)
            if lines:
                yield lines[0].key, tuple((State.WINNER, line.domain) for line in lines)

    def version(self) -> str | None:
        """Changes with what the layer holds."""
        return self._pinned

    def winners_of(self, key: CacheKey) -> Iterator[Winner]:
        """The winners of `key`, whatever their sizes."""
        for line in self._of(digest(key)):
            loaded = self._try(line)
            if loaded is not None:
                yield loaded[0]

    def _of(self, name: str) -> list[ShippedLine]:
        """The lines of the key with this digest: a manifest has many, and a process asks for few."""
        lines = []
        for place, data in enumerate(self._lines.get(name, ())):
            if isinstance(data, dict):
                try:
                    data = self._lines[name][place] = record_of(ShippedLine, data)
                except Refused as error:
                    say_once(f"a line of the {self.name} manifest {error}; it is not used")
                    continue
            lines.append(data)
        return lines

    def _try(self, line: ShippedLine) -> tuple[Winner, str] | None:
        try:
            return self._load(line)
        except Refused as error:
            say_once(f"the {self.name} winner {line.folder} {error}; it is not used")
            return None

    def _load(self, line: ShippedLine) -> tuple[Winner, str]:
        """The winner and its digest. Raises: Refused."""
        known = self._memo.get(line.folder)
        if known is None:
            winner = read_winner(self._files, line)
            known = self._memo[line.folder] = (winner, digest(winner))
        return known


def _entries(manifest: Any) -> list[dict[str, Any]]:
    """The lines of a manifest as JSON data. Raises: Refused."""
    if not isinstance(manifest, dict) or set(manifest) != {"schema", "entries"} or not isinstance(manifest["entries"], list):
        raise Refused("has not the fields of a manifest")
    if manifest["schema"] != SCHEMA or type(manifest["schema"]) is not int:
        raise Refused(f"has the schema {manifest['schema']!r}, not {SCHEMA}")
    return [data for data in manifest["entries"] if isinstance(data, dict) and "key" in data]


def read_manifest(files: Files, pinned: str, name: str = NAME) -> Manifest:
    """The manifest among `files`. Raises: Refused where it has not the digest `pinned` or another schema."""
    manifest: Manifest = record_of(Manifest, parse(text_of(files, name, pinned)))
    if manifest.schema != SCHEMA:
        raise Refused(f"has the schema {manifest.schema}, not {SCHEMA}")
    return manifest


def read_winner(files: Files, line: ShippedLine) -> Winner:
    """The winner of a line, with its source. Raises: Refused."""
    if "/" in line.source:
        raise Refused("lies outside its layer")
    envelope = parse(text_of(files, f"{line.folder}/{WINNER}", line.winner_sha256))
    source = text_of(files, f"{line.folder}/{line.source}", line.source_sha256)
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


def text_of(files: Files, name: str, sha256: str) -> str:
    """The text of a file with this digest. Raises: Refused."""
    data = files.read(name, sha256)
    if hashlib.sha256(data).hexdigest() != sha256:
        raise Refused("was changed after it was shipped")
    try:
        return data.decode()
    except ValueError as error:
        raise Refused("is not UTF-8 text") from error
