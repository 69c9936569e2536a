"""`kforge warm --ray` and `--all-devices`: recorded regions searched by a crew, and words that cannot be followed."""

from __future__ import annotations

import logging
import sys
from pathlib import Path

import pytest
import torch
from typer.testing import CliRunner

from kforge_dynamo.cli import crews
from kforge_dynamo.cli.main import app
from kforge_dynamo.scale.seats import place_of
from kforge_dynamo.settings import LOGGER
from kforge_dynamo.store import close_stores
from kforge_dynamo.store.recorded import append

sys.path.insert(0, str(Path(__file__).parents[1] / "store"))
sys.path.insert(0, str(Path(__file__).parents[1] / "scale"))
from test_crew import Scripted
from test_recorded_regions import region


@pytest.fixture(autouse=True)
def home(tmp_path, monkeypatch):
    close_stores()
    monkeypatch.setenv("KFORGE_CACHE_DIR", str(tmp_path / "cache"))
    monkeypatch.setenv("KFORGE_LOG", "off")
    yield
    close_stores()
    LOGGER.setLevel(logging.NOTSET)


def warm(*words: object):
    close_stores()
    return CliRunner().invoke(app, ["warm", *map(str, words)])


@pytest.fixture
def met(tmp_path):
    path = tmp_path / "regions.jsonl"
    append(path, [(region(4), "wall"), (region(8), "wall"), (region(8), "wall")])
    return path


def test_recorded_regions_are_searched_by_the_crew_and_not_again(met, monkeypatch):
    seats = [Scripted("one", place_of(torch.device("cpu"))), Scripted("two", place_of(torch.device("cpu")))]
    monkeypatch.setattr(crews, "local_seats", lambda device: seats)
    done = warm("--recorded", met, "--all-devices", "--budget", "20")
    assert done.exit_code == 0, done.output
    assert "2 evaluators: one, two" in done.output
    assert "1/2 2x gemm (8,): winner, 4.00x" in done.output and "2/2 1x gemm (4,): winner, 4.00x" in done.output
    asked = sum(len(seat.asked) for seat in seats)
    assert asked and all(seat.closed for seat in seats)
    assert "winner" in warm("--recorded", met, "--all-devices", "--budget", "20").output
    assert sum(len(seat.asked) for seat in seats) == asked


@pytest.mark.parametrize(
    ("words", "sentence"),
    [
        (["--ray", "auto", "--all-devices"], "choose one"),
        (["--ray", "auto"], "kforge-dynamo[ray]"),
    ],
)
def test_crew_that_cannot_be_had_is_one_sentence(met, monkeypatch, words, sentence):
    monkeypatch.setitem(sys.modules, "ray", None)
    done = warm("--recorded", met, *words)
    assert done.exit_code == 1 and sentence in done.output and "Traceback" not in done.output


def test_crew_and_a_language_model_exclude_each_other(tmp_path):
    with pytest.raises(crews.SettingsError, match="leave some-model out"), crews.crew("auto", False, ["cpu"], "some-model"):
        pass
