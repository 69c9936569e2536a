"""The 37 workloads of `workloads.json` as modules, composed from a small vocabulary of steps.

A row's `steps` is a sentence in that vocabulary: words parted by semicolons, each a name with its constants. Sizes come
from the row's scale: "full", "small" or "cpu".
"""

from __future__ import annotations

import functools
import json
import pathlib
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

FACTS = pathlib.Path(__file__).with_name("workloads.json")
SCALES = ("cpu", "small", "full")
KINDS = ("plain", "algebra", "degenerate")
"""algebra: the epilogue lets most of the product be left out; degenerate: the output does not depend on the input."""


@dataclass(frozen=True, slots=True)
class Sizes:
    """The input is `(M, K)`, the product `(M, N)`; `groups`, `N2` and `pool` where the workload has them."""

    M: int
    K: int
    N: int
    groups: int = 0
    N2: int = 0
    pool: int = 0


@dataclass(frozen=True, slots=True)
class Fact:
    """One row of `workloads.json` at one scale."""

    id: int
    name: str
    steps: str
    kind: str
    sizes: Sizes
    note: str

    @property
    def random(self) -> bool:
        """Whether two calls in train mode differ."""
        return "dropout" in self.steps


@dataclass(frozen=True)
class Case:
    """A module with its inputs, ready to call."""

    fact: Fact
    module: nn.Module
    inputs: tuple[Tensor, ...]


class Apply(nn.Module):
    """A function of the product so far, with constants."""

    def __init__(self, function: Callable[..., Tensor], *constants: Any) -> None:
        super().__init__()
        self.function, self.constants = function, constants

    def forward(self, y: Tensor) -> Tensor:
        """Apply it."""
        return self.function(y, *self.constants)


class Combine(nn.Module):
    """A function of the product so far and a parameter."""

    def __init__(self, function: Callable[[Tensor, Tensor], Tensor], parameter: Tensor) -> None:
        super().__init__()
        self.function, self.parameter = function, nn.Parameter(parameter)

    def forward(self, y: Tensor) -> Tensor:
        """Combine them."""
        return self.function(y, self.parameter)


class MinThenSubtract(nn.Module):
    """`min(y, c) - c` with one 0-d parameter c."""

    def __init__(self, value: float) -> None:
        super().__init__()
        self.parameter = nn.Parameter(torch.tensor(value))

    def forward(self, y: Tensor) -> Tensor:
        """Both uses of the parameter."""
        return torch.minimum(y, self.parameter) - self.parameter


class WeightProduct(nn.Module):
    """`x @ W.T` without bias, the weight `(N, K)` drawn from N(0, 1)."""

    def __init__(self, k: int, n: int) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.randn(n, k))

    def forward(self, x: Tensor) -> Tensor:
        """The product `(M, N)`."""
        return torch.matmul(x, self.weight.T)


class Keep(nn.Module):
    """Remembers the value so far for a later `add_kept`."""

    def __init__(self, clone: bool) -> None:
        super().__init__()
        self.clone = clone

    def forward(self, y: Tensor) -> Tensor:
        """What is remembered."""
        return y.clone().detach() if self.clone else y


class Recall(nn.Module):
    """A function of the product so far and something from before: "kept", or the second "input"."""

    def __init__(self, function: Callable[[Tensor, Tensor], Tensor], source: str) -> None:
        super().__init__()
        self.function, self.source = function, source

    def forward(self, y: Tensor, other: Tensor) -> Tensor:
        """Combine them."""
        return self.function(y, other)


class Workload(nn.Module):
    """The steps of one workload in order."""

    def __init__(self, steps: list[nn.Module]) -> None:
        super().__init__()
        self.steps = nn.ModuleList(steps)

    def forward(self, x: Tensor, *extra: Tensor) -> Tensor:
        """From `(M, K)` (and a second input where the workload has one) to the output."""
        y = kept = x
        for step in self.steps:
            if isinstance(step, Keep):
                kept = step(y)
            elif isinstance(step, Recall):
                y = step(y, kept if step.source == "kept" else extra[0])
            else:
                y = step(y)
        return y


def _double(y: Tensor) -> Tensor:
    return y + y


def _times_mish(y: Tensor) -> Tensor:
    return y * F.mish(y)


def _swish(y: Tensor) -> Tensor:
    return y * torch.sigmoid(y)


def _instance_norm(y: Tensor) -> Tensor:
    """Each row of `(M, N)` over N, by way of an image `(M, 1, 1, N)`."""
    return F.instance_norm(y[:, None, None, :], eps=1e-5)[:, 0, 0, :]


def _max_pool(y: Tensor, size: int) -> Tensor:
    return F.max_pool1d(y.unsqueeze(1), size).squeeze(1)


def _avg_pool(y: Tensor, size: int) -> Tensor:
    return F.avg_pool1d(y.unsqueeze(1), size).squeeze(1)


def _reduce(y: Tensor, name: str, keepdim: bool) -> Tensor:
    """A reduction over dim 1."""
    if name in ("max", "min"):
        return getattr(torch, name)(y, dim=1, keepdim=keepdim).values
    return getattr(torch, name)(y, dim=1, keepdim=keepdim)


def _sub_own_mean(y: Tensor) -> Tensor:
    return y - y.mean(dim=1, keepdim=True)


_FUNCTIONS: dict[str, Callable[..., Tensor]] = {
    "relu": F.relu,
    "gelu": F.gelu,
    "mish": F.mish,
    "sigmoid": torch.sigmoid,
    "tanh": torch.tanh,
    "swish": _swish,
    "double": _double,
    "times_mish": _times_mish,
    "instance_norm": _instance_norm,
    "sub_own_mean": _sub_own_mean,
    "leaky_relu": F.leaky_relu,
    "hardtanh": F.hardtanh,
    "clamp": torch.clamp,
    "mul": torch.mul,
    "div": torch.div,
    "sub": torch.sub,
    "softmax": functools.partial(torch.softmax, dim=1),
    "sum": functools.partial(_reduce, name="sum", keepdim=True),
    "mean": functools.partial(_reduce, name="mean", keepdim=True),
    "max": functools.partial(_reduce, name="max", keepdim=True),
    "min": functools.partial(_reduce, name="min", keepdim=True),
    "logsumexp": functools.partial(_reduce, name="logsumexp", keepdim=True),
    "sum_flat": functools.partial(_reduce, name="sum", keepdim=False),
    "max_flat": functools.partial(_reduce, name="max", keepdim=False),
    "logsumexp_flat": functools.partial(_reduce, name="logsumexp", keepdim=False),
}

_STATEFUL: dict[str, Callable[..., nn.Module]] = {
    "linear": lambda s: nn.Linear(s.K, s.N),
    "linear_no_bias": lambda s: nn.Linear(s.K, s.N, bias=False),
    "linear_n2": lambda s: nn.Linear(s.N, s.N2),
    "matmul_weight": lambda s: WeightProduct(s.K, s.N),
    "group_norm": lambda s: nn.GroupNorm(s.groups, s.N),
    "batch_norm": lambda s: nn.BatchNorm1d(s.N),
    "dropout": lambda s, p: nn.Dropout(p),
    "max_pool": lambda s, size: Apply(_max_pool, int(size)),
    "avg_pool": lambda s: Apply(_avg_pool, s.pool),
    "add_parameter": lambda s: Combine(torch.add, torch.randn(s.N)),
    "sub_parameter": lambda s: Combine(torch.sub, torch.randn(s.N)),
    "mul_parameter": lambda s: Combine(torch.mul, torch.randn(s.N)),
    "add_scalar_parameter": lambda s: Combine(torch.add, torch.randn(1)),
    "mul_scalar_parameter": lambda s: Combine(torch.mul, torch.ones(1)),
    "add_image_parameter": lambda s: Combine(torch.add, torch.randn(1, s.N, 1, 1)),
    "min_then_subtract": lambda s, value: MinThenSubtract(value),
    "keep": lambda s: Keep(clone=False),
    "keep_clone": lambda s: Keep(clone=True),
    "add_kept": lambda s: Recall(torch.add, "kept"),
    "add_input": lambda s: Recall(torch.add, "input"),
    "mul_input": lambda s: Recall(torch.mul, "input"),
}


def step(word: str, sizes: Sizes) -> nn.Module:
    """The module that one word means. Raises: KeyError for a word outside the vocabulary."""
    name, *constants = word.split()
    numbers = [float(constant) for constant in constants]
    if name in _STATEFUL:
        return _STATEFUL[name](sizes, *numbers)
    return Apply(_FUNCTIONS[name], *numbers)


def facts(scale: str) -> list[Fact]:
    """All workloads at one scale, in the order of their numbers."""
    rows = json.loads(FACTS.read_text(encoding="utf-8"))["problems"]
    return [Fact(r["id"], r["name"], r["steps"], r["kind"], Sizes(**r[scale]), r.get("note", "")) for r in rows]


def build(fact: Fact, device: str, seed: int = 0) -> Case:
    """The module in fp32 on a device, its running statistics away from their defaults, with inputs uniform in [0, 1)."""
    torch.manual_seed(seed)
    with torch.device(device):
        module = Workload([step(word.strip(), fact.sizes) for word in fact.steps.split(";")])
        inputs = [torch.rand(fact.sizes.M, fact.sizes.K)]
        if "_input" in fact.steps:
            inputs.append(torch.rand(fact.sizes.M, fact.sizes.N))
        for part in module.modules():
            if isinstance(part, nn.BatchNorm1d) and part.running_mean is not None and part.running_var is not None:
                part.running_mean.normal_(0.0, 0.2)
                part.running_var.uniform_(0.5, 1.5)
    return Case(fact, module, tuple(inputs))
