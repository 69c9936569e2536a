"""Is a program's result right? Compared with fp64, within an error budget that follows from eager's own error.

The budget of an element: four times what eager is off there, four times eager's RMS over the tensor, half a unit in the last
place, and four times what the fp64 result moves when every intermediate value moves by its own rounding error. The last is
what a comparison, a maximum or a division by almost nothing amplifies; where it makes an element jump, nothing is demanded.
"""

from __future__ import annotations

import warnings
from collections.abc import Sequence
from dataclasses import dataclass

import torch

from benchmarks.random_graphs.programs import Program

_MOVES = 4
_FACTOR = 4.0


@dataclass(frozen=True, slots=True)
class Truth:
    """What the outputs of one call, then the arguments behind it, then their gradients must be near to."""

    expected: list[torch.Tensor | None]
    eager: list[torch.Tensor | None]
    moved: list[list[torch.Tensor | None]]


class _Moving:
    """Moves every value by about its rounding error, which is known from eager's values."""

    def __init__(self, eager: dict[str, torch.Tensor], exact: dict[str, torch.Tensor], seed: int) -> None:
        self._eager, self._exact = eager, exact
        self._generator = torch.Generator().manual_seed(seed)

    def __call__(self, name: str, value: torch.Tensor) -> torch.Tensor:
        eager, exact = self._eager.get(name), self._exact.get(name)
        if eager is None or exact is None or not value.is_floating_point() or value._is_view():
            return value
        error = (eager.double() - exact).nan_to_num(0.0, 0.0, 0.0).abs()
        if not bool(error.any()):
            return value
        unit = torch.finfo(eager.dtype).eps
        typical = error.square().mean(-1, keepdim=True).sqrt() if error.dim() else error
        noise = torch.randn(value.shape, generator=self._generator, dtype=torch.float64)
        return value + (noise * (unit * value.detach().abs() + typical)).nan_to_num(0.0, 0.0, 0.0)


def truth(program: Program, rows: int) -> Truth:
    """The truth of one call."""
    values: dict[str, torch.Tensor] = {}
    wide: dict[str, torch.Tensor] = {}
    eager = execute(program.function(_keep(values)), program, program.build(rows))
    exact = execute(program.function(_keep(wide), widen=True), program, _widened(program, rows))
    moved = [
        execute(program.function(_Moving(values, wide, seed), widen=True), program, _widened(program, rows))
        for seed in range(_MOVES)
    ]
    return Truth(exact, eager, moved)


def _keep(values: dict[str, torch.Tensor]) -> object:
    def note(name: str, value: torch.Tensor) -> torch.Tensor:
        values[name] = value.detach().clone()
        return value

    return note


def _widened(program: Program, rows: int) -> list[torch.Tensor]:
    """The arguments in fp64, in the same layout."""
    wide = []
    for item, tensor in zip(program.inputs, program.build(rows), strict=True):
        wide.append(tensor.detach().double() if tensor.is_floating_point() else tensor)
        if 0 in tensor.stride() and item.form == "expanded":
            wide[-1] = wide[-1][:1].contiguous().expand(tensor.shape)
        if tensor.requires_grad:
            wide[-1].requires_grad_()
    return wide


def execute(function: object, program: Program, arguments: Sequence[torch.Tensor]) -> list[torch.Tensor | None]:
    """Outputs, arguments afterwards, and gradients of the arguments (None where there is none)."""
    assert callable(function)
    with warnings.catch_warnings(), torch.set_grad_enabled(program.train):
        warnings.simplefilter("ignore")
        outputs = function(*arguments)
    return collect(program, outputs, arguments)


def collect(program: Program, outputs: Sequence[torch.Tensor], arguments: Sequence[torch.Tensor]) -> list[torch.Tensor | None]:
    """The same for outputs that somebody else computed; runs the backward pass."""
    gradients: list[torch.Tensor | None] = []
    if program.train:
        backward(outputs)
        gradients = [argument.grad for argument in arguments if argument.is_floating_point()]
    return [item.detach() for item in outputs] + [item.detach() for item in arguments] + gradients


def backward(outputs: Sequence[torch.Tensor]) -> None:
    """Gradients of a fixed weighted sum of the floating outputs."""
    total: torch.Tensor | None = None
    for output in outputs:
        if output.requires_grad:
            weights = torch.arange(output.numel(), dtype=torch.float64).cos().reshape(output.shape).to(output.dtype)
            part = (output * weights).sum().to(torch.float64)
            total = part if total is None else total + part
    if total is not None:
        total.backward()


def labels(program: Program) -> list[str]:
    """What the entries of a result are, in order."""
    inputs = [item.name for item in program.inputs]
    gradients = [f"gradient of {item.name}" for item in program.inputs if item.dtype in ("float32", "bfloat16", "float16")]
    return [f"output {item}" for item in program.outputs] + [f"argument {item}" for item in inputs] + gradients * program.train


def fault(program: Program, found: Sequence[torch.Tensor | None], known: Truth) -> str | None:
    """What is wrong with a result, None if nothing is."""
    for index, (label, result) in enumerate(zip(labels(program), found, strict=True)):
        eager, exact = known.eager[index], known.expected[index]
        if eager is None or exact is None or result is None:
            if (eager is None) != (result is None):
                return f"{label}: {'there is none' if result is None else 'eager has none'}"
            continue
        if (result.shape, result.dtype) != (eager.shape, eager.dtype):
            return f"{label}: {result.dtype} {tuple(result.shape)}, eager {eager.dtype} {tuple(eager.shape)}"
        moved = [item for run in known.moved if (item := run[index]) is not None]
        wrong = _wrong(result, eager, exact, moved)
        if wrong is not None:
            return f"{label}: {wrong}"
    return None


def _wrong(result: torch.Tensor, eager: torch.Tensor, exact: torch.Tensor, moved: Sequence[torch.Tensor]) -> str | None:
    value, truth_value, reference = result.double(), exact.double(), eager.double()
    free = _kinds(reference) != _kinds(truth_value)
    spread = torch.zeros_like(truth_value)
    for other in moved:
        free |= _kinds(other.double()) != _kinds(truth_value)
        spread = torch.maximum(spread, (other.double() - truth_value).nan_to_num(0.0).abs())
    if not eager.is_floating_point():
        wrong = (value != truth_value) & (spread == 0) & (reference == truth_value)
        limit = torch.zeros_like(spread)
    else:
        off = (reference - truth_value).nan_to_num(0.0, 0.0, 0.0).abs()
        info = torch.finfo(eager.dtype)
        scale = off.square().mean().sqrt()
        limit = _FACTOR * (off + scale + spread) + info.eps * truth_value.nan_to_num(0.0, 0.0, 0.0).abs() + info.tiny
        different = _kinds(value) != _kinds(truth_value)
        wrong = (different | ((value - truth_value).nan_to_num(0.0, 0.0, 0.0).abs() > limit)) & ~free
    if not bool(wrong.any()):
        return None
    spot = tuple(int(index) for index in wrong.nonzero()[0])
    return (
        f"{int(wrong.sum())} of {wrong.numel()} elements, first {list(spot)}: {value[spot].item():.9g}, "
        f"fp64 {truth_value[spot].item():.9g}, eager {reference[spot].item():.9g}, allowed {limit[spot].item():.3g}"
    )


def _kinds(value: torch.Tensor) -> torch.Tensor:
    """0 finite, 1 NaN, 2 +inf, 3 -inf."""
    kinds = torch.isnan(value).to(torch.int8)
    kinds[value == torch.inf] = 2
    kinds[value == -torch.inf] = 3
    return kinds
