"""PyTorch's own tests with kforge in Inductor's place: `make test-upstream UPSTREAM_TESTS=PATH`.

PATH is the `test` folder of PyTorch's source (Debian: `apt-get source pytorch`). Runs each file three times: with Inductor,
with kforge and no winner ("fallback"), and with every region spliced ("evaluator"). Outcomes are kept below --out, a line a
test, so a run goes on where it was ended, and Inductor's need not be made again. Exit status 1 if a test that passes with
Inductor does not pass with kforge.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

from benchmarks.upstream.swap import BACKENDS

FILES = (
    "test_pattern_matcher",
    "test_torchinductor",
    "test_torchinductor_dynamic_shapes",
    "test_cpu_repro",
    "test_compiled_optimizers",
)
ROOT = Path(__file__).resolve().parents[2]
SHARD = 25
"""Tests a process runs before a fresh one takes over."""


def collected(tests: Path, out: Path, file: str, chosen: str) -> list[str]:
    """The tests of a file that run on a CPU, from the list kept in `out` where there is one."""
    kept = out / f"{file}.list"
    if not kept.exists():
        command = [sys.executable, "-m", "pytest", "--collect-only", "-q", "-p", "benchmarks.upstream.swap", f"{file}.py"]
        found = subprocess.run(
            command, cwd=tests / "inductor", env=environment(out, "inductor", None), capture_output=True, text=True
        )
        names = [line for line in found.stdout.splitlines() if "::" in line and not line.startswith(("ERROR", "FAILED"))]
        if not names:
            raise SystemExit(f"{file}: no test was collected\n{found.stdout[-3000:]}\n{found.stderr[-3000:]}")
        kept.write_text("\n".join(names), encoding="utf-8")
    names = [name for name in kept.read_text(encoding="utf-8").splitlines() if not _needs_a_gpu(name)]
    return [name for name in names if not chosen or any(part in name for part in chosen.split(","))]


def _needs_a_gpu(name: str) -> bool:
    """By the test's class: GPUTests, TestCUDA."""
    return any(word in name.split("::")[1] for word in ("GPU", "CUDA"))


def environment(out: Path, backend: str, outcomes: Path | None) -> dict[str, str]:
    """What a process of tests sees; no cache is shared with anything else."""
    env = dict(os.environ, UPSTREAM_BACKEND=backend, INDUCTOR_TEST_DISABLE_FRESH_CACHE="1", KFORGE_ON_MISS="fallback")
    env |= {"TORCHINDUCTOR_FORCE_DISABLE_CACHES": "1", "TORCHINDUCTOR_CACHE_DIR": str(out / f"cache_{backend}")}
    env |= {"KFORGE_CACHE_DIR": str(out / "kforge"), "PYTHONPATH": os.pathsep.join([str(ROOT), os.environ.get("PYTHONPATH", "")])}
    if outcomes is not None:
        env["UPSTREAM_OUTCOMES"] = str(outcomes)
    return env


def outcomes_of(path: Path) -> dict[str, dict[str, object]]:
    """The last word on each test; one that began and did not end, because its process died, is "crashed"."""
    found: dict[str, dict[str, object]] = {}
    for line in path.read_text(encoding="utf-8").splitlines() if path.exists() else []:
        item = json.loads(line)
        if "begin" in item:
            found.setdefault(item["begin"], {"outcome": "crashed", "why": "the process ended"})
        else:
            before = found.get(item["test"], {})
            if before.get("outcome") != "failed":  # a teardown that failed after a body that passed, and never the reverse
                found[item["test"]] = item
    return found


def run(args: argparse.Namespace, backend: str, names: Sequence[str]) -> None:
    """Runs those of `names` that have no outcome yet, in shards."""
    path = args.out / f"{backend}.jsonl"
    while left := [name for name in names if name not in outcomes_of(path)]:
        shard = left[:SHARD]
        print(f"{backend}: {len(names) - len(left)} of {len(names)} done", flush=True)
        command = [
            sys.executable,
            "-m",
            "pytest",
            "-q",
            "-x",
            "--maxfail=1000",
            "-p",
            "benchmarks.upstream.swap",
            "-p",
            "no:cacheprovider",
        ]
        command += ["--timeout", str(args.timeout), "-W", "ignore", *shard]
        env = environment(args.out, backend, path)
        done = subprocess.run(command, cwd=args.tests / "inductor", env=env, capture_output=True, text=True, check=False)
        if not any(name in outcomes_of(path) for name in shard):
            raise SystemExit(f"{backend}: the shard from {shard[0]} ran no test\n{done.stdout[-3000:]}\n{done.stderr[-3000:]}")


def lost(out: Path, backend: str, names: Sequence[str]) -> list[tuple[str, str]]:
    """Tests that pass with Inductor and not with `backend`, each with the last words of its failure."""
    base, found = outcomes_of(out / "inductor.jsonl"), outcomes_of(out / f"{backend}.jsonl")
    passed = [name for name in names if base.get(name, {}).get("outcome") == "passed"]
    return [(name, str(found[name]["why"])) for name in passed if name in found and found[name]["outcome"] != "passed"]


def main(argv: Sequence[str]) -> int:
    """Run, then say what was lost."""
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks.upstream", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("tests", type=Path, help="the `test` folder of PyTorch's source")
    parser.add_argument("--out", type=Path, default=Path("upstream_results"), help="folder of outcomes")
    parser.add_argument("--files", nargs="+", default=list(FILES))
    parser.add_argument("--backends", nargs="+", choices=BACKENDS, default=list(BACKENDS))
    parser.add_argument("-k", default="", help="only tests whose names contain one of these parts, comma separated")
    parser.add_argument("--timeout", type=int, default=300, help="seconds a test")
    args = parser.parse_args(argv)
    args.out, args.tests = args.out.resolve(), args.tests.resolve()
    args.out.mkdir(parents=True, exist_ok=True)
    if not (args.tests / "inductor").is_dir():
        parser.error(f"{args.tests} has no folder `inductor`: name the `test` folder of PyTorch's source")
    names = [name for file in args.files for name in collected(args.tests, args.out, file, args.k)]
    failed = 0
    for backend in args.backends:
        run(args, backend, names)
        found = outcomes_of(args.out / f"{backend}.jsonl")
        tally = {
            kind: sum(found[name]["outcome"] == kind for name in names) for kind in ("passed", "failed", "skipped", "crashed")
        }
        print(f"{backend}: {tally}")
        for name, why in lost(args.out, backend, names) if backend != "inductor" else []:
            failed += 1
            print(f"LOST with {backend}: {name}\n    " + "\n    ".join(why.splitlines()[-12:]))
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
