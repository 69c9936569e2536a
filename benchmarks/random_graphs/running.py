"""Compiles a module of programs with kforge, every region spliced, and says which of them came out wrong.

Two routes. "inductor" is `torch.compile` as users call it. "interpreted" ends behind Inductor's post-grad passes and runs the
graph node by node: partition, splice and runtime do the same, and no C++ is compiled, so it is a hundred times faster.

Private API, read in torch 2.13.0: `compile_fx(inner_compile=)`, `post_grad.view_to_reshape`, `post_grad.post_grad_passes`,
`_guards.detect_fake_mode`, `virtualized.V`.
"""

from __future__ import annotations

import contextlib
import functools
import warnings
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from functorch.compile import make_boxed_func
from torch import fx
from torch._guards import detect_fake_mode
from torch._inductor.fx_passes.post_grad import post_grad_passes, view_to_reshape
from torch._inductor.virtualized import V

import kforge_dynamo
from benchmarks.planted import planted
from benchmarks.random_graphs import judging
from benchmarks.random_graphs.programs import ROWS, Program, exec_module
from kforge_dynamo import inductor_entry, ledger

ROUTES = ("interpreted", "inductor")
_COUNTED = ("regions", "winners", "calls", "fallback_calls", "fallbacks", "rejected")


@dataclass(frozen=True, slots=True)
class Outcome:
    """`faults` by the number of the program; `counted` are kforge's counters; `said` is what it logged."""

    faults: dict[int, str]
    counted: dict[str, int]
    said: tuple[str, ...] = ()


def _interpret(gm: fx.GraphModule, inputs: Sequence[Any], is_inference: bool = False, **_: Any) -> Callable[..., Any]:
    view_to_reshape(gm)
    with V.set_fake_mode(detect_fake_mode(inputs)):
        post_grad_passes(gm, is_inference=is_inference)
    gm.recompile()
    run: Callable[..., Any] = make_boxed_func(gm.forward)
    return run


@contextlib.contextmanager
def route(name: str) -> Iterator[None]:
    """Inside, kforge compiles by this route, without any cache."""
    whole = inductor_entry.compile_fx
    if name == "interpreted":
        inductor_entry.compile_fx = functools.partial(whole, inner_compile=_interpret)
    try:
        with inductor_entry.without_caches():
            yield
    finally:
        inductor_entry.compile_fx = whole


def run_module(programs: Sequence[Program], way: str, kind: str, backend: str = "kforge") -> Outcome:
    """Compiles and calls the programs together; those that cannot be compiled together are compiled alone."""
    torch._dynamo.reset()
    ledger.reset()
    with route(way), planted(kind) if backend == "kforge" else contextlib.nullcontext():
        try:
            faults = _together(programs, backend)
        except Exception as error:  # noqa: BLE001 - whatever a compiler raises is the finding
            if len(programs) > 1:
                return _alone(programs, way, kind, backend)
            faults = {0: f"{type(error).__name__}: {' '.join(str(error).split())[:400]}"}
        counted = kforge_dynamo.stats()
        said = tuple(ledger._said)
    torch._dynamo.reset()
    return Outcome(faults, {name: counted[name] for name in _COUNTED}, said)


def _alone(programs: Sequence[Program], way: str, kind: str, backend: str) -> Outcome:
    found = [run_module([program], way, kind, backend) for program in programs]
    faults = {index: outcome.faults[0] for index, outcome in enumerate(found) if outcome.faults}
    counted = {name: sum(outcome.counted[name] for outcome in found) for name in _COUNTED}
    return Outcome(faults, counted, tuple(sorted({line for outcome in found for line in outcome.said})))


def _together(programs: Sequence[Program], backend: str) -> dict[int, str]:
    module = exec_module({f"program{index}": program.source(f"program{index}") for index, program in enumerate(programs)})
    compiled = torch.compile(module, backend=backend)
    train, rows = programs[0].train, [len(program.rows) for program in programs]
    faults: dict[int, str] = {}
    for call in range(max(rows)):
        numbers = [program.rows[min(call, len(program.rows) - 1)] for program in programs]
        arguments = [program.build(number) for program, number in zip(programs, numbers, strict=True)]
        _mark(programs, arguments)
        with warnings.catch_warnings(), torch.set_grad_enabled(train):
            warnings.simplefilter("ignore")
            results = compiled([list(items) for items in arguments])
        if train:
            judging.backward([output for result in results for output in result])
        for index, program in enumerate(programs):
            found = _collected(program, results[index], arguments[index])
            wrong = judging.fault(program, found, judging.truth(program, numbers[index]))
            if wrong is not None:
                faults.setdefault(index, f"with {numbers[index]} rows: {wrong}")
    return faults


def _collected(program: Program, outputs: Sequence[torch.Tensor], arguments: Sequence[torch.Tensor]) -> list[Any]:
    gradients = [argument.grad for argument in arguments if argument.is_floating_point()] if program.train else []
    return [item.detach() for item in outputs] + [item.detach() for item in arguments] + gradients


def _mark(programs: Sequence[Program], arguments: Sequence[Sequence[torch.Tensor]]) -> None:
    for program, tensors in zip(programs, arguments, strict=True):
        for item, tensor in zip(program.inputs, tensors, strict=True):
            for dim, size in enumerate(item.shape):
                if size == ROWS and len(program.rows) > 1:
                    torch._dynamo.maybe_mark_dynamic(tensor, dim)


def blame(program: Program, way: str) -> str | None:
    """The fault of Inductor without kforge, None where it has none: then the fault is ours."""
    return run_module([program], "inductor", "", "inductor").faults.get(0)
