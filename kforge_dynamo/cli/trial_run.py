"""One model compiled twice, by torch.compile's default and by kforge: are the results right, how fast are both."""

from __future__ import annotations

import functools
from collections import Counter
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import torch

from kforge_dynamo.cli import compare, measure
from kforge_dynamo.cli.models import Built, Entry
from kforge_dynamo.ledger import RegionReport, report, reset, stats

STEPS = (("eager", 1.0), ("torch.compile", 8.0), ("kforge", 12.0), ("timing", 3.0))
"""What a run does, with the seconds each is expected to take beside the search: weights of a progress display."""

REASON_WIDTH = 140

Step = Callable[[str], None]

_MODEL_ERRORS = (ArithmeticError, AssertionError, AttributeError, LookupError, OSError, RuntimeError, TypeError, ValueError)
"""What a model or a compiler raises; the run shows it, and the next model has its turn."""


@dataclass(frozen=True, slots=True)
class Run:
    """What became of one model. `failure` is the exception of whichever call ended the run, else None."""

    entry: Entry
    judgement: compare.Judgement | None
    kforge_error: float | None
    eager_error: float | None
    default_error: float | None
    over_default: measure.Ratio | None
    over_eager: measure.Ratio | None
    kforge_us: float | None
    counted: Mapping[str, int]
    regions: tuple[RegionReport, ...]
    failure: str | None

    @property
    def right(self) -> bool:
        """Whether the model ran and its result is as near to fp64 as eager's, or as torch.compile's where that is further off."""
        return self.judgement is not None and self.judgement.right

    def winners(self) -> Counter[str]:
        """Regions that run on a winner: their titles with scheme, and how often."""
        return Counter(f"{r.title} ({r.scheme})" if r.scheme else r.title for r in self.regions if r.state == "winner")

    def others(self) -> Counter[str]:
        """Regions left to Inductor: title and reason, and how often."""
        return Counter(f"{r.title}: {_line(r.reason) or r.state}" for r in self.regions if r.state != "winner")


def _line(text: str) -> str:
    """The first line of a reason, shortened: a compiler's message has many."""
    first = text.partition("\n")[0]
    return first if len(first) <= REASON_WIDTH else first[: REASON_WIDTH - 3] + "..."


def run(entry: Entry, device: str, options: Mapping[str, Any], seconds: float, step: Step) -> Run:
    """Build, compile, compare and time one model; `step` is told when each of STEPS is done."""
    torch.compiler.reset()
    reset()
    try:
        with torch.no_grad():
            return _run(entry, device, options, seconds, step)
    except _MODEL_ERRORS as error:
        failure = f"{type(error).__name__}: {' '.join(str(error).split())[:300]}"
        return Run(entry, None, None, None, None, None, None, None, stats(), report(), failure)


def _run(entry: Entry, device: str, options: Mapping[str, Any], seconds: float, step: Step) -> Run:
    torch.manual_seed(0)
    built = _on_device(entry.build(), device)
    functions: dict[str, Callable[..., Any]] = {
        "eager": built.module,
        "default": torch.compile(measure.own_code(built.module, "default")),
        "kforge": torch.compile(measure.own_code(built.module, "kforge"), backend="kforge", options=dict(options)),
    }
    exact = compare.oracle(built.module, built.inputs)
    distances = {}
    for (name, _), function in zip(STEPS, functions.values(), strict=False):
        distances[name] = compare.distance(compare.tensors_of(function(*built.inputs)), exact)
        step(name)
    calls = {name: functools.partial(function, *built.inputs) for name, function in functions.items()}
    for call in calls.values():
        call()
    samples = measure.wall(calls, device, seconds)
    step("timing")
    eager, default, ours = distances["eager"], distances["torch.compile"], distances["kforge"]
    # what Inductor does outside of regions (a convolution in another layout takes TF32 kernels on a GPU) is torch.compile's error
    reference = max(eager, default, key=lambda found: found.rms)
    return Run(
        entry,
        compare.judge(ours, reference, torch.float32),
        ours.relative,
        eager.relative,
        default.relative,
        measure.ratio(samples["default"], samples["kforge"]),
        measure.ratio(samples["eager"], samples["kforge"]),
        measure.median(samples["kforge"]),
        stats(),
        report(),
        None,
    )


def _on_device(built: Built, device: str) -> Built:
    """In eval mode, on the device."""
    return Built(built.module.eval().to(device), tuple(value.to(device) for value in built.inputs))
