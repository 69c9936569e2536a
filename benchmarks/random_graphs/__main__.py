"""Random regions by the thousand: `python -m benchmarks.random_graphs --count 3000 --resume FILE`.

Draws programs around products, compiles twenty to a module with every region spliced, and compares outputs, writes to
arguments, and gradients with fp64. FILE gets a row a module, so a run goes on where it was ended. A program that comes out
wrong is compiled by Inductor alone; where that is right, the program is made small and printed as a script.

--kind evaluator   every region runs by the reference evaluator (tests the lowering and the runtime)
--kind generated   every region runs by a C++ candidate drawn from the built-in generator's space, unverified
--route            "interpreted": to the end of Inductor's passes, then node by node; "inductor": generated code

Exit status 1 if a fault is kforge's.
"""

from __future__ import annotations

import argparse
import json
import random
import subprocess
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from benchmarks.planted import KINDS
from benchmarks.random_graphs.drawing import draw_module
from benchmarks.random_graphs.programs import Program
from benchmarks.random_graphs.running import ROUTES, blame, run_module
from benchmarks.random_graphs.shrinking import shrink

A_PROCESS = 10
"""Modules a process runs before a fresh one takes over: Dynamo's caches grow."""


def run_one(seed: int, args: argparse.Namespace) -> dict[str, Any]:
    """The row of one module."""
    start = time.monotonic()
    programs = draw_module(random.Random(seed), seed, args.programs)
    outcome = run_module(programs, args.route, args.kind)
    row = {"seed": seed, "route": args.route, "kind": args.kind, **outcome.counted}
    ours, theirs = [], []
    for index, fault in outcome.faults.items():
        excuse = blame(programs[index], args.route)
        found = {"program": index, "fault": fault, "inductor": excuse}
        if excuse is None:
            small = _shrunk(programs[index], args)
            found["script"] = small.script()
            ours.append(found)
        else:
            theirs.append(found)
    said = [line for line in outcome.said if not line.startswith("region ")]
    return {**row, "ours": ours, "inductors": theirs, "said": said, "seconds": round(time.monotonic() - start, 1)}


def _shrunk(program: Program, args: argparse.Namespace) -> Program:
    return shrink(program, lambda smaller: bool(run_module([smaller], args.route, args.kind).faults), args.shrink)


def rows_of(path: Path) -> list[dict[str, Any]]:
    """The rows of a file; none where there is no file."""
    return [json.loads(line) for line in path.read_text(encoding="utf-8").splitlines()] if path.exists() else []


def append(path: Path, row: dict[str, Any]) -> None:
    """One row more."""
    with path.open("a", encoding="utf-8") as out:
        out.write(json.dumps(row) + "\n")


def child(args: argparse.Namespace) -> int:
    """Runs the modules of `--seeds`, each of which leaves a row when it ends and a file when it begins."""
    for seed in args.seeds:
        args.resume.with_suffix(".running").write_text(str(seed), encoding="utf-8")
        append(args.resume, run_one(seed, args))
    return 0


def parent(args: argparse.Namespace, argv: Sequence[str]) -> int:
    """Starts processes until the regions are enough."""
    while True:
        rows = [row for row in rows_of(args.resume) if (row["route"], row["kind"]) == (args.route, args.kind)]
        done = {row["seed"] for row in rows}
        regions = sum(row["regions"] for row in rows)
        ours = [(row["seed"], item) for row in rows for item in row["ours"]]
        excused = sum(len(row["inductors"]) for row in rows)
        print(f"{regions} regions, {len(ours)} faults, {excused} that Inductor has alone", flush=True)
        if regions >= args.count:
            return report(ours)
        seeds = [seed for seed in range(args.first, args.first + len(done) + A_PROCESS) if seed not in done][:A_PROCESS]
        command = [sys.executable, "-m", "benchmarks.random_graphs", *argv, "--seeds", *map(str, seeds)]
        ended = subprocess.run(command, check=False, timeout=args.timeout)
        if ended.returncode != 0:
            seed = int(args.resume.with_suffix(".running").read_text(encoding="utf-8"))
            fault = {"program": None, "fault": f"the process ended with status {ended.returncode}", "script": ""}
            empty = dict.fromkeys(("regions", "winners", "calls", "fallback_calls", "fallbacks", "rejected"), 0)
            row = {"seed": seed, "route": args.route, "kind": args.kind, **empty, "ours": [fault], "inductors": [], "said": []}
            append(args.resume, row)


def report(ours: Sequence[tuple[int, dict[str, Any]]]) -> int:
    """Prints what is kforge's fault."""
    for seed, item in ours:
        print(f"\n# seed {seed}, program {item['program']}: {item['fault']}\n{item['script']}")
    return 1 if ours else 0


def main(argv: Sequence[str]) -> int:
    """Run what the command line asks for."""
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks.random_graphs", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--count", type=int, default=100, help="regions")
    parser.add_argument("--resume", type=Path, default=Path("random_graphs.jsonl"), help="file of rows")
    parser.add_argument("--programs", type=int, default=20, help="programs a module")
    parser.add_argument("--first", type=int, default=0, help="the first seed")
    parser.add_argument("--route", choices=ROUTES, default=ROUTES[0])
    parser.add_argument("--kind", choices=KINDS, default=KINDS[0])
    parser.add_argument("--shrink", type=int, default=150, help="attempts to make a failing program smaller")
    parser.add_argument("--timeout", type=float, default=3600.0, help="seconds for ten modules")
    parser.add_argument("--seeds", type=int, nargs="*", help=argparse.SUPPRESS)
    args = parser.parse_args(argv)
    return child(args) if args.seeds else parent(args, argv)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
