"""Built candidates: one folder a candidate and context, with a sealed record of the digest of what was built.

A folder appears under its name only when it is complete (it is built beside and renamed), so a build that is killed leaves
nothing that could be taken for an artifact, and of two processes that build the same the first one's is used by both. What
does not match its record is removed and built again. Artifacts are never shared between users or machines.
"""

from __future__ import annotations

import contextlib
import hashlib
import os
import secrets
import shutil
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

from kforge_dynamo.errors import StoreError
from kforge_dynamo.records.candidate import Candidate
from kforge_dynamo.records.codec import digest
from kforge_dynamo.store.envelope import Refused, seal, unseal
from kforge_dynamo.store.folder import make_private, short_lived
from kforge_dynamo.store.notes import say_once
from kforge_dynamo.store.secret import Secret

Build = Callable[[Path], Path]
"""Compiles into the given empty folder and returns what it made there: a file or a folder. May raise BuildError."""

_RECORD = "artifact.json"
_ABANDONED_S = 86400.0


@dataclass(frozen=True, slots=True)
class ArtifactRecord:
    """`content` is the SHA-256 of the artifact at `file`, relative to its folder."""

    candidate: str
    context: str
    file: str
    content: str


class Artifacts:
    """The built candidates in `folder`, vouched for by `secret`."""

    def __init__(self, folder: Path, secret: Secret) -> None:
        self._folder = folder
        self._secret = secret
        self._scratch: Path | None = None
        self._process = os.getpid()

    def get(self, candidate: Candidate, context: str, build: Build) -> Path:
        """The artifact of `candidate` built in `context` (toolchain, torch, device: whatever its machine code depends on).

        Raises: StoreError where the folder cannot be written; what `build` raises.
        """
        name = digest(candidate)
        home = self._folder / f"{name[:40]}-{hashlib.sha256(context.encode()).hexdigest()[:16]}"
        try:
            return self._checked(home, name, context)
        except Refused as error:
            if home.exists():
                say_once(f"the built kernel in {home} {error}; it is built again")
        return self._make(home, name, context, build)

    def home_of(self, path: Path) -> str:
        """The name of the folder that the artifact at `path` lies in."""
        return path.relative_to(self._folder).parts[0]

    def scratch(self) -> Path:
        """An empty folder that only this process uses and that is removed when it ends. Raises: StoreError."""
        if self._scratch is None or not self._scratch.is_dir() or self._process != os.getpid():
            try:
                make_private(self._folder)
                self._scratch, self._process = short_lived(self._folder, ".scratch-"), os.getpid()
            except OSError as error:
                raise StoreError(f"kernels cannot be built in {self._folder} ({error.strerror or error})") from error
        return self._scratch

    def all(self) -> Iterator[tuple[Path, str | None]]:
        """Every artifact's folder with what is wrong with it, None when nothing is."""
        for home in self._homes():
            try:
                record = self._record(home)
                self._checked(home, record.candidate, record.context)
            except Refused as error:
                yield home, str(error)
            else:
                yield home, None

    def size_bytes(self) -> int:
        """What the files of all artifacts take."""
        return sum(path.lstat().st_size for home in self._homes() for path in home.rglob("*") if path.is_file())

    def sizes(self) -> Iterator[tuple[Path, int, float]]:
        """Every artifact's folder with its bytes and the time it was made, in seconds since the epoch."""
        for home in self._homes():
            with contextlib.suppress(OSError):
                yield home, sum(path.lstat().st_size for path in home.rglob("*") if path.is_file()), home.stat().st_mtime

    def remove(self, name: str) -> None:
        """Removes the artifact in the folder `name`. A process that has loaded it keeps it."""
        _remove(self._folder / name)

    def clear(self) -> int:
        """Removes all artifacts; how many those were. A process that has loaded one keeps it."""
        homes = self._homes()
        for home in homes:
            _remove(home)
        self._sweep(_ABANDONED_S)
        return len(homes)

    def _homes(self) -> list[Path]:
        with contextlib.suppress(OSError):
            return sorted(path for path in self._folder.iterdir() if path.is_dir() and not path.name.startswith("."))
        return []

    def _record(self, home: Path) -> ArtifactRecord:
        """Raises: Refused."""
        try:
            text = (home / _RECORD).read_text()
        except (OSError, ValueError) as error:
            raise Refused("has no readable record") from error
        return unseal("artifact", ArtifactRecord, text, self._secret)

    def _checked(self, home: Path, name: str, context: str) -> Path:
        """Raises: Refused."""
        record = self._record(home)
        if record.candidate != name or record.context != context:
            raise Refused("belongs to another candidate")
        path = home / record.file
        if ".." in Path(record.file).parts or _content(path) != record.content:
            raise Refused("is not what was built")
        return path

    def _make(self, home: Path, name: str, context: str, build: Build) -> Path:
        workshop = self._folder / f".{home.name[:12]}-{os.getpid()}-{secrets.token_hex(4)}"
        try:
            make_private(self._folder)
            self._sweep(_ABANDONED_S)
            workshop.mkdir(mode=0o700)
        except OSError as error:
            raise StoreError(
                f"a kernel cannot be built in {self._folder} ({error.strerror or error}); set KFORGE_CACHE_DIR to another"
            ) from error
        try:
            file = str(build(workshop).relative_to(workshop))
            content = _content(workshop / file)
            if content is None:
                raise StoreError(f"the build left nothing at {workshop / file}")
            (workshop / _RECORD).write_text(seal("artifact", ArtifactRecord(name, context, file, content), self._secret))
            return self._publish(workshop, home, name, context)
        finally:
            _remove(workshop)

    def _publish(self, workshop: Path, home: Path, name: str, context: str) -> Path:
        """Renames the finished folder to its name, unless a good one stands there already."""
        for _ in range(3):
            try:
                workshop.rename(home)
            except OSError:
                with contextlib.suppress(Refused):
                    return self._checked(home, name, context)
                _remove(home)
            else:
                return self._checked(home, name, context)
        raise StoreError(f"the folder {home} cannot be replaced; remove it")

    def _sweep(self, age_s: float) -> None:
        """Removes what builds that were killed have left."""
        with contextlib.suppress(OSError):
            for path in self._folder.glob(".*"):
                if path.is_dir() and time.time() - path.stat().st_mtime >= age_s:
                    _remove(path)


def _content(path: Path) -> str | None:
    """SHA-256 of a file, or of the names and contents of a folder's files; None where it is neither or a link."""
    try:
        if path.is_symlink():
            return None
        if path.is_file():
            return hashlib.sha256(path.read_bytes()).hexdigest()
        if not path.is_dir():
            return None
        whole = hashlib.sha256()
        for item in sorted(path.rglob("*")):
            if item.is_symlink():
                return None
            if item.is_file():
                whole.update(f"{item.relative_to(path).as_posix()} {hashlib.sha256(item.read_bytes()).hexdigest()}\n".encode())
        return whole.hexdigest()
    except OSError:
        return None


def _remove(path: Path) -> None:
    """Moved out of the way first, so that nobody meets half a folder."""
    away = path.with_name(f".gone-{secrets.token_hex(6)}")
    with contextlib.suppress(OSError):
        path.rename(away)
        shutil.rmtree(away, ignore_errors=True)
