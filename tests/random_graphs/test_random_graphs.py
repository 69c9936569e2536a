"""A hundred random regions, spliced and compared with fp64; and that a wrong kernel among them would be found and made small."""

import random

import pytest
import torch

from benchmarks import planted
from benchmarks.random_graphs.drawing import draw_module, runs
from benchmarks.random_graphs.programs import Input, Program
from benchmarks.random_graphs.running import run_module
from benchmarks.random_graphs.shrinking import shrink

MODULES = {"static": 0, "also static": 2, "symbolic rows": 1, "symbolic rows and gradients": 4}
"""Their seeds; together more than a hundred regions."""


@pytest.mark.slow
@pytest.mark.parametrize("name", MODULES)
def test_random_regions_are_spliced_and_right(name):
    programs = draw_module(random.Random(MODULES[name]), MODULES[name], 20)
    assert (len(programs[0].rows) > 1, programs[0].train) == ("symbolic" in name, "gradients" in name)
    outcome = run_module(programs, "interpreted", "evaluator")
    assert not outcome.faults
    assert outcome.counted["regions"] == outcome.counted["winners"] >= 15
    assert outcome.counted["calls"] >= outcome.counted["winners"] - outcome.counted["fallback_calls"]
    assert not outcome.counted["fallbacks"]


@pytest.mark.slow
def test_random_regions_in_generated_code_are_right():
    outcome = run_module(draw_module(random.Random(7), 7, 3), "inductor", "evaluator")
    assert not outcome.faults and outcome.counted["calls"] >= 3 and not outcome.counted["fallback_calls"]


def program(*lines, train=False):
    inputs = (Input("a0", ("M", 8)), Input("a1", (8, 6)), Input("a2", (6,)))
    named = tuple((f"v{index}", line) for index, line in enumerate(lines))
    return Program(inputs, named, (named[-1][0],), (5,), train, 0)


CHAIN = program("a0 @ a1", "v0 + a2", "torch.relu(v1)", "v2 * 2.0", "torch.softmax(v3, -1)")
WRONG = {
    "a dropped row": lambda output: output[-1:].zero_(),
    "swapped columns": lambda output: output.copy_(output.flip(-1)),
    "one wrong element": lambda output: output.reshape(-1)[3].add_(0.01),
    "a NaN": lambda output: output.reshape(-1)[0].fill_(float("nan")),
}


@pytest.mark.parametrize("name", WRONG)
def test_wrong_kernel_is_found(name, monkeypatch):
    right = planted.evaluating

    def broken(task, raw_dims):
        def launch(inputs, outputs, sizes):
            right(task, raw_dims)(inputs, outputs, sizes)
            WRONG[name](outputs[0])

        return launch

    monkeypatch.setattr(planted, "evaluating", broken)
    assert run_module([CHAIN], "interpreted", "evaluator").faults


def test_failing_program_is_made_small():
    fails = lambda candidate: any("softmax" in line for _, line in candidate.lines)  # noqa: E731
    long = program("a0 @ a1", "v0 + a2", "torch.relu(v1)", "torch.softmax(v2, -1)", "v3 * 2.0", "v4.sum()", train=True)
    small = shrink(long, fails)
    assert len(small.lines) <= 2 and not small.train and len(small.inputs) == 1
    assert runs(small) is not None
    compile(small.script(), "script", "exec")


def test_equal_draws_give_equal_programs():
    assert draw_module(random.Random(11), 11, 2) == draw_module(random.Random(11), 11, 2)


def test_gradients_of_the_judge_are_eagers():
    outcome = run_module([program("a0 @ a1", "v0.relu()", "v1 * a2", train=True)], "interpreted", "evaluator")
    assert not outcome.faults and outcome.counted["regions"] >= 3, "one region forward, two backward"


def test_rounding_and_jumps_are_no_faults():
    outcome = run_module([program("a0 @ a1", "v0.round()", "v1.argmax(-1)")], "interpreted", "evaluator")
    assert not outcome.faults
    assert torch.is_tensor(CHAIN.build(5)[0])
