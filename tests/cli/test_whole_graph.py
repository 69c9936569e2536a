"""A splice that made the whole graph slower is dropped, one that made it faster stays: by planted times, without a clock."""

from __future__ import annotations

import pytest

from kforge_dynamo.cli import whole_graph
from kforge_dynamo.ledger import RegionReport


def spliced(name: str, speedup: float = 3.0, place: str = "graph") -> RegionReport:
    return RegionReport("graph", name, "task", (4,), "winner", "spliced", speedup, place=place, splice=name)


class Times:
    """A clock whose samples are planted by label, and the labels that were compiled."""

    def __init__(self, **times_us: float) -> None:
        self._times_us, self.built = times_us, []

    def build(self, label):
        self.built.append(label)
        return lambda: None

    def __call__(self, calls):
        return {name: [self._times_us[label] + 0.01 * (turn % 3) for turn in range(20)] for name, label in self._labels(calls)}

    def _labels(self, calls):
        alone = [name for name in calls if name not in (whole_graph.ALL, whole_graph.NONE)]
        return [(name, f"without_{alone.index(name)}" if name in alone else name) for name in calls]


def decided(times, *reports):
    return whole_graph.decide(reports, times.build, times)


def test_slow_winner_is_left_out_of_its_graph_and_the_other_stays():
    times = Times(all=20.0, none=15.0, without_0=25.0, without_1=12.0)
    decision = decided(times, spliced("good"), spliced("slow"))
    assert list(decision.left_out) == ["graph"] and list(decision.left_out["graph"]) == ["slow"]
    assert "whole graph was slower" in decision.left_out["graph"]["slow"]
    assert times.built == ["all", "none", "without_0", "without_1"]
    states = {item.title: item.state for item in whole_graph.after(decision, [spliced("good"), spliced("slow")])}
    assert states == {"good": "winner", "slow": "no_winner"}


def test_winners_stay_where_the_graph_is_faster_with_them():
    times = Times(all=10.0, none=15.0)
    assert decided(times, spliced("one"), spliced("two")).left_out == {}
    assert times.built == ["all", "none"], "what wins clearly is not timed alone while the whole is faster"


def test_close_winner_is_timed_alone_although_the_whole_is_faster():
    times = Times(all=10.0, none=15.0, without_0=9.0)
    assert decided(times, spliced("clear"), spliced("close", speedup=1.05)).left_out["graph"].keys() == {"close"}


@pytest.mark.parametrize(("none_us", "dropped"), [(9.0, True), (11.0, False), (10.005, False)])
def test_only_splice_is_dropped_where_the_graph_is_faster_without_it(none_us, dropped):
    decision = decided(Times(all=10.0, none=none_us), spliced("only"))
    assert bool(decision.left_out) is dropped


def test_graph_that_no_single_splice_slows_down_loses_all_of_them():
    times = Times(all=20.0, none=15.0, without_0=20.5, without_1=20.5)
    decision = decided(times, spliced("one", place="forward"), spliced("two", place="backward"))
    assert {place: list(names) for place, names in decision.left_out.items()} == {"forward": ["one"], "backward": ["two"]}


def test_model_without_winners_is_not_timed():
    times = Times()
    other = RegionReport("graph", "other", "task", (4,), "no_winner", "slower")
    assert decided(times, other) == whole_graph.Decision({}, None) and times.built == []
