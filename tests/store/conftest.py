"""A store in a folder of its own, and a user whom file modes bind."""

from __future__ import annotations

import os
import tempfile
from collections.abc import Callable
from pathlib import Path

import pytest
from store_records import NOBODY, in_a_child

from kforge_dynamo.store import Store, close_stores, notes, open_store


@pytest.fixture(autouse=True)
def fresh_process(monkeypatch: pytest.MonkeyPatch) -> None:
    """As in a new process: no store is open and nothing was said."""
    close_stores()
    monkeypatch.setattr(notes, "_said", set())


@pytest.fixture
def reopen(tmp_path: Path) -> Callable[[], Store]:
    """Opens the store in the same folder anew, as another process would find it."""

    def opened() -> Store:
        close_stores()
        return open_store(str(tmp_path / "cache"))

    return opened


@pytest.fixture
def store(reopen: Callable[[], Store]) -> Store:
    return reopen()


@pytest.fixture
def plain_user(monkeypatch: pytest.MonkeyPatch) -> Callable[[Callable[[Path], None]], None]:
    """Runs a piece of a test as a user whom file modes bind, in a folder of that user."""

    def run(work: Callable[[Path], None]) -> None:
        with tempfile.TemporaryDirectory() as name:
            folder = Path(name)
            if os.getuid() != 0:
                work(folder)
                return
            folder.chmod(0o711)
            own = folder / "own"
            own.mkdir(mode=0o700)
            os.chown(own, NOBODY, NOBODY)
            assert in_a_child(lambda: work(own), nobody=True) == 0

    return run
