"""Kernels through Triton's compiler for GPUs that are not here: they compile, and fit."""

from __future__ import annotations

import json
import os
import subprocess
import sys

import pytest
from triton_tasks import Builder, named_tasks

from kforge_dynamo.codegen.triton import Schedule
from kforge_dynamo.codegen.triton.emit import candidate
from kforge_dynamo.records.codec import to_text
from kforge_dynamo.records.expression import compile_sizes
from kforge_dynamo.records.target import Target
from kforge_dynamo.records.task import Task

CHILD = """
import importlib.util, json, sys
import triton
from triton.backends.compiler import GPUTarget
from triton.compiler import ASTSource
request = json.load(sys.stdin)
spec = importlib.util.spec_from_file_location("kernels", request["path"])
module = importlib.util.module_from_spec(spec)
sys.modules["kernels"] = module
spec.loader.exec_module(module)
for kernel in request["kernels"]:
    function = getattr(module, kernel["name"])
    signature = {name: kernel["signature"][name] for name in function.arg_names}
    attributes = {(function.arg_names.index(name),): [["tt.divisibility", 16]] for name in kernel["aligned"]}
    source = ASTSource(function, signature=signature, constexprs=kernel["constants"], attrs=attributes)
    options = {"num_warps": kernel["warps"], "num_stages": kernel["stages"]}
    compiled = triton.compile(source, target=GPUTarget(*request["target"]), options=options)
    text = compiled.asm.get("ptx") or compiled.asm["amdgcn"]
    print(json.dumps({"name": kernel["name"], "shared": compiled.metadata.shared, "text": text}))
"""
HOPPER = Target("cuda", "nvidia", "NVIDIA H200", "sm_90", 132, 232448, None, ("tma", "tf32", "bf16_dot", "fp16_dot"), ())
POINTERS = {"float32": "fp32", "float16": "fp16", "bfloat16": "bf16", "int64": "i64", "int32": "i32", "bool": "i1"}


def kernels(task: Task, schedule: Schedule, sizes: tuple[int, ...]) -> tuple[str, list[dict]]:
    """The source, and for each launch what Triton's compiler wants to know."""
    made = candidate(task, schedule, HOPPER)
    buffers = {buffer.name: buffer.dtype for buffer in made.plan.buffers}

    def pointed(kind: str, which: str) -> str:
        if kind == "buf":
            return POINTERS[buffers[which]]
        number = int(which) if kind == "in" else task.outputs[int(which)]
        return POINTERS[task.value(number).dtype]

    found = []
    for launch in made.plan.launches:
        head = made.source.split(f"def {launch.kernel}(", 1)[1].split(")", 1)[0]
        names = [word.split(":")[0].strip() for word in head.split(",")]
        signature: dict[str, str] = {name: "constexpr" for name, _ in launch.constants}
        for name, argument in zip(names, launch.args, strict=False):
            kind, *rest = argument.split(":")
            if kind in ("in", "out", "buf"):
                signature[name] = "*" + pointed(kind, rest[0])
            elif kind == "desc":
                block = ", ".join(str(size) for size in compile_sizes(rest[5:], task.axes)(*sizes))
                signature[name] = f"tensordesc<{pointed(rest[0], rest[1])}[{block}]>"
            else:
                signature[name] = "i32"
        aligned = [name for name, text in signature.items() if text == "i32" or text.startswith("*")]
        found.append({"name": launch.kernel, "signature": signature, "constants": dict(launch.constants), "aligned": aligned,
                      "warps": launch.num_warps, "stages": launch.num_stages})  # fmt: skip
    return made.source, found


def compiled(tmp_path, task: Task, schedule: Schedule, target: tuple) -> list[dict]:
    """What the compiler made of each kernel, in a process of its own (a bad target may end it)."""
    source, wanted = kernels(task, schedule, (512,))
    (tmp_path / "kernels.py").write_text(source)
    request = {"path": str(tmp_path / "kernels.py"), "kernels": wanted, "target": target}
    environment = {name: value for name, value in os.environ.items() if name != "TRITON_INTERPRET"}
    environment["TRITON_CACHE_DIR"] = str(tmp_path / "cache")
    run = subprocess.run(
        [sys.executable, "-c", CHILD], input=json.dumps(request), env=environment, capture_output=True, text=True, timeout=280
    )
    assert run.returncode == 0, f"{to_text(schedule)}\n{run.stderr[-3000:]}"
    return [json.loads(line) for line in run.stdout.splitlines()]


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


@pytest.mark.parametrize("name", CASES)
def test_kernels_compile_for_hopper_and_fit_its_shared_memory(tmp_path, name):
    task, schedule, instruction = CASES[name]
    made = compiled(tmp_path, task, schedule, ("cuda", 90, 32))
    assert all(kernel["shared"] <= HOPPER.shared_bytes for kernel in made)
    assert instruction in made[0]["text"]


def test_kernels_compile_for_an_amd_gpu_with_its_matrix_cores(tmp_path):
    task, _ = named_tasks()["statistics"]
    made = compiled(tmp_path, task, Schedule("ieee", 64, 64, 32, 8, 4, 2), ("hip", "gfx942", 64))
    assert "v_mfma" in made[0]["text"] and len(made) == 3
