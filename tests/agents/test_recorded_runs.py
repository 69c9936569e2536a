"""The runs in examples/runs: replies that a coding agent wrote in answer to the prompts, judged then, taken again here.

Their replies hold what models do: a header forgotten, a stride misread, memory of their own, a patch of another kernel, a
variance in one pass, and the repair of each.
"""

import itertools
from pathlib import Path

import pytest
from typer.testing import CliRunner

from kforge_dynamo.agents.transcript import read, runs
from kforge_dynamo.cli.main import app

FOLDER = Path(__file__).resolve().parents[2] / "examples" / "runs"
RUNS = runs(FOLDER)


def kforge(*words):
    return CliRunner().invoke(app, [str(word) for word in words], env={"COLUMNS": "200"})


def statuses(folder):
    events = read(folder).events
    return [item["trial"]["verdict"]["status"] for item in events if item["event"] == "trial" and item["step"] > 0]


def test_there_is_a_handful_of_runs_over_different_tasks():
    titles = {read(folder).header.assignment.title for folder in RUNS}
    assert len(titles) == len(RUNS) >= 8


@pytest.mark.parametrize("folder", RUNS, ids=lambda folder: folder.name)
def test_recorded_run_comes_out_the_same_on_any_machine(folder):
    result = kforge("runs", "replay", folder)
    assert result.exit_code == 0, result.output
    assert "recorded events came out the same" in result.output


@pytest.mark.parametrize("folder", RUNS, ids=lambda folder: folder.name)
def test_each_reply_and_verdict_is_older_than_the_prompt_that_follows(folder):
    events = read(folder).events
    times = [item["at"] for item in events]
    assert times == sorted(times)
    asked = [item["at"] for item in events if item["event"] == "prompt"]
    answered = [item["at"] for item in events if item["event"] in ("reply", "failure")]
    judged = [item["at"] for item in events if item["event"] == "trial" and item["stage"] == "search" and item["step"] > 0]
    assert len(asked) == len(answered) >= 2 and judged
    for before, after in itertools.pairwise(asked):
        assert any(before < at < after for at in answered)


def test_failures_are_kept_and_cured():
    found = {folder.name: statuses(folder) for folder in RUNS}
    failed = {status for run in found.values() for status in run} - {"passed"}
    assert failed >= {"compile_error", "inaccurate", "rejected"}
    cured = [name for name, run in found.items() if run[0] != "passed" and "passed" in run[1:]]
    assert len(cured) >= 6, found
