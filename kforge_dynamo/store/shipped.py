"""The layer that ships with kforge: winners as files in `kernel_cache/`, read-only (the form: `store.file_layer`).

The digest of its manifest stands in `store.pinned`, inside the package. A manifest with another digest is not used at all.
An installed wheel has the folder inside the package, an editable install beside it.
"""

from __future__ import annotations

from pathlib import Path

from kforge_dynamo.store.envelope import Refused
from kforge_dynamo.store.file_layer import NAME, FileLayer
from kforge_dynamo.store.notes import say_once
from kforge_dynamo.store.pinned import MANIFEST_SHA256
from kforge_dynamo.store.places import FolderFiles


def folder() -> Path | None:
    """Where the shipped winners are: in the package, or beside it in a source tree; None where there are none."""
    package = Path(__file__).resolve().parents[1]
    return next((path for path in (package / "kernel_cache", package.parent / "kernel_cache") if (path / NAME).is_file()), None)


class Shipped(FileLayer):
    """The winners in `home`, whose manifest has to have the digest `pinned`; without them `problem` says why."""

    def __init__(self, home: Path | None, pinned: str = MANIFEST_SHA256) -> None:
        self.home = home
        self.problem: str | None = None
        try:
            super().__init__(FolderFiles(home) if home is not None else _Nothing(), pinned, "shipped")
        except Refused as error:
            if home is None:
                self.problem = "no kernel_cache is installed beside the package; reinstall kforge-dynamo"
                return
            self.problem = f"the shipped winners in {home} are not used: their manifest {error}; reinstall kforge-dynamo"
            say_once(self.problem)


class _Nothing:
    """No files at all."""

    place = "nowhere"

    def read(self, name: str, sha256: str | None = None) -> bytes:
        raise Refused("is not there")
