"""The interpreter's process, started once for all tests of this folder."""

from __future__ import annotations

import json
import os
import pathlib
import subprocess
import sys
from collections.abc import Callable, Iterator

import pytest

from kforge_dynamo.codegen.triton import Schedule
from kforge_dynamo.records.codec import to_text
from kforge_dynamo.records.task import Task

HERE = pathlib.Path(__file__).resolve().parent
ROOT = HERE.parents[2]

Interpret = Callable[..., dict]


@pytest.fixture(scope="session")
def ask() -> Iterator[Callable[[dict], dict]]:
    """Asks the interpreter's process, and fails with its words where it does."""
    environment = os.environ | {"TRITON_INTERPRET": "1", "PYTHONPATH": f"{ROOT}{os.pathsep}{HERE}", "OMP_NUM_THREADS": "1"}
    command = [sys.executable, "-W", "ignore", str(HERE / "triton_interpreter.py")]
    child = subprocess.Popen(command, env=environment, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
    assert child.stdin is not None and child.stdout is not None

    def run(request: dict) -> dict:
        child.stdin.write(json.dumps(request) + "\n")
        child.stdin.flush()
        result = json.loads(child.stdout.readline())
        assert "failed" not in result, result["failed"]
        return result

    yield run
    child.stdin.close()
    child.wait(30)


@pytest.fixture(scope="session")
def interpret(ask) -> Interpret:
    """`interpret(task, schedule, sizes, seed=0, fill="normal")` runs a candidate and returns its judgement; with `halves` it also
    tells what the candidate gives when the launches that prepare weights run apart. `weight` (N, K) replaces the drawn one;
    with `once` the launch that computes tiles again is left out."""

    def run(
        task: Task, schedule: Schedule, sizes: tuple[int, ...], seed: int = 0, fill: str = "normal", halves: bool = False,
        weight: list[list[float]] | None = None, once: bool = False,
    ) -> dict:  # fmt: skip
        request = {"task": to_text(task), "schedule": to_text(schedule), "sizes": sizes, "seed": seed, "fill": fill}
        return ask(request | {"halves": halves, "weight": weight, "once": once})

    return run
