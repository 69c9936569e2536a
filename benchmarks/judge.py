"""How many candidates a minute the judge decides: `python -m benchmarks.judge`.

Small tasks with the candidates that the built-in generator proposes for them, in the stage "search", checked and timed, one
worker for all. The first candidate of each task pays for the task (truths, mutants, Inductor's version); the numbers are with
and without it. The machine's load is printed beside them: others' work slows all of this.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import time
from collections import Counter
from dataclasses import asdict, dataclass

import torch

from kforge_dynamo.codegen.builtin import BuiltinGenerator
from kforge_dynamo.evaluation import Evaluator, Order
from kforge_dynamo.records.assignment import Assignment
from kforge_dynamo.records.target import Numerics
from kforge_dynamo.records.task import InputRole, InputSpec, Node, Task, ValueSpec, point
from kforge_dynamo.targets import detect, numerics

_PLAIN = (("alpha", 1.0), ("beta", 1.0))


@dataclass(frozen=True, slots=True)
class Result:
    """`first_s` are the first candidates of the tasks, `later_s` the others; `verdicts` counts how they ended."""

    candidates: int
    seconds: float
    a_minute: float
    a_minute_later: float
    first_s: list[float]
    later_s: list[float]
    verdicts: dict[str, int]
    load: tuple[float, float, float]
    device: str
    timed: bool


def small_task(rows: int, k: int, n: int, op: str, rules: Numerics, device: str) -> Assignment:
    """A linear layer with bias and `op`."""
    product = ValueSpec("float32", ("m",), (n,))
    inputs = (
        InputSpec(ValueSpec("float32", ("m",), (k,)), ("dense", 1), InputRole.LHS),
        InputSpec(ValueSpec("float32", (1,), (k, n)), (0, 1, "dense"), InputRole.RHS),
        InputSpec(ValueSpec("float32", (1,), (n,)), (0, 1), InputRole.EXTRA),
    )
    task = Task(("m",), (), inputs, (Node("gemm", (0, 1, 2), _PLAIN, product), Node(op, (3,), (), product)), (4,))
    return Assignment(f"gemm + bias + {op}", device, task, (rows,), point(task, (rows,)), rules)


def measure(tasks: int, each: int, *, timed: bool, device: str = "cpu") -> Result:
    """Judges `each` candidates of each of `tasks` tasks."""
    target = detect(torch.device(device))
    if target is None:
        raise SystemExit(f"no such device here: {device}")
    rules = numerics("auto", target)
    generator = BuiltinGenerator()
    evaluator = Evaluator(target, device)
    evaluator.wait()
    first, later, verdicts = [], [], Counter[str]()
    order = Order("search", timed, 60.0, "default")
    try:
        for number in range(tasks):
            op = ("relu", "tanh", "sigmoid", "exp")[number % 4]
            item = small_task(32 + number, 64, 64, op, rules, torch.device(device).type)
            candidates = generator.propose(item.task, item.sizes, target, rules, (), each)
            for place, candidate in enumerate(candidates):
                start = time.monotonic()
                trial = evaluator.judge(item, candidate, order)
                (later if place else first).append(time.monotonic() - start)
                verdicts[trial.verdict.status.value] += 1
    finally:
        evaluator.close()
    spent = sum(first) + sum(later)
    count = len(first) + len(later)
    rate = 60.0 / statistics.mean(later) if later else float("nan")
    return Result(count, spent, 60.0 * count / spent, rate, first, later, dict(verdicts), os.getloadavg(), target.name, timed)


def main() -> None:
    """Prints the numbers."""
    parser = argparse.ArgumentParser(prog="benchmarks.judge", description=__doc__)
    parser.add_argument("--tasks", type=int, default=4)
    parser.add_argument("--each", type=int, default=8, help="candidates a task")
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--no-time", action="store_true", help="only check")
    parser.add_argument("--json", action="store_true")
    options = parser.parse_args()
    result = measure(options.tasks, options.each, timed=not options.no_time, device=options.device)
    if options.json:
        print(json.dumps(asdict(result)))
        return
    print(f"{result.candidates} candidates in {result.seconds:.1f} s: {result.a_minute:.0f} a minute,", end=" ")
    print(f"{result.a_minute_later:.0f} a minute after the first of each task")
    print(f"first {statistics.mean(result.first_s):.2f} s, later {statistics.mean(result.later_s):.2f} s on average;", end=" ")
    print(f"verdicts {result.verdicts}; {'checked and timed' if result.timed else 'checked'}")
    print(f"{result.device}; load of the machine {result.load[0]:.1f} {result.load[1]:.1f} {result.load[2]:.1f}")


if __name__ == "__main__":
    main()
