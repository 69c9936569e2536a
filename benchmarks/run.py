"""Measure the 37 workloads: `python -m benchmarks.run [options]`; one line of JSON for each row, appended as it is ready.

Rows are measured in a child process that lives over many rows and is replaced after a failure, a crash or a row that took
too long; such a row is written with its reason. `--resume` leaves out the rows that the file already has.
"""

from __future__ import annotations

import argparse
import contextlib
import dataclasses
import itertools
import json
import os
import select
import shlex
import signal
import subprocess
import sys
import time
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any

HERE = Path(__file__).resolve().parent
PRECISIONS = {
    "highest": "fp32",
    "fp32": "fp32",
    "strict": "strict",
    "high": "high",
    "medium": "medium",
    "mixed": "mixed",
    "bf16": "bf16",
}
"""What a row calls each setting: fp32 tensors under what is promised of their products, or the whole model in bf16."""
SCALES = {"v0.1": "small", "small": "small", "cpu": "cpu", "full": "full"}
"""Sizes: of the benchmark's first release, scaled for a CPU, of its present release."""
START_S = 180.0
"""The longest that a child may take to import torch and find its device."""


@dataclasses.dataclass
class Child:
    """One measuring process and the pipe that its answers come through."""

    process: subprocess.Popen[str]
    answers: int
    rest: str = ""

    @staticmethod
    def start(log: Path) -> Child:
        """A fresh process that is ready for orders. Raises: RuntimeError with the end of its log where it does not start."""
        reader, writer = os.pipe()
        with log.open("a", encoding="utf-8") as out:
            process = subprocess.Popen(
                [sys.executable, "-m", "benchmarks.child", str(writer)],
                cwd=HERE.parent,
                stdin=subprocess.PIPE,
                stdout=out,
                stderr=out,
                pass_fds=(writer,),
                text=True,
                start_new_session=True,
            )
        os.close(writer)
        child = Child(process, reader)
        answer = child.answer(START_S)
        if "ready" not in answer:
            child.end()
            raise RuntimeError(f"the measuring process did not start ({answer['failure']}); see {log}")
        return child

    def answer(self, limit_s: float) -> dict[str, Any]:
        """The next answer, or a failure that says how the process ended or that time was up."""
        deadline = time.monotonic() + limit_s
        while "\n" not in self.rest:
            ready, _, _ = select.select([self.answers], [], [], max(0.0, deadline - time.monotonic()))
            if not ready:
                return {"failure": f"no result within {limit_s:.0f} s", "dead": True}
            data = os.read(self.answers, 1 << 20)
            if not data:
                return {"failure": f"the measuring process ended with status {self.process.wait()}", "dead": True}
            self.rest += data.decode("utf-8")
        line, self.rest = self.rest.split("\n", 1)
        answer: dict[str, Any] = json.loads(line)
        return answer

    def order(self, fields: dict[str, Any]) -> None:
        """Send one order."""
        assert self.process.stdin is not None
        with contextlib.suppress(BrokenPipeError):  # the answer says how it died
            self.process.stdin.write(json.dumps(fields) + "\n")
            self.process.stdin.flush()

    def end(self) -> None:
        """Kill the process with all that it started."""
        with contextlib.suppress(ProcessLookupError):
            os.killpg(self.process.pid, signal.SIGKILL)
        self.process.wait()
        os.close(self.answers)
        if self.process.stdin is not None:
            with contextlib.suppress(BrokenPipeError):
                self.process.stdin.close()


def identity(fields: dict[str, Any]) -> tuple[Any, ...]:
    """What resuming and the report go by, of an order's or a row's fields."""
    return tuple(fields[name] for name in ("id", "scale", "precision", "mode", "source", "options"))


def names_of(order: dict[str, Any]) -> dict[str, Any]:
    """The fields that name an order's row."""
    fields = {name: order[name] for name in ("id", "scale", "precision", "mode")}
    options = json.dumps(order["options"], sort_keys=True) if order["options"] else ""
    return fields | {"source": "kernelbench" if order["kernelbench"] else "own", "options": options}


def done(path: Path, device: str) -> set[tuple[Any, ...]]:
    """Rows of this file that were measured on this kind of device and did not fail."""
    if not path.exists():
        return set()
    rows = [json.loads(line) for line in path.read_text(encoding="utf-8").splitlines() if line.strip()]
    return {identity(row["row"]) for row in rows if not row.get("failure") and row["row"].get("kind") == device}


def orders(args: argparse.Namespace) -> Iterator[dict[str, Any]]:
    """All rows that the command line asks for."""
    problems = json.loads((HERE / "workloads.json").read_text(encoding="utf-8"))["problems"]
    wanted = set(args.ids or [problem["id"] for problem in problems])
    unknown = wanted - {problem["id"] for problem in problems}
    if unknown:
        raise SystemExit(f"no workload has the number {sorted(unknown)}; there are {[p['id'] for p in problems]}")
    numbers = [problem["id"] for problem in problems if problem["id"] in wanted]
    for precision, prepack, number in itertools.product(args.precision, args.prepack, numbers):
        named = PRECISIONS[precision]
        yield {
            "id": number,
            "scale": SCALES[args.scale] if args.scale else "full" if args.device == "cuda" else "cpu",
            "precision": named,
            "mode": args.mode,
            "device": args.device,
            "variants": [*args.variants, *(["autocast"] if named == "mixed" else [])],
            "measure_s": args.measure,
            "budget_s": args.budget,
            "autotune_s": args.autotune,
            "options": json.loads(args.options) | ({} if prepack == "default" else {"prepack": prepack}),
            "kernelbench": args.kernelbench,
        }


def finish(answer: dict[str, Any], order: dict[str, Any], command: str, took_s: float) -> dict[str, Any]:
    """The row to write: what the child measured, or the reason why not."""
    row = dict(answer.get("row", {}))
    row["row"] = names_of(order) | {"kind": order["device"]}
    row["failure"] = answer.get("failure")
    row["took_s"] = round(took_s, 1)
    row["command"] = command
    return row


def sentence(row: dict[str, Any]) -> str:
    """One line for people."""
    fields = row["row"]
    head = f"{fields['id']:3} {fields['precision']:6} {fields['mode']:5} {row['took_s']:6.1f} s"
    if row["failure"]:
        return f"{head}  FAILED: {row['failure']}"
    times = row["device_us"] or row["wall_us"]
    text = "  ".join(f"{name} {value['median']:.1f}" for name, value in times.items())
    ratio = row["device_ratio"] or row["wall_ratio"]
    if ratio:
        text += f"  x{ratio['value']:.3f} [{ratio['low']:.3f}, {ratio['high']:.3f}] over {ratio['against']}"
    if row["kforge"]:
        states = [f"{r['state']}{'/' + r['scheme'] if r['scheme'] else ''}" for r in row["kforge"]["regions"]]
        error = row["error"]["ratio"]
        text += f"  error {'-' if error is None else format(error, '.2f')}"
        text += f"{'' if row['error']['right'] is not False else ' WRONG'}  {', '.join(states) or 'no region'}"
    return f"{head}  us: {text}"


def measure(todo: Sequence[dict[str, Any]], args: argparse.Namespace, command: str) -> int:
    """Measure the rows in order; how many failed. Stops before `--time-limit` would be passed."""
    began, failed, longest_s = time.monotonic(), 0, 0.0
    args.out.parent.mkdir(parents=True, exist_ok=True)
    log = args.out.with_suffix(".log")
    child: Child | None = None
    try:
        for index, order in enumerate(todo):
            left_s = args.time_limit - (time.monotonic() - began)
            if left_s < longest_s:
                print(f"time limit: {len(todo) - index} rows left; go on with --resume", flush=True)
                break
            started = time.monotonic()
            child = child or Child.start(log)
            child.order(order)
            answer = child.answer(min(args.row_limit, args.time_limit - (time.monotonic() - began)))
            if answer.get("failure"):
                child.end()
                child = None
            if answer.get("dead") and time.monotonic() - began >= args.time_limit:
                print(f"time limit: {len(todo) - index} rows left; go on with --resume", flush=True)
                break
            row = finish(answer, order, command, time.monotonic() - started)
            if not row["failure"] and index > 0:  # the first one paid for the start
                longest_s = max(longest_s, row["took_s"])
            failed += row["failure"] is not None
            with args.out.open("a", encoding="utf-8") as out:
                out.write(json.dumps(row) + "\n")
            print(f"[{index + 1}/{len(todo)}] {sentence(row)}", flush=True)
    finally:
        if child is not None:
            child.end()
    return failed


def parse(argv: Sequence[str] | None) -> argparse.Namespace:
    """The command line."""
    p = argparse.ArgumentParser(prog="python -m benchmarks.run", description=__doc__)
    p.add_argument("--device", choices=("cpu", "cuda"), default="cpu")
    p.add_argument("--suite", choices=("level2",), default="level2", help="the 37 products with their epilogues, the only suite")
    p.add_argument("--precision", nargs="+", choices=list(PRECISIONS), help="of fp32 products, fp32 meaning highest; or bf16")
    p.add_argument("--dtype", nargs="+", choices=("fp32", "bf16"), default=[], help="bf16 is the whole model in bf16")
    p.add_argument("--scale", "--shapes", choices=list(SCALES), help="default: cpu on a CPU, full on a GPU")
    p.add_argument("--prepack", nargs="+", choices=("default", "verify", "trust", "off"), default=["default"])
    p.add_argument("--ids", nargs="+", type=int, metavar="N")
    p.add_argument("--variants", "--modes", nargs="+", default=["eager", "default", "kforge"], metavar="V",
                   choices=("eager", "default", "max-autotune", "kforge"))  # fmt: skip
    group = p.add_mutually_exclusive_group()
    group.add_argument("--mode", choices=("eval", "train"), default="eval")
    group.add_argument("--eval", dest="mode", action="store_const", const="eval", default="eval")
    group.add_argument("--train", dest="mode", action="store_const", const="train", help="train mode under no_grad")
    p.add_argument("--out", type=Path, default=HERE / "results" / "rows.jsonl")
    p.add_argument("--resume", action="store_true")
    p.add_argument("--budget", type=float, default=10.0, help="seconds of search for one region")
    p.add_argument("--autotune", type=float, default=40.0, help="seconds that max-autotune may compile")
    p.add_argument("--measure", type=float, default=1.0, help="seconds of each timing of a row")
    p.add_argument("--row-limit", type=float, default=300.0, help="seconds that a row may take")
    p.add_argument("--time-limit", type=float, default=float("inf"), help="seconds for all; stops between rows")
    p.add_argument("--options", default="{}", help="more options for kforge, as JSON")
    p.add_argument("--kernelbench", metavar="PATH", help="a checkout: its own problem files instead of ours")
    args = p.parse_args(argv)
    args.precision = args.precision or ["highest"]
    if args.dtype:
        args.precision = [name for name in args.precision if "fp32" in args.dtype and name != "bf16"]
        args.precision += ["bf16"] if "bf16" in args.dtype else []
    return args


def main(argv: Sequence[str] | None = None) -> int:
    """Exit status 1 if a row failed."""
    args = parse(argv)
    command = "python -m benchmarks.run " + shlex.join(sys.argv[1:] if argv is None else argv)
    todo: Iterable[dict[str, Any]] = orders(args)
    if args.resume:
        have = done(args.out, args.device)
        todo = [order for order in todo if identity(names_of(order)) not in have]
    todo = list(todo)
    failed = measure(todo, args, command)
    print(f"{len(todo)} rows asked for, {failed} failed; rows in {args.out}")
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
