"""Interleaved timing, its refusals, and the race of a candidate with its baselines."""

from __future__ import annotations

import random
import time

import pytest
import torch
from python_language import candidate
from sandbox_checks import bench_of, eager
from sandbox_tasks import CPU, HIGHEST, attention_scores, gelu, layer_norm, linear

from kforge_dynamo.records.outcome import Status
from kforge_dynamo.records.request import Request
from kforge_dynamo.records.target import Peak, Target
from kforge_dynamo.records.task import AxisRange, Domain, point
from kforge_dynamo.sandbox import race as race_module
from kforge_dynamo.sandbox import timing
from kforge_dynamo.sandbox.baseline import anchor_of, compile_region
from kforge_dynamo.sandbox.candidate_call import candidate_call
from kforge_dynamo.sandbox.inputs import BY_NAME, full_shape
from kforge_dynamo.sandbox.layout import TIMED_PAD, strides_of
from kforge_dynamo.sandbox.memory import needed_bytes, region_bytes, shortage
from kforge_dynamo.sandbox.points import further_points
from kforge_dynamo.sandbox.race import Rivals, race
from kforge_dynamo.sandbox.remote import HostClock
from kforge_dynamo.semantics.evaluate import evaluate

CPU_DEVICE = torch.device("cpu")


def contest(calls, check=lambda number, outputs: None):
    return timing.Contest(calls, 3, check, CPU_DEVICE)


def pause(seconds):
    def call(number):
        end = time.perf_counter() + seconds
        while time.perf_counter() < end:
            pass
        return [torch.zeros(1)]

    return call


class Hand:
    """A clock that calls move by themselves, so that what is asserted of it holds on a busy machine."""

    def __init__(self):
        self.now = 0.0

    def perf_counter(self):
        return self.now

    monotonic = perf_counter

    def pause(self, seconds):
        def call(number):
            self.now += seconds
            return [torch.zeros(1)]

        return call


@pytest.fixture
def hand(monkeypatch):
    found = Hand()
    monkeypatch.setattr(timing, "time", found)
    monkeypatch.setattr(timing, "_waited_s", lambda device: 0.0)
    return found


def test_sample_wall_ratio_of_known_pauses(hand):
    calls = {"candidate": hand.pause(2e-4), "region": hand.pause(4e-4)}
    found = timing.sample_wall(contest(calls), timing.Effort(0.1, 5, 11, 5))
    assert found.fault is None
    fast, slow = (sorted(found.by_name[name])[len(found.by_name[name]) // 2] for name in ("candidate", "region"))
    assert fast == pytest.approx(200.0) and slow == pytest.approx(400.0)


def test_sample_wall_final_effort_takes_at_least_fifteen_samples_of_slow_calls():
    assert timing.EFFORTS["final"].fewest >= 15
    found = timing.sample_wall(contest({"candidate": pause(1e-3)}), timing.Effort(0.001, 15, 31, 15))
    assert found.rounds >= 15 and len(found.by_name["candidate"]) >= 15
    assert found.calls_a_sample["candidate"] == 1


def test_sample_wall_disturbed_samples_are_set_aside_where_others_are_found(hand, monkeypatch):
    """Every third sample waits for a core: its time is not in the result."""
    waited = iter(range(10_000))
    monkeypatch.setattr(timing, "_waited_s", lambda device: float(next(waited) // 3))
    found = timing.sample_wall(contest({"candidate": hand.pause(1e-4)}), timing.Effort(0.02, 6, 6, 3))
    assert 3 <= len(found.by_name["candidate"]) < found.rounds


def test_waited_s_counts_up_and_is_zero_on_a_device():
    assert timing._waited_s(CPU_DEVICE) >= 0.0
    assert timing._waited_s(torch.device("cuda")) == 0.0


def test_sample_wall_rotates_sets_of_inputs():
    seen = []

    def call(number):
        seen.append(number)
        return []

    timing.sample_wall(contest({"candidate": call}), timing.Effort(0.01, 5, 5, 5))
    assert set(seen) == {0, 1, 2}


def test_sample_wall_wrong_timed_output_ends_the_run():
    found = timing.sample_wall(contest({"candidate": pause(1e-5)}, lambda number, outputs: "stale"), timing.Effort(0.01, 5, 5, 5))
    assert found.fault == "stale"
    assert found.by_name == {}


def test_roofline_is_the_larger_of_memory_and_product():
    task = gelu(k=64, n=64)
    peaks = (Peak("memory_bytes_per_s", 1e12, "byte/s", "test"), Peak("fp16_flops", 1e12, "flop/s", "test"))
    target = Target("cuda", "nvidia", "test", "sm_90", 1, None, None, (), peaks)
    traffic = 4 * (128 * 64 + 64 * 64 + 64 + 128 * 64)
    assert region_bytes(task, (128,)) == traffic
    assert timing.roofline_us(task, (128,), target) == pytest.approx(max(traffic, 2 * 128 * 64 * 64) / 1e12 * 1e6)
    assert timing.roofline_us(task, (128,), CPU) is None


def test_roofline_algebra_may_save_the_product_of_a_reduction():
    peaks = (Peak("fp16_flops", 1e12, "flop/s", "test"),)
    target = Target("cuda", "nvidia", "test", "sm_90", 1, None, None, (), peaks)
    builder, product = linear(k=64, n=64)
    assert timing.roofline_us(builder.done(builder.reduce("amax", product)), (128,), target) is None
    builder, product = linear(k=64, n=64)
    task = builder.done(builder.reduce("sum", product))
    assert timing.roofline_us(task, (128,), target) == pytest.approx(2 * 128 * 64 / 1e12 * 1e6)


def test_too_fast_below_nine_tenths_of_the_floor():
    assert timing.too_fast(8.9, 10.0) is not None
    assert timing.too_fast(9.1, 10.0) is None
    assert timing.too_fast(0.1, None) is None


def request_for(task, rows, stage="search", domain=None, target=CPU, atomics=False):
    sizes = (rows,) if len(task.row_axes) == 1 else (2, rows)
    chosen = candidate("", atomics)
    return Request(
        task, sizes, domain or point(task, sizes), chosen, target, HIGHEST, "default", "{}", stage, "", True, 60.0, None
    )


def rivals_of(task, sizes):
    axes = dict(zip(task.axes, sizes, strict=True))
    return Rivals(lambda inputs: evaluate(task, inputs, axes), None, ())


def test_race_honest_candidate_is_timed():
    task = gelu()
    request = request_for(task, 37)
    refused, (found,) = race(request, eager(task), bench_of(task), rivals_of(task, request.sizes))
    assert refused is None
    assert found.anchor is None
    assert 0.2 < found.speedup < 5.0  # both run the same operations


def test_race_candidate_that_turns_stale_after_the_checks_refused():
    task, calls, kept = gelu(), [], []

    def launch(inputs, outputs, sizes):
        calls.append(0)
        eager(task)(inputs, outputs, sizes)
        kept.append(outputs[0].clone())
        if len(calls) > 8:
            outputs[0].copy_(kept[0])

    request = request_for(task, 37)
    refused, timings = race(request, launch, bench_of(task), rivals_of(task, request.sizes))
    assert refused is not None and timings == ()
    assert "timed call" in refused.evidence


def test_race_wrong_outside_the_guards_refused():
    """Right on the guarded copies, wrong on the plain allocations of generated code."""
    task = gelu()

    def launch(inputs, outputs, sizes):
        eager(task)(inputs, outputs, sizes)
        if outputs[0].storage_offset() == 0:
            outputs[0].mul_(1.01)

    request = request_for(task, 37)
    refused, _ = race(request, launch, bench_of(task), rivals_of(task, request.sizes))
    assert refused is not None and refused.status is Status.INACCURATE


def test_race_below_the_roofline_too_fast():
    task = gelu()
    slow = Target("cpu", "test", "test", "avx2", 1, None, None, (), (Peak("memory_bytes_per_s", 1.0, "byte/s", "test"),))
    request = request_for(task, 37, target=slow)
    refused, _ = race(request, eager(task), bench_of(task), rivals_of(task, request.sizes))
    assert refused is not None and refused.status is Status.TOO_FAST


def test_race_scattered_samples_refused_in_the_final_stage(monkeypatch):
    task = gelu()
    scattered = timing.Samples({"candidate": (1.0, 9.0) * 8, "region": (1.0,) * 16}, {"candidate": 1, "region": 1}, 16, None)
    monkeypatch.setattr(race_module, "sample_wall", lambda contest, effort: scattered)
    request = request_for(task, 37, "final")
    refused, _ = race(request, eager(task), bench_of(task), rivals_of(task, request.sizes))
    assert refused is not None and refused.status is Status.UNSTABLE_TIMING
    assert race(request_for(task, 37), eager(task), bench_of(task), rivals_of(task, request.sizes))[0] is None


def test_race_whose_samples_disagree_in_turn_refused_in_the_final_stage(monkeypatch):
    """An A/A run: the same thing measured twice, 10 % apart, each time within 0.1 %."""
    task = gelu()
    steady = tuple(10.0 + 0.001 * step for step in range(16))
    apart = timing.Samples({"candidate": steady, "region": (10.0, 11.0) * 8}, {"candidate": 1, "region": 1}, 16, None)
    monkeypatch.setattr(race_module, "sample_wall", lambda contest, effort: apart)
    refused, _ = race(request_for(task, 37, "final"), eager(task), bench_of(task), rivals_of(task, (37,)))
    assert refused is not None and refused.status is Status.UNSTABLE_TIMING
    assert "A/A run of region" in refused.evidence


@pytest.mark.parametrize(
    ("samples", "agrees"),
    [
        ((10.0, 10.1) * 8, True),
        ((10.0, 10.5) * 8, False),
        ((10.0, 10.5) * 4, True),  # too few to make two medians of
        (tuple(float(10 + (7 * step) % 11) for step in range(22)), True),  # scatters by more than it differs
    ],
)
def test_disagreement_beyond_two_percent_and_beyond_the_scatter(samples, agrees):
    assert (timing.disagreement(samples) is None) is agrees


def test_host_clock_agrees_with_honest_samples():
    clock = HostClock()
    for told_s in (1e-3, 2e-3, 1.5e-3):
        for name in ("candidate", "region"):
            clock.add(name, told_s, told_s + 2e-4)
    assert clock.fault() is None


def test_host_clock_finds_a_clock_turned_back():
    clock = HostClock()
    for _ in range(5):
        clock.add("region", 10e-3, 10.2e-3)
        clock.add("candidate", 1e-3, 10.2e-3)
    assert "outside the kernel's process" in clock.fault()


def test_host_clock_finds_a_rival_made_slow_on_paper():
    clock = HostClock()
    clock.add("candidate", 1e-3, 1.2e-3)
    clock.add("region", 20e-3, 10e-3)
    assert "more time for region" in clock.fault()


class _Doubtful:
    """A track whose clock is at fault in the runs marked "L"."""

    def __init__(self, runs):
        self.runs = iter(runs)

    def fault(self):
        return "a sample took longer outside" if next(self.runs) == "L" else None


@pytest.mark.parametrize(
    ("clock", "runs", "refused"),
    [("C", 1, False), ("LCC", 3, False), ("LLCC", 4, False), ("LCLC", 3, True), ("LLLC", 3, True), ("LCCL", 3, False)],
)
def test_sampled_run_whose_clock_lied_once_needs_two_in_a_row_that_do_not(clock, runs, refused):
    taken = []

    def sample(asked, effort):
        taken.append(effort)
        return timing.Samples({"candidate": (1.0,) * 20, "region": (2.0,) * 20}, {}, 20, None)

    samples, lie = race_module._sampled(sample, contest({}), _Doubtful(clock), "final")
    assert len(taken) == runs and samples.rounds == 20
    assert (lie is not None) is refused


def test_sampled_liar_that_is_caught_most_of_the_time_gains_nothing_from_the_further_runs():
    """A clock caught in nine runs of ten, of which one clean run of three used to be enough (27 %)."""
    draw, believed = random.Random(0), 0
    steady = timing.Samples({"candidate": (1.0,) * 20, "region": (2.0,) * 20}, {}, 20, None)
    for _ in range(4000):
        liar = _Doubtful(iter(lambda: "L" if draw.random() < 0.9 else "C", ""))
        believed += race_module._sampled(lambda *_: steady, contest({}), liar, "search")[1] is None
    assert 0.09 < believed / 4000 < 0.13  # the first run alone is believed in 10 %


def test_candidate_call_allocates_fresh_dense_outputs():
    task = gelu()
    call = candidate_call(task, (5,), eager(task), CPU_DEVICE, HIGHEST)
    inputs = [torch.randn(5, 48), torch.randn(1, 48, 64), torch.randn(1, 64)]
    (first,), (second,) = call(inputs), call(inputs)
    assert first.shape == (5, 64) and first.is_contiguous()
    assert first.data_ptr() != second.data_ptr()
    assert torch.equal(first, evaluate(task, inputs, {"m": 5})[0])


def test_anchor_of_takes_the_product_with_its_bias_alone():
    bare, used = anchor_of(layer_norm())
    assert used == (0, 1)
    assert [node.op for node in bare.nodes] == ["gemm"]
    bare, used = anchor_of(gelu())
    assert used == (0, 1, 2)
    inputs = [torch.randn(5, 48), torch.randn(1, 48, 64), torch.randn(1, 64)]
    expected = torch.addmm(inputs[2][0], inputs[0], inputs[1][0])
    assert torch.equal(evaluate(bare, inputs, {"m": 5})[0], expected)


@pytest.mark.parametrize("make", [gelu, attention_scores])
def test_compile_region_equals_the_evaluator(make):
    task = make()
    sizes = (5,) if len(task.row_axes) == 1 else (2, 5)
    bench = bench_of(task)
    drawn = bench.expanded(sizes, bench.draw(sizes, BY_NAME["unit"], 0))
    axes = dict(zip(task.axes, sizes, strict=True))
    expected = evaluate(task, drawn, axes)
    strided = [torch.empty_strided(t.shape, s, dtype=t.dtype).copy_(t) for t, s in zip(drawn, layouts(task, sizes), strict=True)]
    found = compile_region(task, sizes, CPU_DEVICE, "default", "{}", 2)([*strided])
    assert len(found) == len(expected)
    for left, right in zip(found, expected, strict=True):
        assert torch.allclose(left, right, rtol=1e-5, atol=1e-6)


def layouts(task, sizes):
    axes = dict(zip(task.axes, sizes, strict=True))
    return [strides_of(item, full_shape(item, axes), TIMED_PAD) for item in task.inputs]


def test_further_points_ends_one_odd_and_tile_edges():
    domain = Domain((AxisRange("m", 1, 300),))
    found = {sizes[0] for sizes in further_points(domain, (197,), candidate(""))}
    assert {1, 300, 15, 17, 31, 33, 63, 65, 127, 129} <= found
    assert 197 not in found
    assert any(size % 2 and size not in (1, 15, 17, 31, 33, 63, 65, 127, 129) for size in found)
    assert further_points(point(gelu(), (37,)), (37,), candidate("")) == ()


def test_further_points_stay_inside_the_domain():
    domain = Domain((AxisRange("b", 4, 4), AxisRange("m", 100, 140)))
    for sizes in further_points(domain, (4, 120), candidate("")):
        assert domain.holds(sizes)


def test_shortage_names_both_numbers_and_grows_with_the_region():
    words = shortage(gelu(), (37,), CPU_DEVICE, 1000)
    assert words is not None and words.startswith("not searched (memory)")
    assert shortage(gelu(), (37,), CPU_DEVICE, None) is None
    assert needed_bytes(gelu(), (10_000,)) > needed_bytes(gelu(), (37,))
    assert needed_bytes(gelu(), (37,)) >= 3 * region_bytes(gelu(), (37,))
