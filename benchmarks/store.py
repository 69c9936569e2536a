"""What the cache costs: `python -m benchmarks.store [--entries 10000] [--out FILE]`.

A cache is filled with so many winners, each of a task of its own with a source of usual length. Then, opened anew: the first
lookup (it opens the database), hits that come from disk (the entry is read, its tag checked, the record built), hits again in
the same process, misses, and hits in a zip file used as a layer. Last, a training step of a small model compiled with and
without KFORGE_RECORD, taking turns, and what recording adds to a compile, for each region.
"""

from __future__ import annotations

import argparse
import dataclasses
import json
import statistics
import sys
import tempfile
import time
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

import torch
from torch import nn

from benchmarks.place import place
from kforge_dynamo.records.assignment import Assignment
from kforge_dynamo.records.candidate import Candidate, Launch, LaunchPlan
from kforge_dynamo.records.codec import digest, to_text
from kforge_dynamo.records.outcome import CacheKey, Measurement, Provenance, Status, Timings, Trial, Verdict, Winner
from kforge_dynamo.records.target import Numerics
from kforge_dynamo.records.task import InputRole, InputSpec, Node, Task, ValueSpec, point
from kforge_dynamo.store import SCHEMA, Access, Store, close_stores, open_store
from kforge_dynamo.store.bundle import layer_files, write_zip
from kforge_dynamo.store.recorded import append

SOURCE_BYTES = 12_000
ROWS = 64
BATCH = 500
ASKED = 200


def region(width: int) -> Assignment:
    """A Linear with ReLU of its own width."""
    lhs, rhs = ValueSpec("float32", ("m",), (256,)), ValueSpec("float32", (1,), (256, width))
    inputs = (InputSpec(lhs, ("dense", 1), InputRole.LHS), InputSpec(rhs, (0, "dense", 1), InputRole.RHS))
    product = ValueSpec("float32", ("m",), (width,))
    nodes = (Node("gemm", (0, 1), (("alpha", 1.0), ("beta", 1.0)), product), Node("relu", (2,), (), product))
    task = Task(("m",), (), inputs, nodes, (3,))
    return Assignment("gemm + relu", "cpu", task, (ROWS,), point(task, (ROWS,)), Numerics("highest", False, False, False))


def winner(number: int) -> Winner:
    """A winner of usual size for the task of this number."""
    item = region(number + 1)
    key = CacheKey(digest(item.task), "a device", digest(item.numerics), SCHEMA)
    samples = Measurement(tuple(10.0 + place * 0.125 for place in range(15)), "wall")
    plan = LaunchPlan((), (Launch("kforge_entry", ("1",), ()),))
    candidate = Candidate("cpp", f"// {number}\n" + "x" * SOURCE_BYTES, plan, "{}", "ieee", "builtin")
    trial = Trial(candidate, Verdict(Status.PASSED, 1.0, 1e-7, "", ""), (Timings("wall", "default", samples, samples, None),))
    made = Provenance(torch.__version__, "cpp", "none", "none", "0", "2026-01-01T00:00:00+00:00")
    return Winner(key, to_text(item.task), item.domain, trial, made)


def fill(cache: Path, entries: int) -> float:
    """Stores so many winners; seconds an entry."""
    store, started = open_store(str(cache)), time.perf_counter()
    for first in range(0, entries, BATCH):
        store.put_all([winner(number) for number in range(first, min(first + BATCH, entries))])
    return (time.perf_counter() - started) / entries


def lookups(store: Store, keys: Iterable[CacheKey]) -> list[float]:
    """Seconds of each lookup."""
    spent = []
    for key in keys:
        started = time.perf_counter()
        store.lookup(key, (ROWS,), made_now)
        spent.append(time.perf_counter() - started)
    return spent


def made_now(language: str) -> Provenance:
    """The software of now, as of the stored winners."""
    return Provenance(torch.__version__, language, "none", "none", "0", "")


def summary(spent: list[float]) -> dict[str, float]:
    """Median and 95th percentile in milliseconds."""
    ordered = sorted(spent)
    return {"median_ms": 1e3 * statistics.median(ordered), "p95_ms": 1e3 * ordered[int(0.95 * (len(ordered) - 1))]}


def hits(home: Path, entries: int) -> dict[str, Any]:
    """Lookups in a cache of so many entries, and in a layer of a tenth as many."""
    put_s = fill(home / "cache", entries)
    asked = [winner(number).key for number in range(0, entries, max(1, entries // ASKED))]
    close_stores()
    store = open_store(str(home / "cache"))
    found: dict[str, Any] = {"entries": entries, "put_ms": 1e3 * put_s, "first lookup": summary(lookups(store, asked[:1]))}
    found["hit from disk"] = summary(lookups(store, asked[1:]))
    found["hit again"] = summary(lookups(store, asked[1:]))
    found["miss"] = summary(lookups(store, [dataclasses.replace(key, device="another") for key in asked]))
    write_zip(home / "layer.zip", layer_files((winner(number) for number in range(entries // 10)), "0", "", None))
    close_stores()
    layered = open_store(str(home / "empty"), Access((str(home / "layer.zip"),), ("digest",)))
    found["layer opened"] = summary(lookups(layered, [winner(0).key]))
    found["hit in a layer"] = summary(lookups(layered, [winner(number).key for number in range(1, min(ASKED, entries // 10))]))
    return found


def recording(home: Path, rounds: int) -> dict[str, Any]:
    """A training step with and without recording, taking turns; and the cost of recording one region."""
    spent: dict[str, list[float]] = {"plain": [], "recorded": []}
    steps = {name: trained(home / f"{name}.jsonl" if name == "recorded" else None) for name in spent}
    for _ in range(rounds):
        for name, step in steps.items():
            started = time.perf_counter()
            step()
            spent[name].append(time.perf_counter() - started)
    ratios = [recorded / plain for recorded, plain in zip(spent["recorded"], spent["plain"], strict=True)]
    lines = []
    for number in range(ASKED):
        started = time.perf_counter()
        append(home / "lines.jsonl", [(region(number + 1), "wall")])
        lines.append(time.perf_counter() - started)
    return {
        "step": summary(spent["plain"]),
        "recorded step": summary(spent["recorded"]),
        "median of ratios": statistics.median(ratios),
        "recording a region": summary(lines),
    }


def trained(record: Path | None) -> Callable[[], None]:
    """A training step of a small model, compiled, run twice."""
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(512, 1024), nn.GELU(), nn.Linear(1024, 512))
    options = {"on_miss": "fallback"} | ({"record": str(record)} if record is not None else {})
    compiled = torch.compile(model, backend="kforge", options=options)
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-3)
    x = torch.randn(256, 512)

    def step() -> None:
        optimizer.zero_grad(set_to_none=True)
        compiled(x).square().mean().backward()
        optimizer.step()

    step()
    step()
    return step


def main(words: list[str]) -> None:
    """Measures and prints; with `--out` one JSON line is added to a file."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.store", description=__doc__)
    parser.add_argument("--entries", type=int, default=10_000)
    parser.add_argument("--rounds", type=int, default=200, help="training steps with and without recording")
    parser.add_argument("--out", type=Path)
    given = parser.parse_args(words)
    with tempfile.TemporaryDirectory(prefix="kforge-store-") as name:
        found = {"place": place("cpu"), **hits(Path(name), given.entries), **recording(Path(name), given.rounds)}
        close_stores()
    for what, value in found.items():
        if isinstance(value, dict) and what != "place":
            sys.stdout.write(f"{what:<20} {', '.join(f'{each} {number:.3f}' for each, number in value.items())}\n")
    sys.stdout.write(f"ratio of steps       {found['median of ratios']:.4f} recorded over plain\n")
    if given.out is not None:
        with given.out.open("a", encoding="utf-8") as stream:
            stream.write(json.dumps(found, default=str) + "\n")


if __name__ == "__main__":
    main(sys.argv[1:])
