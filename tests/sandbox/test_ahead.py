"""Compiling before a candidate is asked for: what lies in the compiler's cache afterwards, and that nothing depends on it."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from pathlib import Path

import pytest

from kforge_dynamo.languages.base import canonical_dims
from kforge_dynamo.records.candidate import Candidate, Launch, LaunchPlan
from kforge_dynamo.records.codec import to_text
from kforge_dynamo.records.request import Request
from kforge_dynamo.records.target import Numerics, Target
from kforge_dynamo.records.task import AxisRange, Domain, InputRole, InputSpec, Node, Task, ValueSpec, point
from kforge_dynamo.sandbox.ahead import Compilers, points_of
from kforge_dynamo.sandbox.layout import TIMED_PAD

HOPPER = Target("cuda", "nvidia", "NVIDIA H200", "sm_90", 132, 232448, None, ("tma", "tf32", "bf16_dot", "fp16_dot"), ())
NUMERICS = Numerics("highest", fp16_reduced=False, bf16_reduced=False, deterministic=False)
SOURCE = """import triton
import triton.language as tl


@triton.jit
def shifted(in0, out0, n_m, s0, N: tl.constexpr):
    row = tl.program_id(0).to(tl.int64)
    column = tl.arange(0, N)
    tl.store(out0 + row * N + column, tl.load(in0 + row * s0 + column) + 1.0)
"""


def request(stage: str = "search", source: str = SOURCE, layout: object = "pitch") -> Request:
    value = ValueSpec("float32", ("m",), (64,))
    task = Task(("m",), (), (InputSpec(value, (layout, 1), InputRole.EXTRA),), (Node("exp", (0,), (), value),), (1,))
    launch = Launch("shifted", ("m",), ("in:0", "out:0", "size:m", "stride:0:0"), (("N", 64),))
    candidate = Candidate("triton", source, LaunchPlan((), (launch,)), "ieee", "", "test")
    domain = Domain((AxisRange("m", 1, 64),)) if stage == "final" else point(task, (32,))
    return Request(task, (32,), domain, candidate, HOPPER, NUMERICS, "default", "{}", stage, "/tmp", False, 60.0, None)


def test_points_of_a_search_are_the_one_that_is_timed():
    assert points_of(request()) == [((32,), ((64 + TIMED_PAD, 1),))]


def test_points_of_the_final_stage_hold_every_kind_of_pitch_and_the_other_sizes():
    points = points_of(request("final"))
    assert {strides[0][0] for sizes, strides in points if sizes == (32,)} == {64 + TIMED_PAD, 65, 128}
    assert (1,) in {sizes for sizes, _ in points} and (64,) in {sizes for sizes, _ in points}


def test_points_without_a_pitch_are_one_for_each_size():
    points = points_of(request("final", layout="dense"))
    assert len(points) == len({sizes for sizes, _ in points})


_JUDGE = """
import json, os, sys, time
from pathlib import Path
from kforge_dynamo.languages.table import LANGUAGES
from kforge_dynamo.records.codec import from_text
from kforge_dynamo.records.request import Request
from kforge_dynamo.sandbox.ahead import Compilers, points_of
from kforge_dynamo.languages import triton_offline
requests = [from_text(Request, text) for text in json.load(sys.stdin)]
compilers = Compilers(LANGUAGES, "cuda", count=2)
compilers.expect(requests)
for request in requests:
    compilers.wait(request, 120.0, 120.0)
cache = Path(os.environ["TRITON_CACHE_DIR"])
before = sorted(path.name for path in cache.rglob("*.cubin"))
again = requests[0]  # what the judge does itself: is it found?
LANGUAGES["triton"].compile_ahead(again.candidate, again.task, again.target, Path(again.artifact_folder), points_of(again)[0])
after = sorted(path.name for path in cache.rglob("*.cubin"))
print(json.dumps({"before": before, "after": after}))
os._exit(0)
"""


def judged(tmp_path: Path, requests: list[Request]) -> dict[str, list[str]]:
    environment = {name: value for name, value in os.environ.items() if name != "TRITON_INTERPRET"}
    environment["TRITON_CACHE_DIR"] = str(tmp_path / "cache")
    environment["PYTHONPATH"] = os.pathsep.join(path for path in sys.path if path)
    text = json.dumps([to_text(item) for item in requests])
    run = subprocess.run([sys.executable, "-c", _JUDGE], input=text, env=environment, capture_output=True, text=True, timeout=200)
    assert run.returncode == 0, run.stderr[-2000:]
    found: dict[str, list[str]] = json.loads(run.stdout.splitlines()[-1])
    return found


def test_candidate_compiled_ahead_is_found_in_the_cache_by_its_first_launch(tmp_path):
    pytest.importorskip("triton")
    found = judged(tmp_path, [request(), request(source=SOURCE.replace("1.0", "2.0"))])
    assert found["before"] == ["shifted.cubin", "shifted.cubin"] and found["after"] == found["before"]


def test_candidate_that_does_not_compile_costs_the_others_nothing(tmp_path):
    pytest.importorskip("triton")
    broken = request(source=SOURCE.replace("tl.arange(0, N)", "tl.arange(0, N + 1)"))
    found = judged(tmp_path, [request(), broken, request(source=SOURCE.replace("1.0", "2.0"))])
    assert found["before"] == ["shifted.cubin", "shifted.cubin"]


class _Dies:
    name = "triton"

    def compile_ahead(self, *_: object) -> None:
        os._exit(9)


def test_compiler_that_dies_is_waited_for_no_longer():
    compilers = Compilers({"triton": _Dies()}, "cuda", count=1)  # type: ignore[dict-item]
    compilers.expect([request()])
    compilers.wait(request(), 60.0)
    compilers.expect([request(source=SOURCE.replace("1.0", "2.0"))])
    compilers.wait(request(source=SOURCE.replace("1.0", "2.0")), 60.0)  # nobody is left: at once


class _Slow:
    name = "triton"

    def compile_ahead(self, candidate: Candidate, *_: object) -> None:
        time.sleep(1.0 if "9.0" in candidate.source else 4.0)


def test_asked_candidate_goes_before_foreseen_ones_and_does_not_wait_for_them_long():
    compilers = Compilers({"triton": _Slow()}, "cuda", count=1)  # type: ignore[dict-item]
    compilers.expect([request(source=SOURCE.replace("1.0", f"{number}.5")) for number in range(8)])
    asked = request(source=SOURCE.replace("1.0", "9.0"))
    compilers.expect([asked])  # foreseen, behind the others
    compilers.expect([asked], foreseen=False)
    start = time.monotonic()
    compilers.wait(asked, 60.0, 30.0)
    assert time.monotonic() - start < 12.0  # one foreseen compile and its own; eight would take 32 s
    late = request(source=SOURCE.replace("1.0", "7.5"))
    start = time.monotonic()
    compilers.wait(late, 60.0, 0.5)
    assert time.monotonic() - start < 3.0


def test_language_that_cannot_compile_ahead_is_left_alone():
    compilers = Compilers({"triton": object()}, "cuda", count=1)  # type: ignore[dict-item]
    compilers.expect([request()])
    compilers.wait(request(), 60.0)


def test_canonical_strides_are_what_the_launcher_is_given():
    (sizes, strides) = points_of(request())[0]
    assert len(strides) == len(canonical_dims(request().task)) and sizes == (32,)
