"""A real local Ray cluster: two evaluators, one of which is killed in the middle; needs Ray, and nothing else."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

pytest.importorskip("ray", reason="Ray is an extra: pip install 'kforge-dynamo[ray]'")

PROGRAM = """
import json, os, sys, threading
import ray, torch
torch.set_num_threads(1)
from kforge_dynamo.codegen.builtin import BuiltinGenerator
from kforge_dynamo.forge import Miss
from kforge_dynamo.records.outcome import CacheKey
from kforge_dynamo.records.target import Numerics
from kforge_dynamo.scale.cluster import cluster_seats
from kforge_dynamo.scale.crew import Crew
from kforge_dynamo.scale.seats import place_of
from test_recorded_regions import region

ray.init(num_cpus=2, include_dashboard=False, log_to_driver=False, object_store_memory=80 << 20)
here = place_of(torch.device("cpu"))
crew = Crew(cluster_seats("auto", "cpu", a_machine=2), [here])
size, rules, asked = crew.size, Numerics("highest", False, False, False), region(8, width=32)
kernel = BuiltinGenerator(("cpp",)).propose(asked.task, asked.sizes, here.target, rules, [], 1)[0]
miss = Miss(CacheKey("a", here.target.name, "b", 1), asked.task, asked.sizes, asked.domain, "gemm", "wall")
killed = threading.Event()

def work(number):
    def run(judge):
        judge.wait()
        if number == 0:
            ray.kill(judge._seat._actor)
            killed.set()
        killed.wait()
        return number, judge.bound("default", "{}", rules)(miss, kernel, "search", 120.0).verdict.status.value
    return here.target.name, run

found = crew.each([work(number) for number in range(3)])
print("RESULT", json.dumps({"size": size, "found": found, "left": crew.size, "losses": crew.losses}))
crew.close()
ray.shutdown()
"""


def test_evaluator_of_a_cluster_that_is_killed_costs_no_result(tmp_path):
    store_tests = Path(__file__).parents[1] / "store"
    root = Path(__file__).parents[2]
    names = {"HOME": str(tmp_path), "RAY_USAGE_STATS_ENABLED": "0", "KFORGE_CACHE_DIR": str(tmp_path / "cache")}
    names["PYTHONPATH"] = os.pathsep.join([str(root), str(store_tests), os.environ.get("PYTHONPATH", "")])
    words = [sys.executable, "-c", PROGRAM]
    done = subprocess.run(words, env=os.environ | names, cwd=tmp_path, capture_output=True, text=True, timeout=280, check=False)
    assert done.returncode == 0, done.stderr[-3000:]
    found = json.loads(done.stdout.partition("RESULT ")[2].splitlines()[0])
    assert (found["size"], found["left"], len(found["losses"])) == (2, 1, 1), found
    assert [number for number, _ in found["found"]] == [0, 1, 2]
    assert {status for _, status in found["found"]} <= {"passed", "unstable_timing"}, found
