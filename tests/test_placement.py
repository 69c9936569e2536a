"""Placement: measured where it was measured, the roofline elsewhere, and each marked as what it is."""

from __future__ import annotations

import json
import logging
import sys
from pathlib import Path

import pytest
from typer.testing import CliRunner

from kforge_dynamo.cli.main import app
from kforge_dynamo.forge import floor_us
from kforge_dynamo.placement import best, known_target, stage_times
from kforge_dynamo.records.codec import to_text
from kforge_dynamo.records.outcome import Measurement, Status, Timings, Trial, Verdict, Winner
from kforge_dynamo.records.task import AxisRange, Domain
from kforge_dynamo.settings import LOGGER
from kforge_dynamo.store import close_stores, key_of, open_store
from kforge_dynamo.store.recorded import Recorded, append

sys.path.insert(0, str(Path(__file__).parent / "store"))
from store_records import MADE_WITH, candidate
from test_recorded_regions import region

H200, L4 = "NVIDIA H200", "NVIDIA L4"


@pytest.fixture
def store(tmp_path, monkeypatch):
    close_stores()
    monkeypatch.setenv("KFORGE_CACHE_DIR", str(tmp_path / "cache"))
    monkeypatch.setenv("KFORGE_LOG", "off")
    yield open_store(str(tmp_path / "cache"))
    close_stores()
    LOGGER.setLevel(logging.NOTSET)


def keep(store, rows: int, device: str, time_us: float, low: int | None = None) -> None:
    """A winner for `rows` on `device`, timed by wall clock; from `low` on where that is given."""
    asked = region(rows)
    times = Timings("wall", "default", Measurement((time_us,), "wall"), Measurement((2 * time_us,), "wall"), None)
    trial = Trial(candidate(f"// {device} {rows}"), Verdict(Status.PASSED, 1.0, 1e-7, "", ""), (times,))
    domain = Domain((AxisRange("m", low or rows, rows),))
    store.put_winner(
        Winner(key_of(asked.task, known_target(device), asked.numerics), to_text(asked.task), domain, trial, MADE_WITH)
    )


def bound(rows: int, device: str) -> float:
    return floor_us(region(rows).task, (rows,), known_target(device))


def test_measured_regions_count_as_often_as_they_were_met_and_bounds_fill_in(store):
    keep(store, 8, H200, 50.0)
    regions = [Recorded(region(8), "wall", 3), Recorded(region(4), "wall", 2)]
    ((there, here),) = stage_times({"decode": regions}, {H200: None, L4: None}, store)
    assert (there.measured_us, there.bound_us) == (150.0, pytest.approx(2 * bound(4, H200))) and not there.measured
    assert (here.measured_us, here.bound_us) == (0.0, pytest.approx(3 * bound(8, L4) + 2 * bound(4, L4)))


@pytest.mark.parametrize(("regime", "low"), [("replay", None), ("wall", 1)])
def test_time_of_another_regime_or_of_a_range_is_not_taken_for_measured(store, regime, low):
    keep(store, 8, H200, 50.0, low)
    ((item,),) = stage_times({"s": [Recorded(region(8), regime, 1)]}, {H200: None}, store)
    assert item.measured_us == 0.0 and item.total_us == pytest.approx(bound(8, H200))


def test_device_that_nothing_is_known_of_is_never_chosen(store):
    (row,) = stage_times({"s": [Recorded(region(8), "wall", 1)]}, {"No such device": 0.0, L4: 1.0}, store)
    assert row[0].total_us is None and row[0].unknown == 1
    assert best(row, by_cost=False) is row[1] and best(row, by_cost=True) is row[1]
    assert best(row[:1], by_cost=False) is None


def test_latency_and_cost_may_choose_differently(store):
    keep(store, 8, H200, 10.0)
    keep(store, 8, L4, 30.0)
    (row,) = stage_times({"s": [Recorded(region(8), "wall", 1)]}, {H200: 4.0, L4: 1.0}, store)
    assert best(row, by_cost=False).device == H200 and best(row, by_cost=True).device == L4
    assert row[1].dollars == pytest.approx(30.0e-6 / 3600.0)


def invoke(*words):
    return CliRunner().invoke(app, ["place", *map(str, words)])


def test_place_command_names_the_device_of_each_stage_and_marks_what_is_measured(store, tmp_path):
    keep(store, 8, L4, 0.0001)
    for name, rows in (("encode", 4), ("decode", 8)):
        append(tmp_path / name, [(region(rows), "wall")])
    words = [f"encode={tmp_path / 'encode'}", f"decode={tmp_path / 'decode'}", "--on", f"{H200}=4", "--on", f"{L4}=1"]
    found = json.loads(invoke(*words, "--json").stdout)
    assert found["chosen"] == [H200, L4] and found["stages"][1][1]["measured_us"] == 0.0001
    text = " ".join(invoke(*words).stdout.split())
    assert "bound" in text and "measured" in text and "at least" in text


@pytest.mark.parametrize(
    ("words", "sentence"),
    [
        (["x", "--on", "A"], "expected NAME=FILE"),
        (["x=none", "--on", "A"], "KFORGE_RECORD"),
        (["x=y", "--on", "A=much"], "NAME=DOLLARS"),
        (["x=y", "--on", "A=-1"], "NAME=DOLLARS"),
        (["x=y", "--on", "A", "--by", "cost"], "price of every device"),
        (["x=y", "--on", "A", "--by", "beauty"], "latency or cost"),
    ],
)
def test_words_that_cannot_be_placed_are_one_sentence(store, words, sentence):
    done = invoke(*words)
    assert done.exit_code == 1 and sentence in done.output and "Traceback" not in done.output
