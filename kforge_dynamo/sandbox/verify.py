"""Is a loaded candidate right? It runs before the reference is computed, on fresh memory with guards; on the first draw of
each class twice."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

import torch

from kforge_dynamo.languages.base import Launcher
from kforge_dynamo.records.guardrail import ALL, Guards
from kforge_dynamo.records.outcome import Status, Verdict
from kforge_dynamo.records.task import Task
from kforge_dynamo.sandbox.bench import Bench
from kforge_dynamo.sandbox.downcast import named_downcast
from kforge_dynamo.sandbox.gate import Truth, judge
from kforge_dynamo.sandbox.inputs import InputClass, full_shape
from kforge_dynamo.sandbox.layout import CANARY, SECOND_CANARY, Placed, blank, guards_intact, place, same_bits
from kforge_dynamo.sandbox.threads import threads
from kforge_dynamo.sandbox.watch import Form, LaunchFault, observed
from kforge_dynamo.semantics.evaluate import dtype_of, shape_of

_TELLING = ("unit", "normal", "uniform")
_PADS = (8, 1, 3, 64, 5)
"""Extra elements of a pitch, by the number of the draw: aligned and odd ones."""


@dataclass(frozen=True, slots=True)
class Plan:
    """What to check: `numbers` are the draws of each class, `atomics` whether two launches may differ within e0, `threads`
    how many the candidate runs on, `trapped` whether no torch operation may run inside a launch, `known` which threads earlier
    launches left, `form` in which other form a graph will run it."""

    sizes: tuple[int, ...]
    classes: tuple[InputClass, ...]
    numbers: tuple[int, ...]
    atomics: bool
    threads: int
    trapped: bool = False
    known: frozenset[int] = frozenset()
    form: Form | None = None


def verify(launcher: Launcher, bench: Bench, plan: Plan, say: Callable[[str], None]) -> Verdict:
    """The verdict over all classes of `plan`; ends with the first fault. `say` is told what is being checked."""
    worst, worst_where, worst_e0 = 0.0, "", 0.0
    for chosen in plan.classes:
        say(f"class {chosen.name} at sizes {plan.sizes}")
        runs = []
        for number in plan.numbers:
            run = _run(launcher, bench, plan, chosen, number)
            if isinstance(run, Verdict):
                return run
            runs.append(run)
        verdict = _judged(bench, plan, chosen, runs)
        if not verdict.passed:
            return _explained(verdict, bench, plan, chosen, runs)
        if (verdict.error_ratio or 0.0) >= worst:
            worst, worst_where, worst_e0 = verdict.error_ratio or 0.0, verdict.where, verdict.e0 or 0.0
    names = ", ".join(chosen.name for chosen in plan.classes)
    return Verdict(Status.PASSED, worst, worst_e0, worst_where, f"right on {names} with {len(plan.numbers)} seeds each")


def _explained(verdict: Verdict, bench: Bench, plan: Plan, chosen: InputClass, runs: Sequence[_Run]) -> Verdict:
    """`verdict`, with the number format that explains it where there is one; on data where formats differ in digits alone."""
    if verdict.status is not Status.INACCURATE or chosen.name not in _TELLING:
        return verdict
    words = named_downcast(bench, plan.sizes, runs[0].drawn, runs[0].outputs)
    return verdict if words is None else replace(verdict, evidence=f"{words}; {verdict.evidence}")


@dataclass(frozen=True, slots=True)
class _Run:
    number: int
    drawn: list[torch.Tensor]
    outputs: list[torch.Tensor]


def _run(launcher: Launcher, bench: Bench, plan: Plan, chosen: InputClass, number: int) -> _Run | Verdict:
    where = f"class {chosen.name}, sizes {plan.sizes}, draw {number}"
    drawn = bench.draw(plan.sizes, chosen, number)
    twice = number == 0 and bench.guards.deterministic
    first, second = (CANARY, SECOND_CANARY) if bench.guards.prefill else (0, 0)
    canaries = (first, second) if twice else (first,)
    runs = launch_guarded(launcher, bench, plan, drawn, _PADS[number % len(_PADS)], canaries, where)
    if isinstance(runs, Verdict):
        return runs
    for again in runs[1:]:
        verdict = _repeated(bench, plan, chosen, _Run(number, drawn, runs[0]), again, where)
        if verdict is not None:
            return verdict
    return _Run(number, drawn, runs[0])


def _repeated(bench: Bench, plan: Plan, chosen: InputClass, first: _Run, again: list[torch.Tensor], where: str) -> Verdict | None:
    """What is wrong with a second launch: other bits than the first or, with atomics, wrong by itself."""
    if plan.atomics:
        verdict = _judged(bench, plan, chosen, [_Run(first.number, first.drawn, again)])
        return None if verdict.passed else verdict
    for place_, (left, right) in enumerate(zip(first.outputs, again, strict=True)):
        if not same_bits(left, right):
            spots = _differences(left, right)
            words = f"output {place_}: {spots} elements differ between two launches on equal inputs (or were not written)"
            words += " [rule deterministic]"
            return Verdict(Status.NON_DETERMINISTIC, None, None, where, words)
    return None


def _differences(left: torch.Tensor, right: torch.Tensor) -> int:
    if left.dtype.is_floating_point:
        return int(((left != right) & ~(torch.isnan(left) & torch.isnan(right))).sum())
    return int((left != right).sum())


def launch_guarded(
    launcher: Launcher,
    bench: Bench,
    plan: Plan,
    drawn: Sequence[torch.Tensor],
    pad: int,
    canaries: Sequence[int],
    where: str,
) -> list[list[torch.Tensor]] | Verdict:
    """One launch a canary, on fresh copies of the inputs and outputs full of that canary; the outputs, or what was wrong."""
    task, guards = bench.task, bench.guards
    axes = dict(zip(task.axes, plan.sizes, strict=True))
    device = drawn[0].device
    inputs = [place(values, item, full_shape(item, axes), pad) for values, item in zip(drawn, task.inputs, strict=True)]
    runs = []
    for turn, canary in enumerate(canaries):
        outputs = [_output(task, number, axes, device, canary) for number in task.outputs]
        given = ([item.tensor for item in inputs], [item.tensor for item in outputs], list(plan.sizes))
        try:
            with threads(plan.threads):
                told = {"threads": plan.threads, "trapped": plan.trapped, "known": plan.known, "guards": guards}
                # two launches with atomics cannot be compared: the last one is judged in the form that a graph runs
                last = plan.atomics and turn + 1 == len(canaries)
                observed(launcher, *given, **told, form=plan.form, in_form=last)  # type: ignore[arg-type]
        except LaunchFault as caught:
            return Verdict(Status.REJECTED, None, None, where, str(caught))
        if device.type == "cuda":
            torch.cuda.synchronize(device)
        fault = _form_fault(task, axes, outputs, where, guards) or _write_fault(inputs, outputs, where, guards)
        if fault is not None:
            return fault
        runs.append([item.tensor for item in outputs])
    return runs


def _write_fault(inputs: Sequence[Placed], outputs: Sequence[Placed], where: str, guards: Guards) -> Verdict | None:
    """A write to an input, or beyond an output."""
    for number, item in enumerate(inputs):
        if item.untouched():
            continue
        if not item.data_untouched():
            if guards.inputs:
                words = f"input {number} has other values after the launch [rule inputs]"
                return Verdict(Status.INPUT_CHANGED, None, None, where, words)
        elif guards.zones:
            words = f"bytes around or between the rows of input {number} were written [rule zones]"
            return Verdict(Status.STRAY_WRITE, None, None, where, words)
    for number, item in enumerate(outputs):
        if guards.zones and not guards_intact(item):
            words = f"bytes before or behind output {number} were written [rule zones]"
            return Verdict(Status.STRAY_WRITE, None, None, where, words)
    return None


def _output(task: Task, number: int, axes: dict[str, int], device: torch.device, canary: int) -> Placed:
    spec = task.value(number)
    return blank(dtype_of(spec.dtype), [int(extent) for extent in shape_of(spec.shape, axes)], device, canary)


def _form_fault(task: Task, axes: dict[str, int], outputs: Sequence[Placed], where: str, guards: Guards) -> Verdict | None:
    """A launcher written in Python could swap or resize what it is given."""
    if not guards.form:
        return None
    for place_, (number, item) in enumerate(zip(task.outputs, outputs, strict=True)):
        spec = task.value(number)
        shape = tuple(int(extent) for extent in shape_of(spec.shape, axes))
        dense = torch.empty(shape, device="meta").stride()
        found: tuple[tuple[Status, object, object], ...] = (
            (Status.WRONG_SHAPE, shape, tuple(item.tensor.shape)),
            (Status.WRONG_DTYPE, dtype_of(spec.dtype), item.tensor.dtype),
            (Status.WRONG_STRIDE, dense, item.tensor.stride()),
            (Status.WRONG_DTYPE, torch.Tensor, type(item.tensor)),
            (Status.STRAY_WRITE, item.memory.untyped_storage().data_ptr(), item.tensor.untyped_storage().data_ptr()),
        )
        for status, expected, seen in found:
            if expected != seen:
                return Verdict(status, None, None, where, f"output {place_}: expected {expected}, found {seen} [rule form]")
    return None


def _judged(bench: Bench, plan: Plan, chosen: InputClass, runs: Sequence[_Run]) -> Verdict:
    truths = [bench.truths(plan.sizes, chosen, run.number, run.drawn) for run in runs]
    return judge_outputs(bench.task, [run.outputs for run in runs], truths, bench.guards)


def judge_outputs(
    task: Task, outputs: Sequence[Sequence[torch.Tensor]], truths: Sequence[Sequence[Truth]], guards: Guards = ALL
) -> Verdict:
    """The gate over all outputs; `outputs` and `truths` have one entry a draw."""
    worst, e0, where = 0.0, 0.0, ""
    for place_, number in enumerate(task.outputs):
        rank = len(task.value(number).rows)
        values = [run[place_].reshape(run[place_].shape[:rank].numel(), -1) for run in outputs]
        mine = [draw[place_] for draw in truths]
        judged = judge(values, mine, guards)
        if judged.fault is not None:
            ratio = judged.ratio if judged.ratio != float("inf") else None
            return Verdict(Status.INACCURATE, ratio, judged.e0, mine[0].where, judged.fault)
        if judged.ratio >= worst:
            worst, e0, where = judged.ratio, judged.e0, mine[0].where
    return Verdict(Status.PASSED, worst, e0, where, "")
