"""A kernel that is handed in is judged with all seeds, and stored only where it beats Inductor and what is stored."""

from __future__ import annotations

from dataclasses import replace

import pytest

from kforge_dynamo.languages.examples import EXAMPLES, TASK
from kforge_dynamo.records.assignment import Assignment
from kforge_dynamo.records.candidate import Candidate
from kforge_dynamo.records.outcome import Measurement, State, Status, Timings, Trial, Verdict
from kforge_dynamo.records.target import Numerics, Target
from kforge_dynamo.records.task import point
from kforge_dynamo.store import close_stores, key_of, open_store
from kforge_dynamo.submission import faster, submit

TARGET = Target("cpu", "x", "Some CPU avx2 2 threads", "avx2", 2, None, None, (), ())
ASKED = Assignment("linear + relu", "cpu", TASK, (64,), point(TASK, (64,)), Numerics("highest", False, False, False))
KEY = key_of(TASK, TARGET, ASKED.numerics)


def kernel(words):
    example = EXAMPLES["cpp"]
    return Candidate("cpp", f"// {words}\n{example.source}", example.plan, "", "ieee", "hand")


def timings(us, region=100.0, scatter=0.0):
    samples = tuple(us * (1.0 + scatter * (number % 3 - 1)) for number in range(9))
    return Timings("wall", "default", Measurement(samples, "test"), Measurement((region,) * 9, "test"), None)


class Judge:
    """Times by the first word of a kernel; a word that is no number ends in that verdict."""

    def __init__(self, region=100.0):
        self.orders, self.region = [], region

    def judge(self, assignment, candidate, order):
        self.orders.append((candidate.source.split()[1], order.stage, order.time))
        word = candidate.source.split()[1]
        if not word.isdigit():
            return Trial(candidate, Verdict(Status(word), 9.0, 1e-7, "output 0", "because"), ())
        return Trial(candidate, Verdict(Status.PASSED, 1.0, 1e-7, "", "right"), (timings(float(word), self.region),))


@pytest.fixture
def store(tmp_path):
    close_stores()
    yield open_store(str(tmp_path / "cache"))
    close_stores()


def hand_in(store, words, judge=None):
    judge = judge or Judge()
    return submit(ASKED, kernel(words), judge, TARGET, store, 60.0, "default"), judge


def stored(store):
    found = store.lookup(KEY, (64,))
    return None if found is None or found.state is not State.WINNER else found.winner.trial.candidate.source.split()[1]


def test_faster_kernel_is_stored_and_found_by_the_next_lookup(store):
    done, judge = hand_in(store, "50")
    assert done.stored and "2.00x of Inductor's region" in done.reason
    assert judge.orders == [("50", "final", True)]
    assert stored(store) == "50"


@pytest.mark.parametrize(("words", "reason"), [("inaccurate", "inaccurate at output 0"), ("100", "100.0 us against 100.0 us")])
def test_wrong_or_slow_kernel_is_not_stored_and_told_why(store, words, reason):
    done, _ = hand_in(store, words)
    assert not done.stored and reason in done.reason
    assert stored(store) is None


def test_stored_winner_stays_unless_it_is_beaten_in_a_race_of_today(store):
    hand_in(store, "50")
    slower, judge = hand_in(store, "60")
    assert not slower.stored and "1.67x" in slower.reason and "2.00x" in slower.reason
    assert judge.orders[1] == ("50", "search", True), "what was stored is timed again here"
    assert stored(store) == "50"
    better, _ = hand_in(store, "40")
    assert better.stored and stored(store) == "40"


def test_same_kernel_again_is_said_to_be_stored_and_not_raced_against_itself(store):
    hand_in(store, "50")
    again, judge = hand_in(store, "50")
    assert again.stored and "already" in again.reason and len(judge.orders) == 1


def test_two_runs_are_compared_by_their_own_inductor_and_by_their_uncertainty():
    assert faster(timings(80.0, region=200.0), timings(50.0, region=100.0)), "a busier day, and yet the better ratio"
    assert not faster(timings(49.8), timings(50.0))
    noisy = replace(timings(48.0, scatter=0.5), region=timings(100.0, scatter=0.5).candidate)
    assert not faster(noisy, timings(50.0))
