"""Random tasks through generator and judge: a small count of what `python -m benchmarks.random_tasks` does by the hundred."""

from __future__ import annotations

import json
import shutil

import pytest

from benchmarks import random_tasks
from benchmarks.random_tasks import RandomTask, faults, rows

needs_compiler = pytest.mark.skipif(shutil.which("g++") is None, reason="needs g++")


def test_random_task_is_the_same_for_the_same_seed_and_varies():
    drawn = [RandomTask(seed).task for seed in range(60)]
    assert drawn == [RandomTask(seed).task for seed in range(60)]
    assert len(set(drawn)) == 60
    assert {task.inputs[0].value.dtype for task in drawn} == {"float32", "bfloat16"}
    assert len({task.inputs[1].strides for task in drawn}) >= 4
    assert {"var", "amax", "where", "erf"} <= {node.op for task in drawn for node in task.nodes}


@needs_compiler
def test_random_tasks_have_no_winner_over_the_gate():
    found = list(rows(4, 7, frozenset()))
    assert len(found) == 4
    assert faults(found) == []
    assert any(row["status"] == "passed" for row in found)


def test_random_tasks_faults_are_wrong_kernels_and_winners_over_the_gate():
    fine = {"seed": 1, "status": "passed", "again": "passed"}
    over = {"seed": 2, "status": "passed", "again": "inaccurate"}
    wrong = {"seed": 3, "status": "inaccurate"}
    assert faults([fine, over, wrong, {"seed": 4, "status": "refused"}]) == [over, wrong]


def test_random_tasks_resume_leaves_out_what_the_file_has(tmp_path, monkeypatch, capsys):
    asked = []

    def drawn(count, seed, done):
        asked.append(done)
        yield {"seed": 2, "status": "passed"}

    monkeypatch.setattr(random_tasks, "rows", drawn)
    path = tmp_path / "rows.jsonl"
    path.write_text(json.dumps({"seed": 1, "status": "passed"}) + "\n")
    monkeypatch.setattr("sys.argv", ["random_tasks", "--count", "2", "--resume", str(path)])
    assert random_tasks.main() == 0
    assert asked == [frozenset({1})]
    assert [json.loads(line)["seed"] for line in path.read_text().splitlines()] == [1, 2]
    assert "2 tasks" in capsys.readouterr().out
