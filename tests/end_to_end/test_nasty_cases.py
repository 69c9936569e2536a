"""The nasty cases with every region spliced: two processes that compile at once over one cache; a third compiles nothing."""

from pathlib import Path

import pytest
from nasty_cases import CASES
from runs import Caches, finish

pytestmark = pytest.mark.slow

NAMES = [case.__name__ for case in CASES]
SCRIPT = (Path(__file__).parent / "nasty_cases.py").read_text()
TOGETHER = ["infinite_rows", "tied_weight_written_between_uses"]
"""Cases that a second process compiles at the same time as the first."""
ANEW = {"batches_from_none_to_thousands", "recomputed_dropout"}
"""Cases with a graph that Inductor's caches do not take: sizes that depend on data, and a higher-order op."""
UNCLAIMED = {"batches_from_none_to_thousands": 1}
"""Regions without a winner: sizes that depend on data are not known when the graph is compiled."""


LIMIT_S = 700.0  # two processes compile beside whatever else the machine does


@pytest.fixture(scope="module")
def processes(tmp_path_factory):
    """What the processes counted, by case."""
    caches = Caches(tmp_path_factory.mktemp("nasty"))
    script = SCRIPT.replace("__file__", repr(str(Path(__file__).parent / "nasty_cases.py"))).replace("sys.argv[1:]", "NAMES")
    first, beside = caches.start("", f"NAMES = []\n{script}"), caches.start("", f"NAMES = {TOGETHER}\n{script}")
    found = {"first": finish(first, LIMIT_S), "beside": finish(beside, LIMIT_S)}
    return {**found, "later": finish(caches.start("", f"NAMES = []\n{script}"), LIMIT_S)}


@pytest.mark.timeout(900)
@pytest.mark.parametrize("name", NAMES)
def test_nasty_case_is_spliced_and_right(name, processes):
    counted = processes["first"][name]
    assert not counted["failure"], counted["failure"]
    if name in TOGETHER and not counted["regions"]:  # the other process was first, and its compiled graph was taken
        counted = {**counted, **{key: processes["beside"][name][key] for key in ("regions", "winners")}}
    assert counted["regions"] == counted["winners"] + UNCLAIMED.get(name, 0) and counted["winners"] > 0
    assert counted["calls"] > 0 and not counted["fallback_calls"] and not counted["fallbacks"] and not counted["said"]


@pytest.mark.parametrize("name", TOGETHER)
def test_process_that_starts_at_the_same_time_is_right(name, processes):
    counted = processes["beside"][name]
    assert not counted["failure"] and counted["calls"] == processes["first"][name]["calls"]


@pytest.mark.parametrize("name", NAMES)
def test_later_process_finds_the_compiled_graphs_and_calls_the_same_winners(name, processes):
    first, later = processes["first"][name], processes["later"][name]
    assert not later["failure"], later["failure"]
    assert later["calls"] == first["calls"] and not later["fallback_calls"]
    if name not in ANEW:
        assert later["hits_of_caches"] > 0 and later["regions"] == 0, "a cached graph runs no pass"
