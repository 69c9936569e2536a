"""What error a row or a column may have, from several draws of e0, and how many variables e0 as a whole consists of."""

from __future__ import annotations

from collections.abc import Sequence

import torch

from kforge_dynamo.records.guardrail import Guards
from kforge_dynamo.sandbox.gate import FACTOR, FEW_FACTOR, Errors, quantile_factors, rounding_floor, smallest

_UNSTEADY = 0.1  # squared variation of the RMS of 20 variables
_ODD_VARIATION = 0.3  # squared, over eight draws: a line of 20 steady variables stays below


def _scatter(lines: Sequence[torch.Tensor]) -> tuple[torch.Tensor, torch.Tensor]:
    """Mean of the squared error of each line over the draws `(L,)`, and its squared coefficient of variation."""
    square = torch.stack(list(lines)).square_()
    mean = square.mean(dim=0)
    if square.shape[0] < 2:
        return mean, torch.zeros_like(mean)
    return mean, torch.where(mean > 0, square.var(dim=0) / mean.square().clamp(min=1e-300), 0.0)


def line_limit(
    lines: Sequence[torch.Tensor],
    own: torch.Tensor,
    energy: torch.Tensor,
    sure: torch.Tensor,
    dtype: torch.dtype,
    few: bool,
    guards: Guards,
) -> torch.Tensor:
    """What the RMS error of each row (or column) may be, `(L,)`.

    `energy` (L, n) is the squared error of each element, averaged over the draws. Few large elements in a line are few
    variables; a line whose RMS scatters from draw to draw has few as well, as a chi-square of v degrees varies by 2 / v.
    `sure` (L,) is the RMS of a draw whose noise is nowhere small by luck: where a comparison leaves a line one element, two or
    three normal draws of it may all be.
    """
    eager = lines[0]
    alive = own > torch.finfo(torch.float32).tiny
    mean, variation = _scatter(lines)
    usual = float(variation[mean > 0].mean()) if bool((mean > 0).any()) else 0.0
    rank = 0.5 if usual < _UNSTEADY else 0.9  # of lines that are one variable each, half have errors below 0.7 of the usual
    common = float((eager[alive] / own[alive]).quantile(rank)) if bool(alive.any()) else 0.0
    reference = torch.maximum(torch.maximum(torch.maximum(eager, mean.sqrt()), sure), common * own)
    variation = torch.where(variation > _ODD_VARIATION, variation, 0.0).clamp(min=usual)
    total, square = energy.sum(dim=1), energy.square().sum(dim=1)
    large = torch.where(square > 0, total.square() / square.clamp(min=1e-300), energy.shape[1])
    factor = quantile_factors(torch.minimum(2.0 / variation.clamp(min=1e-9), large)).clamp(min=FEW_FACTOR if few else FACTOR)
    return torch.maximum(factor * reference, rounding_floor(dtype, guards) * own).clamp_(min=smallest(dtype))


def freedom(energy: torch.Tensor, steady: Sequence[Errors]) -> float:
    """How many independent normal variables make up e0's RMS: few large elements, rows or columns are few variables."""
    found = _participation(energy.reshape(-1))
    for lines in ([item.rows for item in steady], [item.cols for item in steady]):
        mean, variation = _scatter(lines)
        weight = mean.square().sum()
        if float(weight) > 0:
            usual = float((mean.square() * variation).sum() / weight)
            found = min(found, _participation(mean) * 2.0 / max(usual, 1e-9))
    return found


def peak_freedom(energy: torch.Tensor) -> float:
    """The same for the largest error: how many elements are of the size of the largest."""
    return _participation(energy.reshape(-1).square())


def _participation(energy: torch.Tensor) -> float:
    total, square = float(energy.sum()), float(energy.square().sum())
    return total * total / square if square > 0 else float(max(energy.numel(), 1)) if total == 0 else 1.0
