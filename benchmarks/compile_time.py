"""What compiling costs beside Inductor, cold and warm: `python -m benchmarks.compile_time [--rounds 3]`.

Each number is the first call of a model in a fresh process: cold with empty caches, warm with those of the process before. The
processes of kforge and of Inductor take turns. kforge compiles with `on_miss="fallback"`, so that no search is in the numbers;
what it does in addition is to read the graph, look its regions up, and record them. The row says whether the warm process hit
Inductor's caches.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from benchmarks.place import place

ROOT = Path(__file__).resolve().parents[1]
CHILD = """
import json, sys, time, torch
torch.manual_seed(0)
class Block(torch.nn.Module):
    def __init__(self, width):
        super().__init__()
        self.norm, self.up = torch.nn.LayerNorm(width), torch.nn.Linear(width, 4 * width)
        self.down = torch.nn.Linear(4 * width, width)
    def forward(self, x):
        return x + self.down(torch.nn.functional.gelu(self.up(self.norm(x))))
backend, layers = sys.argv[1], int(sys.argv[2])
model, x = torch.nn.Sequential(*(Block(32) for _ in range(layers))), torch.randn(16, 32)
import torch._inductor.compile_fx, kforge_dynamo.backend
from torch._dynamo.utils import counters
options = {"on_miss": "fallback"} if backend == "kforge" else None
with torch.no_grad():
    start = time.perf_counter()
    torch.compile(model, backend=backend, options=options)(x)
    seconds = time.perf_counter() - start
hits = counters["aot_autograd"].get("autograd_cache_hit", 0) + counters["inductor"].get("fxgraph_cache_hit", 0)
print("RESULT " + json.dumps({"seconds": seconds, "hits": hits, "regions": kforge_dynamo.stats()["regions"]}))
"""


def first_call(backend: str, layers: int, caches: Path) -> dict[str, Any]:
    """One process."""
    env = dict(os.environ, KFORGE_CACHE_DIR=str(caches / "kforge"), TORCHINDUCTOR_CACHE_DIR=str(caches / "inductor"))
    env["PYTHONPATH"] = os.pathsep.join([str(ROOT), os.environ.get("PYTHONPATH", "")])
    command = [sys.executable, "-W", "ignore", "-c", CHILD, backend, str(layers)]
    done = subprocess.run(command, env=env, capture_output=True, text=True, check=False)
    lines = [line for line in done.stdout.splitlines() if line.startswith("RESULT ")]
    if done.returncode != 0 or not lines:
        raise SystemExit(f"{backend}: exit {done.returncode}\n{done.stderr[-3000:]}")
    found: dict[str, Any] = json.loads(lines[-1].removeprefix("RESULT "))
    return found


def measured(layers: int, rounds: int) -> dict[str, Any]:
    """The row: medians over the rounds, in seconds."""
    samples: dict[str, list[dict[str, Any]]] = {}
    for number in range(rounds):
        order = ("inductor", "kforge") if number % 2 == 0 else ("kforge", "inductor")
        with tempfile.TemporaryDirectory() as folder:
            for phase in ("cold", "warm"):
                for backend in order:
                    found = first_call(backend, layers, Path(folder) / backend)
                    samples.setdefault(f"{backend} {phase}", []).append(found)
    median = {name: statistics.median(item["seconds"] for item in found) for name, found in samples.items()}
    return {
        **place("cpu"),
        "layers": layers,
        "rounds": rounds,
        "seconds": {name: round(value, 3) for name, value in median.items()},
        "kforge_over_inductor": {
            phase: round(median[f"kforge {phase}"] / median[f"inductor {phase}"], 3) for phase in ("cold", "warm")
        },
        "regions": samples["kforge cold"][0]["regions"],
        "warm_hits": min(item["hits"] for item in samples["kforge warm"]),
        "warm_passes": max(item["regions"] for item in samples["kforge warm"]),
    }


def main(argv: Sequence[str]) -> int:
    """Print the row as JSON; exit status 1 if a warm process compiled anew."""
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks.compile_time", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--layers", type=int, default=6)
    parser.add_argument("--rounds", type=int, default=3)
    args = parser.parse_args(argv)
    row = measured(args.layers, args.rounds)
    print(json.dumps(row, indent=1))
    return 0 if row["warm_hits"] > 0 and row["warm_passes"] == 0 else 1


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
