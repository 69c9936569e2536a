"""Layers that travel: winners and "no winner" answers as files, or as one zip file, with a signature if one is wanted.

    layer.json                                what made it, the digests of the next two files, the signature
    manifest-<digest>.json                    the digests of all entries' files (`store.file_layer`)
    standings-<digest>.json                   tasks for which a search found no winner, and under which terms
    <device>/<task name>-<digest>/winner.json an entry
    <device>/<task name>-<digest>/kernel.*    its source

Every file but `layer.json` is named by its content and never changes, and `layer.json` is written last and replaced whole:
a layer can be published anew while others read it. No binary is ever part of it.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import os
import secrets
import zipfile
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from kforge_dynamo.errors import StoreError
from kforge_dynamo.records.codec import digest, plain
from kforge_dynamo.records.outcome import Standing, State, Winner
from kforge_dynamo.store.envelope import SCHEMA, Refused, canonical, parse, record_of
from kforge_dynamo.store.file_layer import Manifest, ShippedLine, text_of
from kforge_dynamo.store.places import Files
from kforge_dynamo.store.ship import entry_files, slug, task_name
from kforge_dynamo.store.trust import sign

TOP = "layer.json"
_EPOCH = (1980, 1, 1, 0, 0, 0)  # zip's first date: equal content gives equal files


@dataclass(frozen=True, slots=True)
class Facts:
    """What a layer says of itself. `manifest` and `standings` are the SHA-256 of those files."""

    schema: int
    kforge: str
    created: str
    manifest: str
    standings: str


@dataclass(frozen=True, slots=True)
class _Standings:
    entries: tuple[Standing, ...]


def layer_files(records: Iterable[Winner | Standing], kforge: str, created: str, key: Path | None) -> dict[str, bytes]:
    """The files of a layer with these records, signed with the key in `key` unless it is None. `layer.json` comes last.

    Answers that are "not searched" are left out. Raises: StoreError for a key that cannot be used.
    """
    files: dict[str, bytes] = {}
    lines: list[ShippedLine] = []
    standings: list[Standing] = []
    for record in records:
        if isinstance(record, Standing):
            standings += [record] if record.state is State.NO_WINNER else []
            continue
        folder = f"{slug(record.key.device)}/{task_name(record.task)}-{digest(record)[:16]}"
        entry = entry_files(record)
        (_, data), (source, text) = entry.items()
        sums = [hashlib.sha256(item).hexdigest() for item in (data, text)]
        lines.append(ShippedLine(folder, record.key, record.domain, sums[0], source, sums[1]))
        files |= {f"{folder}/{name}": item for name, item in entry.items()}
    manifest = _named("manifest", Manifest(SCHEMA, tuple(sorted(lines, key=lambda line: line.folder))), files)
    none = _named("standings", _Standings(tuple(sorted(standings, key=digest))), files)
    facts = plain(Facts(SCHEMA, kforge, created, manifest, none))
    signature = sign(canonical(facts).encode(), key) if key is not None else None
    top = {"schema": SCHEMA, "layer": facts, "signature": signature}
    return files | {TOP: (json.dumps(top, indent=1, sort_keys=True) + "\n").encode()}


def read_top(files: Files) -> tuple[Facts, Any, bytes]:
    """What a layer says of itself, its signature as JSON data (None where there is none), and the bytes that it covers.

    Raises: Refused where there is no layer, or one of another schema.
    """
    try:
        top = parse(files.read(TOP).decode())
    except UnicodeDecodeError as error:
        raise Refused("is damaged: not UTF-8 text") from error
    if not isinstance(top, dict) or set(top) != {"schema", "layer", "signature"}:
        raise Refused("is damaged: its layer.json has not the fields of a layer")
    if top["schema"] != SCHEMA or type(top["schema"]) is not int:
        raise Refused(f"has the schema {top['schema']!r}, not {SCHEMA}: export it again with this version of kforge")
    facts = record_of(Facts, top["layer"])
    return facts, top["signature"], canonical(top["layer"]).encode()


def manifest_name(facts: Facts) -> str:
    """The name of the layer's manifest."""
    return f"manifest-{facts.manifest[:16]}.json"


def read_standings(files: Files, facts: Facts) -> tuple[Standing, ...]:
    """The layer's "no winner" answers. Raises: Refused."""
    text = text_of(files, f"standings-{facts.standings[:16]}.json", facts.standings)
    found = record_of(_Standings, parse(text)).entries
    if any(item.state is not State.NO_WINNER for item in found):
        raise Refused("has a standing that is no answer")
    return found


def write_zip(path: Path, files: Mapping[str, bytes]) -> None:
    """Writes one zip file, whole or not at all. Raises: StoreError."""
    with _replacing(path) as fresh, zipfile.ZipFile(fresh, "w", zipfile.ZIP_DEFLATED) as archive:
        for name, data in files.items():
            archive.writestr(zipfile.ZipInfo(name, _EPOCH), data, zipfile.ZIP_DEFLATED)


def write_folder(path: Path, files: Mapping[str, bytes]) -> None:
    """Writes the files of a layer below `path`, `layer.json` last. What is there already stays. Raises: StoreError."""
    for name, data in files.items():
        place = path / name
        if name != TOP and place.is_file() and place.stat().st_size == len(data) and place.read_bytes() == data:
            continue
        with _replacing(place) as fresh:
            fresh.write_bytes(data)


def _named(kind: str, record: Any, files: dict[str, bytes]) -> str:
    data = (json.dumps(plain(record), indent=1, sort_keys=True) + "\n").encode()
    name = hashlib.sha256(data).hexdigest()
    files[f"{kind}-{name[:16]}.json"] = data
    return name


class _replacing:
    """A new file that takes the place of `path` when the block ends well. Raises: StoreError where it cannot be written."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._fresh = path.with_name(f".{path.name}-{os.getpid()}-{secrets.token_hex(4)}")

    def __enter__(self) -> Path:
        try:
            self._path.parent.mkdir(parents=True, exist_ok=True)
        except OSError as error:
            raise self._sentence(error) from error
        return self._fresh

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: object) -> None:
        try:
            if error is None:
                self._fresh.replace(self._path)
        except OSError as problem:
            raise self._sentence(problem) from problem
        finally:
            with contextlib.suppress(OSError):
                self._fresh.unlink(missing_ok=True)
        if isinstance(error, OSError):
            raise self._sentence(error) from error

    def _sentence(self, error: OSError) -> StoreError:
        return StoreError(f"{self._path} cannot be written ({error.strerror or error}); name a place with room that can")
