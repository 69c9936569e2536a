"""Shared layers: read-only answers of others, used only where the user has said whom to believe.

A layer is named as `PLACE` or `PLACE#trust=WORDS`: a folder, a zip file or a URL, and whom to believe for this one alone.
Three kinds are read: what `kforge cache export` writes; a cache folder of another user or machine (its key is not ours, so it
is believed under `trust=digest` only); and nothing else. What is not believed is not used, and one line says so.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Protocol

from kforge_dynamo.errors import StoreError
from kforge_dynamo.records.outcome import CacheKey, State, Terms, Winner
from kforge_dynamo.records.task import Domain
from kforge_dynamo.store.bundle import TOP, manifest_name, read_standings, read_top
from kforge_dynamo.store.database import NAME as DATABASE
from kforge_dynamo.store.entries import Current, Entries, Entry, Found
from kforge_dynamo.store.envelope import SCHEMA, Refused
from kforge_dynamo.store.file_layer import FileLayer
from kforge_dynamo.store.notes import say_once
from kforge_dynamo.store.places import Files, files_at
from kforge_dynamo.store.rows import Index
from kforge_dynamo.store.trust import Trust, read_trust, signer

_MARK = "#trust="


class Layer(Protocol):
    """What can be asked of any layer; see `file_layer.FileLayer`."""

    @property
    def name(self) -> str:
        """How people are told of it."""

    def version(self) -> str | None:
        """Changes with what it holds."""

    def lookup(self, key: CacheKey, sizes: tuple[int, ...], current: Current | None, terms: Terms | None = None) -> Found | None:
        """The answer for `sizes`, None where there is none."""

    def by_candidate(self, key: CacheKey, candidate: str) -> Winner | None:
        """The winner of `key` whose candidate has this digest."""

    def all(self) -> Iterator[Entry]:
        """Every entry, each checked anew."""

    def keys(self) -> Iterator[tuple[CacheKey, tuple[tuple[State, Domain], ...]]]:
        """Every key with the states and domains of its entries."""

    def winners_of(self, key: CacheKey) -> Iterator[Winner]:
        """The winners of `key`, whatever their sizes."""


def split(word: str, trust: Trust) -> tuple[str, Trust]:
    """A layer's place, and whom to believe there. Raises: StoreError."""
    place, mark, words = word.partition(_MARK)
    return place, read_trust([item for item in words.replace("+", ",").split(",") if item]) if mark else trust


def open_layers(words: Sequence[str], trust: Trust, keep: Path | None) -> tuple[list[Layer], list[str]]:
    """The layers that can be read and believed, in order, and one sentence for each that cannot. Never raises."""
    layers: list[Layer] = []
    problems: list[str] = []
    for word in words:
        try:
            layers.append(open_layer(*split(word, trust), keep))
        except StoreError as error:
            problems.append(str(error))
            say_once(problems[-1])
    return layers, problems


def open_layer(place: str, trust: Trust, keep: Path | None) -> Layer:
    """The layer at `place`. Raises: StoreError in one sentence with the next step."""
    if (Path(place) / f"v{SCHEMA}" / "index" / DATABASE).is_file() and not (Path(place) / TOP).is_file():
        if not trust.digest:
            raise StoreError(
                f"the cache {place} is not used as a layer: its entries were made with another user's key; "
                f"add #trust=digest to believe whoever can write there, or have its owner export and sign it"
            )
        return CopiedCache(Path(place))
    try:
        return _signed_or_believed(files_at(place, keep), trust)
    except Refused as error:
        raise StoreError(f"the layer {place} {error}; it is not used, and nothing in it was changed") from error


def _signed_or_believed(files: Files, trust: Trust) -> FileLayer:
    """Raises: Refused, StoreError."""
    facts, signature, covered = read_top(files)
    by = signer(signature, covered) if signature is not None and (trust.keys or not trust.digest) else None
    if not trust.digest and by not in trust.keys:
        who = f"signed with the key {by}, which you have not named" if by is not None else "signed by nobody"
        step = f"trust={by} believes that key, " if by is not None else ""
        raise StoreError(
            f"the layer {files.place} is not used: it is {who}; {step}trust=digest believes whoever can write there "
            "(option trust, KFORGE_TRUST, or #trust= behind the layer's name)"
        )
    return FileLayer(files, facts.manifest, files.place, read_standings(files, facts), manifest_name(facts))


class CopiedCache(Entries):
    """The entries of another user's cache folder, believed by their digests alone."""

    def __init__(self, folder: Path) -> None:
        super().__init__(Index(folder / f"v{SCHEMA}" / "index", writable=False), None, str(folder))
