"""`kforge why`, `kforge show --repro`, `kforge warm --recorded`: a miss explained, a region as a program, a job warmed later."""

from __future__ import annotations

import dataclasses
import json
import logging

import pytest
import torch
from typer.testing import CliRunner

from kforge_dynamo import ledger
from kforge_dynamo.cli import recorded as recorded_command
from kforge_dynamo.cli import show
from kforge_dynamo.cli.main import app
from kforge_dynamo.cli.task import tasks_of
from kforge_dynamo.records.assignment import Assignment, task_text
from kforge_dynamo.records.candidate import Candidate, Launch, LaunchPlan
from kforge_dynamo.records.codec import to_text
from kforge_dynamo.records.outcome import CacheKey, Measurement, Provenance, Status, Timings, Trial, Verdict, Winner
from kforge_dynamo.records.target import Numerics
from kforge_dynamo.records.task import AxisRange, Domain
from kforge_dynamo.settings import LOGGER
from kforge_dynamo.store import close_stores, key_of, open_store
from kforge_dynamo.store.recorded import append
from kforge_dynamo.targets import detect

MODEL = """
import torch

def net():
    return torch.nn.Sequential(torch.nn.Linear(24, 32), torch.nn.GELU())
"""


@pytest.fixture(scope="module")
def met(tmp_path_factory) -> tuple[str, Assignment]:
    """The model's file, and its one region as the compiler meets it."""
    path = tmp_path_factory.mktemp("model") / "model_to_ask_about.py"
    path.write_text(MODEL)
    torch.compiler.reset()
    (found,) = tasks_of(f"{path}:net", ["6x24"], "float32", "cpu", "auto", False, False)
    return f"{path}:net", found


@pytest.fixture(autouse=True)
def home(tmp_path, monkeypatch):
    close_stores()
    ledger.reset()
    monkeypatch.setenv("KFORGE_CACHE_DIR", str(tmp_path / "cache"))
    yield tmp_path / "cache"
    close_stores()
    LOGGER.setLevel(logging.NOTSET)


def winner_of(item: Assignment, **changes) -> Winner:
    target = detect(torch.device("cpu"))
    key = dataclasses.replace(key_of(item.task, target, item.numerics), **changes)
    plan = LaunchPlan((), (Launch("kforge_entry", ("1",), ()),))
    times = Timings("wall", "default", Measurement((1.0,), "planted"), Measurement((2.0,), "planted"), None)
    trial = Trial(Candidate("cpp", "", plan, "", "ieee", "planted"), Verdict(Status.PASSED, 1.0, 1e-7, "", ""), (times,))
    made = Provenance("0", "cpp", "none", "none", "0", "2026-01-01T00:00:00+00:00")
    return Winner(key, to_text(item.task), Domain((AxisRange("m", 2, 8),)), trial, made)


def run(*words, code: int = 0):
    close_stores()
    done = CliRunner().invoke(app, [str(word) for word in words])
    assert done.exit_code == code and "Traceback" not in done.output, done.output
    return done


def test_why_of_an_empty_cache_says_that_there_is_nothing(tmp_path, met):
    (tmp_path / "task.json").write_text(task_text(met[1]))
    text = run("why", tmp_path / "task.json").stdout
    assert "not_searched" in text and "no winner for any task" in text


@pytest.mark.parametrize(
    ("changes", "field"),
    [
        ({"device": "Other CPU"}, "device"),
        ({"task": "c" * 64}, "task"),
        ({"numerics": "d" * 64}, "numerics"),
        ({"schema": 0}, "schema"),
    ],
)
def test_why_names_the_field_in_which_the_nearest_winner_differs(tmp_path, met, home, changes, field):
    open_store(str(home)).put_winner(winner_of(met[1], **changes))
    (tmp_path / "task.json").write_text(task_text(met[1]))
    (row,) = json.loads(run("why", tmp_path / "task.json", "--json").stdout)
    assert row["state"] == "not_searched" and [item["field"] for item in row["differences"]] == [field]


def test_why_of_a_model_tells_sizes_apart_and_software_that_moved_on(met, home):
    target, item = met
    open_store(str(home)).put_winner(winner_of(item))
    (row,) = json.loads(run("why", target, "--shapes", "6x24", "--json").stdout)
    assert row["state"] == "stale" and "torch 0 -> " in row["reason"] and row["layer"] == " (user)"
    big = dataclasses.replace(item, sizes=(100,), domain=Domain((AxisRange("m", 100, 100),)))
    assert "sizes: asked 100, stored m=2..8" in str(open_store(str(home)).explain_miss(winner_of(item).key, big.sizes))
    assert "--shapes" in run("why", target, code=1).stderr


def test_why_of_a_stored_task_asks_by_its_digits(met, home):
    open_store(str(home)).put_winner(winner_of(met[1]))
    assert "stale" in run("why", winner_of(met[1]).key.task[:12]).stdout
    assert "kforge cache list" in run("why", "abcdef", code=1).stderr


def test_repro_is_a_program_that_compares_with_fp64(met, home, capsys):
    open_store(str(home)).put_winner(winner_of(met[1]))
    text = run("show", winner_of(met[1]).key.task[:12], "--repro").stdout
    assert 'backend="kforge"' in text and "SIZES = {'m': 4}" in text, "the middle of the range"
    torch.compiler.reset()
    before = torch.get_float32_matmul_precision()
    try:
        exec(compile(text.replace('"on_miss": "search"', '"on_miss": "fallback"'), "repro.py", "exec"), {"__name__": "__main__"})
    finally:
        torch.set_float32_matmul_precision(before)
    lines = capsys.readouterr().out.splitlines()
    errors = [float(line.partition("[")[2].partition("]")[0]) for line in lines if line.startswith("error of")]
    assert len(errors) == 2 and all(0.0 < error < 1e-6 for error in errors)
    assert any("'regions': 1" in line for line in lines)


def test_fp64_of_a_region_keeps_a_rounding_and_nothing_else(met):
    text = show._in_fp64(met[1].task)
    assert "float32)" not in text
    rounded = show.program(met[1]).count("def exact")
    assert rounded == 1


def test_show_prints_what_a_region_computes(tmp_path, met):
    (tmp_path / "task.json").write_text(task_text(met[1]))
    assert "gemm(%0, %1, %2)" in run("show", tmp_path / "task.json").stdout


def test_recorded_regions_are_asked_in_order_and_under_their_own_numerics(tmp_path, met, monkeypatch):
    path = tmp_path / "regions.jsonl"
    strict = dataclasses.replace(met[1], numerics=Numerics("strict", False, False, True))
    append(path, [(met[1], "wall"), (strict, "wall"), (strict, "wall")])
    asked = []

    def answer(desk, questions):
        asked.extend(questions)
        return {item.name: recorded_command.Desk._unsearched(desk, None, "planted") for item in questions}

    monkeypatch.setattr(recorded_command.Desk, "answer", answer)
    text = run("warm", "--recorded", path, "--budget", "1").stdout
    assert [item.numerics.fp32 for item in asked] == ["strict", "highest"] and "1/2 2x" in text and "planted" in text
    assert isinstance(asked[0].key, CacheKey) and asked[0].key.numerics != asked[1].key.numerics
    assert "KFORGE_RECORD" in run("warm", "--recorded", tmp_path / "nothing", code=1).stderr
    assert "TARGET" in run("warm", code=1).stderr
