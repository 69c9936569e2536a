"""The benchmark program: rows, resuming, crashes, limits."""

from __future__ import annotations

import json

import pytest

from benchmarks import run

PROBLEM = """
import os, time, torch
{first}
class Model(torch.nn.Module):
    def __init__(self, size):
        super().__init__()
        self.linear = torch.nn.Linear(size, size)
    def forward(self, x):
        return torch.relu(self.linear(x))
def get_inputs():
    return [torch.rand(4, 8)]
def get_init_inputs():
    return [8]
"""
FAST = ["--variants", "eager", "--scale", "small", "--measure", "0.01"]


def rows_of(path):
    return [json.loads(line) for line in path.read_text().splitlines()]


def test_run_writes_a_row_with_place_and_command_and_resumes(tmp_path, capsys):
    out = tmp_path / "rows.jsonl"
    assert run.main(["--ids", "12", "--out", str(out), *FAST]) == 0
    (row,) = rows_of(out)
    assert row["failure"] is None and row["row"]["id"] == 12 and row["row"]["scale"] == "small"
    assert row["wall_us"]["eager"]["median"] > 0 and row["wall_us"]["eager"]["n"] >= 15
    assert row["versions"]["torch"] and row["date"] and "--ids 12" in row["command"]
    assert row["error"]["relative_rms"]["eager"] < 1e-5
    assert run.main(["--ids", "12", "--out", str(out), "--resume", *FAST]) == 0
    assert len(rows_of(out)) == 1
    assert "0 rows asked for" in capsys.readouterr().out


def test_run_after_a_crash_a_hang_and_an_error_goes_on_with_the_next_row(tmp_path):
    out = tmp_path / "rows.jsonl"
    firsts = {9: "os._exit(7)", 12: "", 14: "raise OSError('no such weight')", 18: "time.sleep(600)"}
    for number, first in firsts.items():
        (tmp_path / f"{number}_Problem.py").write_text(PROBLEM.format(first=first))
    ids = [str(number) for number in firsts]
    command = ["--ids", *ids, "--kernelbench", str(tmp_path), "--row-limit", "10", "--out", str(out), *FAST]
    assert run.main(command) == 1
    reasons = {row["row"]["id"]: row["failure"] for row in rows_of(out)}
    assert "status 7" in reasons[9]
    assert reasons[12] is None
    assert "no such weight" in reasons[14]
    assert "no result within 10 s" in reasons[18]


def test_run_stops_at_the_time_limit_without_a_failed_row(tmp_path, capsys):
    out = tmp_path / "rows.jsonl"
    assert run.main(["--out", str(out), "--time-limit", "0", *FAST]) == 0
    assert "37 rows left; go on with --resume" in capsys.readouterr().out
    assert not out.exists()


def test_settings_of_the_command_line_become_orders():
    def asked(*words):
        return [
            (one["precision"], one["scale"], one["mode"], one["options"]) for one in run.orders(run.parse(["--ids", "9", *words]))
        ]

    assert asked() == [("fp32", "cpu", "eval", {})]
    assert asked("--precision", "highest", "strict", "high", "--shapes", "v0.1") == [
        (name, "small", "eval", {}) for name in ("fp32", "strict", "high")
    ]
    assert asked("--precision", "mixed", "--dtype", "fp32", "bf16", "--mode", "train") == [
        ("mixed", "cpu", "train", {}), ("bf16", "cpu", "train", {}),
    ]  # fmt: skip
    assert asked("--dtype", "bf16", "--device", "cuda") == [("bf16", "full", "eval", {})]
    both = asked("--prepack", "default", "trust", "--options", '{"on_miss": "fallback"}')
    assert [options for *_, options in both] == [{"on_miss": "fallback"}, {"on_miss": "fallback", "prepack": "trust"}]


def test_run_with_an_unknown_number_names_the_known_ones(tmp_path):
    with pytest.raises(SystemExit, match=r"\[10\].*9, 12, 14"):
        run.main(["--ids", "10", "--out", str(tmp_path / "rows.jsonl")])
