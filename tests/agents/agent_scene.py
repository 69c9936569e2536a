"""A task, a device and an evaluator with made-up times, for the agents' tests: nothing is built and nothing is timed."""

from __future__ import annotations

import re

from kforge_dynamo.agents.search import Problem
from kforge_dynamo.agents.strategies import Plan
from kforge_dynamo.languages.examples import TASK
from kforge_dynamo.records.candidate import Candidate
from kforge_dynamo.records.outcome import Measurement, Status, Timings, Trial, Verdict
from kforge_dynamo.records.spending import Budget
from kforge_dynamo.records.target import Numerics, Peak, Target

TARGET = Target(
    "cpu",
    "maker",
    "A CPU avx2 2 threads",
    "avx2",
    2,
    None,
    None,
    ("avx2", "fma"),
    (Peak("l2_bytes", 1048576.0, "bytes", "test"),),
)
GPU = Target(
    "cuda",
    "nvidia",
    "A GPU",
    "sm_90",
    132,
    232448,
    None,
    ("bf16_dot", "tf32", "tma"),
    (
        Peak("fp32_flops", 6e13, "flop/s", "test"),
        Peak("tf32_flops", 4e14, "flop/s", "test"),
        Peak("memory_bytes_per_s", 4e12, "byte/s", "test"),
    ),
)
HIGHEST = Numerics("highest", False, False, False)
PROBLEM = Problem(TASK, (64,), TARGET, HIGHEST, 5.0, "linear+relu")
PLAN = Plan(iterations=5)
BUDGET = Budget(1000.0)


def measured(time_us):
    return Measurement((time_us,) * 5, "test")


def trial_of(
    candidate, time_us=None, status=Status.INACCURATE, evidence="row 3 has an RMS error of 0.5 (7 such)", region_us=100.0
):
    """Passed at `time_us`, else ended by `status`."""
    if time_us is None:
        ratio = 4000.0 if status is Status.INACCURATE else None
        return Trial(candidate, Verdict(status, ratio, 3e-7, "output 0, class one_hot, sizes (64,)", evidence), ())
    timings = (Timings("wall", "default", measured(time_us), measured(region_us), measured(40.0)),)
    return Trial(candidate, Verdict(Status.PASSED, 1.1, 3e-7, "", "right"), timings)


def kernel(words, idea="", gain=""):
    """A reply with a C++ kernel; the evaluator reads what becomes of it from `words`: "us 50", "wrong", "compile"."""
    head = (f"IDEA: {idea}\n" if idea else "") + (f"GAIN: {gain}\n" if gain else "")
    return f'{head}```cpp\n// {words}\nextern "C" void kforge_entry() {{}}\n```\n'


def evaluate(candidate: Candidate, stage: str, seconds: float) -> Trial:
    """The trial that the candidate's comment asks for."""
    time = re.search(r"us (\d+)", candidate.source)
    if time:
        return trial_of(candidate, float(time[1]))
    if "untestable" in candidate.source:
        return trial_of(candidate, None, Status.NOT_TESTABLE, "a constant")
    if "compile" in candidate.source:
        return trial_of(
            candidate, None, Status.COMPILE_ERROR, "kernel.cpp:2:1: error: expected ';'\n  int x\n      ^\nnote: more"
        )
    return trial_of(candidate)


class Ticking:
    """A clock that moves by `step` seconds a look."""

    def __init__(self, step=0.5):
        self.now, self.step = 0.0, step

    def __call__(self):
        self.now += self.step
        return self.now
