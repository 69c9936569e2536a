"""The whole loop with a real worker on the CPU: `kforge warm --model scripted:`, the record, its replay and its resumption.

Nothing here depends on who wins a race: verdicts are compared, times are not.
"""

import json
import re

import pytest
import torch
from typer.testing import CliRunner

from kforge_dynamo import ledger
from kforge_dynamo.agents.transcript import read, runs
from kforge_dynamo.cli.main import app
from kforge_dynamo.store import close_stores

MODEL = """
import torch

def net():
    torch.manual_seed(0)
    return torch.nn.Sequential(torch.nn.Linear(24, 32), torch.nn.ReLU())
"""
KERNEL = """IDEA: {idea}
GAIN: 1.2
```cpp
#include <stdint.h>
extern "C" void kforge_entry(void* const* inputs, void* const* outputs, void* const* buffers, const int64_t* sizes,
                             const int64_t* strides, int threads) {{
  const float *x = (const float*)inputs[0], *w = (const float*)inputs[1], *bias = (const float*)inputs[2];
  float* y = (float*)outputs[0];
  for (int64_t row = 0; row < sizes[0]; ++row)
    for (int n = 0; n < 32; ++n) {{
      float sum = 0.0f;
      for (int k = 0; k < 24; ++k) sum += x[row * strides[0] + k] * w[k * strides[3] + n * strides[4]];
      {last}
    }}
}}
```
"""
RIGHT = ("passed", "unstable_timing", "timeout")
"""What becomes of a right kernel, the last two on a machine that is busy with other work."""

REPLIES = [
    KERNEL.format(idea="a first try", last="y[row * 32 + n] = sum + bias[n]"),
    KERNEL.format(idea="the missing semicolon", last="y[row * 32 + n] = sum < 0.0f ? 0.0f : sum;"),
    KERNEL.format(idea="ignore the judge", last='system("true");'),
    KERNEL.format(idea="the bias", last="const float v = sum + bias[n]; y[row * 32 + n] = v < 0.0f ? 0.0f : v;"),
]


def kforge(*words):
    return CliRunner().invoke(app, [str(word) for word in words], env={"COLUMNS": "200"})


@pytest.fixture(scope="module")
def scene(tmp_path_factory):
    """The record of one warm; every other test reads it."""
    root = tmp_path_factory.mktemp("agents")
    (root / "net.py").write_text(MODEL)
    (root / "script.json").write_text(json.dumps(REPLIES))
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("KFORGE_CACHE_DIR", str(root / "cache"))
        torch.compiler.reset()
        ledger.reset()
        close_stores()
        words = ("--shapes", "6x24", "--iterations", 4, "--no-seed", "--budget", 300)
        result = kforge("warm", f"{root}/net.py:net", "--model", f"scripted:{root}/script.json", *words)
        assert result.exit_code == 0, result.output
        (folder,) = runs(root / "cache" / "runs")
        yield root, folder, result.output
        close_stores()


def statuses(folder):
    recorded = read(folder)
    return [item["trial"]["verdict"]["status"] for item in recorded.events if item["event"] == "trial"]


def test_every_verdict_is_the_real_judges(scene):
    _, folder, _ = scene
    found = statuses(folder)
    assert found[:3] == ["compile_error", "inaccurate", "rejected"]
    assert found[3] in RIGHT, found
    assert all(status in RIGHT for status in found[4:]), found


def test_compilers_words_and_the_mismatch_reach_the_next_prompt(scene):
    _, folder, _ = scene
    prompts = [item["user"] for item in read(folder).events if item["event"] == "prompt"]
    assert "compile_error at" in prompts[1] and "expected" in prompts[1]
    assert "inaccurate at" in prompts[2] and "worst error" in prompts[2]
    assert "calls system" in prompts[3] and 'system("true")' not in prompts[3]


def test_progress_shows_the_run_and_what_is_spent(scene):
    _, folder, output = scene
    assert f"run {folder.name}" in output and "tokens" in output and "all rounds are used up" in output


def test_run_is_listed_shown_and_replayed_without_a_device(scene):
    _, folder, _ = scene
    listed = kforge("runs", "list")
    assert listed.exit_code == 0 and "serial" in listed.output
    shown = kforge("runs", "show", folder.name)
    assert shown.output.count("proposal") == 4, shown.output
    assert "the missing semicolon" in kforge("runs", "show", folder.name, "--step", 2).output
    replayed = kforge("runs", "replay", folder.name)
    assert replayed.exit_code == 0, replayed.output
    assert "came out the same" in replayed.output


def test_replay_of_a_changed_record_says_where_it_differs(scene, tmp_path):
    _, folder, _ = scene
    copy = tmp_path / "changed"
    copy.mkdir()
    (copy / "run.json").write_bytes((folder / "run.json").read_bytes())
    (copy / "events.jsonl").write_text((folder / "events.jsonl").read_text().replace("the missing semicolon", "another idea", 1))
    result = kforge("runs", "replay", copy)
    assert result.exit_code == 1 and "differs" in result.output


def test_run_is_replayed_live_and_ends_with_a_verified_winner(scene):
    _, folder, _ = scene
    result = kforge("runs", "replay", folder, "--trials", "live")
    outcome = re.search(r"step 4 \(\w+\): ([\w.]+( us)?);", result.output)
    assert outcome is not None and (outcome[2] or outcome[1] in RIGHT), result.output
    finals = [f"final checks of #3: {status}" for status in RIGHT[1:]]
    assert outcome[1] == "timeout" or any(words in result.output for words in ("best:", *finals)), result.output


def test_unknown_run_and_unknown_model_are_one_sentence(scene):
    root, _, _ = scene
    assert "names 0 runs" in kforge("runs", "show", "nothing-like-it").output
    result = kforge("warm", f"{root}/net.py:net", "--shapes", "6x24", "--model", "claud-opus")
    assert result.exit_code == 1 and "did you mean 'claude-opus'" in result.output
    result = kforge("warm", f"{root}/net.py:net", "--shapes", "6x24", "--model", "grok", "--strategy", "genius")
    assert result.exit_code == 1 and "expected serial, best-of" in result.output


def test_missing_key_is_said_before_anything_is_compiled(scene, monkeypatch):
    root, _, _ = scene
    monkeypatch.delenv("XAI_API_KEY", raising=False)
    result = kforge("warm", f"{root}/net.py:net", "--shapes", "6x24", "--model", "grok")
    assert result.exit_code == 1 and "set the environment variable XAI_API_KEY" in result.output


def test_agents_work_for_warm_alone(scene):
    torch.compiler.reset()
    ledger.reset()
    model = torch.nn.Sequential(torch.nn.Linear(20, 12), torch.nn.ReLU())
    with torch.no_grad():
        torch.compile(model, backend="kforge", options={"on_miss": "agent"})(torch.randn(3, 20))
    (region,) = ledger.report()
    assert region.state == "not_searched" and "kforge warm --model" in region.reason
