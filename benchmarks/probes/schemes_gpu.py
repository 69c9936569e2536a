"""What each precision scheme costs and keeps on this GPU: scheme x promotion x kernel form, at a few products.

    python benchmarks/probes/schemes_gpu.py OUT.json [--seconds 230] [--only 1024x8192x8192]

Kernels compile in child processes. For each: microseconds of the whole plan and of the split of the weight alone (which a kept
copy saves), how many times faster than `torch.mm` in fp32, relative RMS error on N(0, 1) and on operands of one sign with what
`torch.mm` has there beside it, registers and spills of the product's kernel. A line each as it is measured, and all of it
in OUT.json, rewritten after every line.
"""

from __future__ import annotations

import argparse
import dataclasses
import json
import os
import pathlib
import sys
import tempfile
import time
from typing import Any

ROOT = pathlib.Path(__file__).resolve().parents[2]
sys.path[:0] = [str(ROOT), str(ROOT / "tests" / "codegen" / "triton"), str(ROOT / "benchmarks" / "probes")]

import torch  # noqa: E402
from triton_space import DEVICE, Children, median_us, say  # noqa: E402
from triton_tasks import Builder  # noqa: E402

from kforge_dynamo import targets  # noqa: E402
from kforge_dynamo.codegen import triton as generator  # noqa: E402
from kforge_dynamo.codegen.triton import Schedule  # noqa: E402
from kforge_dynamo.codegen.triton.choices import sensible  # noqa: E402
from kforge_dynamo.codegen.triton.forms import Unsupported  # noqa: E402
from kforge_dynamo.codegen.triton.tiles import product_of  # noqa: E402
from kforge_dynamo.languages.base import canonical_dims  # noqa: E402
from kforge_dynamo.languages.triton import LANGUAGE  # noqa: E402
from kforge_dynamo.records.candidate import Candidate, LaunchPlan  # noqa: E402
from kforge_dynamo.records.codec import to_text  # noqa: E402
from kforge_dynamo.records.target import Numerics  # noqa: E402
from kforge_dynamo.records.task import Task  # noqa: E402

HIGHEST = Numerics("highest", fp16_reduced=False, bf16_reduced=False, deterministic=False)
SHAPES = ((1024, 8192, 8192), (128, 32768, 32768), (32768, 1024, 4096), (16384, 4096, 4096), (128, 16384, 16384))
WALK = {"descriptors": True, "persistent": True, "flatten": True, "store": "descriptor"}


def tiled(scheme: str, m: int, n: int, k: int, warps: int, stages: int, **choices: Any) -> Schedule:
    """A walk over tiles by descriptors; choices override."""
    return Schedule(scheme, m, n, k, 8, warps, stages, **(WALK | choices))


def large() -> list[Schedule]:
    """For products that compute: a pass over K for each product of parts."""
    square = {"copies": "both", "flatten": False}
    found = [tiled("fp16x3", 128, 128, 64, 8, 4, promote=length, **square) for length in (512, 256, 128, 64)]
    found += [tiled("fp16x3", 128, 128, 64, 8, 4, promote=length, drain=True, **square) for length in (512, 256, 128)]
    found += [tiled("fp16x3", 64, 256, 64, 8, 4, promote=length, **square) for length in (256, 64)]
    found += [
        tiled("fp16x3", 128, 128, 64, 8, 4, promote=128, **(square | {"flatten": True, "drain": True})),
        tiled("fp16x3", 128, 128, 64, 8, 4, promote=128, **(square | {"persistent": False, "store": "pointer"})),
        tiled("fp16x3", 128, 128, 64, 4, 4, promote=128, **square),
        tiled("fp16x3", 128, 128, 64, 8, 2, promote=128, together=True, **square),
        tiled("fp16x3", 128, 128, 32, 8, 4, promote=128, together=True, **square),
        tiled("bf16x6", 128, 128, 64, 8, 4, promote=256, **square),
        tiled("bf16x6", 128, 128, 64, 8, 4, promote=128, **square),
        *tf32(),
    ]
    for length in (2048, 1024, 512):
        for flatten in (True, False):
            found.append(tiled("fp16", 128, 128, 64, 8, 4, promote=length, **(square | {"flatten": flatten})))
    return found + coarse()


def tf32() -> list[Schedule]:
    """tf32x3 with and without promotion."""
    return [tiled("tf32x3", 128, 128, 32, 8, 3, promote=length) for length in (0, 256)] + [
        tiled("tf32x3", 64, 128, 32, 8, 4, promote=256)
    ]


def coarse() -> list[Schedule]:
    """What `high`, `medium` and `mixed` allow."""
    whole = {"copies": "both", "cuts": 2}
    return [
        tiled("fp16_rows", 128, 256, 64, 8, 3, **whole),
        tiled("fp16", 128, 256, 64, 8, 3, **whole),
        tiled("fp16", 128, 256, 64, 8, 4, copies="both", store="halves"),
        tiled("fp16", 128, 256, 32, 8, 3, store="halves"),
        tiled("bf16", 128, 256, 64, 8, 3, **whole),
        tiled("tf32", 128, 256, 32, 8, 3, store="halves"),
    ]


def small() -> list[Schedule]:
    """For products that wait for memory: the weight read once and split in registers, or all products from one load."""
    turned = {"copies": "left", "together": True}
    one = {"persistent": False, "flatten": False, "store": "pointer"}
    return [
        tiled("fp16x3", 128, 128, 64, 8, 3, **(turned | one)),
        tiled("fp16x3", 128, 128, 64, 8, 2, **(turned | one)),
        tiled("fp16x3", 64, 128, 64, 8, 4, **(turned | one)),
        tiled("fp16x3", 128, 64, 64, 4, 4, **(turned | one)),
        tiled("fp16x3", 128, 128, 64, 8, 3, **(turned | one | {"persistent": True})),
        tiled("bf16x6", 128, 128, 64, 8, 3, promote=256, **(turned | one)),
        tiled("fp16_rows", 128, 128, 64, 8, 3, **(turned | one)),
        tiled("fp16", 128, 128, 64, 8, 3, **(turned | one)),
        tiled("fp16x3", 128, 128, 64, 8, 4, promote=256, copies="both"),
        tiled("fp16x3", 128, 128, 64, 8, 3, promote=256, copies="both", together=True),
        tiled("fp16x3", 128, 64, 64, 4, 3, promote=256, copies="both", together=True),
        *tf32(),
        tiled("tf32", 128, 128, 32, 8, 4),
        tiled("fp16", 128, 128, 64, 8, 4, copies="both"),
    ]


def bare(k: int, n: int) -> Task:
    """A linear layer without bias."""
    builder = Builder()
    return builder.task(builder.gemm(*builder.operands(k, n, bias=False)))


def made(task: Task, schedule: Schedule, m: int) -> Candidate | None:
    """The candidate, None where the schedule has no kernel at these sizes."""
    target = targets.detect(DEVICE)
    assert target is not None
    try:
        return generator.emit(task, schedule, (m,), target, HIGHEST)
    except Unsupported:
        return None


def loaded(candidate: Candidate, task: Task, folder: pathlib.Path) -> tuple[Any, Any]:
    """Launcher and module."""
    target = targets.detect(DEVICE)
    assert target is not None
    artifact = LANGUAGE.build(candidate, task, target, folder)
    return LANGUAGE.load(artifact, candidate, task, canonical_dims(task)), sys.modules[f"kforge_triton_{artifact.stem}"]


def resources(module: Any) -> dict[str, int | None]:
    """Registers and spills of the product's kernel, where Triton (read in 3.6) tells them."""
    try:
        caches = module.tiled_product.device_caches[DEVICE.index or 0]
        (kernel,) = list(caches[0].values())[-1:]
        return {"registers": kernel.n_regs, "spills": kernel.n_spills}
    except (AttributeError, IndexError, KeyError, ValueError):
        return {"registers": None, "spills": None}


class Product:
    """One shape: operands of two kinds, fp64 results, and what torch.mm takes and is off by."""

    def __init__(self, m: int, k: int, n: int) -> None:
        torch.backends.cuda.matmul.fp32_precision = "ieee"
        noise = torch.Generator(DEVICE).manual_seed(1)
        self.task, self.m = bare(k, n), m
        self.operands = {}
        for kind in ("normal", "same sign"):
            a, w = (torch.randn(rows, k, device=DEVICE, generator=noise) for rows in (m, n))
            self.operands[kind] = (a.abs(), w.abs()) if kind == "same sign" else (a, w)
        self.rows = torch.randperm(m, generator=torch.Generator().manual_seed(2))[:128].to(DEVICE)
        self.exact = {kind: a[self.rows].double() @ w.double().t() for kind, (a, w) in self.operands.items()}
        a, w = self.operands["normal"]
        out = torch.empty(m, n, device=DEVICE)
        self.mm_us = median_us(lambda: torch.mm(a, w.t(), out=out), False)
        self.mm_error = {kind: self.error(kind, torch.mm(a, w.t())) for kind, (a, w) in self.operands.items()}

    def error(self, kind: str, output: torch.Tensor) -> float:
        """Relative RMS error over 128 rows."""
        exact = self.exact[kind]
        return float((output[self.rows].double() - exact).norm() / exact.norm())

    def measured(self, candidate: Candidate, folder: pathlib.Path) -> dict[str, Any]:
        """One schedule."""
        launch, module = loaded(candidate, self.task, folder)
        output = torch.empty(self.m, self.exact["normal"].shape[1], device=DEVICE)
        found: dict[str, Any] = {}
        for kind, (a, w) in self.operands.items():
            output.fill_(float("nan"))
            for _ in range(2):
                launch([a, w.t()[None]], [output], (self.m,))
            torch.cuda.synchronize()
            found[f"error {kind}"], found[f"error ratio {kind}"] = (
                self.error(kind, output),
                self.error(kind, output) / self.mm_error[kind],
            )
        a, w = self.operands["normal"]
        found["us"] = median_us(lambda: launch([a, w.t()[None]], [output], (self.m,)), False)
        found |= {"times faster": self.mm_us / found["us"], "split of the weight us": 0.0} | resources(module)
        if candidate.plan.prepack:
            plan = LaunchPlan(candidate.plan.buffers, candidate.plan.prepack)
            split, _ = loaded(dataclasses.replace(candidate, plan=plan), self.task, folder)
            found["split of the weight us"] = median_us(lambda: split([a, w.t()[None]], [output], (self.m,)), False)
        kept = found["us"] - found["split of the weight us"]
        return found | {"us with a kept copy": kept, "times faster with a kept copy": self.mm_us / kept}


_FLAGS = (("descriptors", "D"), ("persistent", "P"), ("flatten", "F"), ("drain", "-drain"), ("together", "-together"))


def line(shape: tuple[int, ...], schedule: Schedule, found: dict[str, Any]) -> str:
    """A schedule in one line."""
    flags = "".join(letter for name, letter in _FLAGS if getattr(schedule, name))
    name = f"{schedule.scheme} {schedule.block_m}x{schedule.block_n}x{schedule.block_k} w{schedule.warps} s{schedule.stages}"
    name += f" P{schedule.promote} {schedule.copies} {flags} {schedule.store} c{schedule.cuts}"
    head = f"{'x'.join(map(str, shape)):17s} {name:62s}"
    if "failed" in found:
        return f"{head} FAILED {found['failed'][:160]}"
    errors = " ".join(f"{found[f'error {kind}']:.1e} ({found[f'error ratio {kind}']:.2f})" for kind in ("normal", "same sign"))
    kept = f"kept {found['us with a kept copy']:.0f} x{found['times faster with a kept copy']:.2f}"
    held = f"r{found['registers']} sp{found['spills']}"
    return f"{head} {found['us']:7.0f} us x{found['times faster']:.2f} {kept} error {errors} {held}"


def jobs_of(shapes: list[tuple[int, int, int]]) -> list[tuple[tuple[int, int, int], Schedule]]:
    """Shape by shape, the schedules that have a kernel, with as many stages as fit."""
    found = []
    for m, k, n in shapes:
        task = bare(k, n)
        for schedule in small() if m <= 256 else large():
            chosen = fitted(task, schedule)
            if made(task, chosen, m) is not None:
                found.append(((m, k, n), chosen))
    return found


def fitted(task: Task, schedule: Schedule) -> Schedule:
    """With fewer stages where its own do not fit the shared memory."""
    target, product = targets.detect(DEVICE), product_of(task)
    assert target is not None and product is not None
    options = [dataclasses.replace(schedule, stages=stages) for stages in range(schedule.stages, 1, -1)]
    return next((option for option in options if sensible(task, product, option, target)), schedule)


def main() -> None:
    """Runs the table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("out")
    parser.add_argument("--seconds", type=float, default=230.0)
    parser.add_argument("--only", default="")
    options = parser.parse_args()
    shapes = [shape for shape in SHAPES if options.only in "x".join(map(str, shape))]
    folder, deadline = pathlib.Path(tempfile.mkdtemp()), time.time() + options.seconds
    work = jobs_of(shapes)
    described = [
        {"case": 0, "task": to_text(bare(k, n)), "sizes": (m,), "schedule": to_text(schedule)} for (m, k, n), schedule in work
    ]
    (folder / "jobs.json").write_text(json.dumps(described))
    children = Children(folder, max(2, (os.cpu_count() or 4) - 3))
    versions = f"torch {torch.__version__}, {LANGUAGE.toolchain()}, {torch.cuda.get_device_name()}"
    say(f"{len(work)} schedules, {versions}")
    rows: list[dict[str, Any]] = []
    product: tuple[tuple[int, int, int], Product] | None = None
    for number, (shape, schedule) in enumerate(work):
        if product is None or product[0] != shape:
            product = None
            torch.cuda.empty_cache()
            product = (shape, Product(*shape))
            errors = ", ".join(f"{kind} {error:.2e}" for kind, error in product[1].mm_error.items())
            say(f"{'x'.join(map(str, shape))}: torch.mm fp32 {product[1].mm_us:.0f} us, error {errors}")
        children.wait_for([number], deadline)
        found: dict[str, Any]
        done = folder / f"{number}.done"
        words = done.read_text() if done.exists() else "not compiled in time"
        candidate = made(bare(shape[1], shape[2]), schedule, shape[0])
        assert candidate is not None
        try:
            found = {"failed": words} if words else product[1].measured(candidate, folder)
        except Exception as error:  # noqa: BLE001 the table shows it
            found = {"failed": f"{type(error).__name__}: {error}"}
        say(line(shape, schedule, found))
        rows.append({"shape": shape, "mm_us": product[1].mm_us, "schedule": json.loads(to_text(schedule)), **found})
        pathlib.Path(options.out).write_text(json.dumps({"versions": versions, "rows": rows}))
        if time.time() > deadline:
            say("time is up")
            break
    children.stop()
    say("done")


if __name__ == "__main__":
    main()
