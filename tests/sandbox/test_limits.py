"""What a line may be off by, where few draws of e0 say little of it."""

import torch

from kforge_dynamo.records.guardrail import ALL
from kforge_dynamo.sandbox.limits import line_limit

SIZE = 1e-7


def limits(drawn, sure):
    """Limits of columns of 200 elements that a comparison has left one element each, `drawn` its error in three draws."""
    lines = [draw / 200**0.5 for draw in drawn]
    energy = torch.zeros(drawn[0].numel(), 200, dtype=torch.float64)
    energy[:, 0] = torch.stack(drawn).square().mean(dim=0)
    own = torch.full((drawn[0].numel(),), 1e-3, dtype=torch.float64)
    return line_limit(lines, own, energy, sure / 200**0.5, torch.float32, False, ALL) * 200**0.5


def test_line_of_one_element_with_lucky_draws_is_allowed_what_its_noise_usually_is():
    generator = torch.Generator().manual_seed(1)
    eager = torch.zeros(4000, dtype=torch.float64)  # exact, as on one-hot rows
    drawn = [eager] + [torch.randn(4000, generator=generator, dtype=torch.float64) * SIZE for _ in range(2)]
    usual = torch.full((4000,), SIZE, dtype=torch.float64)
    assert bool((limits(drawn, usual) >= 2 * SIZE).all())
    assert bool((limits(drawn, usual * 0.0) < 2 * SIZE).any())  # two draws alone can both be small


def test_line_of_one_element_is_not_allowed_many_times_its_noise():
    drawn = [torch.full((100,), SIZE, dtype=torch.float64)] * 3
    assert bool((limits(drawn, drawn[0]) <= 10 * SIZE).all())
