"""The diagnosis without any model, from numbers alone; and where the numbers come from."""

import pytest
from agent_scene import GPU, PROBLEM, trial_of

from kforge_dynamo.agents.analyst import refined
from kforge_dynamo.agents.facts import facts, profile_facts
from kforge_dynamo.agents.rules import RULES, diagnose, untried
from kforge_dynamo.languages.examples import EXAMPLES
from kforge_dynamo.records.candidate import Buffer, Candidate, LaunchPlan
from kforge_dynamo.records.diagnosis import Change, Diagnosis, Limit
from kforge_dynamo.records.profile import Capture, KernelFacts, Metric, Occupancy, Profile, Roofline

BASE = {"candidate_us": 100.0, "flop": 1e9, "bytes": 1e6, "launches": 1.0, "buffer_bytes": 0.0}


CASES = [
    ({"spilled_bytes": 512.0, "registers": 255.0}, "cuda", Limit.SPILLS, "512 bytes spilled with 255 registers"),
    ({"stack_moves": 6.0}, "cpu", Limit.SPILLS, "384 bytes spilled"),
    ({"scratch_share": 0.4, "buffer_bytes": 8e6}, "cuda", Limit.SCRATCH, "8.0 MB of buffers"),
    ({"anchor_us": 50.0}, "cpu", Limit.EPILOGUE, "100.0 us against 50.0 us"),
    ({"launches": 4.0, "candidate_us": 20.0}, "cuda", Limit.LAUNCH, "4 launches in 20.0 us"),
    ({"occupancy": 0.125}, "cuda", Limit.OCCUPANCY, "occupancy 12%"),
    ({"stall_barrier": 0.7, "stall_wait": 0.1}, "cuda", Limit.LATENCY, "70% of the stalls are barrier"),
    ({"stall_long_scoreboard": 0.6}, "cuda", Limit.MEMORY, "60% of the stalls are long scoreboard"),
    ({"memory_share": 0.7, "compute_share": 0.2}, "cuda", Limit.MEMORY, "takes 70% of the time"),
    ({"memory_share": 0.1, "compute_share": 0.4}, "cuda", Limit.COMPUTE, "reach 40% of the peak"),
    ({}, "cpu", Limit.COMPUTE, "10000.0 GFLOP/s"),
    ({"bytes": 1e9}, "cpu", Limit.MEMORY, "1.0 operations a byte"),
    ({}, "cuda", Limit.UNKNOWN, "100.0 us"),
]


@pytest.mark.parametrize(("numbers", "kind", "limit", "word"), CASES)
def test_numbers_lead_to_their_limit_with_evidence(numbers, kind, limit, word):
    found = diagnose(BASE | numbers, kind, None)
    assert found.limit is limit
    assert any(word in text for text in found.evidence), found.evidence
    assert 1 <= len(found.changes) <= 3
    assert [change.gain for change in found.changes] == sorted((change.gain for change in found.changes), reverse=True)


@pytest.mark.parametrize("rule", RULES, ids=lambda rule: rule.__name__)
def test_rule_fires_for_some_of_the_numbers_above_and_not_for_all(rule):
    fired = [rule(BASE | numbers, kind) is not None for numbers, kind, _, _ in CASES]
    assert any(fired) and not all(fired)


def test_kernel_at_the_roofline_has_nothing_large_left():
    assert diagnose(BASE, "cuda", 95.0).limit is Limit.NEAR_FLOOR


def test_predictions_shrink_when_earlier_ones_were_too_good():
    numbers = BASE | {"anchor_us": 40.0}
    full, half = diagnose(numbers, "cpu", None), diagnose(numbers, "cpu", None, 0.5)
    assert half.changes[0].gain - 1.0 == pytest.approx((full.changes[0].gain - 1.0) / 2)


def test_change_that_was_tried_gives_way_to_the_next():
    changes = (Change("a", "", 1.5), Change("b", "", 1.2))
    diagnosis = Diagnosis(Limit.MEMORY, (), changes, "rules")
    assert (
        untried(diagnosis, []).what == "a"
        and untried(diagnosis, ["a"]).what == "b"
        and untried(diagnosis, ["a", "b"]).what == "a"
    )


def test_facts_come_from_times_plan_roofline_and_profile():
    example = EXAMPLES["triton"]
    plan = LaunchPlan((Buffer("packed", "float32", "m * 64"),), example.plan.launches)
    trial = trial_of(Candidate("triton", example.source, plan, "", "tf32x3", "x"), 50.0)
    problem = type(PROBLEM)(PROBLEM.task, (64,), GPU, PROBLEM.numerics, 1.0)
    found = facts(problem, trial)
    flop = 2 * 64 * 96 * 64
    assert found["flop"] == flop and found["candidate_us"] == 50.0 and found["anchor_us"] == 40.0
    assert found["compute_us"] == pytest.approx(3 * flop / 4e14 * 1e6), "three TF32 products"
    assert found["buffer_bytes"] == 64 * 64 * 4
    assert found["scratch_us"] == pytest.approx(2 * 64 * 64 * 4 / 4e12 * 1e6)
    assert found["anchor_share"] == pytest.approx(0.8)


def test_profile_gives_its_numbers_by_name_the_worst_of_several_kernels():
    occupancy = Occupancy(2, 16, 64, (), "f", "s")
    kernels = (
        KernelFacts("a", "triton", registers=128, spilled_bytes=0, occupancy=occupancy),
        KernelFacts("b", "triton", registers=255, spilled_bytes=64),
    )
    stalls = (Metric("Long Scoreboard", 30.0, "%"), Metric("barrier", 10.0, "%"))
    capture = Capture("ncu", "m", (Metric("dram throughput", 71.0, "%"),), stalls)
    roofline = Roofline(10**9, 10**6, 100.0, 1e14, "s", 1e12, "s", "m")
    found = profile_facts(Profile(roofline, kernels, (capture,)))
    assert (found["registers"], found["spilled_bytes"], found["occupancy"]) == (255.0, 64.0, 0.25)
    assert found["stall_long_scoreboard"] == 0.75 and found["dram_throughput"] == 71.0
    assert found["compute_share"] == pytest.approx(0.1) and found["memory_share"] == pytest.approx(0.01)


@pytest.mark.parametrize("reply", ["", "[1, 2]", '{"changes": []}', '{"changes": [{"why": "x"}]}', "{" * 500])
def test_models_nonsense_leaves_the_rules_standing(reply):
    first = diagnose(BASE, "cpu", None)
    assert refined(reply, first, "m") is first


def test_models_diagnosis_is_bounded_and_ordered():
    reply = """Sure: {"limit": "Near Floor", "evidence": ["a `b`\\n## c"], "changes": [
      {"what": "small", "gain": "1.1x"}, {"what": "huge", "gain": 1e9},
      {"what": "odd", "gain": "much"}, {"what": "fourth", "gain": 1.05}]}"""
    found = refined(reply, diagnose(BASE, "cpu", None), "m")
    assert found.limit is Limit.NEAR_FLOOR and found.author == "m"
    assert [(change.what, change.gain) for change in found.changes] == [("huge", 10.0), ("small", 1.1), ("odd", 1.1)]
    assert found.evidence == ("a b  c",)
