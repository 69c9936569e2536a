"""Every public bug case against the backend `kforge`, and a few of them with a real search."""

from __future__ import annotations

import importlib.util
import json
import pathlib
import sys

import pytest

HERE = pathlib.Path(__file__).resolve().parent
JOBS = 2
SEARCHED = ["11", "25", "49"]
"""Cases that also run with winners that are really searched: infinities, weights that change, a damaged cache."""
OPTIONS = {"on_miss": "search", "budget_s": 15.0, "region_budget_s": 6.0}
""""search" and not the default, which would not search in the processes that case 49 starts."""


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


@pytest.fixture(scope="module")
def spliced(request):
    """The cases that were selected, with every region replaced, all of them at once; the first test waits for it."""
    items = [item.callspec.params for item in request.session.items if hasattr(item, "callspec")]
    stems = {params["stem"] for params in items if "stem" in params}
    paths = [path for path in CASES if path.stem in stems]
    return runner.run(paths, runner.Plan("kforge", jobs=JOBS, timeout_s=300.0, imports="splice_everything"))


@pytest.fixture(scope="module")
def searched():
    """The few cases that search."""
    plan = runner.Plan("kforge", jobs=JOBS, timeout_s=480.0, options=json.dumps(OPTIONS))
    return runner.run(runner.select(SEARCHED), plan)


@pytest.mark.timeout(1200)
@pytest.mark.slow
@pytest.mark.parametrize("stem", [path.stem for path in CASES])
def test_case_with_every_region_spliced_passes(stem, spliced):
    outcome = spliced[stem]
    assert outcome.verdict == "PASS", f"{outcome.why}\n{outcome.text}"
    if outcome.counters:  # case 49 counts in the processes that it starts
        assert outcome.counters["regions"] == outcome.counters["winners"] > 0
        assert outcome.counters["calls"] > 0 and not outcome.counters.get("fallback_calls")


@pytest.mark.timeout(1200)
@pytest.mark.slow
@pytest.mark.parametrize("searched_stem", [path.stem for path in runner.select(SEARCHED)])
def test_case_with_searched_winners_passes(searched_stem, searched):
    outcome = searched[searched_stem]
    assert outcome.verdict == "PASS", f"{outcome.why}\n{outcome.text}"
    if outcome.counters:
        assert outcome.counters["regions"] > 0


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
