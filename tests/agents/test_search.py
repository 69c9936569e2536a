"""The search loop with scripted generators and clocks."""

import dataclasses

from kforge_dynamo.agents.search import _FINAL_LEAST_S, Clock, Problem, search
from kforge_dynamo.records.candidate import Candidate, LaunchPlan
from kforge_dynamo.records.outcome import Measurement, Status, Timings, Trial, Verdict
from kforge_dynamo.records.target import Numerics, Target
from kforge_dynamo.records.task import Task

TARGET = Target("cpu", "v", "n", "avx2", 1, None, None, (), ())
PROBLEM = Problem(Task((), (), (), (), ()), (), TARGET, Numerics("highest", False, False, False), None)


class Scripted:
    """Proposes candidates whose source is a number, in batches."""

    name = "scripted"
    version = "1"

    def __init__(self, count):
        self.left = list(range(count))

    def languages(self, target):
        return ("cpp",)

    def rejects(self, task, target):
        return None

    def gain_us(self, task, sizes, target):
        return 1.0

    def propose(self, task, sizes, target, numerics, history, count):
        batch, self.left = self.left[:count], self.left[count:]
        return [Candidate("cpp", str(number), LaunchPlan((), ()), "", "ieee", "scripted") for number in batch]


class Bench:
    """Evaluates by a table of times; a missing entry is a wrong candidate. Each evaluation takes `cost_s` of the clock."""

    def __init__(self, times, cost_s=1.0, final=Status.PASSED, search_status=Status.INACCURATE):
        self.now = 0.0
        self.times, self.cost_s, self.final, self.search_status = times, cost_s, final, search_status
        self.calls, self.seconds = [], []

    def clock(self, budget_s):
        return Clock(budget_s, lambda: self.now)

    def __call__(self, candidate, stage, seconds):
        self.calls.append((candidate.source, stage))
        self.seconds.append(seconds)
        self.now += self.cost_s
        time_us = self.times.get(int(candidate.source))
        status = self.search_status if time_us is None else Status.PASSED
        if stage == "final" and self.final is not Status.PASSED and int(candidate.source) == min(self.times, key=self.times.get):
            status = self.final
        timings = ()
        if status is Status.PASSED:
            timings = (Timings("wall", "default", Measurement((time_us,), "w"), Measurement((100.0,), "w"), None),)
        return Trial(candidate, Verdict(status, None, None, "", "said so"), timings)


def test_search_with_time_takes_the_fastest_through_the_final_stage():
    bench = Bench({1: 50.0, 5: 30.0, 6: 40.0})
    result = search(PROBLEM, Scripted(8), bench, bench.clock(1000))
    assert result.best is not None
    assert result.best.candidate.source == "5"
    assert result.exhausted
    assert [call for call in bench.calls if call[1] == "final"] == [("5", "final")]


def test_search_whose_fastest_fails_the_final_stage_takes_the_next():
    bench = Bench({1: 50.0, 5: 30.0}, final=Status.INACCURATE)
    result = search(PROBLEM, Scripted(8), bench, bench.clock(1000))
    assert result.best.candidate.source == "1"


def test_search_that_runs_out_of_time_keeps_enough_for_the_final_stage():
    bench = Bench({0: 50.0})
    result = search(PROBLEM, Scripted(100), bench, bench.clock(10))
    assert result.best is not None
    assert not result.exhausted
    assert bench.now <= 10.0


def test_search_whose_time_went_by_gives_the_final_stage_some_still():
    """A machine that got other work made the last trial long: what it found is not lost to that."""
    bench = Bench({0: 50.0}, cost_s=20.0)
    result = search(PROBLEM, Scripted(100), bench, bench.clock(7))
    assert result.best is not None
    assert bench.seconds == [7.0, _FINAL_LEAST_S]


def test_search_without_a_right_candidate_has_no_best_and_says_it_is_exhausted():
    bench = Bench({})
    result = search(PROBLEM, Scripted(5), bench, bench.clock(1000))
    assert result.best is None
    assert result.exhausted
    assert len(result.trials) == 5


def test_search_of_an_untestable_task_stops_at_once_with_the_sentence():
    bench = Bench({}, search_status=Status.NOT_TESTABLE)
    result = search(PROBLEM, Scripted(5), bench, bench.clock(1000))
    assert result.untestable == "said so"
    assert len(bench.calls) == 1


def test_search_near_the_roofline_stops_proposing():
    bench = Bench({0: 50.0, 1: 10.2, 4: 10.1})
    problem = dataclasses.replace(PROBLEM, floor_us=10.0)
    result = search(problem, Scripted(100), bench, bench.clock(1000))
    assert result.best.candidate.source == "1"
    assert len(result.trials) == 5, "the first batch of four, then the final stage"
