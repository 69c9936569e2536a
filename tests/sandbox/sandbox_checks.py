"""Candidates as plain functions, and the check of one in this process."""

from __future__ import annotations

from functools import lru_cache

import torch
from sandbox_tasks import HIGHEST

from kforge_dynamo.sandbox import verify
from kforge_dynamo.sandbox.bench import Bench
from kforge_dynamo.sandbox.discrimination import discriminate
from kforge_dynamo.sandbox.inputs import BY_NAME, Seeds
from kforge_dynamo.semantics.evaluate import evaluate

ROWS = 37


def bench_of(task, numerics=HIGHEST):
    return Bench(task, numerics, torch.device("cpu"), Seeds(b"tests"))


def checked(task, launcher, *, rows=ROWS, classes=None, numbers=(0,), atomics=False, bench=None, numerics=HIGHEST):
    bench = bench or bench_of(task, numerics)
    sizes = (rows,) if len(task.row_axes) == 1 else (2, rows)
    chosen = _classes(task, bench.numerics, sizes) if classes is None else tuple(BY_NAME[name] for name in classes)
    return verify.verify(launcher, bench, verify.Plan(sizes, chosen, numbers, atomics, 1), lambda _: None)


@lru_cache(maxsize=64)
def _classes(task, numerics, sizes):
    found = discriminate(bench_of(task, numerics), sizes)
    assert found.reason is None, found.reason
    return found.classes


def eager(task):
    def launch(inputs, outputs, sizes):
        for output, value in zip(outputs, evaluate(task, inputs, dict(zip(task.axes, sizes, strict=True))), strict=True):
            output.copy_(value)

    return launch


def changed(task, change):
    """Eager, with `change(inputs, outputs)` afterwards."""

    def launch(inputs, outputs, sizes):
        eager(task)(inputs, outputs, sizes)
        change(inputs, outputs)

    return launch


def before(task, prepare):
    """Eager on `prepare(inputs)`."""

    def launch(inputs, outputs, sizes):
        eager(task)(prepare(list(inputs)), outputs, sizes)

    return launch
