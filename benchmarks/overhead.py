"""What one call costs beside its kernel: `python -m benchmarks.overhead [--device cuda]`.

One small region (Linear and ReLU). The call of an identity graph is Dynamo's own floor; it is taken from the calls of
Inductor's and kforge's versions, and what remains of the two is compared. Host time of calls queued one after another, so
on a CUDA device it is the host's cost as long as the kernel is shorter than that. With `--planted` the generator's first
kernel is spliced without a race: the call path is measured whether or not that kernel is fast. `benchmarks.launches` has the
host's share of Triton launches on any machine.
"""

from __future__ import annotations

import argparse
import json
import os
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import torch
from torch import nn

import kforge_dynamo
from benchmarks import variants
from benchmarks.place import place
from kforge_dynamo import answers
from kforge_dynamo.cli import measure
from kforge_dynamo.evaluation import Evaluator
from kforge_dynamo.forge import Bench, Miss
from kforge_dynamo.records.candidate import Candidate
from kforge_dynamo.records.codec import to_text
from kforge_dynamo.records.outcome import Measurement, Status, Timings, Trial, Verdict, Winner


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


def plant() -> None:
    """From now on in this process, every region's winner is the generator's first candidate, verified and timed by nobody."""

    def settle(miss: Miss, bench: Bench, budget_s: float, seeds: Sequence[Candidate] = ()) -> tuple[Winner, None]:
        candidate = bench.generator.propose(miss.task, miss.sizes, bench.target, bench.numerics, (), 1)[0]
        fast, slow = Measurement((1.0,), "planted"), Measurement((9.0,), "planted")
        timings = tuple(Timings(regime, "default", fast, slow, slow) for regime in ("wall", "replay"))
        trial = Trial(candidate, Verdict(Status.PASSED, None, None, "", "planted"), timings)
        return Winner(miss.key, to_text(miss.task), miss.domain, trial, bench.provenance(candidate.language)), None

    setattr(answers, "settle", settle)  # noqa: B010  a name that is imported there
    setattr(Evaluator, "wait", lambda self: None)  # noqa: B010


def measured(args: argparse.Namespace) -> dict[str, Any]:
    """The row."""
    torch.manual_seed(0)
    if args.planted:
        plant()
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
        "load": round(os.getloadavg()[0], 2),
        "planted": args.planted,
        "shape": [args.m, args.k, args.n],
        "call_us": {name: round(value, 2) for name, value in median.items()},
        "least_us": {name: round(float(np.percentile(series, 10)), 2) for name, series in samples.items()},
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
    parser.add_argument(
        "--planted", action="store_true", help="splice the generator's first kernel, unraced, into a cache of its own"
    )
    args = parser.parse_args(argv)
    if args.planted:
        with tempfile.TemporaryDirectory() as folder:
            os.environ["KFORGE_CACHE_DIR"] = folder
            row = measured(args)
    else:
        row = measured(args)
    print(json.dumps(row, indent=1))
    if not row["stats"].get("spliced"):
        print("no winner was spliced: the kforge line is Inductor's own code", file=sys.stderr)
    return 0


if __name__ == "__main__":
    sys.exit(main())
