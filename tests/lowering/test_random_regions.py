"""Random programs around products: whatever joins is right, every call is placed once, regions never need each other first."""

import random

import pytest
import torch
from post_grad import check, close, replace_all, trace
from torch import fx

M, K = 12, 8
"""Rows are 12 = 3 x 4, columns of the products 8 or 12."""

UNARY = [
    torch.sin, torch.tanh, torch.relu, torch.sigmoid, torch.neg, torch.abs, lambda y: y * 2, lambda y: y + 0.5, lambda y: 1 - y,
    lambda y: y * 1, lambda y: y.clamp(-0.5, 0.5), lambda y: torch.where(y > 0, y, 0.1), lambda y: (y > 0).float(),
    lambda y: y.bfloat16().float(), lambda y: y.clone(), lambda y: y / 3, lambda y: y * (y > 0),
    lambda y: y.masked_fill(y > 1, 0.0),
]  # fmt: skip
BINARY = [torch.add, torch.mul, torch.sub, torch.maximum, torch.minimum, lambda a, b: torch.where(a > b, a, b)]
REDUCTIONS = [
    lambda y, d, k: y.sum(d, keepdim=k), lambda y, d, k: y.mean(d, keepdim=k), lambda y, d, k: y.amax(d, keepdim=k),
    lambda y, d, k: y.var(d, keepdim=k) if y.shape[d] > 1 else y.amin(d, keepdim=k),
    lambda y, d, k: torch.max(y, d, keepdim=k)[0],
    lambda y, d, k: torch.min(y, d, keepdim=k)[1].float(), lambda y, d, k: torch.logsumexp(y, d, keepdim=k),
]  # fmt: skip


class Program:
    """Draws the same steps for the same seed, so that it can be traced and run again."""

    def __init__(self, seed: int, steps: int = 14) -> None:
        self.seed, self.steps = seed, steps

    def __call__(self, x, w, v, *extras):
        draw = random.Random(self.seed)
        values = [x @ w]
        if draw.random() < 0.6:
            values.append(x @ v)
        if draw.random() < 0.2:
            values.append(x @ w)
        for _ in range(self.steps):
            step = self.step(draw, values, extras)
            if step is not None:
                values.append(step)
        returned = [*draw.sample(values, min(len(values), draw.randint(1, 3))), values[-1]]
        return tuple({id(value): value for value in returned}.values())

    def step(self, draw, values, extras):
        y = draw.choice(values[-4:])
        kind = draw.randrange(9)
        if kind <= 2:
            return draw.choice(UNARY)(y)
        if kind <= 4:
            fitting = [other for other in (*values, *extras) if broadcasts(y, other)]
            return draw.choice(BINARY)(y, draw.choice(fitting)) if fitting else None
        if kind == 5 and y.dim():
            return draw.choice(REDUCTIONS)(y, draw.randrange(y.dim()), draw.random() < 0.6)
        if kind == 6:
            return self.reshaped(draw, y)
        if kind == 7 and y.dim() > 1:
            order = list(range(y.dim()))
            draw.shuffle(order)
            return y.permute(order)
        if kind == 8 and y.dim():
            dim = draw.randrange(y.dim())
            size = y.shape[dim]
            if size % 2 == 0 and draw.random() < 0.5:
                return draw.choice(torch.chunk(y, 2, dim))
            return y.unsqueeze(dim) if draw.random() < 0.5 else y.squeeze()
        return None

    def reshaped(self, draw, y):
        if not y.dim():
            return y.reshape(1, 1)
        dim = draw.randrange(y.dim())
        size = y.shape[dim]
        factors = [factor for factor in (2, 3, 4) if size % factor == 0 and size > factor]
        if factors and draw.random() < 0.7:
            factor = draw.choice(factors)
            return y.reshape(*y.shape[:dim], size // factor, factor, *y.shape[dim + 1 :])
        if dim + 1 < y.dim():
            return y.reshape(*y.shape[:dim], size * y.shape[dim + 1], *y.shape[dim + 2 :])
        return y.reshape(-1)


def broadcasts(a, b) -> bool:
    pairs = zip(reversed(a.shape), reversed(b.shape), strict=False)
    return a.dtype.is_floating_point == b.dtype.is_floating_point and all(i == j or 1 in (i, j) for i, j in pairs)


def operands(seed: int):
    generator = torch.Generator().manual_seed(seed)
    shapes = [(M, K), (K, 12), (K, 8), (12,), (8,), (M, 1), (M, 12), (3, 4, 1), (4, 12), (1,), (), (4,), (12, M)]
    values = [torch.randn(shape, generator=generator) for shape in shapes]
    values[-1] = values[-1].t()
    return values


def judge(seed: int):
    """The partition of one program: its regions are right, and so is the graph that calls them. Raises: AssertionError."""
    args = operands(seed)
    graph = trace(Program(seed), *args)
    found = check(graph, args)
    expected = Program(seed)(*args)
    replace_all(graph, found)
    results = fx.Interpreter(graph.owning_module, graph=graph).run(*args)
    for result, value in zip(results, expected, strict=True):
        close(result, value, f"program {seed}")
        moving = [dim for dim, size in enumerate(value.shape) if size > 1]
        assert all(result.stride(dim) == value.stride(dim) for dim in moving), f"program {seed}: strides"
    return found


@pytest.mark.parametrize("block", range(10))
def test_random_programs_are_partitioned_right(block):
    joined = 0
    for seed in range(block * 10, block * 10 + 10):
        joined += sum(len(region.task.nodes) > 1 for region in judge(seed).regions)
    assert joined >= 5, "hardly anything joins: the programs test nothing"
