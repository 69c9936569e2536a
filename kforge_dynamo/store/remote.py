"""The network of the store: files of a shared layer behind a URL, read through fsspec (s3, gs, http, file, ...).

A file whose digest is known is fetched once a user and kept below the cache under its digest; the few that name the rest
(`layer.json`, its signature) are fetched once a process, and their last copies stand in for a server that cannot be reached.
Copies are believed no more than what comes from the network: whoever reads checks digests and signature.
"""

from __future__ import annotations

import contextlib
import hashlib
import os
import re
import secrets
from concurrent.futures import ThreadPoolExecutor
from concurrent.futures import TimeoutError as Late
from pathlib import Path
from typing import Any

from kforge_dynamo.store.envelope import Refused
from kforge_dynamo.store.folder import make_private
from kforge_dynamo.store.notes import say_once

WAIT_S = 20.0
"""How long one file may take."""

_URL = re.compile(r"[a-z][a-z0-9+.-]+(://|::)")


def is_url(place: str) -> bool:
    """Whether `place` has a scheme and is none of a local path."""
    return _URL.match(place) is not None


class RemoteFiles:
    """The files below `url`; see `places.Files`. `keep` is a folder for copies, None for none."""

    def __init__(self, url: str, keep: Path | None) -> None:
        self.place = url.rstrip("/")
        self._keep = keep
        self._system: tuple[Any, str] | None = None
        self._down: str | None = None

    def read(self, name: str, sha256: str | None = None) -> bytes:
        """The file's bytes. Raises: Refused."""
        copy = self._copy(name, sha256)
        if sha256 is not None and copy is not None:
            with contextlib.suppress(OSError):
                data = copy.read_bytes()
                if hashlib.sha256(data).hexdigest() == sha256:
                    return data
        try:
            data = self._fetch(name)
        except Refused as error:
            if sha256 is None and copy is not None:
                with contextlib.suppress(OSError):
                    data = copy.read_bytes()
                    say_once(f"the layer {self.place} {error}; what was last seen of it is used")
                    return data
            raise
        if copy is not None:
            _save(copy, data)
        return data

    def _copy(self, name: str, sha256: str | None) -> Path | None:
        known = sha256 or "top-" + hashlib.sha256(f"{self.place}\n{name}".encode()).hexdigest()
        return self._keep / known if self._keep is not None and re.fullmatch(r"(top-)?[0-9a-f]{64}", known) else None

    def _fetch(self, name: str) -> bytes:
        """Raises: Refused; after the first failure to reach the server at once."""
        if self._down is not None:
            raise Refused(self._down)
        pool = ThreadPoolExecutor(1, thread_name_prefix="kforge-layer")
        future = pool.submit(self._cat, name)
        pool.shutdown(wait=False)
        try:  # a file system is a plug-in: what it raises is read off the future, not caught by kind
            error = future.exception(timeout=WAIT_S)
        except Late:
            error = TimeoutError(f"no answer within {WAIT_S:g} s")
        if error is None:
            data: bytes = future.result()
            return data
        if isinstance(error, FileNotFoundError):
            raise Refused(f"has no file {name}") from error
        words = " ".join((str(error) or type(error).__name__).split())[:200]
        self._down = f"cannot be reached ({words})"
        raise Refused(self._down) from error

    def _cat(self, name: str) -> bytes:
        """Raises: what fsspec and its plug-ins raise; ImportError names the package that the scheme needs."""
        if self._system is None:
            from fsspec.core import url_to_fs

            self._system = url_to_fs(self.place)
        system, root = self._system
        data: bytes = system.cat_file(f"{root.rstrip('/')}/{name}")
        return data


def _save(path: Path, data: bytes) -> None:
    """Whole or not at all; a copy that cannot be kept is fetched again another time."""
    fresh = path.with_name(f".{path.name[:16]}-{os.getpid()}-{secrets.token_hex(4)}")
    with contextlib.suppress(OSError):
        make_private(path.parent)
        try:
            fresh.write_bytes(data)
            fresh.replace(path)
        finally:
            fresh.unlink(missing_ok=True)
