"""For all tests: winners are kept in a folder of this run, and what needs a GPU is skipped where there is none."""

from __future__ import annotations

import os
import shutil
import tempfile

import pytest
import torch

_kept: list[str] = []


def pytest_configure(config):
    """The user's own cache is neither read nor written by tests."""
    _kept.append(tempfile.mkdtemp(prefix="kforge_tests_"))
    os.environ["XDG_CACHE_HOME"] = _kept[-1]
    os.environ.pop("KFORGE_CACHE_DIR", None)


def pytest_unconfigure(config):
    """Remove that folder."""
    while _kept:
        shutil.rmtree(_kept.pop(), ignore_errors=True)


@pytest.fixture(autouse=True)
def same_values_each_run():
    """A test that draws values sees the same ones in every run and in every order."""
    torch.manual_seed(20261130)


def pytest_collection_modifyitems(items):
    """`gpu` needs a CUDA device."""
    if torch.cuda.is_available():
        return
    for item in items:
        if "gpu" in item.keywords:
            item.add_marker(pytest.mark.skip(reason="needs a CUDA device"))
