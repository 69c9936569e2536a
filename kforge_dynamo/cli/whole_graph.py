"""Whole graphs with and without each splice: what wins alone may lose in its place, and is then left out there."""

from __future__ import annotations

import types
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import torch

from kforge_dynamo import answers
from kforge_dynamo.cli import measure
from kforge_dynamo.graph_pass import leaving_out
from kforge_dynamo.ledger import RegionReport
from kforge_dynamo.settings import Settings

CLOSE = 1.25
"""A region that wins by less is also timed alone in the graph: neighbours that Inductor fuses differently may eat its gain."""
ALL, NONE = "all", "none"

Timer = Callable[[Mapping[str, Callable[[], Any]]], Mapping[str, list[float]]]
"""Times calls in turn: samples in microseconds by name, as many for each."""
Build = Callable[[str], Callable[[], Any]]
"""A call of the model, compiled anew under a label."""


@dataclass(frozen=True, slots=True)
class Decision:
    """`splices` are left out of the graph `place`, each with the reason; `whole` is the time without any over that with all."""

    left_out: Mapping[str, Mapping[str, str]]
    whole: measure.Ratio | None


def decide(reports: Sequence[RegionReport], build: Build, timer: Timer) -> Decision:
    """Which of the spliced regions make the graph slower.

    A splice is left out where the graph without it is faster by more than the interval of the ratio. Where the graph with
    all of them is slower than without any and none stands out, all are left out. `build` compiles; it runs under
    `graph_pass.leaving_out`.
    """
    spliced = {item.splice: item for item in reports if item.state == "winner" and item.splice}
    if not spliced:
        return Decision({}, None)
    calls = {ALL: _built(build, ALL, ()), NONE: _built(build, NONE, spliced)}
    samples = timer(calls)
    whole = measure.ratio(samples[NONE], samples[ALL])
    slower = whole.high < 1.0
    doubtful = [name for name, item in spliced.items() if slower or (item.speedup or 0.0) < CLOSE]
    if len(spliced) == 1:
        alone = dict.fromkeys(spliced, whole)
    else:
        calls = {ALL: calls[ALL]} | {name: _built(build, f"without_{number}", (name,)) for number, name in enumerate(doubtful)}
        samples = timer(calls) if doubtful else {}
        alone = {name: measure.ratio(samples[name], samples[ALL]) for name in doubtful}
    reasons = {name: _words(found) for name, found in alone.items() if found.high < 1.0}
    if slower and not reasons:
        reasons = dict.fromkeys(spliced, _words(whole))
    left_out: dict[str, dict[str, str]] = {}
    for name, reason in reasons.items():
        left_out.setdefault(spliced[name].place, {})[name] = reason
    return Decision(left_out, whole)


def keep(decision: Decision) -> None:
    """Writes it where `torch.compile` finds it, beside the graphs' epochs."""
    for place, splices in decision.left_out.items():
        answers.leave_out(place, splices, Settings.parse()[0])


def after(decision: Decision, reports: Sequence[RegionReport]) -> tuple[RegionReport, ...]:
    """The reports with the splices that were left out."""
    reasons = {name: reason for splices in decision.left_out.values() for name, reason in splices.items()}
    return tuple(
        replace(item, state="no_winner", reason=reasons[item.splice]) if item.splice in reasons else item for item in reports
    )


def builder(
    model: Callable[..., Any], inputs: Sequence[torch.Tensor], options: Mapping[str, Any], run: Callable[..., None]
) -> Build:
    """Compiles `model` by kforge as code of its own for each label, so that variants stand side by side, and calls it once.

    `run(compiled, inputs)` makes the call.
    """

    def build(label: str) -> Callable[[], Any]:
        twin = measure.own_code(model, label) if isinstance(model, torch.nn.Module) else _own_function(model, label)
        compiled = torch.compile(twin, backend="kforge", options=dict(options))
        run(compiled, inputs)
        return lambda: run(compiled, inputs)

    return build


def _own_function(function: Callable[..., Any], label: str) -> Callable[..., Any]:
    if not isinstance(function, types.FunctionType):
        return function
    code = function.__code__.replace(co_name=f"{function.__name__}_{label}")
    return types.FunctionType(code, function.__globals__, function.__name__, function.__defaults__, function.__closure__)


def _built(build: Build, label: str, without: Any) -> Callable[[], Any]:
    with leaving_out(without):
        return build(label)


def _words(found: measure.Ratio) -> str:
    """For people, and for the cache."""
    return (
        f"right and faster alone, but the whole graph was slower with it: without it {found.value:.3f} of the time with it "
        f"({found.low:.3f} to {found.high:.3f})"
    )
