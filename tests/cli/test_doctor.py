"""`kforge doctor`: what it says with and without compilers, caches, keys and right names; it always ends well."""

from __future__ import annotations

import importlib.util
import json
import logging
import re
import sys

import pytest
import torch
from typer.testing import CliRunner

from kforge_dynamo.cli import doctor
from kforge_dynamo.cli.main import app
from kforge_dynamo.languages.table import LANGUAGES
from kforge_dynamo.settings import KEY_NAMES, LOGGER, ROWS
from kforge_dynamo.store import close_stores
from kforge_dynamo.targets import detect, kforge_version


@pytest.fixture(autouse=True)
def own_cache(tmp_path, monkeypatch):
    for name in (*KEY_NAMES, *(row.env for row in ROWS)):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("KFORGE_CACHE_DIR", str(tmp_path / "cache"))
    close_stores()
    yield
    close_stores()
    LOGGER.setLevel(logging.NOTSET)


def facts() -> dict[tuple[str, str], dict]:
    done = CliRunner().invoke(app, ["doctor", "--json"])
    assert done.exit_code == 0, done.output
    return {(fact["section"], fact["name"].strip()): fact for fact in json.loads(done.stdout)}


def test_doctor_names_devices_compilers_versions_and_the_cache(tmp_path):
    found = facts()
    assert found["versions", "torch"]["text"] == torch.__version__
    assert found["versions", "kforge"]["text"] == kforge_version()
    assert detect(torch.device("cpu")).name in found["devices", "cpu"]["text"]
    assert set(LANGUAGES) <= {name for section, name in found if section == "devices"}
    assert {"g++", "clang++", "nvcc"} <= {name for section, name in found if section == "compilers"}
    assert found["cache", "folder"]["text"] == str(tmp_path / "cache") and found["cache", "health"]["good"]
    assert "KFORGE_CACHE_DIR" in found["environment", "names"]["text"]
    assert any(section == "falls back" for section, _ in found)


def test_doctor_names_the_profilers_of_the_devices_that_are_here(monkeypatch):
    found = {name: fact for (section, name), fact in facts().items() if section == "profilers"}
    assert {"compiler", "torch", "perf"} <= set(found) and found["torch"]["good"]
    if not torch.cuda.is_available():
        assert "ncu" not in found
    monkeypatch.setenv("PATH", "/nonexistent")
    assert "perf is not in PATH" in facts()["profilers", "perf"]["text"]


def test_doctor_prints_every_fact_on_a_line_of_its_own():
    done = CliRunner().invoke(app, ["doctor"])
    assert done.exit_code == 0
    lines = [line for line in done.stdout.splitlines() if line.startswith(" ")]
    assert len(lines) == len(doctor.diagnose())


def test_doctor_without_any_language_says_what_falls_back_and_what_to_do(monkeypatch):
    for language in LANGUAGES.values():
        monkeypatch.setattr(type(language), "missing", lambda self, target: f"no {self.name} here; install it")
    found = facts()
    assert "no cpp here; install it" in found["falls back", "1."]["text"]
    assert found["devices", "cpp"]["good"] is None


def test_doctor_shows_names_of_keys_and_never_their_values(monkeypatch):
    monkeypatch.setenv("OPENAI_API_KEY", "sk-the-secret")
    for arguments in (["doctor"], ["doctor", "--json"]):
        text = CliRunner().invoke(app, arguments).output
        assert "OPENAI_API_KEY" in text and "sk-the-secret" not in text


def test_doctor_reports_a_wrong_environment_name_and_ends_well(monkeypatch):
    monkeypatch.setenv("KFORGE_BUDGET_S", "soon")
    found = facts()
    assert "KFORGE_BUDGET_S" in found["environment", "settings"]["text"] and not found["environment", "settings"]["good"]
    assert any("environment name" in fact["text"] for (section, _), fact in found.items() if section == "falls back")


def test_doctor_reports_that_kforge_is_off(monkeypatch):
    monkeypatch.setenv("KFORGE_DISABLE", "1")
    assert "KFORGE_DISABLE" in facts()["falls back", "1."]["text"]


def test_doctor_reports_a_cache_that_cannot_be_used(monkeypatch, tmp_path):
    (tmp_path / "in the way").write_text("")
    monkeypatch.setenv("KFORGE_CACHE_DIR", str(tmp_path / "in the way"))
    found = facts()
    assert not found["cache", "health"]["good"] and "in the way" in found["cache", "health"]["text"]
    assert any("not kept" in fact["text"] for (section, _), fact in found.items() if section == "falls back")


def test_doctor_explains_ipex_without_importing_it(monkeypatch, tmp_path):
    package = tmp_path / "intel_extension_for_pytorch"
    package.mkdir()
    (package / "__init__.py").write_text("import os; os.exit(127)")
    monkeypatch.syspath_prepend(str(tmp_path))
    assert importlib.util.find_spec("intel_extension_for_pytorch") is not None
    found = facts()
    assert "archived" in found["environment", "ipex"]["text"]
    assert "intel_extension_for_pytorch" not in sys.modules


def test_doctor_without_ipex_does_not_mention_it():
    if importlib.util.find_spec("intel_extension_for_pytorch") is None:
        assert ("environment", "ipex") not in facts()


def test_version_is_one_line():
    done = CliRunner().invoke(app, ["--version"])
    assert done.exit_code == 0 and re.fullmatch(r"kforge \S+\n", done.stdout)


def test_program_without_a_command_shows_its_help():
    done = CliRunner().invoke(app, [])
    assert "doctor" in done.output and "cache" in done.output


def test_wrong_environment_name_is_one_sentence_for_other_commands(monkeypatch):
    monkeypatch.setenv("KFORGE_BUDGET_S", "soon")
    done = CliRunner().invoke(app, ["cache", "list"])
    assert done.exit_code == 1 and "Traceback" not in done.output
    assert done.stderr.count("\n") == 1 and "KFORGE_BUDGET_S" in done.stderr
