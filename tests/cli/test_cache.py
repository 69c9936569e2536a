"""`kforge cache`: lists, shows, verifies and clears; explicit calls on a cache that cannot be used end in one sentence."""

from __future__ import annotations

import json
import logging
from pathlib import Path

import pytest
from typer.testing import CliRunner

from kforge_dynamo.cli.main import app
from kforge_dynamo.records.candidate import Candidate, Launch, LaunchPlan
from kforge_dynamo.records.codec import digest, to_text
from kforge_dynamo.records.outcome import (
    Measurement,
    Provenance,
    Standing,
    State,
    Status,
    Terms,
    Timings,
    Trial,
    Verdict,
    Winner,
)
from kforge_dynamo.records.target import Numerics, Target
from kforge_dynamo.records.task import AxisRange, Domain, InputRole, InputSpec, Node, Task, ValueSpec
from kforge_dynamo.settings import LOGGER
from kforge_dynamo.store import close_stores, key_of, open_store
from kforge_dynamo.store.ship import ship

CPU = Target("cpu", "x", "Some CPU avx512 2 threads", "avx512", 2, None, None, (), ())


def value(rows, cols):
    return ValueSpec("float32", rows, cols)


GEMM = Node("gemm", (0, 1), (("alpha", 1.0), ("beta", 1.0)), value(("m",), (8,)))
TASK = Task(
    ("m",),
    (),
    (
        InputSpec(value(("m",), (16,)), ("dense", 1), InputRole.LHS),
        InputSpec(value((1,), (16, 8)), (0, "dense", 1), InputRole.RHS),
    ),
    (GEMM, Node("relu", (2,), (), value(("m",), (8,)))),
    (3,),
)
KEY = key_of(TASK, CPU, Numerics("highest", False, False, False))


def winner(low: int = 1, high: int = 64, source: str = "void kforge_entry() { /* [bold] */ }\n") -> Winner:
    candidate = Candidate("cpp", source, LaunchPlan((), (Launch("kforge_entry", ("1",), ("in:0",)),)), "{}", "ieee", "builtin")
    times = Timings("wall", "default", Measurement((10.0,), "wall"), Measurement((25.0,), "wall"), None)
    trial = Trial(candidate, Verdict(Status.PASSED, 1.25, 1e-7, "output 0", ""), (times,))
    made = Provenance("2.13.0", "cpp", "g++ 12.2", "none", "0.1.0", "2026-01-01T00:00:00+00:00")
    return Winner(KEY, to_text(TASK), Domain((AxisRange("m", low, high),)), trial, made)


def standing() -> Standing:
    domain = Domain((AxisRange("m", 100, 100),))
    return Standing(KEY, domain, State.NO_WINNER, "slower than Inductor", Terms("builtin 1", ("cpp",), 10.0, 12), 0.875)


@pytest.fixture
def home(tmp_path, monkeypatch):
    close_stores()
    monkeypatch.setenv("KFORGE_CACHE_DIR", str(tmp_path / "cache"))
    yield tmp_path / "cache"
    close_stores()
    LOGGER.setLevel(logging.NOTSET)


@pytest.fixture
def filled(home):
    place = open_store(str(home))
    place.put_winner(winner())
    place.put_standing(standing())
    place.artifact(winner().trial.candidate, _build)
    return home


def _build(folder: Path) -> Path:
    (folder / "kernel.so").write_bytes(b"machine code")
    return folder / "kernel.so"


def run(*arguments: str, code: int = 0, given: str | None = None):
    close_stores()
    done = CliRunner().invoke(app, ["cache", *arguments], input=given, env={"COLUMNS": "300"})
    assert done.exit_code == code, done.output
    assert "Traceback" not in done.output
    return done


def test_list_of_an_empty_cache_says_so(home):
    assert str(home) in run("list").stdout.replace("\n", "")
    assert json.loads(run("list", "--json").stdout) == []


def test_list_shows_each_entry_in_one_line(filled):
    text = run("list").stdout
    assert "gemm-relu" in text and "2.50x" in text and "m=1..64" in text and "no_winner" in text and "highest" in text
    assert digest(winner())[:12] in text


def test_list_as_json_has_numbers_and_names(filled):
    rows = {row["state"]: row for row in json.loads(run("list", "--json").stdout)}
    assert rows["winner"]["speedup"] == 2.5 and rows["winner"]["error_ratio"] == 1.25
    assert rows["winner"]["entry"] == digest(winner()) and rows["winner"]["task"] == "gemm-relu"
    assert rows["no_winner"]["reason"] == "slower than Inductor" and rows["no_winner"]["speedup"] == 0.875
    assert rows["no_winner"]["error_ratio"] is None


def test_show_explains_an_entry(filled):
    text = run("show", digest(winner())[:10]).stdout
    for words in ("relu(%2)", "m=1..64", "2.50x", "10.0 us", "25.0 us", "error ratio 1.25", "g++ 12.2", "not measured"):
        assert words in text
    assert "slower than Inductor" in run("show", digest(standing())).stdout


def test_show_prints_the_source_as_it_is(filled):
    assert run("show", digest(winner()), "--source").stdout == "void kforge_entry() { /* [bold] */ }\n\n"


def test_show_as_json_holds_the_record(filled):
    data = json.loads(run("show", digest(winner())[:12], "--json").stdout)
    assert data["record"]["trial"]["candidate"]["language"] == "cpp"


@pytest.mark.parametrize("prefix", ["ffffffffffff", "zz"])
def test_show_of_an_unknown_entry_is_one_sentence(filled, prefix):
    done = run("show", prefix, code=1)
    assert prefix in done.stderr and "cache list" in done.stderr and done.stderr.count("\n") == 1


def test_show_of_an_ambiguous_entry_asks_for_more_digits(home):
    place = open_store(str(home))
    for size in range(1, 40):
        place.put_winner(winner(size, size))
    done = run("show", "", code=1)
    assert "39 entries begin" in done.stderr and "more of its digits" in done.stderr


def test_verify_of_a_good_cache_ends_well(filled):
    assert "2 entries" in run("verify").stdout and "0 problems" in run("verify").stdout
    assert json.loads(run("verify", "--json").stdout)["checked"]["artifacts"] == 1


def test_verify_finds_a_tampered_entry(filled):
    place = open_store(str(filled))
    name = f"entry:{digest(winner())}"
    text = place._index.get(name).replace("kforge_entry", "kforge_entrx")
    place._index.edit(lambda rows: rows.set(name, text))
    done = run("verify", code=1)
    assert digest(winner())[:12] in done.stdout and "changed after it was stored" in done.stdout and "1 problem" in done.stdout
    assert "refused" in run("list").stdout
    assert "never used" in run("show", digest(winner())[:12], code=1).stderr


def test_verify_finds_a_changed_kernel(filled):
    next(filled.rglob("kernel.so")).write_bytes(b"other code")
    problems = json.loads(run("verify", "--json", code=1).stdout)["problems"]
    assert len(problems) == 1 and "is not what was built" in problems[0]


def test_clear_asks_and_does_nothing_on_no(filled):
    run("clear", code=1, given="n\n")
    assert len(json.loads(run("list", "--json").stdout)) == 2


def test_clear_removes_everything(filled):
    assert "removed 2 entries and 1 built kernels" in run("clear", "--yes").stdout
    assert json.loads(run("list", "--json").stdout) == []
    assert list(filled.rglob("kernel.so")) == []


def test_clear_of_one_entry_leaves_the_others(filled):
    run("clear", digest(winner())[:12])
    assert [row["state"] for row in json.loads(run("list", "--json").stdout)] == ["no_winner"]


@pytest.mark.parametrize("command", [["list"], ["verify"], ["clear", "--yes"], ["show", "a"]])
def test_cache_that_cannot_be_used_is_one_sentence(tmp_path, command):
    (tmp_path / "file").write_text("")
    done = run(*command, "--cache-dir", str(tmp_path / "file"), code=1)
    assert done.stderr.splitlines()[-1].startswith("kforge: the cache folder")
    assert done.stdout == ""
    close_stores()


def test_ship_adds_a_winner_and_pins_the_manifest(filled, tmp_path, monkeypatch):
    monkeypatch.setattr("kforge_dynamo.cli.cache.ship_winners", lambda winners, home: ship(winners, home, tmp_path / "pinned.py"))
    (tmp_path / "kernel_cache").mkdir()
    done = run("ship", digest(winner())[:12], "--to", str(tmp_path / "kernel_cache"))
    assert "shipped 1 winners" in done.stdout
    assert len(list((tmp_path / "kernel_cache").glob("some-cpu-avx512-2-threads/gemm-relu-*/winner.json"))) == 1
    assert "is no winner" in run("ship", digest(standing())[:12], "--to", str(tmp_path / "kernel_cache"), code=1).stderr
    assert "no folder" in run("ship", "--to", str(tmp_path / "nowhere"), code=1).stderr
