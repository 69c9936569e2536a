"""The demo's models: built-in ones need torch alone; libraries that do not import are left out with a reason."""

from __future__ import annotations

import os
import subprocess
import sys

import pytest
import torch

from kforge_dynamo.cli import libraries, models
from kforge_dynamo.cli.compare import distance, oracle, tensors_of


@pytest.mark.parametrize("entry", models.BUILT_IN, ids=lambda entry: entry.name)
def test_built_in_model_agrees_with_its_fp64_self(entry):
    torch.manual_seed(0)
    built = entry.build()
    built.module.eval()
    with torch.no_grad():
        found = distance(tensors_of(built.module(*built.inputs)), oracle(built.module, built.inputs))
    assert found.same_nonfinite and found.oracle_rms > 0
    assert found.relative < 1e-5


def test_all_is_at_least_eight_models_without_any_library(monkeypatch):
    monkeypatch.setattr(models, "why_missing", lambda library: f"{library} is not installed")
    entries, notes = models.choose(everything=True)
    assert len(entries) >= 8 and all(entry.library is None for entry in entries)
    assert len(notes) == 2 and "timm is not installed" in notes[0]


def test_three_models_come_from_libraries_where_they_import(monkeypatch):
    monkeypatch.setattr(models, "why_missing", lambda library: None)
    entries, notes = models.choose(everything=False)
    assert [entry.library for entry in entries] == ["timm", "transformers", "transformers"] and not notes


def test_three_models_are_built_in_where_a_library_is_broken(monkeypatch):
    monkeypatch.setattr(models, "why_missing", lambda library: "broken" if library == "timm" else None)
    entries, _ = models.choose(everything=False)
    assert [entry.library for entry in entries] == [None, "transformers", "transformers"]


@pytest.fixture
def library_named(tmp_path, monkeypatch):
    """Writes an importable package whose __init__ is the given text."""

    def write(name, text):
        (tmp_path / name).mkdir()
        (tmp_path / name / "__init__.py").write_text(text)
        monkeypatch.syspath_prepend(tmp_path)
        return name

    yield write
    for name in [name for name in sys.modules if name.startswith("kforge_test_")]:
        del sys.modules[name]


def test_why_missing_of_an_absent_library_says_so():
    assert libraries.why_missing("kforge_test_absent") == "kforge_test_absent is not installed"


def test_why_missing_of_a_broken_library_gives_its_words(library_named):
    name = library_named("kforge_test_broken", "raise RuntimeError('made for another torch')")
    assert libraries.why_missing(name) == f"{name} does not import (made for another torch)"


def test_library_beside_a_torchvision_of_another_torch_imports(library_named, tmp_path):
    text = "import torch\nif not hasattr(torch.ops.torchvision, 'nms'):\n"
    text += "    raise RuntimeError('operator torchvision::nms does not exist')\n"
    name = library_named("kforge_test_vision", text)
    # in a process of its own: the operators it declares would stand in the way of a torchvision that works
    program = f"from kforge_dynamo.cli.libraries import why_missing; print(why_missing({name!r}))"
    path = os.pathsep.join([str(tmp_path), *filter(None, sys.path)])
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, env={**os.environ, "PYTHONPATH": path})
    assert done.stdout.strip() == "None", done.stderr
