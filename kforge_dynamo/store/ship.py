"""Adds winners to the layer that ships with kforge, and pins its manifest. For developers of kforge in a source tree."""

from __future__ import annotations

import hashlib
import json
import re
import shutil
from collections.abc import Iterable
from pathlib import Path

from kforge_dynamo.errors import RecordError, StoreError
from kforge_dynamo.records.codec import from_text, plain
from kforge_dynamo.records.outcome import Authentication, Winner
from kforge_dynamo.records.task import Task
from kforge_dynamo.store.envelope import MANIFEST, SCHEMA, canonical, parse
from kforge_dynamo.store.file_layer import NAME, WINNER, Manifest, ShippedLine, join_source

_SUFFIXES = {"cpp": "cpp", "triton": "py"}
_PINNED = Path(__file__).with_name("pinned.py")


def ship(winners: Iterable[Winner], home: Path, pinned: Path = _PINNED) -> str:
    """Writes `winners` into `home`, one folder a key and domain, and refreshes the manifest. Returns its digest.

    A folder that is there already is replaced. Raises: StoreError.
    """
    for winner in winners:
        _write(winner, home / _folder_name(winner))
    return refresh(home, pinned)


def refresh(home: Path, pinned: Path = _PINNED) -> str:
    """Writes the manifest of what is in `home`, and its digest into the module `pinned`. Returns the digest.

    Raises: StoreError for a folder that does not hold a winner.
    """
    lines = [_line(path.parent, home) for path in sorted(home.glob(f"*/*/{WINNER}"))]
    text = json.dumps(plain(Manifest(SCHEMA, tuple(lines))), indent=1, sort_keys=True) + "\n"
    (home / NAME).write_bytes(text.encode())
    value = hashlib.sha256(text.encode()).hexdigest()
    source = pinned.read_text() if pinned.exists() else 'MANIFEST_SHA256 = ""\n'
    pinned.write_text(re.sub(r'MANIFEST_SHA256 = "[0-9a-f]*"', f'MANIFEST_SHA256 = "{value}"', source))
    return value


def entry_files(winner: Winner) -> dict[str, bytes]:
    """The two files of an entry by name: the entry without its source, then the source."""
    candidate = winner.trial.candidate
    data = plain(winner)
    data["trial"]["candidate"]["source"] = ""
    envelope = {"schema": SCHEMA, "winner": data, "authentication": plain(Authentication(MANIFEST, "", ""))}
    return {
        WINNER: (json.dumps(envelope, indent=1, sort_keys=True) + "\n").encode(),
        f"kernel.{_SUFFIXES.get(candidate.language, 'txt')}": candidate.source.encode(),
    }


def _write(winner: Winner, folder: Path) -> None:
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir(parents=True)
    for name, data in entry_files(winner).items():
        (folder / name).write_bytes(data)


def _line(folder: Path, home: Path) -> ShippedLine:
    sources = sorted(folder.glob("kernel.*"))
    if len(sources) != 1:
        raise StoreError(f"{folder} has {len(sources)} files named kernel.*, expected one")
    data, source = (folder / WINNER).read_bytes(), sources[0].read_bytes()
    winner = join_source(parse(data.decode()), source.decode())
    return ShippedLine(
        folder=folder.relative_to(home).as_posix(),
        key=winner.key,
        domain=winner.domain,
        winner_sha256=hashlib.sha256(data).hexdigest(),
        source=sources[0].name,
        source_sha256=hashlib.sha256(source).hexdigest(),
    )


def _folder_name(winner: Winner) -> Path:
    """`<device>/<task name>-<digest of key and domain>`."""
    whole = hashlib.sha256(canonical([plain(winner.key), plain(winner.domain)]).encode()).hexdigest()
    return Path(slug(winner.key.device)) / f"{task_name(winner.task)}-{whole[:16]}"


def task_name(text: str) -> str:
    """A short name of a task for people: its operations, `gemm-add-relu`."""
    try:
        task = from_text(Task, text)
    except RecordError:
        return "task"
    names = list(dict.fromkeys(node.op for node in task.nodes))
    return slug("-".join(names[:4] + (["etc"] if len(names) > 4 else [])))


def slug(text: str) -> str:
    """`text` as part of a file's name."""
    return re.sub(r"[^a-z0-9._]+", "-", text.lower()).strip("-.") or "unnamed"
