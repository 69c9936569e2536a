"""Ratios with intervals, and variants that do not slow one another."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from torch import nn

from kforge_dynamo.cli import measure


def test_ratio_interval_holds_the_true_ratio_and_narrows_with_samples():
    random = np.random.default_rng(1)

    def series(median, count):
        return list(median * (1 + 0.05 * random.standard_normal(count)))

    few = measure.ratio(series(30.0, 15), series(20.0, 15))
    many = measure.ratio(series(30.0, 400), series(20.0, 400))
    assert few.low < 1.5 < few.high and many.low < 1.5 < many.high
    assert many.high - many.low < few.high - few.low
    assert many.value == pytest.approx(1.5, rel=0.02)


def test_ratio_in_pairs_ignores_what_disturbs_both():
    drift = np.linspace(1, 3, 101)
    found = measure.ratio(list(2.0 * drift), list(drift))
    assert found.low == found.value == found.high == 2.0


def test_ratio_of_unequal_series_is_refused():
    with pytest.raises(ValueError, match="one run"):
        measure.ratio([1.0, 2.0], [1.0])


def test_geomean_of_a_gain_and_its_loss_is_one():
    assert measure.geomean([2.0, 0.5]) == pytest.approx(1.0)
    assert measure.geomean([]) is None


def test_wall_times_every_callable_in_every_round():
    calls = {"a": [0], "b": [0]}

    def counted(name):
        calls[name][0] += 1

    samples = measure.wall({name: (lambda n=name: counted(n)) for name in calls}, "cpu", 0.0)
    assert len(samples["a"]) == len(samples["b"]) == measure.MIN_ROUNDS
    assert calls["a"][0] > measure.MIN_ROUNDS and min(samples["a"]) > 0


class Parent(nn.Module):
    def forward(self, x):
        return x + 1


class Model(Parent):
    def __init__(self):
        super().__init__()
        self.linear = nn.Linear(2, 2)

    def forward(self, x):
        return super().forward(self.linear(x))


def test_own_code_shares_parameters_but_not_code():
    model = Model()
    twin = measure.own_code(model, "twin")
    assert twin.linear.weight is model.linear.weight
    assert type(twin).forward.__code__ is not Model.forward.__code__
    x = torch.rand(3, 2)
    assert torch.equal(twin(x), model(x))
    assert isinstance(twin, Model) and type(model) is Model


@pytest.mark.gpu
def test_device_time_grows_with_the_work_and_is_by_replay():
    a = torch.rand(4096, 4096, device="cuda")
    samples, method = measure.device({"one": lambda: a @ a, "four": lambda: [a @ a for _ in range(4)]}, 0.1)
    assert method == "graph replay, L2 cold"
    found = measure.ratio(samples["four"], samples["one"])
    assert 3.0 < found.value < 5.0


@pytest.mark.gpu
def test_device_time_of_a_call_that_cannot_be_captured_is_by_events():
    a = torch.rand(512, 512, device="cuda")
    samples, method = measure.device({"plain": lambda: a @ a, "waits": lambda: (a @ a).sum().item()}, 0.1)
    assert method.startswith("events") and len(samples["plain"]) == len(samples["waits"])
