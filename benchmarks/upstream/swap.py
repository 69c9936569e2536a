"""A pytest plugin: whatever the tests compile with Inductor goes through kforge. `-p benchmarks.upstream.swap`.

`UPSTREAM_BACKEND` says how: "inductor" swaps nothing, "fallback" is kforge without any winner, "evaluator" gives every region
the kernel that is the reference evaluator. `UPSTREAM_OUTCOMES` names a file that gets a line when a test begins and when it
ends. Names that moved between the torch of the tests and the one installed are put where the tests look for them.

Private API, read in torch 2.13.0: `compile_fx.compile_fx` and the names in `_moved`.
"""

from __future__ import annotations

import functools
import importlib
import json
import os
import threading
import unittest
from pathlib import Path
from typing import Any

import pytest
import torch
from torch._inductor import compile_fx as inductor

from benchmarks import planted
from kforge_dynamo import backend, ledger

BACKENDS = ("inductor", "fallback", "evaluator")
_original = inductor.compile_fx
_nested = threading.local()


def _moved() -> None:
    """Gives the tests names that their torch had elsewhere."""
    always = unittest.skipUnless(False, "needs a GPU")
    for module, names in {
        "torch._inductor.compile_fx": {"complex_memory_overlap": lambda *_: False},
        "torch._inductor.codecache": {"cpp_prefix_path": lambda: ""},
        "torch.testing._internal.inductor_utils": {"HAS_CUDA": False, "HAS_XPU": False},
        "torch.testing._internal.triton_utils": {"HAS_CUDA": False, "requires_cuda": always, "requires_gpu": always},
    }.items():
        found = importlib.import_module(module)
        for name, value in names.items():
            if not hasattr(found, name):
                setattr(found, name, value)


@functools.wraps(_original)
def _swapped(model: Any, inputs: Any, *args: Any, config_patches: dict[str, Any] | None = None, **others: Any) -> Any:
    """kforge for a plain call; a call with a compiler or decompositions of its own stays Inductor's."""
    plain = not args and not set(others) - {"compile_region_name"} and isinstance(model, torch.fx.GraphModule)
    if not plain or getattr(_nested, "on", False):
        return _original(model, inputs, *args, config_patches=config_patches, **others)
    _nested.on = True
    try:
        return backend.kforge(model, inputs, options={**(config_patches or {}), "on_miss": "fallback"})
    finally:
        _nested.on = False


class _Outcomes:
    """Writes down what became of each test, at once."""

    def __init__(self, path: Path) -> None:
        self._path = path

    def _write(self, **line: Any) -> None:
        with self._path.open("a", encoding="utf-8") as out:
            out.write(json.dumps(line) + "\n")

    def pytest_runtest_logstart(self, nodeid: str) -> None:
        """A test begins."""
        self._write(begin=nodeid)

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        """A test's body ended, or its setup or teardown did not go well."""
        if report.when == "call" or report.outcome != "passed":
            why = "" if report.outcome != "failed" else report.longreprtext[-1500:]
            counted = {name: value for name, value in ledger.stats().items() if value}
            self._write(test=report.nodeid, outcome=report.outcome, why=why, counted=counted)


def pytest_configure(config: pytest.Config) -> None:
    """Swaps before any test module is imported."""
    _moved()
    wanted = os.environ.get("UPSTREAM_BACKEND", "inductor")
    if wanted not in BACKENDS:
        raise pytest.UsageError(f"UPSTREAM_BACKEND is {wanted!r}, expected one of {', '.join(BACKENDS)}")
    if wanted != "inductor":
        inductor.compile_fx = _swapped
    if wanted == "evaluator":
        planted.install("evaluator")
    path = os.environ.get("UPSTREAM_OUTCOMES")
    if path:
        config.pluginmanager.register(_Outcomes(Path(path)))
