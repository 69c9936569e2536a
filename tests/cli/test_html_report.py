"""`kforge report`: writes one page, and says in one sentence what it cannot."""

from __future__ import annotations

import logging

import pytest
from typer.testing import CliRunner

from kforge_dynamo.cli.main import app
from kforge_dynamo.settings import LOGGER
from kforge_dynamo.store import close_stores


@pytest.fixture(autouse=True)
def home(tmp_path, monkeypatch):
    close_stores()
    monkeypatch.setenv("KFORGE_CACHE_DIR", str(tmp_path / "cache"))
    monkeypatch.setenv("KFORGE_LOG", "off")
    yield
    close_stores()
    LOGGER.setLevel(logging.NOTSET)


def invoke(*words: object):
    return CliRunner().invoke(app, ["report", *map(str, words)])


def test_report_of_the_cache_is_written_whole_and_replaced(tmp_path):
    out = tmp_path / "page.html"
    out.write_text("old")
    result = invoke("--cache", "-o", out)
    assert result.exit_code == 0, result.output
    assert out.read_text().startswith("<!DOCTYPE html>") and str(out) in result.output
    assert [path.name for path in tmp_path.glob(".kforge-*")] == []


@pytest.mark.parametrize("words", [[], ["--cache", "--bench", "x"], ["run", "--cache"]])
def test_report_of_nothing_or_two_things_is_one_sentence(words):
    result = invoke(*words)
    assert result.exit_code == 1 and "report needs one of" in result.output


def test_report_into_a_folder_that_is_not_there_is_one_sentence(tmp_path):
    result = invoke("--cache", "-o", tmp_path / "none" / "page.html")
    assert result.exit_code == 1 and "cannot be written" in result.output and "Traceback" not in result.output


def test_report_of_an_unknown_run_or_file_is_one_sentence(tmp_path):
    assert "names 0 runs" in invoke("no-such-run").output
    assert "cannot be read" in invoke("--bench", tmp_path / "none.jsonl").output
