"""Every public bug case, against the backend `kforge`, with winners searched as a user's first run would."""

from __future__ import annotations

import importlib.util
import json
import pathlib
import sys

import pytest

HERE = pathlib.Path(__file__).resolve().parent
JOBS = 2
OPTIONS = {"on_miss": "search", "budget_s": 60.0, "region_budget_s": 3.0}
"""Time enough that many regions get a winner. "search" and not the default, which would not search in a child process."""


def load_runner():
    """The program beside this file, as a module."""
    spec = importlib.util.spec_from_file_location("run_cases", HERE / "run_cases.py")
    module = importlib.util.module_from_spec(spec)
    sys.modules["run_cases"] = module
    spec.loader.exec_module(module)
    return module


runner = load_runner()
CASES = runner.select([])
BY_DESIGN: dict[str, str] = {}
"""Cases that kforge does not pass, each with the reason; the test fails when one of them begins to pass."""


@pytest.fixture(scope="session")
def outcomes(request):
    """Run the cases that were selected, all of them at once; the first test waits for it."""
    stems = {
        item.callspec.params["stem"]
        for item in request.session.items
        if getattr(item, "callspec", None) and "stem" in item.callspec.params
    }
    paths = [path for path in CASES if path.stem in stems] or CASES
    return runner.run(paths, runner.Plan("kforge", jobs=JOBS, timeout_s=480.0, options=json.dumps(OPTIONS)))


@pytest.mark.timeout(1200)
@pytest.mark.slow
@pytest.mark.parametrize("stem", [path.stem for path in CASES])
def test_case_against_kforge_passes(stem, outcomes):
    outcome = outcomes[stem]
    if stem in BY_DESIGN:
        assert outcome.verdict != "PASS", f"{stem} passes now: take it out of BY_DESIGN"
        pytest.xfail(BY_DESIGN[stem])
    assert outcome.verdict == "PASS", f"{outcome.why}\n{outcome.text}"


@pytest.mark.timeout(1200)
@pytest.mark.slow
def test_cases_together_call_spliced_winners(outcomes):
    spliced = sum(outcome.counters.get("spliced", 0) for outcome in outcomes.values())
    regions = sum(outcome.counters.get("regions", 0) for outcome in outcomes.values())
    assert regions >= len(outcomes), "the cases are products with epilogues: most have at least one region"
    assert spliced > 0, "no case ran on a winner, so the cases tested Inductor alone"


def test_case_that_kills_its_process_costs_only_itself(tmp_path, monkeypatch):
    (tmp_path / "case_90_dies.py").write_text("import os\n\ndef run(compile_fn):\n    os._exit(9)\n")
    (tmp_path / "case_91_wrong.py").write_text("def run(compile_fn):\n    assert compile_fn(abs)(-1) == 2\n")
    (tmp_path / "case_92_right.py").write_text("def run(compile_fn):\n    assert compile_fn(abs)(-1) == 1\n")
    (tmp_path / "case_93_hangs.py").write_text("import time\n\ndef run(compile_fn):\n    time.sleep(600)\n")
    (tmp_path / "run_cases.py").write_text((HERE / "run_cases.py").read_text())
    monkeypatch.setattr(runner, "HERE", tmp_path)
    found = runner.run(runner.select([]), runner.Plan("eager", jobs=2, timeout_s=5.0))
    verdicts = {stem.split("_")[2]: outcome.verdict for stem, outcome in found.items()}
    assert verdicts == {"dies": "ERROR", "wrong": "FAIL", "right": "PASS", "hangs": "ERROR"}
