"""`kforge demo`: what it prints and how it ends."""

from __future__ import annotations

import pytest
import torch
import typer
from typer.testing import CliRunner

from kforge_dynamo.cli import demo, models, trial_run
from kforge_dynamo.cli.compare import Judgement
from kforge_dynamo.cli.measure import Ratio
from kforge_dynamo.ledger import RegionReport

BUILT_IN = {entry.name: entry for entry in models.BUILT_IN}


def run_of(entry, *, right=True, failure=None):
    if failure:
        return trial_run.Run(entry, None, None, None, None, None, None, None, {}, (), failure)
    region = RegionReport("g", "gelu(linear)", "t", (16,), "winner", "", speedup=2.0, error_ratio=0.5, scheme="ieee")
    other = RegionReport("g", "softmax(bmm)", "t", (16,), "no_winner", "the fastest right kernel was slower")
    ratio = Ratio(1.25, 1.2, 1.3)
    counted = {"regions": 2, "winners": 1, "spliced": 1}
    return trial_run.Run(entry, Judgement(0.9, right), 9e-8, 1e-7, 1e-7, ratio, ratio, 100.0, counted, (region, other), None)


@pytest.fixture
def invoke(monkeypatch):
    """Runs the command with `trial_run.run` replaced by the given function of the entry."""
    app = typer.Typer()
    demo.register(app)
    app.command("other")(lambda: None)
    monkeypatch.setattr(models, "why_missing", lambda library: f"{library} is not installed")

    def call(answer, *arguments):
        monkeypatch.setattr(trial_run, "run", lambda entry, *rest: answer(entry))
        return CliRunner().invoke(app, ["demo", "--device", "cpu", *arguments])

    return call


def test_demo_shows_winners_reasons_errors_and_speed(invoke):
    result = invoke(run_of)
    assert result.exit_code == 0, result.output
    assert "spliced: gelu(linear) (ieee)" in result.output
    assert "left to Inductor: softmax(bmm): the fastest right kernel was slower" in result.output
    assert "1.25x [1.20, 1.30] over torch.compile" in result.output and "ratio 0.90" in result.output
    assert "3 of 3 models right, 3 regions spliced" in result.output
    assert "timm is not installed" in result.output


def test_demo_with_a_wrong_result_ends_with_one(invoke):
    result = invoke(lambda entry: run_of(entry, right=entry.name != "bert"))
    assert result.exit_code == 1
    assert "WRONG" in result.output and "2 of 3 models right" in result.output


def test_demo_with_a_failed_model_shows_why_goes_on_and_ends_with_one(invoke):
    result = invoke(lambda entry: run_of(entry, failure="RuntimeError: [no] such op" if entry.name == "vit" else None))
    assert result.exit_code == 1
    assert "RuntimeError: [no] such op" in result.output and "2 of 3 models right" in result.output


def test_demo_all_runs_at_least_eight(invoke):
    seen = []
    result = invoke(lambda entry: seen.append(entry.name) or run_of(entry), "--all")
    assert result.exit_code == 0 and len(seen) >= 8


def test_demo_of_an_unknown_model_names_the_known_ones(invoke):
    result = invoke(run_of, "--models", "resnet")
    assert result.exit_code == 2 and "recommender" in result.output


def test_trial_run_tells_a_wrong_backend(monkeypatch):
    def wrong(module, *, backend="inductor", options=None):
        return (lambda *inputs: module(*inputs) * 1.001) if backend == "kforge" else module

    monkeypatch.setattr(torch, "compile", wrong)
    result = trial_run.run(BUILT_IN["autoencoder"], "cpu", {}, 0.0, lambda step: None)
    assert result.failure is None and not result.right
    assert result.judgement.ratio > 100


def test_trial_run_is_not_worse_than_the_compiler_that_runs_the_rest(monkeypatch):
    """Outside of regions the graph is Inductor's, which may choose coarser kernels than eager does (TF32 convolutions)."""

    def coarse(factor):
        def compiled(module, *, backend="inductor", options=None):
            return lambda *inputs: module(*inputs) * (1.0 + (factor if backend == "kforge" else 1e-4))

        return compiled

    for factor, right in ((1e-4, True), (4e-4, False)):
        monkeypatch.setattr(torch, "compile", coarse(factor))
        result = trial_run.run(BUILT_IN["autoencoder"], "cpu", {}, 0.0, lambda step: None)
        assert result.right is right and result.default_error > 100 * result.eager_error


def test_trial_run_keeps_the_reason_of_a_model_that_does_not_run(monkeypatch):
    def broken(module, *, backend="inductor", options=None):
        def call(*inputs):
            raise RuntimeError("no such kernel")

        return call if backend == "kforge" else module

    monkeypatch.setattr(torch, "compile", broken)
    result = trial_run.run(BUILT_IN["autoencoder"], "cpu", {}, 0.0, lambda step: None)
    assert result.failure == "RuntimeError: no such kernel" and not result.right


@pytest.mark.slow
def test_demo_model_compiled_for_real_is_right_and_steps_are_told(tmp_path, monkeypatch):
    monkeypatch.setenv("KFORGE_CACHE_DIR", str(tmp_path))
    steps = []
    options = {"budget_s": 86400.0, "region_budget_s": 1.0}
    result = trial_run.run(BUILT_IN["recommender"], "cpu", options, 0.1, steps.append)
    assert result.failure is None and result.right
    assert steps == [name for name, _ in trial_run.STEPS]
    assert result.counted["regions"] >= 5 and result.regions
