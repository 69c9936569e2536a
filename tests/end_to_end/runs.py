"""Runs of the product in processes of their own, over one kforge cache and one Inductor cache."""

import json
import os
import subprocess
import sys
import textwrap
from pathlib import Path

MODEL = """
import json, sys, torch
torch.manual_seed(0)

class Net(torch.nn.Module):
    def __init__(self, width):
        super().__init__()
        self.one = torch.nn.Linear(width, 96)
        self.norm = torch.nn.GroupNorm(6, 96)
        self.two = torch.nn.Linear(96, 32)

    def forward(self, x):
        return self.two(torch.nn.functional.gelu(self.norm(self.one(x)))).softmax(-1)

def main(width=64, rows=40, **options):
    from torch._dynamo.utils import counters
    model, x = Net(width).eval(), torch.randn(rows, width)
    with torch.no_grad():
        compiled = torch.compile(model, backend="kforge", options=options)
        error = (compiled(x) - model(x)).abs().max().item()
    import kforge_dynamo
    inductor = dict(counters["inductor"])
    print("RESULT " + json.dumps({
        "error": error,
        "stats": kforge_dynamo.stats(),
        "states": [item.state for item in kforge_dynamo.report()],
        "reasons": [item.reason for item in kforge_dynamo.report()],
        "fx_hits": inductor.get("fxgraph_cache_hit", 0),
        "fx_misses": inductor.get("fxgraph_cache_miss", 0),
        "aot_hits": counters["aot_autograd"].get("autograd_cache_hit", 0),
    }))
"""


PLANTED = (
    MODEL
    + """
from kforge_dynamo import answers, evaluation
from kforge_dynamo.records import outcome
from kforge_dynamo.records.codec import to_text

def settle(miss, bench, budget_s, seeds=()):
    # the generator's first candidate, as if it had been measured: these stories are about the cache, not about the clock
    candidate = bench.generator.propose(miss.task, miss.sizes, bench.target, bench.numerics, (), 1)[0]
    fast, slow = outcome.Measurement((1.0,) * 5, "planted"), outcome.Measurement((9.0,) * 5, "planted")
    verdict = outcome.Verdict(outcome.Status.PASSED, 1.0, 1e-7, "", "planted")
    trial = outcome.Trial(candidate, verdict, (outcome.Timings("wall", "default", fast, slow, slow),))
    return outcome.Winner(miss.key, to_text(miss.task), miss.domain, trial, bench.provenance(candidate.language)), None

answers.settle = settle
evaluation.Evaluator.wait = lambda self: None
"""
)


class Caches:
    """Two cache folders below `home`, and processes that use them."""

    def __init__(self, home: Path) -> None:
        self.home = home
        self.env = {
            **{name: value for name, value in os.environ.items() if not name.startswith("KFORGE_")},
            "KFORGE_CACHE_DIR": str(home / "kforge"),
            "TORCHINDUCTOR_CACHE_DIR": str(home / "inductor"),
            "PYTHONUNBUFFERED": "1",
        }

    def start(self, call: str, script: str = MODEL, **env: str) -> subprocess.Popen:
        """Starts `script` followed by `call`."""
        text = textwrap.dedent(script) + "\n" + textwrap.dedent(call)
        return subprocess.Popen(
            [sys.executable, "-c", text],
            env={**self.env, **env},
            cwd=self.home,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )

    def run(self, call: str, script: str = MODEL, **env: str) -> dict:
        """The result that the process printed; fails with its stderr when it printed none."""
        return finish(self.start(call, script, **env))


def finish(process: subprocess.Popen, timeout_s: float = 280.0) -> dict:
    """Waits for a process and reads its result."""
    out, err = process.communicate(timeout=timeout_s)
    lines = [line for line in out.splitlines() if line.startswith("RESULT ")]
    assert process.returncode == 0 and lines, f"exit {process.returncode}\n{out[-2000:]}\n{err[-6000:]}"
    return {**json.loads(lines[-1][len("RESULT ") :]), "stderr": err}
