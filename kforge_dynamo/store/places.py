"""Where the files of a layer are read from: a folder, one zip file, or (`store.remote`) a URL.

Nobody vouches for what is read here. Names come from a manifest and never lead out of the layer; nothing is followed, and no
file is read beyond `MOST_BYTES`, so that a hostile layer costs a refusal and no more.
"""

from __future__ import annotations

import os
import threading
import zipfile
import zlib
from pathlib import Path
from typing import Protocol

from kforge_dynamo.store.envelope import Refused
from kforge_dynamo.store.remote import RemoteFiles, is_url

MOST_BYTES = 256 << 20
"""A manifest of 100,000 entries takes less."""

_ZIP_FAILURES = (zipfile.BadZipFile, KeyError, NotImplementedError, RuntimeError, zlib.error, EOFError, OSError, ValueError)


class Files(Protocol):
    """The files of one layer, by names with "/" between folders."""

    @property
    def place(self) -> str:
        """The place as people write it."""

    def read(self, name: str, sha256: str | None = None) -> bytes:
        """The file's bytes. `sha256` is the digest it should have, which may save a trip; it is not checked here.

        Raises: Refused, in a sentence without a subject ("cannot be read (No such file)").
        """


class FolderFiles:
    """The files below a local folder."""

    def __init__(self, folder: Path) -> None:
        self.place = str(folder)
        self._folder = folder

    def read(self, name: str, sha256: str | None = None) -> bytes:
        """See `Files`."""
        path = self._folder / checked(name)
        try:
            handle = os.open(path, os.O_RDONLY | getattr(os, "O_NONBLOCK", 0) | getattr(os, "O_BINARY", 0))
            with os.fdopen(handle, "rb") as stream:  # not opened by name twice; a pipe in its place must not block
                return bounded(stream.read(MOST_BYTES + 1))
        except OSError as error:
            raise Refused(f"cannot be read ({error.strerror or error})") from error


class ZipFiles:
    """The files in one zip file, as `kforge cache export` writes it."""

    def __init__(self, path: Path) -> None:
        self.place = str(path)
        self._path = path
        self._open: tuple[int, zipfile.ZipFile] | None = None
        self._lock = threading.Lock()

    def read(self, name: str, sha256: str | None = None) -> bytes:
        """See `Files`."""
        try:
            with self._lock:
                if self._open is None or self._open[0] != os.getpid():  # a fork would share the place in the file
                    self._open = (os.getpid(), zipfile.ZipFile(self._path))
                archive = self._open[1]
            if archive.getinfo(checked(name)).file_size > MOST_BYTES:
                raise Refused(f"is larger than {MOST_BYTES >> 20} MiB")
            with archive.open(name) as stream:
                return bounded(stream.read(MOST_BYTES + 1))
        except Refused:
            raise
        except _ZIP_FAILURES as error:
            words = "has no such file" if isinstance(error, KeyError) else getattr(error, "strerror", None) or str(error)
            raise Refused(f"cannot be read ({words})") from error


def files_at(place: str, keep: Path | None) -> Files:
    """The files of the layer at `place`: a URL, a zip file or a folder. Remote files are kept in the folder `keep`."""
    if is_url(place):
        return RemoteFiles(place, keep)
    path = Path(place)
    return ZipFiles(path) if path.is_file() else FolderFiles(path)


def checked(name: str) -> str:
    """`name` itself. Raises: Refused where it leads out of its layer."""
    if "\\" in name or "\0" in name or ":" in name or any(part in ("", ".", "..") for part in name.split("/")):
        raise Refused("lies outside its layer")
    return name


def bounded(data: bytes) -> bytes:
    """`data` itself. Raises: Refused where it is larger than a layer's file may be."""
    if len(data) > MOST_BYTES:
        raise Refused(f"is larger than {MOST_BYTES >> 20} MiB")
    return data
