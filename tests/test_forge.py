"""When a right kernel wins, and what is stored when none does."""

import math

import pytest

from kforge_dynamo.forge import Bench, Context, Miss, Purse, floor_us, settle, shortfall
from kforge_dynamo.records.candidate import Candidate, LaunchPlan
from kforge_dynamo.records.outcome import (
    CacheKey,
    Measurement,
    Provenance,
    Standing,
    State,
    Status,
    Timings,
    Trial,
    Verdict,
    Winner,
)
from kforge_dynamo.records.target import Numerics, Peak, Target
from kforge_dynamo.records.task import InputRole, InputSpec, Node, Task, ValueSpec, point

TARGET = Target("cpu", "v", "n", "avx2", 1, None, None, (), ())
PEAKS = (Peak("memory_bytes_per_s", 1e12, "B/s", "test"), Peak("fp32_flops", 1e12, "FLOP/s", "test"))
WITH_PEAKS = Target("cuda", "v", "n", "sm_90", 1, None, None, (), PEAKS)
ALONE = Context(fused_consumer=False, removed_bytes=0, regime="wall")
PROVENANCE = Provenance("t", "l", "c", "d", "k", "now")


def task():
    row, weight, out = (ValueSpec("float32", *s) for s in ((("m",), (8,)), ((1,), (8, 4)), (("m",), (4,))))
    inputs = (InputSpec(row, ("dense", 1), InputRole.LHS), InputSpec(weight, (0, 1, "dense"), InputRole.RHS))
    return Task(("m",), (), inputs, (Node("gemm", (0, 1), (("alpha", 1.0), ("beta", 1.0)), out),), (2,))


def timing(candidate, region, anchor=None, regime="wall"):
    def measured(value):
        samples = value if isinstance(value, tuple) else (value,) * 5
        return Measurement(tuple(float(item) for item in samples), "test")

    return Timings(regime, "default", measured(candidate), measured(region), None if anchor is None else measured(anchor))


def test_kernel_faster_than_the_region_wins():
    assert shortfall([timing(50, 60)], ALONE, TARGET) is None


def test_kernel_as_fast_as_the_region_does_not_win_and_the_sentence_has_both_times():
    assert "60.0 us against 60.0 us" in shortfall([timing(60, 60)], ALONE, TARGET)


def test_kernel_faster_by_less_than_one_percent_does_not_win():
    assert shortfall([timing(59.5, 60)], ALONE, TARGET) is not None
    assert shortfall([timing(59.3, 60)], ALONE, TARGET) is None


def test_kernel_faster_by_less_than_the_uncertainty_of_the_medians_does_not_win():
    wide = (40, 45, 50, 55, 60)
    assert shortfall([timing(wide, 55)], ALONE, TARGET) is not None
    assert shortfall([timing((50, 50, 50, 50, 50), 55)], ALONE, TARGET) is None
    assert shortfall([timing(wide * 20, 55)], ALONE, TARGET) is None, "a hundred samples know their median better than five"


def test_kernel_before_a_fused_consumer_must_beat_the_bare_gemm():
    context = Context(fused_consumer=True, removed_bytes=0, regime="wall")
    assert "bare GEMM" in shortfall([timing(50, 60, anchor=45)], context, TARGET)
    assert shortfall([timing(40, 60, anchor=45)], context, TARGET) is None


def test_traffic_that_a_splice_removes_counts_where_the_bandwidth_is_known():
    context = Context(fused_consumer=True, removed_bytes=10_000_000, regime="wall")
    assert shortfall([timing(50, 60, anchor=45)], context, WITH_PEAKS) is None, "10 MB at 1 TB/s are 10 us"
    assert shortfall([timing(50, 60, anchor=45)], context, TARGET) is not None


def test_kernel_not_timed_in_the_graphs_regime_does_not_win():
    context = Context(fused_consumer=False, removed_bytes=0, regime="replay")
    assert "regime" in shortfall([timing(50, 60)], context, TARGET)


def test_floor_is_the_larger_of_operations_and_bytes():
    flop, moved = 2 * 100 * 4 * 8, 4 * (100 * 8 + 8 * 4 + 100 * 4)
    assert floor_us(task(), (100,), WITH_PEAKS) == pytest.approx(max(flop, moved) / 1e12 * 1e6)
    assert floor_us(task(), (100,), TARGET) is None


def test_purse_is_empty_when_the_budget_is_spent():
    purse = Purse()
    purse.spend(20.0)
    assert purse.left_s(30.0) == 10.0
    purse.spend(20.0)
    assert purse.left_s(30.0) == 0.0


class OneCandidate:
    """Proposes one candidate, then nothing."""

    name, version = "one", "7"

    def languages(self, target):
        return ("cpp",)

    def rejects(self, task, target):
        return None

    def gain_us(self, task, sizes, target):
        return 1.0

    def propose(self, task, sizes, target, numerics, history, count):
        return [] if history else [Candidate("cpp", "own", LaunchPlan((), ()), "", "ieee", "one")]


def settled(statuses, times=(50, 60), seeds=(), budget_s=100.0):
    miss = Miss(CacheKey("t", "d", "n", 1), task(), (4,), point(task(), (4,)), "title", "wall")

    def evaluate(miss, candidate, stage, seconds):
        status = statuses[candidate.source]
        timings = (timing(*times),) if status is Status.PASSED else ()
        return Trial(candidate, Verdict(status, 1.0, 1e-7, "", f"{candidate.source} said so"), timings)

    bench = Bench(TARGET, Numerics("highest", False, False, False), OneCandidate(), evaluate, lambda language: PROVENANCE)
    return settle(miss, bench, budget_s, seeds)[0]


def test_settle_with_a_right_and_faster_kernel_is_a_winner():
    answer = settled({"own": Status.PASSED})
    assert isinstance(answer, Winner)
    assert answer.provenance == PROVENANCE
    assert answer.domain.holds((4,))


def test_settle_with_a_right_but_slower_kernel_is_no_winner_with_its_speedup():
    answer = settled({"own": Status.PASSED}, times=(70, 60))
    assert isinstance(answer, Standing)
    assert answer.state is State.NO_WINNER
    assert answer.best_speedup == pytest.approx(60 / 70)


def test_settle_with_a_wrong_kernel_says_what_the_last_verdict_was():
    answer = settled({"own": Status.INACCURATE})
    assert answer.state is State.NO_WINNER
    assert "inaccurate" in answer.reason and "own said so" in answer.reason
    assert answer.terms.budget_s == math.inf, "the generator had nothing left, so more time would not help"


def test_settle_of_an_untestable_region_is_no_winner_for_any_budget():
    answer = settled({"own": Status.NOT_TESTABLE})
    assert answer.state is State.NO_WINNER
    assert answer.reason.startswith("not testable")


def test_settle_tries_seeds_first():
    seed = Candidate("cpp", "seed", LaunchPlan((), ()), "", "ieee", "old")
    answer = settled({"seed": Status.PASSED, "own": Status.INACCURATE}, seeds=(seed,))
    assert isinstance(answer, Winner)
    assert answer.trial.candidate.source == "seed"
