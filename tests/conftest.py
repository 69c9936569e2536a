"""For all tests: winners are kept in a folder of this run, what needs a GPU is skipped where there is none, and a test that
measures time has the machine to itself also where several processes run tests."""

from __future__ import annotations

import contextlib
import fcntl
import os
import shutil
import tempfile
from pathlib import Path

import pytest
import torch

from kforge_dynamo import ledger

_kept: list[str] = []
_shared: list[Path] = []


def pytest_configure(config):
    """The user's own cache is neither read nor written by tests."""
    if hasattr(config, "workerinput"):
        _shared.append(Path(os.environ["XDG_CACHE_HOME"]))  # the folder of the process that started this one
    _kept.append(tempfile.mkdtemp(prefix="kforge_tests_"))
    os.environ["XDG_CACHE_HOME"] = _kept[-1]
    os.environ.pop("KFORGE_CACHE_DIR", None)


def pytest_unconfigure(config):
    """Remove that folder."""
    while _kept:
        shutil.rmtree(_kept.pop(), ignore_errors=True)


@pytest.hookimpl(wrapper=True, tryfirst=True)
def pytest_runtest_protocol(item):
    """`alone`: no other process of this run is within a test or a fixture meanwhile. Waiting is not part of a test's time."""
    with _turn("alone" in item.keywords, _shared[0]) if _shared else contextlib.nullcontext():
        return (yield)


@contextlib.contextmanager
def _turn(alone, folder):
    with open(folder / "door.lock", "w") as door, open(folder / "room.lock", "w") as room:
        fcntl.flock(door, fcntl.LOCK_EX)  # who waits for an empty room lets nobody else in
        fcntl.flock(room, fcntl.LOCK_EX if alone else fcntl.LOCK_SH)
        fcntl.flock(door, fcntl.LOCK_UN)
        try:
            yield
        finally:
            fcntl.flock(room, fcntl.LOCK_UN)  # closing is not enough: a process forked by a test may hold the file too


@pytest.fixture(autouse=True)
def same_values_each_run():
    """A test that draws values sees the same ones in every run and in every order."""
    torch.manual_seed(20261130)


@pytest.fixture(autouse=True)
def counts_from_nought():
    """What an earlier test of this process counted is not found by the next: which tests share a process changes."""
    ledger.reset()


def pytest_collection_modifyitems(items):
    """`gpu` needs a CUDA device."""
    if torch.cuda.is_available():
        return
    for item in items:
        if "gpu" in item.keywords:
            item.add_marker(pytest.mark.skip(reason="needs a CUDA device"))
