"""Random tasks through generator and judge: `python -m benchmarks.random_tasks --count 500 --seed 1 [--resume FILE]`.

A task is a product with random sizes, dtype and strides, and an epilogue drawn from the op table. The built-in C++ generator
writes a kernel by a random schedule of its space, the judge says whether it may win, and every kernel that may is then compared
with fp64 once more, on values that the judge did not draw. One line of JSON a task; `--resume` continues a file. Ends with 1 when
a kernel that the judge let through is over the gate, or when the judge found one of the generator's kernels wrong.
"""

from __future__ import annotations

import argparse
import json
import random
import tempfile
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import torch

from kforge_dynamo.codegen import cpp
from kforge_dynamo.languages.base import canonical_dims
from kforge_dynamo.languages.table import LANGUAGES
from kforge_dynamo.records.outcome import Status
from kforge_dynamo.records.request import Request
from kforge_dynamo.records.target import Numerics, Target
from kforge_dynamo.records.task import Const, InputRole, InputSpec, Node, Operand, Task, ValueSpec, point
from kforge_dynamo.sandbox.bench import Bench
from kforge_dynamo.sandbox.evaluation import Evaluator
from kforge_dynamo.sandbox.inputs import BY_NAME, Seeds
from kforge_dynamo.sandbox.verify import Plan, verify
from kforge_dynamo.targets import detect

HIGHEST = Numerics("highest", False, False, False)
FINE = (Status.PASSED, Status.NOT_TESTABLE)
_UNARY = ("neg", "abs", "tanh", "sigmoid", "erf", "relu", "sin", "cos", "exp2", "square")
_BINARY = ("add", "sub", "mul", "maximum", "minimum")
_REDUCTIONS = ("sum", "mean", "amax", "amin", "var")


class RandomTask:
    """One task from a seed: `task`, its `rows`, and the generator of random numbers for what else is chosen."""

    def __init__(self, seed: int) -> None:
        self.rng = rng = random.Random(seed)
        self.n, self.k = rng.choice((1, 6, 16, 24, 36, 64, 72, 100)), rng.choice((1, 7, 32, 90, 130))
        self.rows = rng.choice((1, 3, 16, 29, 50))
        self.dtype = rng.choice(("float32", "float32", "bfloat16"))
        left = rng.choice((("dense", 1), ("pitch", 1), (1, "dense")))
        right = rng.choice(((0, 1, "dense"), (0, "dense", 1), (0, 1, "pitch"), (0, "pitch", 1)))
        self.inputs = [
            self._input(("m",), (self.k,), InputRole.LHS, left),
            self._input((1,), (self.k, self.n), InputRole.RHS, right),
            self._input((1,), (self.n,), InputRole.EXTRA, (0, 1)),
            self._input(("m",), (self.n,), InputRole.EXTRA, rng.choice((("dense", 1), ("pitch", 1)))),
        ]
        self.nodes: list[Node] = []
        args: tuple[Operand, ...] = (0, 1, 2) if rng.random() < 0.7 else (0, 1)
        scales = (("alpha", rng.choice((1.0, 1.0, 0.5))), ("beta", 1.0))
        values = [self._add(Node("gemm", args, scales, ValueSpec(self.dtype, ("m",), (self.n,))))]
        values.append(3)
        if self.dtype != "float32":
            values = [self._convert(value, "float32") for value in values]
        for _ in range(rng.randrange(1, 7)):
            values.append(self._step(values))
        last = values[-1] if rng.random() < 0.7 or self.dtype == "float32" else self._convert(values[-1], self.dtype)
        self.task = Task(("m",), (), tuple(self.inputs), tuple(self.nodes), (last,))

    def _input(self, rows: tuple[Any, ...], cols: tuple[int, ...], role: InputRole, strides: tuple[Any, ...]) -> InputSpec:
        shape = rows + cols
        given = tuple(0 if extent == 1 else stride for extent, stride in zip(shape, strides, strict=True))
        return InputSpec(ValueSpec(self.dtype, rows, cols), given, role)

    def _add(self, node: Node) -> int:
        self.nodes.append(node)
        return len(self.inputs) + len(self.nodes) - 1

    def _spec(self, number: int) -> ValueSpec:
        count = len(self.inputs)
        return self.inputs[number].value if number < count else self.nodes[number - count].out

    def _convert(self, number: int, dtype: str) -> int:
        spec = self._spec(number)
        return self._add(Node("convert", (number,), (), ValueSpec(dtype, spec.rows, spec.cols)))

    def _op(self, name: str, *args: Operand) -> int:
        specs = [self._spec(arg) for arg in args if not isinstance(arg, Const)]
        cols = tuple(
            next((extent for extent in extents if extent != 1), 1) for extents in zip(*(s.cols for s in specs), strict=True)
        )
        return self._add(Node(name, args, (), ValueSpec("float32", ("m",), cols)))

    def _step(self, values: list[int]) -> int:
        rng, x = self.rng, self.rng.choice(values[-2:])
        kind = rng.random()
        if kind < 0.35:
            name = rng.choice(_UNARY)
            return self._op("mul", x, x) if name == "square" else self._op(name, self._op("tanh", x) if name == "exp2" else x)
        if kind < 0.65:
            other: Operand = rng.choice((Const(0.75), rng.choice(values)))
            return self._op(rng.choice(_BINARY), x, other)
        if kind < 0.75:
            mask = self._add(Node("gt", (x, Const(0.1)), (), ValueSpec("bool", ("m",), (self.n,))))
            return self._add(Node("where", (mask, x, rng.choice(values)), (), self._spec(x)))
        return self._normalised(x)

    def _normalised(self, x: int) -> int:
        """`x` with a statistic of its row, or of groups in it, taken off or multiplied in."""
        rng = self.rng
        groups = rng.choice([d for d in range(1, self.n + 1) if self.n % d == 0])
        shaped = self._add(Node("reshape", (x,), (), ValueSpec("float32", ("m",), (groups, self.n // groups))))
        axis = rng.choice((0, 1))
        cols = tuple(1 if d == axis else extent for d, extent in enumerate((groups, self.n // groups)))
        name = rng.choice(_REDUCTIONS)
        attrs: tuple[Any, ...] = (("axes", (axis,)), *((("correction", 0.0),) if name == "var" else ()))
        found = self._add(Node(name, (shaped,), attrs, ValueSpec("float32", ("m",), cols)))
        joined = self._op(rng.choice(("sub", "add", "mul")), shaped, self._op("tanh", found))
        return self._add(Node("reshape", (joined,), (), ValueSpec("float32", ("m",), (self.n,))))


class Judge:
    """Generator and judge in this process."""

    def __init__(self, seed: int, folder: str) -> None:
        target = detect(torch.device("cpu"))
        assert target is not None
        self.target: Target = target
        self.folder = folder
        self._seeds = Seeds(f"once more {seed}".encode())
        self._evaluator = Evaluator(LANGUAGES, torch.device("cpu"), f"first {seed}".encode(), lambda _: None)

    def row(self, seed: int) -> dict[str, Any]:
        """What became of the task of one seed."""
        drawn = RandomTask(seed)
        task, sizes = drawn.task, (drawn.rows,)
        refused = cpp.rejects(task, self.target)
        if refused is not None:
            return {"seed": seed, "status": "refused", "words": refused}
        schedules = cpp.space(task, sizes, self.target, HIGHEST)
        candidate = cpp.emit(task, drawn.rng.choice(schedules), sizes, self.target, HIGHEST)
        request = Request(task, sizes, point(task, sizes), candidate, self.target, HIGHEST, "default", "{}", "search",
                          self.folder, False, 600.0, None)  # fmt: skip
        verdict = self._evaluator.evaluate(request).verdict
        found = {"seed": seed, "status": verdict.status.value, "ratio": verdict.error_ratio, "words": verdict.evidence[:300]}
        if verdict.passed:
            found |= self._again(task, sizes, candidate)
        return found

    def _again(self, task: Task, sizes: tuple[int, ...], candidate: Any) -> dict[str, Any]:
        language = LANGUAGES[candidate.language]
        artifact = language.build(candidate, task, self.target, Path(self.folder))
        launcher = language.load(artifact, candidate, task, canonical_dims(task))
        bench = Bench(task, HIGHEST, torch.device("cpu"), self._seeds)
        plan = Plan(sizes, (BY_NAME["unit"], BY_NAME["normal"]), (0, 1), candidate.plan.atomics, torch.get_num_threads())
        verdict = verify(launcher, bench, plan, lambda _: None)
        return {"again": verdict.status.value, "again_ratio": verdict.error_ratio, "again_words": verdict.evidence[:300]}


def rows(count: int, seed: int, done: frozenset[int]) -> Iterator[dict[str, Any]]:
    """The rows of `count` tasks whose seeds begin at `seed` times a million, but for those that are done."""
    with tempfile.TemporaryDirectory(prefix="kforge-random-") as folder:
        judge = Judge(seed, folder)
        for number in range(seed * 1_000_000, seed * 1_000_000 + count):
            if number not in done:
                yield judge.row(number)


def faults(found: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """Rows of kernels that the judge let through and that are over the gate, and of kernels that it found wrong."""
    names = {status.value for status in FINE} | {"refused"}
    return [row for row in found if row["status"] not in names or row.get("again", "passed") != "passed"]


def main() -> int:
    """Runs, prints counts, returns the exit status."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--count", type=int, default=500)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--resume", type=Path, help="a file of rows: those in it are left out, new ones are added")
    options = parser.parse_args()
    kept = options.resume.read_text().splitlines() if options.resume and options.resume.exists() else []
    found = [json.loads(line) for line in kept if line.strip()]
    for row in rows(options.count, options.seed, frozenset(row["seed"] for row in found)):
        found.append(row)
        if options.resume:
            with options.resume.open("a", encoding="utf-8") as file:
                file.write(json.dumps(row) + "\n")
    wrong = faults(found)
    print(f"{len(found)} tasks: {dict(Counter(row['status'] for row in found))}, {len(wrong)} faults")
    print("\n".join(json.dumps(row) for row in wrong))
    return 1 if wrong else 0


if __name__ == "__main__":
    raise SystemExit(main())
