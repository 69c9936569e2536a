"""`kforge task submit`: the status and the last line say whether the kernel is kept."""

import json

import pytest
from typer.testing import CliRunner

from kforge_dynamo.cli.main import app
from kforge_dynamo.cli.verdicts import EXIT_CODES, NOT_STORED
from kforge_dynamo.evaluation import Evaluator
from kforge_dynamo.languages.examples import EXAMPLES, TASK
from kforge_dynamo.records.assignment import Assignment, task_text
from kforge_dynamo.records.outcome import Measurement, Status, Timings, Trial, Verdict
from kforge_dynamo.records.target import Numerics
from kforge_dynamo.records.task import point
from kforge_dynamo.store import close_stores

ASKED = Assignment("linear + relu", "cpu", TASK, (64,), point(TASK, (64,)), Numerics("highest", False, False, False))


@pytest.fixture
def submit(tmp_path, monkeypatch):
    """Hands in the worked example, judged as told: a time in us, or a verdict."""
    (tmp_path / "task.json").write_text(task_text(ASKED))
    (tmp_path / "mine.cpp").write_text(EXAMPLES["cpp"].source)
    monkeypatch.setenv("KFORGE_CACHE_DIR", str(tmp_path / "cache"))
    close_stores()

    def call(outcome, *words):
        def judge(self, assignment, candidate, order):
            if isinstance(outcome, Status):
                return Trial(candidate, Verdict(outcome, 9.0, 1e-7, "output 0", "because"), ())
            times = Timings("wall", "default", Measurement((outcome,) * 5, "x"), Measurement((100.0,) * 5, "x"), None)
            return Trial(candidate, Verdict(Status.PASSED, 1.0, 1e-7, "", "right"), (times,))

        monkeypatch.setattr(Evaluator, "judge", judge)
        return CliRunner().invoke(app, ["task", "submit", str(tmp_path), str(tmp_path / "mine.cpp"), *words])

    yield call
    close_stores()


def test_winner_ends_with_zero_and_is_listed_in_the_cache(submit):
    result = submit(50.0)
    assert result.exit_code == 0, result.output
    assert result.output.splitlines()[-1] == "stored as the winner: 2.00x of Inductor's region"
    assert "2.00" in CliRunner().invoke(app, ["cache", "list"], env={"COLUMNS": "200"}).output
    again = submit(50.0, "--json")
    assert again.exit_code == 0 and json.loads(again.stdout)["stored"] is True


def test_right_kernel_that_is_not_faster_has_a_status_of_its_own(submit):
    result = submit(100.0)
    assert result.exit_code == NOT_STORED and "not stored: the fastest right kernel took 100.0 us" in result.output
    assert NOT_STORED not in EXIT_CODES.values()


def test_wrong_kernel_ends_with_the_status_of_its_verdict(submit):
    result = submit(Status.INACCURATE)
    assert result.exit_code == EXIT_CODES[Status.INACCURATE]
    assert result.output.splitlines()[-1] == "not stored: inaccurate at output 0"
