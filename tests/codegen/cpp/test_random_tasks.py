"""Random programs against the fp64 oracle: whatever the op table can say, composed at random."""

from __future__ import annotations

import random

import pytest

from kforge_dynamo.codegen.cpp import Schedule
from kforge_dynamo.records.task import Task
from tests.codegen.cpp.building import Building
from tests.codegen.cpp.running import check

SAFE_UNARY = ("neg", "abs", "tanh", "sigmoid", "erf", "relu", "sin", "cos")
BINARY = ("add", "sub", "mul", "maximum", "minimum")
SCHEDULES = (
    Schedule("library", 16),
    Schedule("library_whole", 16),
    Schedule("own", 24, 0, "columns", 8, 2, 64),
    Schedule("own", 24, 32, "columns", 8, 1, 64),
    Schedule("own", 40, 0, "rows", 6, 2, 64),
    Schedule("own", 40, 48, "rows", 6, 1, 64),
    Schedule("dot", 12, 32, "", 2),
)


class Random:
    """Grows one program from a seed."""

    def __init__(self, seed: int) -> None:
        self.rng = random.Random(seed)
        self.b = Building()
        self.n = self.rng.choice((1, 6, 16, 24, 36, 60, 72, 96, 120))
        self.k = self.rng.choice((1, 7, 32, 90))
        rows = self.rng.choice((None, (1,)))
        dtype = self.rng.choice(("float32", "float32", "bfloat16"))
        product_inputs = self.rng.random() < 0.5
        self.bias = product_inputs
        extras = [self.b.input((self.n,), rows=rows, dtype=dtype), self.b.fixed((self.n,)), self.b.input((self.n,), dtype="bool")]
        x = self.b.linear(self.k, self.n, bias=self.bias, weight=self.rng.choice(("nk", "kn")))
        first = self.b.op("convert", extras[0], dtype="float32") if dtype != "float32" else extras[0]
        self.values, self.mask = [x, first, extras[1]], extras[2]

    def pick(self) -> int:
        return self.rng.choice(self.values[-3:] + self.values[:1])

    def factors(self, count: int) -> tuple[int, ...]:
        divisor = self.rng.choice([d for d in range(1, count + 1) if count % d == 0])
        return (divisor, count // divisor)

    def step(self) -> None:
        b, rng = self.b, self.rng
        x = self.pick()
        kind = rng.random()
        if kind < 0.3:
            self.values.append(b.op(rng.choice(SAFE_UNARY), x))
        elif kind < 0.6:
            self.values.append(b.op(rng.choice(BINARY), x, self.alike(x)))
        elif kind < 0.7:
            self.values.append(
                b.op("where", self.b.op("logical_not", self.mask), x, 0.5) if self.flat(x) else b.op("mul", x, 0.5)
            )
        elif kind < 0.9:
            self.values.append(self.grouped(x))
        else:
            (start, length) = (rng.randrange(self.n), self.n)
            part = b.slice(self.as_flat(x), 0, start, length, rng.choice((1, 2)))
            self.values.append(b.op("add", self.as_flat(x), b.reduce("mean", part, (0,))))

    def flat(self, x: int) -> bool:
        return self.b.value(x).cols == (self.n,)

    def as_flat(self, x: int) -> int:
        return x if self.flat(x) else self.b.reshape(x, self.n)

    def alike(self, x: int) -> int | float:
        if self.rng.random() < 0.3:
            return 0.75
        other = self.as_flat(self.pick())
        return other if self.flat(x) else self.b.reshape(other, *self.b.value(x).cols)  # type: ignore[arg-type]

    def grouped(self, x: int) -> int:
        b, rng = self.b, self.rng
        shaped = b.reshape(self.as_flat(x), *self.factors(self.n))
        axes = rng.choice(((0,), (1,), (0, 1)))
        found = b.reduce(rng.choice(("sum", "mean", "amax", "amin", "var")), shaped, axes, correction=0.0)
        scaled = b.op("tanh", b.op("mul", found, 0.25))
        return self.as_flat(b.op(rng.choice(BINARY), shaped, scaled))

    def task(self) -> Task:
        for _ in range(self.rng.randrange(2, 12)):
            self.step()
        if self.rng.random() < 0.25 and self.b.value(self.values[-1]).rows == ("m",):
            x = self.as_flat(self.values[-1])
            self.values.append(self.b.op("sub", x, self.b.reduce(self.rng.choice(("mean", "amax", "sum")), x, "rows")))
        return self.b.task(self.values[-1], *(self.values[3:4]))


@pytest.mark.parametrize("seed", range(24))
def test_random_programs_match(seed):
    grown = Random(seed)
    task = grown.task()
    schedules = [s for s in SCHEDULES if s.product != "dot" or task.inputs[4].strides[1] == 1 or grown.k == 1]
    check(task, {"m": random.Random(seed).choice((1, 5, 23, 50))}, schedules[seed % len(schedules)], seed=seed, share=0.998)
