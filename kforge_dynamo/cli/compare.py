"""How far a result is from fp64, beside eager's own distance."""

from __future__ import annotations

import copy
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

GATE = 2.0
"""A result may be twice as far from fp64 as eager's."""
SMALL_GATE = 3.0
SMALL_ELEMENTS = 4096
"""Below so many elements an RMS is itself uncertain: the gate is SMALL_GATE."""


@dataclass(frozen=True, slots=True)
class Distance:
    """RMS distance from the oracle, the oracle's own RMS, and whether non-finite values stand in the same places."""

    rms: float
    oracle_rms: float
    same_nonfinite: bool
    elements: int

    @property
    def relative(self) -> float:
        """RMS error over the oracle's RMS; the error itself where the oracle is zero."""
        return self.rms / self.oracle_rms if self.oracle_rms > 0 else self.rms


@dataclass(frozen=True, slots=True)
class Judgement:
    """`ratio` is None where eager is exact: then only an exact result, or one within half an ulp, is right."""

    ratio: float | None
    right: bool


def tensors_of(output: Any) -> list[Tensor]:
    """The floating tensors of a model's output, in order."""
    if isinstance(output, Tensor):
        return [output] if output.is_floating_point() else []
    values = output.values() if hasattr(output, "values") else output if isinstance(output, list | tuple) else ()
    return [tensor for value in values for tensor in tensors_of(value)]


def oracle(module: nn.Module, inputs: tuple[Any, ...]) -> list[Tensor]:
    """The module in fp64 on upcast inputs."""
    exact = copy.deepcopy(module).double()
    upcast = tuple(i.double() if isinstance(i, Tensor) and i.is_floating_point() else i for i in inputs)
    with torch.no_grad():
        return tensors_of(exact(*upcast))


def distance(outputs: list[Tensor], exact: list[Tensor]) -> Distance:
    """Over all outputs together, where both are finite. Raises: ValueError for outputs of other shapes than the oracle's."""
    if [o.shape for o in outputs] != [e.shape for e in exact]:
        raise ValueError(f"shapes {[tuple(o.shape) for o in outputs]}, expected {[tuple(e.shape) for e in exact]}")
    wrong = total = 0.0
    elements, same = 0, True
    for output, reference in zip(outputs, exact, strict=True):
        finite = torch.isfinite(reference)
        same = same and bool((torch.isfinite(output) == finite).all())
        both = finite & torch.isfinite(output)
        gap = torch.where(both, output.double() - reference, 0.0)
        wrong += float(gap.square().sum())
        total += float(torch.where(finite, reference, 0.0).square().sum())
        elements += reference.numel()
    count = max(elements, 1)
    return Distance((wrong / count) ** 0.5, (total / count) ** 0.5, same, elements)


def judge(result: Distance, eager: Distance, dtype: torch.dtype) -> Judgement:
    """Right: within the gate of eager's distance or half an ulp of the output's size, whichever is more."""
    gate = GATE if eager.elements >= SMALL_ELEMENTS else SMALL_GATE
    floor = torch.finfo(dtype).eps / 2 * eager.oracle_rms
    right = result.same_nonfinite >= eager.same_nonfinite and result.rms <= max(gate * eager.rms, floor)
    return Judgement(result.rms / eager.rms if eager.rms > 0 else None, right)
