"""Kernels through Triton's compiler for GPUs that are not here: they compile, and fit."""

from __future__ import annotations

import pytest
from triton_ahead import HOPPER, compiled
from triton_tasks import Builder, named_tasks

from kforge_dynamo.codegen.triton import Schedule
from kforge_dynamo.records.task import Task


def linear(dtype: str, kind: str, n: int = 512) -> Task:
    builder = Builder()
    return builder.task(getattr(builder, kind)(builder.linear(512, n, dtype)))


def grouped(dtype: str) -> Task:
    builder = Builder()
    x = builder.op("convert", builder.linear(512, 512, dtype), dtype="float32")
    return builder.task(builder.op("convert", builder.group_norm(builder.silu(x), 8), dtype=dtype))


WALKING = Schedule("native", 128, 256, 64, 8, 8, 3, descriptors=True, persistent=True, flatten=True, store="halves")
PIECES = Schedule("native", 128, 256, 64, 8, 8, 4, descriptors=True, persistent=True, flatten=True, store="descriptor", cuts=2)
CASES = {
    "walking tiles of bf16": (linear("bfloat16", "gelu"), WALKING, "wgmma"),
    "groups in pieces of the tile": (grouped("bfloat16"), PIECES, "wgmma"),
    "states of a logsumexp": (linear("float16", "logsumexp"), Schedule("native", 64, 128, 64, 8, 4, 3), "wgmma"),
    "guarded fp32": (linear("float32", "mish"), Schedule("tf32x3", 64, 128, 32, 8, 4, 3), "tf32"),
    "split fp32 of few rows": (linear("float32", "softmax"), Schedule("ieee", 16, 64, 32, 8, 2, 2, split=4), "fma.rn.f32"),
}

WALKED = {"descriptors": True, "persistent": True, "flatten": True, "store": "descriptor"}
SPLIT = {
    "fp16 in two, a pass a product": Schedule("fp16x3", 128, 128, 64, 8, 8, 4, copies="both", promote=512, **WALKED),
    "bf16 in three with breaks": Schedule("bf16x6", 128, 128, 64, 8, 8, 4, copies="both", promote=512, drain=True, **WALKED),
    "fp16 in two, products together": Schedule("fp16x4", 64, 128, 64, 8, 4, 3, copies="both", together=True, promote=256),
    "weight split in registers": Schedule(
        "fp16x3", 64, 128, 64, 8, 8, 3, copies="left", together=True, descriptors=True, persistent=True
    ),
    "weight split in registers by sampled scales": Schedule(
        "fp16x3",
        128,
        128,
        64,
        8,
        8,
        3,
        copies="left",
        together=True,
        sampled=True,
        promote=512,
        descriptors=True,
        persistent=True,
    ),
    "fp16 rows": Schedule("fp16_rows", 128, 256, 64, 8, 8, 3, copies="both", cuts=2, **WALKED),
    "tf32 in two, promoted": Schedule("tf32x3", 64, 128, 32, 8, 8, 3, promote=256),
}


@pytest.mark.parametrize("name", SPLIT)
def test_split_schemes_compile_for_hopper_without_spills(tmp_path, name):
    """A version that spilled was three to five times slower."""
    task = linear("float32", "gelu", 1024)
    made = compiled(tmp_path, task, SPLIT[name], ("cuda", 90, 32), without="_exact")
    assert "wgmma" in made[-1]["text"]
    assert [(kernel["name"], kernel["spills"]) for kernel in made] == [(kernel["name"], 0) for kernel in made]
    assert all(kernel["shared"] <= HOPPER.shared_bytes for kernel in made)


@pytest.mark.parametrize("name", CASES)
def test_kernels_compile_for_hopper_and_fit_its_shared_memory(tmp_path, name):
    task, schedule, instruction = CASES[name]
    made = compiled(tmp_path, task, schedule, ("cuda", 90, 32))
    assert all(kernel["shared"] <= HOPPER.shared_bytes for kernel in made)
    assert instruction in made[0]["text"]


@pytest.mark.parametrize("target", [("cuda", 90, 32), ("hip", "gfx942", 64)])
def test_launches_that_reduce_the_weight_first_compile(tmp_path, target):
    builder = Builder()
    task = builder.task(builder.reduce("sum", builder.linear(1024, 512), (0,)))
    made = compiled(tmp_path, task, Schedule("ieee", 16, 32, 64, 8, 2, 3, fold=True), target)
    assert [kernel["name"] for kernel in made][:2] == ["reduce1", "add_right"]
    assert all(not kernel.get("spills") for kernel in made) and all(kernel["shared"] <= 65536 for kernel in made)


def test_kernels_compile_for_an_amd_gpu_with_its_matrix_cores(tmp_path):
    task, _ = named_tasks()["statistics"]
    made = compiled(tmp_path, task, Schedule("ieee", 64, 64, 32, 8, 4, 2), ("hip", "gfx942", 64))
    assert "v_mfma" in made[0]["text"] and len(made) == 3


def test_split_scheme_compiles_for_an_amd_gpu_with_its_matrix_cores(tmp_path):
    schedule = Schedule("fp16x3", 64, 64, 32, 8, 4, 2, copies="both", promote=256)
    made = compiled(tmp_path, linear("float32", "gelu"), schedule, ("hip", "gfx942", 64))
    assert [kernel["name"] for kernel in made][:2] == ["split_right", "split_left"]
    assert "v_mfma_f32_32x32x8" in made[2]["text"] or "v_mfma_f32_16x16x16" in made[2]["text"]
