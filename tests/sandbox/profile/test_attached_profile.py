"""A trial that passed carries its profile: from the worker, and from programs that run one candidate."""

from __future__ import annotations

import os
import sys
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from python_language import LANGUAGES as PYTHON
from python_language import candidate
from sandbox_tasks import CPU, HIGHEST, gelu

from kforge_dynamo.languages.cpp import LANGUAGE as CPP
from kforge_dynamo.records.candidate import Candidate, Launch, LaunchPlan
from kforge_dynamo.records.outcome import Measurement, Status, Timings, Trial, Verdict
from kforge_dynamo.records.profile import Capture, Profile
from kforge_dynamo.records.request import Request
from kforge_dynamo.records.target import Peak
from kforge_dynamo.records.task import point
from kforge_dynamo.sandbox.evaluation import Evaluator
from kforge_dynamo.sandbox.profile import external
from kforge_dynamo.sandbox.profile.external import Place, capture, complete
from kforge_dynamo.sandbox.profile.roofline import roofline
from kforge_dynamo.semantics.cost import gemm_flops

HONEST = """
def run(inputs, outputs, sizes):
    x, w, b = inputs
    p = torch.addmm(b.reshape(-1), x, w[0])
    outputs[0].copy_(p * 0.5 * (torch.erf(p * 0.7071067811865476) + 1.0))
"""
CPP_SOURCE = """
#include <cmath>
#include <cstdint>
extern "C" __attribute__((visibility("default"))) void kforge_entry(void* const* in, void* const* out, void* const*,
                                                                    const int64_t* sizes, const int64_t* strides, int) {
  const float *x = (const float*)in[0], *w = (const float*)in[1], *b = (const float*)in[2];
  for (long r = 0; r < sizes[0]; ++r) {
    double p[64];
    for (long c = 0; c < 64; ++c) p[c] = b[c * strides[6]];
    for (long k = 0; k < 48; ++k)
      for (long c = 0; c < 64; ++c)
        p[c] += (double)x[r * strides[0] + k * strides[1]] * (double)w[k * strides[3] + c * strides[4]];
    for (long c = 0; c < 64; ++c) ((float*)out[0])[r * 64 + c] = p[c] * 0.5 * (std::erf(p[c] * 0.7071067811865476) + 1.0);
  }
}
"""
TARGET = replace(CPU, peaks=(Peak("fp32_flops", 1e12, "flop/s", "a test"),))


def request(folder: Path, made: Candidate | str = HONEST, profile=(), target=TARGET) -> Request:
    made = candidate(made) if isinstance(made, str) else made
    task = gelu()
    return Request(
        task, (37,), point(task, (37,)), made, target, HIGHEST, "default", "{}", "search", str(folder), False, 60.0, None, profile
    )


def cpp() -> Candidate:
    return Candidate("cpp", CPP_SOURCE, LaunchPlan((), (Launch("kforge_entry", ("1",), ()),)), "", "ieee", "test")


@pytest.fixture(scope="module")
def evaluator():
    return Evaluator({**PYTHON, "cpp": CPP}, torch.device("cpu"), b"tests", lambda _: None)


def test_candidate_that_passed_has_a_roofline_and_facts(evaluator, tmp_path):
    if CPP.missing(TARGET) is not None:
        pytest.skip(CPP.missing(TARGET))
    trial = evaluator.evaluate(request(tmp_path, cpp(), ("torch", "compiler", "weather")))
    assert trial.verdict.passed, trial.verdict
    profile = trial.profile
    assert profile.roofline.flops == gemm_flops(gelu(), (37,)) == 2 * 37 * 48 * 64
    assert profile.roofline.flop_ceiling == 1e12 and profile.roofline.time_us is None
    assert profile.kernels or profile.notes, "facts, or why there are none"
    assert [item.instrument for item in profile.captures] == ["torch", "compiler"]
    assert any("weather" in note and "torch" in note for note in profile.notes)


def test_candidate_that_failed_has_no_profile(evaluator, tmp_path):
    trial = evaluator.evaluate(request(tmp_path, HONEST.replace("erf", "tanh"), ("torch",)))
    assert trial.verdict.status is Status.INACCURATE and trial.profile is None
    with pytest.raises(ValueError, match="cannot carry a profile"):
        replace(trial, profile=Profile())


def test_language_that_says_nothing_is_a_note(evaluator, tmp_path):
    profile = evaluator.evaluate(request(tmp_path, HONEST, ("compiler",))).profile
    assert profile.kernels == () and "says nothing" in profile.notes[0]
    assert "no compiler to ask" in profile.captures[0].notes[0]


def test_tool_that_breaks_costs_no_verdict(evaluator, tmp_path, monkeypatch):
    def broken(*_):
        raise RuntimeError("a tool of another version")

    monkeypatch.setattr(CPP.__class__, "facts", broken)
    monkeypatch.setattr(CPP.__class__, "remarks", broken)
    if CPP.missing(TARGET) is not None:
        pytest.skip(CPP.missing(TARGET))
    trial = evaluator.evaluate(request(tmp_path, cpp(), ("compiler",)))
    assert trial.verdict.passed and "another version" in trial.profile.notes[0]
    assert "another version" in trial.profile.captures[0].notes[0]


@pytest.mark.parametrize(
    ("scheme", "ceiling", "words"),
    [
        ("ieee", 67e12, "fp32_flops: sheet"),
        ("tf32x3", 494e12 / 3, "tf32_flops / 3 products (tf32x3): sheet"),
        ("bf16", 989e12, "fp16_flops: sheet"),
        ("native", 67e12, "fp32_flops: sheet"),
        ("int8", 67e12, "fp32_flops: sheet"),
    ],
)
def test_ceiling_is_that_of_the_unit_that_the_scheme_multiplies_on(scheme, ceiling, words):
    rates = {"fp32_flops": 67e12, "tf32_flops": 494e12, "fp16_flops": 989e12}
    peaks = (*(Peak(name, value, "flop/s", "sheet") for name, value in rates.items()),)
    peaks += (Peak("memory_bytes_per_s", 4.8e12, "byte/s", "sheet"),)
    found = roofline(gelu(), (37,), replace(CPU, kind="cuda", peaks=peaks), scheme, ())
    assert found.flop_ceiling == pytest.approx(ceiling) and found.flop_source == words and found.byte_ceiling == 4.8e12


def test_cpu_without_products_of_halves_is_measured_by_fp32():
    assert roofline(gelu(dtype="bfloat16"), (37,), TARGET, "native", ()).flop_source == "fp32_flops: a test"
    half = replace(TARGET, peaks=(*TARGET.peaks, Peak("bf16_flops", 2e12, "flop/s", "halves")))
    assert roofline(gelu(dtype="bfloat16"), (37,), half, "native", ()).flop_source == "bf16_flops: halves"


def test_roofline_takes_the_fastest_regime():
    slow, fast = Measurement((20.0, 22.0), "wall"), Measurement((5.0,), "replay")
    timings = (Timings("wall", "default", slow, slow, None), Timings("replay", "default", fast, fast, None))
    found = roofline(gelu(), (37,), TARGET, "ieee", timings)
    assert found.time_us == 5.0 and "replay" in found.method
    assert found.flop_share == pytest.approx(2 * 37 * 48 * 64 / 5e-6 / 1e12)
    assert roofline(gelu(), (37,), CPU, "ieee", timings).flop_share is None


def place(languages="python_language:LANGUAGES") -> Place:
    return Place(lambda: dict(os.environ), "cpu", 1, languages)


def passed(tmp_path) -> Trial:
    return Trial(candidate(HONEST), Verdict(Status.PASSED, 1.0, 1e-7, "", ""), (), Profile())


def fake_tool(folder: Path, text: str) -> str:
    """A program that stands for a profiler: a script of this Python."""
    path = folder / "tool"
    path.write_text(f"#!{sys.executable}\n{text}")
    path.chmod(0o755)
    return str(path)


PERF = """
import os, subprocess, sys
words = sys.argv[1:]
read, answer = map(int, words[words.index("--control") + 1].removeprefix("fd:").split(","))
held = [int(name) for name in os.listdir("/proc/self/fd") if int(name) > 2 and os.path.exists(f"/proc/self/fd/{name}")]
child = subprocess.Popen(words[words.index("--") + 1 :], pass_fds=held)
said = []
for _ in range(2):
    said.append(os.read(read, 64).decode().strip())
    os.write(answer, b"ack\\n")
code = child.wait()
open(words[words.index("-o") + 1], "w").write(f"{len(said)},,{'-'.join(said)},1,100.00,,\\n")
raise SystemExit(code)
"""


@pytest.mark.skipif(sys.platform != "linux", reason="perf is a tool of Linux")
def test_driver_runs_one_candidate_between_two_switches(tmp_path, monkeypatch):
    """The driver is real; perf is a stand-in that speaks its control protocol, so that it works where perf is forbidden."""
    tool = fake_tool(tmp_path, PERF)
    monkeypatch.setattr(external.shutil, "which", lambda name: tool)
    trial = complete(passed(tmp_path), request(tmp_path, HONEST, ("torch", "perf", "weather")), place(), 120.0)
    (found,) = trial.profile.captures
    assert [(item.name, item.value) for item in found.metrics] == [("enable-disable", 2 / 200)], found


@pytest.mark.parametrize(("median_us", "calls"), [(5.0, 200), (100_000.0, 20), (9_000_000.0, 3), (None, 200)])
def test_slow_candidates_are_watched_for_fewer_calls(tmp_path, monkeypatch, median_us, calls):
    asked = []
    monkeypatch.setattr(external, "capture", lambda name, *_, calls: asked.append(calls) or Capture(name, "a test"))
    taken = Measurement((median_us or 1.0,), "wall")
    timings = (Timings("wall", "default", taken, taken, None),) if median_us is not None else ()
    complete(replace(passed(tmp_path), timings=timings), request(tmp_path, HONEST, ("perf",)), place(), 1.0)
    assert asked == [calls]


def test_tool_that_fails_or_hangs_is_a_note(tmp_path, monkeypatch):
    monkeypatch.setattr(external.shutil, "which", lambda name: fake_tool(tmp_path, "print('no such thing'); raise SystemExit(3)"))
    found = capture("perf", request(tmp_path), place(), 60.0)
    assert found.metrics == () and "ended with status 3" in found.notes[-1] and "no such thing" in found.notes[-1]
    monkeypatch.setattr(external.shutil, "which", lambda name: fake_tool(tmp_path, "import time; time.sleep(600)"))
    found = capture("perf", request(tmp_path), place(), 1.0)
    assert "stopped at its time limit" in found.notes[-1]


def test_instrument_for_another_device_says_so(tmp_path):
    assert "for cuda" in capture("ncu", request(tmp_path), place(), 1.0).notes[0]
    amd = replace(CPU, kind="cuda", vendor="amd")
    assert "NVIDIA" in capture("nsys", request(tmp_path, target=amd), place(), 1.0).notes[0]


def test_absent_program_is_a_note(tmp_path, monkeypatch):
    monkeypatch.setenv("PATH", str(tmp_path))
    assert capture("perf", request(tmp_path), place(), 1.0).notes == ("perf is not in PATH",)


def test_only_what_was_asked_for_is_run(tmp_path):
    trial = passed(tmp_path)
    assert complete(trial, request(tmp_path, HONEST, ("torch",)), place(), 1.0) is trial
    failed = Trial(candidate(HONEST), Verdict(Status.TIMEOUT, None, None, "", ""), ())
    assert complete(failed, request(tmp_path, HONEST, ("perf",)), place(), 1.0) is failed


@pytest.mark.gpu
@pytest.mark.parametrize("name", ["ncu", "nsys"])
def test_nvidia_s_tools_see_the_candidate_or_say_why_not(name, tmp_path):
    gpu = replace(CPU, kind="cuda", vendor="nvidia", arch="sm_90")
    found = capture(name, request(tmp_path, HONEST, target=gpu), replace(place(), device="cuda:0"), 120.0)
    assert found.metrics or found.notes, found
    if found.metrics:
        assert any(item.name == "duration" and item.value > 0 for item in found.metrics)
