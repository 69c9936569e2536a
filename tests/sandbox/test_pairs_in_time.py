"""Who wins a race on a simulated clock: equal kernels under every kind of noise hardly ever, true gains under drift surely."""

from __future__ import annotations

import math
import random

import pytest
import torch

from kforge_dynamo.forge import Context, shortfall
from kforge_dynamo.records.outcome import Timings, compare
from kforge_dynamo.records.target import Target
from kforge_dynamo.sandbox import timing

TARGET = Target("cpu", "v", "n", "avx2", 1, None, None, (), ())
ALONE = Context(fused_consumer=False, removed_bytes=0, regime="wall")
REGION_S = 1e-3


class Machine:
    """Calls that take what a seeded machine makes of them, on a clock of its own."""

    def __init__(self, seed, share, drift, noise, waits=0.0, mode=0.0):
        self.random, self.share, self.drift, self.noise = random.Random(seed), share, drift, noise
        self.waits, self.mode, self.now, self.common, self.samples = waits, mode, 0.0, 0.0, 0

    def monotonic(self):
        return self.now

    def sampler(self, name, count, turn):
        self.samples += 1
        if self.samples % 2:  # the load of the machine changes from round to round, slowly or at once
            self.common = 0.9 * self.common + self.random.gauss(0.0, self.drift)
        own = self.random.gauss(0.0, self.noise) + (self.mode if self.random.random() < 0.3 else 0.0)
        seconds = count * REGION_S * (self.share if name == "candidate" else 1.0) * math.exp(self.common + own)
        waited = self.random.random() < self.waits
        self.now += seconds * (1.5 if waited else 1.0)
        return timing.Taken(seconds * (1.5 if waited else 1.0), seconds if waited else 0.0, 0, ())


def raced(machine, monkeypatch, effort=timing.EFFORTS["final"]):
    monkeypatch.setattr(timing, "time", machine)
    calls = dict.fromkeys(("candidate", "region"))
    asked = timing.Contest(calls, 3, lambda number, outputs: None, torch.device("cpu"), machine.sampler)
    found = timing.sample_wall(asked, effort)
    candidate, region = (timing.measurement(found, name, "wall", 3) for name in calls)
    return Timings("wall", "default", candidate, region, None)


def won_share(monkeypatch, runs, **machine):
    timings = [raced(Machine(seed, **machine), monkeypatch) for seed in range(runs)]
    return sum(shortfall([item], ALONE, TARGET) is None for item in timings) / runs


@pytest.mark.parametrize(
    "noise",
    [
        {"drift": 0.1, "noise": 0.02},
        {"drift": 0.0, "noise": 0.05},
        {"drift": 0.02, "noise": 0.2},
        {"drift": 0.02, "noise": 0.01, "mode": 0.3},
        {"drift": 0.05, "noise": 0.05, "waits": 0.4},
    ],
)
def test_equal_kernels_win_in_three_of_a_hundred_races_at_most(monkeypatch, noise):
    assert won_share(monkeypatch, 400, share=1.0, **noise) <= 0.03


def test_gain_below_one_percent_does_not_win_on_the_quietest_machine(monkeypatch):
    assert won_share(monkeypatch, 20, share=0.995, drift=0.0, noise=0.0005) == 0.0


@pytest.mark.parametrize(("share", "noise", "found"), [(0.97, 0.01, 0.95), (0.97, 0.02, 0.9), (0.9, 0.05, 0.95)])
def test_true_gain_under_common_drift_of_ten_percent_is_found(monkeypatch, share, noise, found):
    assert won_share(monkeypatch, 100, share=share, drift=0.1, noise=noise) >= found


def test_medians_of_each_alone_would_not_tell_that_gain(monkeypatch):
    """What the rounds are for: the same samples without their rounds."""
    found = [raced(Machine(seed, 0.97, 0.1, 0.01), monkeypatch) for seed in range(40)]
    loose = [Timings("wall", "default", *(type(m)(m.samples_us, m.method) for m in (t.candidate, t.region)), None) for t in found]
    assert sum(shortfall([item], ALONE, TARGET) is None for item in loose) <= 4
    assert sum(shortfall([item], ALONE, TARGET) is None for item in found) >= 36


def test_clear_race_ends_at_the_fewest_rounds_and_a_close_one_goes_on(monkeypatch):
    for share in (0.6, 1.6):
        assert len(raced(Machine(1, share, 0.05, 0.02), monkeypatch).candidate.samples_us) == 15
    close = [len(raced(Machine(seed, 0.985, 0.05, 0.03), monkeypatch).candidate.samples_us) for seed in range(5)]
    assert set(close) <= {15, 31, 63, 127} and max(close) == 127
    assert len(raced(Machine(1, 0.97, 0.05, 0.03), monkeypatch, timing.EFFORTS["search"]).candidate.samples_us) <= 11


def test_close_race_of_slow_kernels_ends_with_its_budget(monkeypatch):
    monkeypatch.setattr(f"{__name__}.REGION_S", 0.02)
    machine = Machine(1, 0.97, 0.0, 0.1)
    assert 31 <= len(raced(machine, monkeypatch).candidate.samples_us) < 60
    assert machine.now < 2.5


def test_samples_set_aside_break_pairs_and_the_others_keep_their_rounds(monkeypatch):
    found = raced(Machine(5, 0.9, 0.3, 0.001, waits=0.4), monkeypatch)
    rounds = set(found.candidate.by_round), set(found.region.by_round)
    assert rounds[0] != rounds[1] and len(rounds[0] & rounds[1]) >= 15
    share = compare(found.candidate, found.region)
    assert share.pairs == len(rounds[0] & rounds[1]) and share.value == pytest.approx(0.9, rel=0.002)


def test_every_order_of_a_round_has_its_turn():
    orders = {tuple(timing.order_of(("a", "b", "c"), turn)) for turn in range(6)}
    assert len(orders) == 6
    assert [timing.order_of(("a", "b"), turn) for turn in range(4)] == [["a", "b"], ["b", "a"], ["b", "a"], ["a", "b"]]
