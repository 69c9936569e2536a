"""Kernels through Triton's compiler for GPUs that are not here."""

from __future__ import annotations

import json
import os
import pathlib
import subprocess
import sys

from kforge_dynamo.codegen.triton import Schedule
from kforge_dynamo.codegen.triton.emit import candidate
from kforge_dynamo.languages import triton_proof
from kforge_dynamo.records.codec import to_text
from kforge_dynamo.records.expression import compile_sizes
from kforge_dynamo.records.target import Target
from kforge_dynamo.records.task import Task

CHILD = """
import importlib.util, json, os, re, subprocess, sys
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
    found = {"name": kernel["name"], "shared": compiled.metadata.shared, "text": text}
    if "cubin" in compiled.asm:
        path = request["path"] + ".cubin"
        open(path, "wb").write(compiled.asm["cubin"])
        tool = os.path.join(os.path.dirname(triton.__file__), "backends", "nvidia", "bin", "cuobjdump")
        said = [subprocess.run([tool, flag, path], capture_output=True, text=True).stdout for flag in ("-res-usage", "-sass")]
        usage = re.search(r"REG:(\\d+) STACK:(\\d+)", said[0])
        found["registers"], found["stack"] = int(usage[1]), int(usage[2])
        found["spills"] = len(re.findall(r"\\b(?:STL|LDL)\\b", said[1]))
    print(json.dumps(found))
"""
HOPPER = Target("cuda", "nvidia", "NVIDIA H200", "sm_90", 132, 232448, None, ("tma", "tf32", "bf16_dot", "fp16_dot"), ())
POINTERS = {"float32": "fp32", "float16": "fp16", "bfloat16": "bf16", "int64": "i64", "int32": "i32", "bool": "i1",
            "float64": "fp64"}  # fmt: skip


def kernels(task: Task, schedule: Schedule, sizes: tuple[int, ...], proven: bool = False) -> tuple[str, list[dict]]:
    """The source, and for each launch what Triton's compiler wants to know; `proven`: with those that look at weights."""
    made = candidate(task, schedule, HOPPER, proven)
    source, plan, outputs = made.source, made.plan, [task.value(number).dtype for number in task.outputs]
    if proven:
        watched = triton_proof.watched(plan, task)
        assert watched is not None
        source, plan = source + triton_proof.SOURCE, watched.plan
        outputs += [buffer.dtype for buffer in (*watched.copies, *watched.notes)]
    buffers = {buffer.name: buffer.dtype for buffer in plan.buffers}

    def pointed(kind: str, which: str) -> str:
        dtype = buffers[which] if kind == "buf" else outputs[int(which)] if kind == "out" else task.value(int(which)).dtype
        return POINTERS[dtype]

    found = []
    for launch in plan.launches:
        head = source.split(f"def {launch.kernel}(", 1)[1].split(")", 1)[0]
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
    return source, found


def compiled(
    tmp_path: pathlib.Path,
    task: Task,
    schedule: Schedule,
    target: tuple,
    sizes: tuple[int, ...] = (512,),
    without: str = "-",
    proven: bool = False,
) -> list[dict]:
    """What the compiler made of each kernel whose name does not end in `without`, in a process of its own (a bad target may end
    it): name, text, bytes of shared memory; for NVIDIA registers and stack bytes a thread, and instructions that spill.
    """
    source, wanted = kernels(task, schedule, sizes, proven)
    wanted = [kernel for kernel in wanted if not kernel["name"].endswith(without)]
    (tmp_path / "kernels.py").write_text(source)
    request = {"path": str(tmp_path / "kernels.py"), "kernels": wanted, "target": target}
    environment = {name: value for name, value in os.environ.items() if name != "TRITON_INTERPRET"}
    environment["TRITON_CACHE_DIR"] = str(tmp_path / "cache")
    run = subprocess.run(
        [sys.executable, "-c", CHILD], input=json.dumps(request), env=environment, capture_output=True, text=True, timeout=280
    )
    assert run.returncode == 0, f"{to_text(schedule)}\n{run.stderr[-3000:]}"
    return [json.loads(line) for line in run.stdout.splitlines()]
