"""Kernels stay inside the memory they are given: a stray read or write is a crash of the program that this test runs."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest


@pytest.mark.skipif(sys.platform != "linux", reason="pages are fenced with mprotect")
def test_no_byte_beside_inputs_and_outputs_is_touched():
    root = Path(__file__).resolve().parents[3]
    command = [sys.executable, "-m", "tests.codegen.cpp.edge_of_memory"]
    done = subprocess.run(command, cwd=root, capture_output=True, text=True, timeout=280, check=False)
    assert done.returncode == 0, f"status {done.returncode}\n{done.stderr[-2000:]}"
