"""What the built-in Triton generator reaches on this GPU: the first schedules of each task's space, right or wrong, and how fast.

    python benchmarks/probes/triton_space.py OUT.json [--seconds 280] [--count 10] [--only PART] [--precision highest]

Compiles in child processes (a compiler that aborts costs one schedule), checks each schedule against fp64 and eager, times it
with `triton.testing.do_bench` (median; small tasks also as a replayed CUDA graph) beside eager and `torch.compile`. One table
row a task, every schedule that failed below it, and all of it in OUT.json, written after each task.
"""

from __future__ import annotations

import argparse
import json
import math
import os
import pathlib
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from typing import Any

ROOT = pathlib.Path(__file__).resolve().parents[2]
sys.path[:0] = [str(ROOT), str(ROOT / "tests" / "codegen" / "triton"), str(ROOT / "benchmarks" / "probes")]

import torch  # noqa: E402
from torch.fx.experimental.proxy_tensor import make_fx  # noqa: E402
from triton_cases import Case, cases  # noqa: E402

from kforge_dynamo import targets  # noqa: E402
from kforge_dynamo.codegen import triton as generator  # noqa: E402
from kforge_dynamo.languages.base import canonical_dims  # noqa: E402
from kforge_dynamo.languages.triton import LANGUAGE  # noqa: E402
from kforge_dynamo.records.codec import from_text, to_text  # noqa: E402
from kforge_dynamo.records.target import Numerics  # noqa: E402
from kforge_dynamo.records.task import InputRole, Task  # noqa: E402
from kforge_dynamo.semantics.evaluate import Mode, Policy, dtype_of, evaluate, shape_of  # noqa: E402

START = time.time()
DEVICE = torch.device("cuda", 0)


def say(*words: object) -> None:
    """Prints with the seconds since the start."""
    print(f"{time.time() - START:5.0f}s", *words, flush=True)


# compiling, in children


def work_list(wanted: list[Case], count: int) -> list[dict[str, Any]]:
    """One job a schedule, tasks in order."""
    target = targets.detect(DEVICE)
    assert target is not None, "no CUDA device"
    jobs = []
    for number, case in enumerate(wanted):
        numerics = Numerics(case.fp32, fp16_reduced=False, bf16_reduced=False, deterministic=False)
        for schedule in generator.space(case.task, case.sizes, target, numerics)[:count]:
            jobs.append({"case": number, "task": to_text(case.task), "sizes": case.sizes, "schedule": to_text(schedule)})
    return jobs


def launcher_of(job: dict[str, Any], folder: pathlib.Path) -> Any:
    """Builds and loads a job's candidate."""
    target = targets.detect(DEVICE)
    assert target is not None
    task, schedule = from_text(Task, job["task"]), from_text(generator.Schedule, job["schedule"])
    candidate = generator.emit(task, schedule, job["sizes"], target, Numerics("highest", False, False, False))
    return LANGUAGE.load(LANGUAGE.build(candidate, task, target, folder), candidate, task, canonical_dims(task))


def compile_share(folder: pathlib.Path, first: int, step: int) -> None:
    """A child: compiles jobs first, first + step, ...; a file for each says how it went."""
    jobs = json.loads((folder / "jobs.json").read_text())
    for number in range(first, len(jobs), step):
        done = folder / f"{number}.txt"
        if done.exists():
            continue
        done.write_text("the compiler's process died")
        job = jobs[number]
        try:
            named = dict(zip(from_text(Task, job["task"]).axes, job["sizes"], strict=True))
            strides = [stride_of(spec, named) for spec in from_text(Task, job["task"]).inputs]
            launcher_of(job, folder).prepare(job["sizes"], strides, DEVICE)
            done.write_text("")
        except Exception as error:  # noqa: BLE001 the table shows it
            done.write_text(str(error) or type(error).__name__)
        done.rename(folder / f"{number}.done")


def stride_of(spec: Any, sizes: dict[str, int]) -> tuple[int, ...]:
    """Strides of the tensors that `inputs_for` makes."""
    shape = [int(extent) for extent in shape_of(spec.value.shape, sizes)]
    order = sorted(range(len(shape)), key=lambda p: (spec.strides[p] == 1, p))
    strides, step = [0] * len(shape), 1
    for position in reversed(order):
        strides[position] = step
        step *= shape[position]
    return tuple(strides)


class Children:
    """The compiling processes; one that died is started again and goes on after the job that killed it."""

    def __init__(self, folder: pathlib.Path, count: int) -> None:
        self.folder, self.count = folder, count
        self.running = [self._start(number) for number in range(count)]

    def _start(self, number: int) -> subprocess.Popen[bytes]:
        command = [sys.executable, str(pathlib.Path(__file__).resolve()), "--child", f"{self.folder}:{number}:{self.count}", "-"]
        return subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)

    def wait_for(self, numbers: list[int], deadline: float) -> None:
        """Until these jobs are done or the time is up."""
        while time.time() < deadline:
            for number, child in enumerate(self.running):
                if child.poll() not in (None, 0):
                    for stuck in self.folder.glob("*.txt"):
                        if int(stuck.stem) % self.count == number:
                            stuck.rename(stuck.with_suffix(".done"))
                    self.running[number] = self._start(number)
            if all((self.folder / f"{number}.done").exists() for number in numbers):
                return
            time.sleep(0.2)

    def stop(self) -> None:
        """Ends them."""
        for child in self.running:
            child.kill()


# measuring


def inputs_for(task: Task, sizes: dict[str, int]) -> list[torch.Tensor]:
    """Activations in [0, 1), weights and the rest in [-1, 1) / sqrt(K), as PyTorch's linear layer starts."""
    torch.manual_seed(0)
    found = []
    depth = int(shape_of(task.inputs[0].value.cols, sizes)[0])
    for spec in task.inputs:
        shape = [int(extent) for extent in shape_of(spec.value.shape, sizes)]
        storage = torch.rand(max(1, math.prod(shape)), device=DEVICE)
        if spec.role is not InputRole.LHS and spec.value.dtype != "bool":
            storage = (storage * 2 - 1) / (depth**0.5 if spec.role is InputRole.RHS else 1.0)
        values = storage < 0.8 if spec.value.dtype == "bool" else storage.to(dtype_of(spec.value.dtype))
        found.append(torch.as_strided(values, shape, stride_of(spec, sizes)))
    return found


def error_ratio(outputs: list[torch.Tensor], eager: tuple[torch.Tensor, ...], oracle: tuple[torch.Tensor, ...]) -> float:
    """RMS error over eager's, the worst output; an output of integers counts the share that differs."""
    worst = 0.0
    for output, base, ref in zip(outputs, eager, oracle, strict=True):
        if not output.dtype.is_floating_point:
            worst = max(worst, float((output != base).float().mean()) * 10)
            continue
        scale = ref.double().square().mean().sqrt()
        floor = 0.5 * torch.finfo(output.dtype).eps * scale
        mine, theirs = ((x.double() - ref.double()).square().mean().sqrt() for x in (output, base))
        ratio = float(mine / torch.maximum(theirs, floor))
        worst = max(worst, ratio if ratio == ratio else float("inf"))
    return worst


def median_us(call: Callable[[], Any], small: bool) -> float:
    """The median in microseconds."""
    testing = __import__("triton.testing", fromlist=["testing"])
    if small:
        return 1e3 * float(testing.do_bench_cudagraph(call, rep=15, return_mode="median"))
    return 1e3 * float(testing.do_bench(call, warmup=5, rep=25, return_mode="median"))


def measure(case: Case, jobs: list[tuple[int, dict[str, Any]]], folder: pathlib.Path, compiled: bool) -> dict[str, Any]:
    """All schedules of a task."""
    named = dict(zip(case.task.axes, case.sizes, strict=True))
    inputs = inputs_for(case.task, named)
    torch.set_float32_matmul_precision(case.fp32 if case.fp32 in ("high", "medium") else "highest")
    mixed = Policy(round_operand=lambda x: x.half().float(), wide_gemm=True)
    eager = evaluate(case.task, inputs, named, mixed if case.fp32 == "mixed" else Policy())
    oracle = evaluate(case.task, inputs, named, Policy(Mode.ORACLE))
    small = flops(case) < 2e10
    row: dict[str, Any] = {"name": case.name, "fp32": case.fp32, "schedules": [], "small": small}
    row["eager_us"] = median_us(lambda: evaluate(case.task, inputs, named), small)
    if compiled:
        try:
            traced = make_fx(lambda *tensors: evaluate(case.task, tensors, named))(*inputs)
            function = torch.compile(traced, dynamic=False)
            function(*inputs)
            row["compile_us"] = median_us(lambda: function(*inputs), small)
        except Exception as error:  # noqa: BLE001 a baseline that fails is a row without one
            row["compile_error"] = str(error).splitlines()[0][:200]
    for number, job in jobs:
        row["schedules"].append(measured(number, job, folder, inputs, eager, oracle, small))
    torch.set_float32_matmul_precision("highest")
    return row


def measured(number: int, job: dict[str, Any], folder: pathlib.Path, inputs: list[torch.Tensor], eager: tuple[torch.Tensor, ...],
             oracle: tuple[torch.Tensor, ...], small: bool) -> dict[str, Any]:  # fmt: skip
    """One schedule."""
    found: dict[str, Any] = {"schedule": json.loads(job["schedule"])}
    done = folder / f"{number}.done"
    words = done.read_text() if done.exists() else "not compiled in time"
    if words:
        return found | {"error": words}
    try:
        launch = launcher_of(job, folder)
        outputs = [torch.full(tensor.shape, 7, dtype=tensor.dtype, device=DEVICE) for tensor in eager]
        launch(inputs, outputs, job["sizes"])
        launch(inputs, outputs, job["sizes"])
        torch.cuda.synchronize()
        found["ratio"] = error_ratio(outputs, eager, oracle)
        found["us"] = median_us(lambda: launch(inputs, outputs, job["sizes"]), small)
        if small:
            found["wall_us"] = median_us(lambda: launch(inputs, outputs, job["sizes"]), False)
    except Exception as error:  # noqa: BLE001 the table shows it
        found["error"] = f"{type(error).__name__}: {error}"
    return found


def flops(case: Case) -> float:
    """Of the product."""
    named = dict(zip(case.task.axes, case.sizes, strict=True))
    lhs, rhs = (case.task.inputs[number].value for number in (0, 1))
    rows = 1
    for axis in lhs.rows:
        rows *= int(named[str(axis)])
    return 2.0 * rows * int(rhs.cols[0]) * int(rhs.cols[1])


_FLAGS = (("descriptors", "D"), ("persistent", "P"), ("flatten", "F"), ("specialize", "S"))


def short(schedule: dict[str, Any]) -> str:
    """A schedule in one line."""
    flags = "".join(letter for name, letter in _FLAGS if schedule[name])
    tile = "x".join(str(schedule[name]) for name in ("block_m", "block_n", "block_k"))
    words = [
        f"{schedule['scheme']}:{tile}",
        f"w{schedule['warps']}",
        f"s{schedule['stages']}",
        flags or "-",
        schedule["store"][:4],
    ]
    words += [f"c{schedule['cuts']}"] if schedule["cuts"] > 1 else []
    return " ".join([*words, schedule["reduce"][:4], *([f"k/{schedule['split']}"] if schedule["split"] > 1 else [])])


def report(case: Case, row: dict[str, Any]) -> None:
    """The table row and the failures."""
    tried = row["schedules"]
    good = [s for s in tried if "us" in s and s["ratio"] <= 2.0]
    best = min(good, key=lambda s: s["us"], default=None)
    base = min(value for value in (row.get("compile_us"), row["eager_us"]) if value)
    times = f"compile {row.get('compile_us', 0):8.1f} eager {row['eager_us']:8.1f}"
    if best is None:
        say(f"{case.name:34s} NO GOOD SCHEDULE of {len(tried)}; {times} {row.get('compile_error', '')}")
    else:
        rate = f"{best['us']:8.1f} us {flops(case) / best['us'] / 1e6:5.0f} TF"
        gain = f"x{base / best['us']:4.2f} err {best['ratio']:4.2f} {len(good)}/{len(tried)} #{tried.index(best) + 1}"
        say(f"{case.name:34s} {rate}  {times}  {gain}  {short(best['schedule'])} {row.get('compile_error', '')}")
        others = sorted((s["us"], short(s["schedule"])) for s in good if s is not best)[:4]
        say("        then " + "; ".join(f"{us:.1f} {text}" for us, text in others))
    for s in tried:
        if "error" in s:
            lines = str(s["error"]).strip().splitlines()
            say(f"        fail {short(s['schedule'])}: {lines[0][:120]} .. {' | '.join(lines[-2:])[-160:]}")
        elif s["ratio"] > 2.0:
            say(f"        wrong {short(s['schedule'])}: error {s['ratio']:.2f} of eager's, {s['us']:.1f} us")


def main() -> None:
    """Runs the table."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("out")
    parser.add_argument("--seconds", type=float, default=280.0)
    parser.add_argument("--count", type=int, default=10)
    parser.add_argument("--only", default="")
    parser.add_argument("--precision", default="highest")
    parser.add_argument("--no-compile", action="store_true")
    parser.add_argument("--child", default="")
    options = parser.parse_args()
    if options.child:
        folder, first, step = options.child.rsplit(":", 2)
        compile_share(pathlib.Path(folder), int(first), int(step))
        return
    wanted = [case for case in cases(options.precision) if options.only in case.name]
    folder = pathlib.Path(tempfile.mkdtemp())
    jobs = work_list(wanted, options.count)
    (folder / "jobs.json").write_text(json.dumps(jobs))
    children = Children(folder, max(2, (os.cpu_count() or 4) - 3))
    versions = f"torch {torch.__version__}, {LANGUAGE.toolchain()}, {torch.cuda.get_device_name()}"
    say(f"{len(jobs)} schedules of {len(wanted)} tasks, {versions}")
    deadline, rows = START + options.seconds, []
    for number, case in enumerate(wanted):
        own = [(index, job) for index, job in enumerate(jobs) if job["case"] == number]
        children.wait_for([index for index, _ in own], deadline)
        if time.time() > deadline:
            say(f"time is up before {case.name}")
            break
        try:
            row = measure(case, own, folder, not options.no_compile)
            report(case, row)
            rows.append(row)
        except Exception as error:  # noqa: BLE001 one task must not end the table
            say(f"{case.name}: {type(error).__name__}: {str(error)[:300]}")
        torch.cuda.empty_cache()
        pathlib.Path(options.out).write_text(json.dumps(rows))
    children.stop()
    say("done")


if __name__ == "__main__":
    main()
