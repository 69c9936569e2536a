"""`kforge explain` and `kforge warm` from a file, and what they say of bad words."""

import pytest
import torch
from typer.testing import CliRunner

from kforge_dynamo import ledger
from kforge_dynamo.cli.loading import load_target, make_inputs
from kforge_dynamo.cli.main import app
from kforge_dynamo.errors import SettingsError

MODEL = """
import torch

def net():
    return torch.nn.Sequential(torch.nn.Linear(24, 32), torch.nn.ReLU(), torch.nn.Linear(32, 8))

def score(x, y):
    return torch.relu(x @ y)

number = 3
"""


@pytest.fixture
def path(tmp_path, monkeypatch):
    monkeypatch.setenv("KFORGE_CACHE_DIR", str(tmp_path / "kforge"))
    torch.compiler.reset()
    ledger.reset()
    file = tmp_path / "model_of_a_user.py"
    file.write_text(MODEL)
    return file


def test_explain_of_a_factory_prints_its_regions(path):
    result = CliRunner().invoke(app, ["explain", f"{path}:net", "--shapes", "6x24"])
    assert result.exit_code == 0, result.output
    assert "gemm" in result.output
    assert "relu" in result.output
    assert ledger.stats()["regions"] == 2


def test_explain_of_a_function_takes_several_inputs(path):
    result = CliRunner().invoke(app, ["explain", f"{path}:score", "--function", "--shapes", "6x24,24x5"])
    assert result.exit_code == 0, result.output
    assert ledger.stats()["regions"] == 1


def test_warm_without_time_reports_every_region_and_compares_the_whole_model(path):
    result = CliRunner().invoke(app, ["warm", f"{path}:net", "--shapes", "6x24", "--budget", "0"])
    assert result.exit_code == 0, result.output
    assert "whole model" in result.output
    assert {item.state for item in ledger.report()} == {"not_searched"}


@pytest.mark.parametrize(
    ("target", "words"),
    [
        ("net", "module:factory or file.py:factory"),
        ("missing.py:net", "does not exist"),
        ("no_such_module_anywhere:net", "cannot be imported"),
        ("{path}:nothing", "has no 'nothing'; it has"),
        ("{path}:number", "expected a function"),
        ("{path}:score", "a plain function"),
    ],
)
def test_target_that_cannot_be_loaded_is_one_sentence(path, target, words):
    with pytest.raises(SettingsError, match=words):
        load_target(target.format(path=path), function=False)


@pytest.mark.parametrize("word", ["8by4", "x8", "8x4:floot", "8x4:"])
def test_shape_that_is_none_is_one_sentence(word):
    with pytest.raises(SettingsError, match="shape"):
        make_inputs([word], dtype="float32", device="cpu")


def test_inputs_have_the_asked_shapes_and_dtypes():
    values, whole, flags = make_inputs(["3x4", "5:int64", "2x2:bool"], dtype="bfloat16", device="cpu")
    assert (values.shape, values.dtype) == ((3, 4), torch.bfloat16)
    assert (whole.shape, whole.dtype) == ((5,), torch.int64)
    assert flags.dtype == torch.bool
