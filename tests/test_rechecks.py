"""What was made elsewhere or before is judged again, and what won on a relative is tried first."""

from __future__ import annotations

import dataclasses
import sys
from pathlib import Path

import pytest

from kforge_dynamo import forge, rechecks
from kforge_dynamo.errors import ToolchainError
from kforge_dynamo.records.codec import digest, to_text
from kforge_dynamo.records.outcome import Measurement, State, Status, Timings, Trial, Verdict, Winner
from kforge_dynamo.records.target import Numerics, Target
from kforge_dynamo.records.task import AxisRange, Domain
from kforge_dynamo.store import UNVERIFIED, Access, Found, close_stores, key_of, open_store
from kforge_dynamo.targets import generation

sys.path.insert(0, str(Path(__file__).parent / "store"))
from store_records import MADE_WITH, candidate
from test_recorded_regions import region

CPU = Target("cpu", "x", "Some CPU avx512 2 threads", "avx512", 2, None, None, (), ())
RULES = Numerics("highest", False, False, False)
ASKED = region(8)
KEY = key_of(ASKED.task, CPU, RULES)


def timing(us: float) -> Timings:
    return Timings("wall", "default", Measurement((us,) * 5, "wall"), Measurement((20.0,) * 5, "wall"), None)


def won(source="void kforge_entry() {}", us=10.0, key=KEY, low=1, high=64) -> Winner:
    trial = Trial(candidate(source), Verdict(Status.PASSED, 1.0, 1e-7, "", ""), (timing(us),))
    return Winner(key, to_text(ASKED.task), Domain((AxisRange("m", low, high),)), trial, MADE_WITH)


@pytest.fixture
def store(tmp_path):
    close_stores()
    yield open_store(str(tmp_path / "cache"), Access(verify_on_load=True))
    close_stores()


class Judge:
    """An evaluator that answers with one verdict."""

    def __init__(self, status: Status) -> None:
        self.status = status
        self.orders = []

    def judge(self, assignment, candidate, order):
        self.orders.append((assignment, candidate, order))
        return Trial(candidate, Verdict(self.status, None, None, "output 0", "because"), ())


def found(winner: Winner) -> Found:
    return Found(State.STALE, "a layer", winner, None, UNVERIFIED, digest(winner))


def test_winner_that_passes_becomes_the_user_s_own_as_it_is(store):
    winner, judge = won(), Judge(Status.PASSED)
    assert rechecks.verify(store, found(winner), ASKED, judge, "default") is None
    assert store.lookup(KEY, (8,)).winner == winner and store.lookup(KEY, (8,)).layer == "user"
    ((assignment, tried, order),) = judge.orders
    assert assignment.domain == winner.domain and tried == winner.trial.candidate and order.stage == "final" and not order.time


@pytest.mark.parametrize(
    "status", [Status.INACCURATE, Status.RUNTIME_ERROR, Status.STRAY_WRITE, Status.TOO_FAST, Status.REJECTED]
)
def test_winner_that_fails_is_refused_for_good(store, status):
    reason = rechecks.verify(store, found(won()), ASKED, Judge(status), "default")
    assert status.value in reason and "because" in reason
    assert store.lookup(KEY, (8,)) is None
    assert store._usable(found(won())) is None


@pytest.mark.parametrize("status", [Status.TIMEOUT, Status.COMPILE_ERROR, Status.NOT_TESTABLE])
def test_winner_that_could_not_be_judged_is_not_used_this_time_and_not_refused(store, status):
    assert rechecks.verify(store, found(won()), ASKED, Judge(status), "default") is not None
    assert store.lookup(KEY, (8,)) is None and store._usable(found(won())) is not None


def test_winner_without_a_worker_to_judge_it_is_not_used(store):
    class Broken:
        def judge(self, *words):
            raise ToolchainError("no worker")

    assert "no worker" in rechecks.verify(store, found(won()), ASKED, Broken(), "default")
    assert store._usable(found(won())) is not None


def bench(trials):
    """A bench whose evaluations are the given ones in turn."""
    left = list(trials)

    def evaluate(miss, candidate, stage, seconds):
        return left.pop(0)(candidate)

    return forge.Bench(CPU, RULES, None, evaluate, lambda language: dataclasses.replace(MADE_WITH, torch="newer"))


def passed(us):
    return lambda candidate: Trial(candidate, Verdict(Status.PASSED, 1.0, 1e-7, "", ""), (timing(us),))


def failed(candidate):
    return Trial(candidate, Verdict(Status.INACCURATE, None, None, "", ""), ())


MISS = forge.Miss(KEY, ASKED.task, (8,), ASKED.domain, "gemm", "wall")


@pytest.mark.parametrize(
    ("trials", "stays"),
    [
        ([passed(10.0), passed(11.0)], True),
        ([failed], False),
        ([passed(10.0), failed], False),
        ([passed(10.0), passed(19.99)], False),
    ],
)
def test_winner_of_older_software_stays_where_it_is_right_and_still_wins(trials, stays):
    again = rechecks.prove_again(MISS, bench(trials), won(), 10.0)
    assert (again is not None) == stays
    if again is not None:
        assert again.provenance.torch == "newer" and again.trial.timings[0].candidate.median_us == 11.0
        assert again.domain == ASKED.domain


def test_seeds_are_winners_of_relatives_those_for_these_sizes_first(store):
    four = dataclasses.replace(KEY, device="Some CPU avx512 4 threads")
    old = dataclasses.replace(KEY, device="Old CPU avx2 2 threads")
    other = dataclasses.replace(KEY, task="f" * 64, device=four.device)
    for winner in (
        won("wide", key=four, low=100, high=200),
        won("these", key=four),
        won("old", key=old),
        won("other", key=other),
        won("own", low=300, high=400),
    ):
        store.put_winner(winner)
    assert [item.source for item in rechecks.seeds(store, KEY, (8,), CPU)] == ["these", "wide"]
    assert rechecks.seeds(store, KEY, (8,), dataclasses.replace(CPU, name="unheard of", arch="rv64")) == ()


@pytest.mark.parametrize(
    ("one", "other", "near"),
    [
        ("NVIDIA H200", "NVIDIA H100 80GB HBM3", True),
        ("NVIDIA A100-SXM4-80GB", "NVIDIA A10", True),
        ("NVIDIA L4", "NVIDIA A100-SXM4-80GB", True),
        ("NVIDIA H200", "NVIDIA A100-SXM4-80GB", False),
        ("NVIDIA B200", "NVIDIA H200", False),
        ("AMD Instinct MI300X gfx942", "AMD Instinct MI325X gfx942", True),
        ("AMD Instinct MI300X gfx942", "AMD Instinct MI250X gfx90a", False),
        ("AMD EPYC 9B14 (25.17) avx512 2 threads", "Intel(R) Xeon(R) (6.143) avx512 64 threads", True),
        ("AMD EPYC 9B14 (25.17) avx512 2 threads", "AMD EPYC 7B13 (25.1) avx2 2 threads", False),
    ],
)
def test_relatives_share_a_generation(one, other, near):
    assert (generation(one) == generation(other)) is near and generation(one) is not None


def test_generation_of_this_device_agrees_with_its_name():
    assert generation("NVIDIA H200", "sm_90") == generation("NVIDIA H100 PCIe")
    assert generation("unknown") is None
