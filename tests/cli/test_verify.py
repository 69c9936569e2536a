"""`kforge task`, `kforge verify` and `kforge evaluate`: from a model to a folder, from a folder to a verdict and a status."""

import json

import pytest
import torch
from typer.testing import CliRunner

from kforge_dynamo import ledger
from kforge_dynamo.cli.main import app
from kforge_dynamo.cli.verdicts import EXIT_CODES, SOME_FAILED
from kforge_dynamo.records.outcome import Status

MODEL = """
import torch

def net():
    return torch.nn.Sequential(torch.nn.Linear(24, 16), torch.nn.ReLU())
"""
HONEST = """
#include <cstdint>
extern "C" __attribute__((visibility("default")))
void kforge_entry(void* const* in, void* const* out, void* const*, const int64_t* sizes, const int64_t* s, int) {
  auto *x = (const float*)in[0], *w = (const float*)in[1], *b = (const float*)in[2];
  auto *y = (float*)out[0];
  for (int64_t m = 0; m < sizes[0]; m++)
    for (int64_t n = 0; n < 16; n++) {
      float sum = b[n * s[6]];
      for (int64_t k = 0; k < 24; k++) sum += x[m * s[0] + k * s[1]] * w[k * s[3] + n * s[4]];
      y[m * 16 + n] = sum < 0 ? 0 : sum;
    }
}
"""


def run(*words):
    return CliRunner().invoke(app, [str(word) for word in words])


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """One exported task."""
    place = tmp_path_factory.mktemp("tasks")
    model = place / "net_of_a_user.py"
    model.write_text(MODEL)
    torch.compiler.reset()
    ledger.reset()
    result = run("task", "export", f"{model}:net", "--shapes", "37x24", "--to", place / "out")
    assert result.exit_code == 0, result.output
    (found,) = (place / "out").iterdir()
    return found


@pytest.fixture(scope="module")
def batch(folder):
    """The task's folder with one right and one wrong kernel, and with what is none; judged once."""
    candidates = folder / "candidates"
    (candidates / "right.cpp").write_text(HONEST)
    (candidates / "wrong.cpp").write_text(HONEST.replace("sum < 0 ? 0 : sum", "sum"))
    (candidates / "binary.cpp").write_bytes(b"\xff\xfe\x00")
    result = run("evaluate", "--batch", folder.parent, "--no-time", "--json")
    assert result.exit_code == SOME_FAILED, result.output
    return {row["path"].rsplit("/", 1)[1]: row for row in json.loads(result.stdout)}


def test_export_holds_all_that_an_author_needs(folder):
    assert {path.name for path in folder.iterdir()} >= {"README.md", "candidates", "example", "reference.py", "task.json"}
    scope = {"__name__": "exported"}
    exec((folder / "reference.py").read_text(), scope)
    inputs = scope["inputs"]()
    (found,) = scope["reference"](*inputs, **scope["SIZES"])
    x, w, b = inputs
    assert torch.equal(found, torch.relu(torch.addmm(b[0], x, w[0])))
    assert "kforge verify" in (folder / "README.md").read_text()


def test_task_show_prints_operations_and_function(folder):
    result = run("task", "show", folder)
    assert result.exit_code == 0
    assert "m = 37" in result.output
    assert "def reference(x0, x1, x2, *, m):" in result.output


def test_batch_right_kernel_passed_wrong_one_inaccurate_binary_unreadable(batch):
    assert batch["right.cpp"]["status"] == "passed"
    assert batch["right.cpp"]["error_ratio"] <= 2.0
    assert batch["right.cpp"]["profile"]["roofline"]["flops"] == 2 * 37 * 24 * 16
    assert batch["wrong.cpp"]["status"] == "inaccurate"
    assert batch["wrong.cpp"]["where"] and batch["wrong.cpp"]["profile"] is None
    assert batch["binary.cpp"]["status"] == "unreadable"
    assert "is not text" in batch["binary.cpp"]["evidence"]


def test_batch_second_run_takes_what_is_known_and_needs_no_worker(folder, batch, monkeypatch):
    def judge(*_):
        raise AssertionError("judged again")

    monkeypatch.setattr("kforge_dynamo.evaluation.Evaluator.judge", judge)
    result = run("evaluate", "--batch", folder.parent, "--no-time")
    assert result.exit_code == SOME_FAILED, result.output
    assert result.output.count("(known)") == 2
    assert len((folder.parent / "results.jsonl").read_text().splitlines()) == 4  # what was unreadable is read again


def test_verify_example_ends_with_zero_and_a_table(folder):
    words = ["--no-time", "--stage", "search", "--profile", "torch"]
    result = run("verify", folder, folder / "example", *words)
    assert result.exit_code == 0, result.output
    assert "PASSED" in result.output
    assert "of eager's own" in result.output
    assert "flop a byte" in result.output and "torch.profiler" in result.output


def test_every_verdict_has_a_status_of_its_own():
    assert set(EXIT_CODES) == set(Status)
    assert len(set(EXIT_CODES.values()) | {1, 2, SOME_FAILED}) == len(Status) + 3
    assert [status for status, code in EXIT_CODES.items() if code == 0] == [Status.PASSED]


@pytest.mark.parametrize(
    ("task", "candidate", "options", "words"),
    [
        ("nowhere.json", "example", [], "nowhere.json' does not exist; kforge task export"),
        ("task.json", "nowhere.cpp", [], "nowhere.cpp' does not exist"),
        ("README.md", "example", [], "is not JSON"),
        ("task.json", "candidates", [], "holds no candidate"),
        ("task.json", "task.json", [], "kforge-candidate-1"),
        ("task.json", "example", ["--device", "cuda"], "the task is for cpu"),
        ("task.json", "example", ["--stage", "last"], "expected one of search, final"),
        ("task.json", "example", ["--timeout", "0"], "timeout 0"),
        ("task.json", "example", ["--mode", "fastest"], "max-autotune"),
        ("task.json", "example", ["--profile", "weather"], "instrument 'weather': expected some of compiler, torch"),
    ],
)
def test_verify_bad_words_end_in_one_sentence(folder, task, candidate, options, words):
    result = run("verify", folder / task, folder / candidate, *options)
    assert result.exit_code == 1
    assert words in result.output
    assert len(result.output.splitlines()) == 1
    assert "Traceback" not in result.output


def test_verify_unknown_language_names_those_it_knows(folder, tmp_path):
    path = tmp_path / "c.json"
    path.write_text((folder / "example" / "candidate.json").read_text().replace('"language": "cpp"', '"language": "fortran"'))
    result = run("verify", folder, path)
    assert result.exit_code == 1
    assert "'fortran'; kforge judges cpp, triton" in result.output


def test_verify_task_of_an_absent_device_says_so(folder, tmp_path, monkeypatch):
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    data = json.loads((folder / "task.json").read_text())
    data["device"] = "cuda"
    del data["digest"]
    (tmp_path / "task.json").write_text(json.dumps(data))
    result = run("verify", tmp_path, folder / "example")
    assert result.exit_code == 1
    assert "the task is for cuda, which is not here" in result.output
