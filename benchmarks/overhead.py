"""What one call costs beside its kernel: `python -m benchmarks.overhead [--device cuda]`.

One small region (Linear and ReLU). The call of an identity graph is Dynamo's own floor; it is taken from the calls of
Inductor's and kforge's versions, and what remains of the two is compared. Host time of calls queued one after another, so
on a CUDA device it is the host's cost as long as the kernel is shorter than that.
"""

from __future__ import annotations

import argparse
import json
import sys
import time
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import torch
from torch import nn

import kforge_dynamo
from benchmarks import variants
from benchmarks.place import place
from kforge_dynamo.cli import measure


class Identity(nn.Module):
    """A graph without work."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """The same tensor."""
        return x


class Region(nn.Module):
    """One region: Linear, then ReLU."""

    def __init__(self, k: int, n: int) -> None:
        super().__init__()
        self.linear = nn.Linear(k, n)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """From `(M, K)` to `(M, N)`."""
        return torch.relu(self.linear(x))


def queued_us(calls: dict[str, Callable[[], Any]], device: str, rounds: int, repeats: int) -> measure.Samples:
    """Microseconds a call, of `repeats` calls in a row with one wait behind them."""
    samples: measure.Samples = {name: [] for name in calls}
    orders = measure.orders(list(calls))
    for _ in range(rounds):
        for name in next(orders):
            call = calls[name]
            start = time.perf_counter_ns()
            for _ in range(repeats):
                call()
            if device == "cuda":
                torch.cuda.synchronize()
            samples[name].append((time.perf_counter_ns() - start) / 1e3 / repeats)
    return samples


def measured(args: argparse.Namespace) -> dict[str, Any]:
    """The row."""
    torch.manual_seed(0)
    options = {"budget_s": 86400.0, "region_budget_s": args.budget}
    with torch.device(args.device), torch.no_grad():
        x, region = torch.rand(args.m, args.k), Region(args.k, args.n).eval()
        functions = {
            "identity": torch.compile(Identity(), backend="eager"),
            "eager": region,
            "inductor": variants.compiled("default", region, args.device, {}),
            "kforge": variants.compiled("kforge", region, args.device, options),
        }
        calls: dict[str, Callable[[], Any]] = {name: lambda f=f: f(x) for name, f in functions.items()}
        for call in calls.values():
            for _ in range(20):
                call()
        samples = queued_us(calls, args.device, args.rounds, args.repeats)
    median = {name: float(np.median(series)) for name, series in samples.items()}
    over = {name: median[name] - median["identity"] for name in ("inductor", "kforge")}
    return {
        **place(args.device),
        "shape": [args.m, args.k, args.n],
        "call_us": {name: round(value, 2) for name, value in median.items()},
        "above_identity_us": {name: round(value, 2) for name, value in over.items()},
        "kforge_over_inductor": round(over["kforge"] / over["inductor"], 3) if over["inductor"] > 0 else None,
        "stats": kforge_dynamo.stats(),
        "regions": [f"{region.title}: {region.state} {region.reason}".strip() for region in kforge_dynamo.report()],
    }


def main(argv: Sequence[str] | None = None) -> int:
    """Print the row as JSON."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.overhead", description=__doc__)
    parser.add_argument("--device", choices=("cpu", "cuda"), default="cpu")
    parser.add_argument("-m", type=int, default=16)
    parser.add_argument("-k", type=int, default=64)
    parser.add_argument("-n", type=int, default=64)
    parser.add_argument("--rounds", type=int, default=101)
    parser.add_argument("--repeats", type=int, default=200)
    parser.add_argument("--budget", type=float, default=10.0, help="seconds of search for the region")
    row = measured(parser.parse_args(argv))
    print(json.dumps(row, indent=1))
    if not row["stats"].get("spliced"):
        print("no winner was spliced: the kforge line is Inductor's own code", file=sys.stderr)
    return 0


if __name__ == "__main__":
    sys.exit(main())
