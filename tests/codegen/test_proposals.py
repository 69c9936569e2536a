"""The order in which the built-in generator proposes, and what earlier verdicts change in it."""

from __future__ import annotations

import json
import sys
from pathlib import Path

import pytest

from kforge_dynamo.codegen.builtin import BuiltinGenerator
from kforge_dynamo.records.outcome import Status, Trial, Verdict
from kforge_dynamo.records.target import Numerics, Target

sys.path.append(str(Path(__file__).parent / "triton"))
from triton_tasks import Builder

HOPPER = Target("cuda", "nvidia", "NVIDIA H200", "sm_90", 132, 232448, None, ("fp16_dot", "tf32", "bf16_dot", "tma"), ())
HIGHEST = Numerics("highest", fp16_reduced=False, bf16_reduced=False, deterministic=False)


def proposed(count, *history):
    builder = Builder()
    task = builder.task(builder.gelu(builder.linear(8192, 8192)))
    return BuiltinGenerator().propose(task, (1024,), HOPPER, HIGHEST, history, count)


def judged(candidate, status):
    return Trial(candidate, Verdict(status, 3.0, 1e-6, "", "output 0"), ())


def test_schedule_whose_sums_were_not_exact_enough_sends_longer_chains_to_the_end():
    first = proposed(64)
    chosen = next(item for item in first if json.loads(item.schedule).get("promote") == 128)
    sums = ("scheme", "copies", "together", "fold")
    same = {name: json.loads(chosen.schedule).get(name) for name in sums}
    after = [json.loads(item.schedule) for item in proposed(64, judged(chosen, Status.INACCURATE))]
    longer = [at for at, item in enumerate(after) if {name: item.get(name) for name in sums} == same and item["promote"] >= 128]
    shorter = [at for at, item in enumerate(after) if {name: item.get(name) for name in sums} == same and item["promote"] < 128]
    assert shorter and longer and max(shorter) < min(longer)
    assert len(after) == len(first) - 1  # nothing is lost


@pytest.mark.parametrize("status", [Status.PASSED, Status.COMPILE_ERROR])
def test_other_verdicts_leave_the_order_of_chains(status):
    first = proposed(12)
    chosen = next(item for item in first if json.loads(item.schedule).get("promote") == 128)
    after = proposed(11, judged(chosen, status))
    assert [item.schedule for item in after] == [item.schedule for item in first if item.schedule != chosen.schedule]


def test_first_few_of_a_large_fp32_product_hold_every_length_of_promotion():
    lengths = {json.loads(item.schedule).get("promote") for item in proposed(12)}
    assert {64, 128, 256} <= lengths


def test_foreseen_candidates_are_those_proposed_next():
    builder = Builder()
    task = builder.task(builder.gelu(builder.linear(8192, 8192)))
    generator = BuiltinGenerator()
    later = generator.foresee(task, (1024,), HOPPER, HIGHEST, (), 12)
    assert [item.schedule for item in later][:4] == [item.schedule for item in proposed(4)]
