"""The space of schedules: what is in it, its order, and what it refuses."""

from __future__ import annotations

import dataclasses

import pytest
from triton_tasks import Builder, named_tasks, random_task

from kforge_dynamo.codegen import triton as generator
from kforge_dynamo.codegen.builtin import BuiltinGenerator
from kforge_dynamo.codegen.triton import Schedule
from kforge_dynamo.codegen.triton.emit import candidate
from kforge_dynamo.codegen.triton.forms import Unsupported
from kforge_dynamo.codegen.triton.model import scratch_bytes, split_us
from kforge_dynamo.codegen.triton.schemes import allowed
from kforge_dynamo.codegen.triton.space import emitted
from kforge_dynamo.codegen.triton.tiles import product_of
from kforge_dynamo.languages.triton_syntax import check
from kforge_dynamo.records.codec import from_text
from kforge_dynamo.records.expression import compile_sizes
from kforge_dynamo.records.outcome import Status, Trial, Verdict
from kforge_dynamo.records.target import Numerics, Peak, Target
from kforge_dynamo.records.task import InputRole, Task

PEAKS = {"fp32_flops": 67e12, "tf32_flops": 494.5e12, "fp16_flops": 989.5e12, "memory_bytes_per_s": 4.8e12}
HOPPER = Target("cuda", "nvidia", "NVIDIA H200", "sm_90", 132, 232448, None, ("fp16_dot", "tf32", "bf16_dot", "tma"),
                tuple(Peak(name, value, "", "datasheet") for name, value in PEAKS.items()))  # fmt: skip
AMPERE = dataclasses.replace(HOPPER, name="NVIDIA A100", arch="sm_80", units=108, shared_bytes=166912,
                             features=("fp16_dot", "tf32", "bf16_dot", "cp_async"), peaks=())  # fmt: skip
AMD = dataclasses.replace(HOPPER, vendor="amd", name="MI300X", arch="gfx942", units=304, shared_bytes=65536,
                          features=("fp16_dot", "bf16_dot"), peaks=())  # fmt: skip


def numerics(fp32: str) -> Numerics:
    return Numerics(fp32, fp16_reduced=False, bf16_reduced=False, deterministic=False)


def linear(m: int, k: int, n: int, dtype: str = "float32") -> tuple[Task, tuple[int]]:
    builder = Builder()
    return builder.task(builder.gelu(builder.linear(k, n, dtype))), (m,)


@pytest.mark.parametrize("target", [HOPPER, AMPERE, AMD], ids=lambda target: target.arch)
@pytest.mark.parametrize("dtype", ["float32", "float16", "bfloat16"])
def test_space_is_enumerable_emits_and_its_sources_pass_the_language_check(target, dtype):
    task, sizes = linear(300, 128, 256, dtype)
    space = generator.space(task, sizes, target, numerics("highest"))
    assert len(space) >= 4 and len(set(space)) == len(space)
    assert space == generator.space(task, sizes, target, numerics("highest"))
    for schedule in space:
        emitted = generator.emit(task, schedule, sizes, target, numerics("highest"))
        check(emitted.source)
        assert from_text(Schedule, emitted.schedule) == schedule and emitted.scheme == schedule.scheme
        for launch in emitted.plan.launches:
            compile_sizes(launch.grid, task.axes)
            assert all(argument.split(":")[0] in ("in", "out", "buf", "size", "stride", "desc") for argument in launch.args)
        compile_sizes([buffer.elements for buffer in emitted.plan.buffers], task.axes)


FP32_BY_TERM = {"ieee", "tf32x3", "bf16x6", "bf16x9"}
FP32_BY_NORM = FP32_BY_TERM | {"fp16x3", "fp16x4"}
TENSOR = FP32_BY_NORM | {"tf32", "fp16_rows", "bf16x3"}
PROMISES = {
    "strict": FP32_BY_TERM,
    "highest": FP32_BY_NORM,
    "high": TENSOR,
    "medium": TENSOR | {"bf16"},
    "mixed": TENSOR | {"fp16"},
}


@pytest.mark.parametrize("promise", PROMISES)
def test_precision_setting_bounds_the_schemes(promise):
    assert set(allowed(promise, HOPPER.features)) == PROMISES[promise]
    task, sizes = linear(512, 1024, 1024)
    found = {schedule.scheme for schedule in generator.space(task, sizes, HOPPER, numerics(promise))}
    assert found <= PROMISES[promise]
    own = {"high": {"tf32", "fp16_rows"}, "medium": {"bf16"}, "mixed": {"fp16"}}.get(promise, found - {"ieee"})
    assert found & own, "the setting's own scheme is worth a try"


def test_unknown_setting_or_bare_target_is_left_with_fp32():
    assert allowed("exact", HOPPER.features) == ("ieee",) and allowed("mixed", ()) == ("ieee",)


def test_half_precision_operands_are_taken_as_they_are():
    task, sizes = linear(512, 1024, 1024, "bfloat16")
    assert {schedule.scheme for schedule in generator.space(task, sizes, HOPPER, numerics("mixed"))} == {"native"}


def test_amd_without_tf32_multiplies_fp32_in_half_precision_parts():
    task, sizes = linear(512, 1024, 1024)
    found = {schedule.scheme for schedule in generator.space(task, sizes, AMD, numerics("highest"))}
    assert not found & {"tf32x3", "tf32"} and found & {"fp16x3", "fp16x4"}


LARGE = [(1024, 8192, 8192), (16384, 4096, 4096), (2048, 8192, 8192)]


@pytest.mark.parametrize(("m", "k", "n"), LARGE)
def test_large_fp32_product_starts_with_the_scheme_measured_best(m, k, n):
    """Measured on one H200: fp16 in two parts, three passes, 3.5 to 4 times cuBLAS fp32; with a promotion each 256 of K or more
    the error on operands of one sign is more than twice that of an fp32 product with a bias."""
    task, sizes = linear(m, k, n)
    first = generator.space(task, sizes, HOPPER, numerics("highest"))[:3]
    assert {s.scheme for s in first} == {"fp16x3"} and all(s.copies == "both" and s.descriptors for s in first)
    assert first[0].promote <= 128 and first[0].block_m * first[0].block_n == 128 * 128
    strict = generator.space(task, sizes, HOPPER, numerics("strict"))[:3]
    assert {s.scheme for s in strict} == {"bf16x6"}


def test_few_rows_of_fp32_are_multiplied_without_a_copy_of_the_weight():
    """Copying a weight of 32768 x 32768 takes longer than multiplying 128 rows by it."""
    task, sizes = linear(128, 32768, 32768)
    first = generator.space(task, sizes, HOPPER, numerics("highest"))[:3]
    assert any(s.copies == "left" for s in first) and all(s.copies != "both" for s in first[:1])


def test_short_depth_is_promoted_more_often_than_a_long_one():
    found = []
    for depth in (1024, 8192):
        builder = Builder()
        task = builder.task(builder.gemm(*builder.operands(depth, 4096, bias=False)))
        space = generator.space(task, (32768,), HOPPER, numerics("highest"))
        found.append(next(schedule for schedule in space if schedule.scheme == "fp16x3").promote)
    assert found[0] < found[1]


def test_no_schedule_of_the_space_has_more_accumulators_than_registers():
    for promise in ("strict", "highest", "high"):
        for schedule in generator.space(*linear(1024, 8192, 8192), HOPPER, numerics(promise)):
            accumulators = (2 if schedule.promote else 1) * schedule.block_m * schedule.block_n
            assert accumulators <= 32 * schedule.warps * 128, schedule


def test_scratch_of_a_plan_is_what_the_model_counts():
    task, sizes = linear(1024, 2048, 512)
    named = {"m": sizes[0]}
    for schedule in (Schedule("fp16x3", 64, 64, 64, 8, 4, 3, copies="both", promote=512),
                     Schedule("bf16x6", 64, 64, 64, 8, 4, 3, copies="left", together=True, promote=512)):  # fmt: skip
        plan = candidate(task, schedule, HOPPER).plan
        lengths = compile_sizes([buffer.elements for buffer in plan.buffers], task.axes)(*sizes)
        parts = sum(2 * n for buffer, n in zip(plan.buffers, lengths, strict=True) if buffer.name.endswith("_parts"))
        assert parts == scratch_bytes(task, product_of(task), schedule, named)


def test_only_the_split_of_a_weight_may_be_kept_between_calls():
    task, _ = linear(64, 96, 48)
    plan = candidate(task, Schedule("fp16x3", 32, 32, 32, 8, 4, 2, copies="both", promote=32), HOPPER).plan
    assert [launch.kernel for launch in plan.prepack] == ["split_right"] and plan.packed_inputs == (1,)
    assert set(plan.kept) == {"right_parts", "right_scales"}
    builder = Builder("b", "m")
    x = builder.input((32,), rows=("b", "m"), role=InputRole.LHS)
    w = builder.input((32, 48), rows=("b", 1), strides=("dense", 0, 1, "dense"), role=InputRole.RHS)
    task = builder.task(builder.gemm(x, w))
    assert candidate(task, Schedule("fp16x3", 32, 32, 32, 8, 4, 2, copies="both", promote=32), HOPPER).plan.prepack == ()


def test_kept_weights_cost_the_model_no_split():
    task, sizes = linear(128, 16384, 16384)
    both = next(s for s in generator.space(task, sizes, HOPPER, numerics("highest")) if s.copies == "both")
    named = dict(zip(task.axes, sizes, strict=True))
    whole, kept = (split_us(task, product_of(task), both, named, HOPPER, weights) for weights in ("prepared", "kept"))
    assert kept < whole / 50
    batched = Builder("b", "m")
    x = batched.input((32,), rows=("b", "m"), role=InputRole.LHS)
    w = batched.input((32, 48), rows=("b", 1), strides=("dense", 0, 1, "dense"), role=InputRole.RHS)
    task = batched.task(batched.gemm(x, w))
    costs = [split_us(task, product_of(task), both, {"b": 8, "m": 64}, HOPPER, weights) for weights in ("prepared", "kept")]
    assert costs[0] == costs[1], "a right operand that varies by row is split in each call"


IMPOSSIBLE = {
    "a block is longer than what is promoted": {"promote": 32, "block_k": 64, "copies": "both"},
    "three blocks to a promotion": {"promote": 96, "block_k": 32, "copies": "both"},
    "parts without copies": {"copies": "none"},
    "passes over a right operand that is not split": {"copies": "left"},
    "copies of what is multiplied as it is": {"scheme": "tf32x3", "copies": "both"},
    "unknown scheme": {"scheme": "fp8x9"},
}


@pytest.mark.parametrize("name", IMPOSSIBLE)
def test_schedule_that_no_kernel_has_is_refused(name):
    task, _ = linear(64, 96, 48)
    base = {"scheme": "fp16x3", "block_m": 32, "block_n": 64, "block_k": 32, "group": 8, "warps": 4, "stages": 2}
    with pytest.raises(Unsupported):
        candidate(task, Schedule(**(base | IMPOSSIBLE[name])), HOPPER)


@pytest.mark.parametrize(("m", "k", "n"), [(1024, 8192, 8192), (16384, 4096, 4096), (32768, 1024, 4096)])
def test_large_bf16_product_starts_with_the_walk_over_large_tiles(m, k, n):
    """Lead measured on one H200: persistent, descriptors, 128 x 256 x 64, 8 warps, 3 or 4 stages, flattened."""
    task, sizes = linear(m, k, n, "bfloat16")
    first = generator.space(task, sizes, HOPPER, numerics("highest"))[:8]
    lead = [s for s in first if (s.block_m, s.block_n, s.block_k, s.warps) == (128, 256, 64, 8) and s.flatten and s.descriptors]
    assert {s.stages for s in lead} == {3, 4}
    assert len({(s.block_m, s.block_n) for s in first}) >= 3, "the first few differ in tiles as well"


def test_few_rows_are_met_with_short_tiles_or_a_split_depth():
    task, sizes = linear(1, 4096, 4096, "bfloat16")
    first = generator.space(task, sizes, HOPPER, numerics("highest"))[:4]
    assert all(s.block_m == 16 for s in first) and any(s.split > 1 for s in first)


def test_descriptors_are_left_out_where_rows_are_no_multiple_of_16_bytes():
    task, sizes = linear(1024, 1001, 512, "bfloat16")
    assert not any(s.descriptors for s in generator.space(task, sizes, HOPPER, numerics("highest")))
    task, sizes = linear(1024, 1024, 512, "bfloat16")
    assert not any(s.descriptors for s in generator.space(task, sizes, AMPERE, numerics("highest")))


def test_shared_memory_bounds_tiles_and_stages():
    task, sizes = linear(4096, 4096, 4096, "bfloat16")
    for schedule in generator.space(task, sizes, AMD, numerics("highest")):
        assert schedule.stages * (schedule.block_m + schedule.block_n) * schedule.block_k * 2 <= AMD.shared_bytes


def test_neighbours_differ_in_one_choice_and_emit():
    task, sizes = linear(4096, 4096, 4096, "bfloat16")
    centre = generator.space(task, sizes, HOPPER, numerics("highest"))[0]
    near = generator.neighbours(centre, task, sizes, HOPPER, numerics("highest"))
    assert len(near) >= 5 and centre not in near
    for other in near:
        changed = [
            field.name for field in dataclasses.fields(Schedule) if getattr(other, field.name) != getattr(centre, field.name)
        ]
        assert len(changed) == 1
        generator.emit(task, other, sizes, HOPPER, numerics("highest"))


def test_gain_is_larger_for_fp32_than_for_bf16_and_never_negative():
    single = generator.gain_us(*linear(1024, 8192, 8192), HOPPER)
    half = generator.gain_us(*linear(1024, 8192, 8192, "bfloat16"), HOPPER)
    assert single > half >= 0.0 and single > 500


def test_every_random_task_of_the_grammar_is_accepted_and_has_a_space():
    for seed in range(40):
        task = random_task(seed, 96, 64)
        assert generator.rejects(task, HOPPER) is None, seed
        assert generator.space(task, (100,), HOPPER, numerics("highest")), seed


def test_every_named_task_is_accepted():
    for name, (task, _) in named_tasks().items():
        assert generator.rejects(task, HOPPER) is None, name


def test_what_no_kernel_can_do_is_refused_in_a_sentence():
    builder = Builder()
    x = builder.linear(16, 32)
    y = builder.op("mul", x, x)
    assert "exponent" in (generator.rejects(builder.task(builder.op("pow", x, y)), HOPPER) or "")
    builder = Builder()
    x = builder.op("convert", builder.linear(16, 32), dtype="float64")
    assert "float64" in (generator.rejects(builder.task(x), HOPPER) or "")
    builder = Builder()
    a, w, v = builder.input((16,), rows=("m",), role=InputRole.LHS), builder.input((16, 16)), builder.input((16, 16))
    task = builder.task(builder.gemm(builder.gemm(a, w), v))
    assert "two products" in (generator.rejects(task, HOPPER) or "")
    builder = Builder()
    statistic = builder.reduce("var", builder.softmax(builder.linear(16, 512)), "rows")
    task = builder.task(builder.op("mul", statistic, 2.0))
    assert "statistic" in (generator.rejects(task, HOPPER) or "")
    builder = Builder()
    x = builder.linear(16, 36)
    task = builder.task(
        builder.reduce("amax", builder.reshape(x, 4, 9), (1,)), builder.reduce("amax", builder.reshape(x, 6, 6), (1,))
    )
    assert "nest" in (generator.rejects(task, HOPPER) or "")


def test_cpu_is_refused():
    task, _ = linear(8, 8, 8)
    assert "cpu" in (generator.rejects(task, dataclasses.replace(HOPPER, kind="cpu")) or "")


def test_split_depth_is_refused_for_statistics_over_the_rows():
    builder = Builder()
    task = builder.task(builder.normalised(builder.linear(64, 32), "rows"))
    with pytest.raises(Unsupported, match="split"):
        candidate(task, Schedule("ieee", 32, 32, 32, 8, 4, 2, split=2), HOPPER)


def launches(task: Task, schedule: Schedule) -> tuple[list[str], list[str]]:
    plan = candidate(task, schedule, HOPPER).plan
    return [launch.kernel for launch in plan.launches], [buffer.name for buffer in plan.buffers]


def test_pointwise_epilogue_is_one_launch_without_scratch():
    task, _ = linear(64, 32, 48)
    assert launches(task, Schedule("ieee", 32, 32, 32, 8, 4, 2)) == (["tiled_product"], [])


def test_reductions_over_the_row_do_not_write_the_product():
    builder = Builder()
    x = builder.linear(64, 4096)
    task = builder.task(builder.logsumexp(x), builder.reduce("argmax", x, (0,)), builder.reduce("sum", x, (0,)))
    kernels, buffers = launches(task, Schedule("ieee", 128, 128, 32, 8, 4, 2))
    assert kernels == ["tiled_product", "rows"] and "kept" not in buffers
    plan = candidate(task, Schedule("ieee", 128, 128, 32, 8, 4, 2), HOPPER).plan
    written = sum(compile_sizes([buffer.elements], task.axes)(1024)[0] for buffer in plan.buffers)
    assert written <= 1024 * 4096 // 128 * 5


def test_group_inside_a_tile_needs_no_second_launch_and_a_larger_one_does():
    for groups, kernels in ((64, ["tiled_product"]), (16, ["tiled_product", "rows"])):
        builder = Builder()
        task = builder.task(builder.group_norm(builder.linear(64, 8192), groups))
        assert launches(task, Schedule("ieee", 64, 256, 32, 8, 8, 2))[0] == kernels


def test_output_that_is_kept_anyway_is_not_written_twice():
    builder = Builder()
    x = builder.gelu(builder.linear(64, 96))
    assert launches(builder.task(builder.softmax(x), x), Schedule("ieee", 32, 32, 32, 8, 4, 2))[1] == []


def test_half_precision_product_is_kept_in_half_precision_only_where_the_graph_rounds_it():
    builder = Builder()
    x = builder.linear(64, 96, "bfloat16")
    wide = builder.op("convert", x, dtype="float32")
    task = builder.task(builder.softmax(wide), builder.softmax(builder.gelu(wide)))
    plan = candidate(task, Schedule("native", 32, 32, 32, 8, 4, 2), HOPPER).plan
    assert [buffer.dtype for buffer in plan.buffers] in (["bfloat16"], ["float32"])
    builder = Builder()
    task = builder.task(builder.softmax(builder.linear(64, 96)))
    assert [buffer.dtype for buffer in candidate(task, Schedule("ieee", 32, 32, 32, 8, 4, 2), HOPPER).plan.buffers] == ["float32"]


def test_split_scheme_brings_its_exact_launch():
    task, _ = linear(64, 32, 48)
    kernels, buffers = launches(task, Schedule("tf32x3", 32, 32, 32, 8, 4, 2))
    assert kernels == ["tiled_product", "tiled_product_exact"] and buffers == ["unsafe"]


def test_schedule_that_does_not_fit_takes_larger_ones_of_its_form_along_and_no_others(monkeypatch):
    task, sizes = linear(1024, 4096, 4096)
    small = Schedule("fp16", 64, 128, 32, 8, 4, 2)
    larger, smaller, other = (
        dataclasses.replace(small, **change) for change in ({"stages": 3}, {"block_n": 64}, {"copies": "both"})
    )
    monkeypatch.setattr(generator, "space", lambda *_: [small, larger, smaller, other])
    verdict = Verdict(Status.COMPILE_ERROR, None, None, "build", "Out of resource: shared memory")
    history = [Trial(emitted(task, small, HOPPER), verdict, ())]
    proposed = BuiltinGenerator().propose(task, sizes, HOPPER, numerics("mixed"), history, 64)
    assert [from_text(Schedule, candidate.schedule) for candidate in proposed] == [smaller, other]
