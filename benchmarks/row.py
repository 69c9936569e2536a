"""One row: a workload at a scale, precision and mode; built, compiled in every way, judged, timed."""

from __future__ import annotations

import dataclasses
import gc
import time
from pathlib import Path
from typing import Any

import numpy as np
import torch

import kforge_dynamo
from benchmarks import kernelbench, variants, workloads
from benchmarks.place import place
from kforge_dynamo.cli import compare, measure


@dataclasses.dataclass(frozen=True, slots=True)
class Order:
    """What one row shall measure."""

    id: int
    scale: str
    precision: str
    mode: str
    device: str
    variants: tuple[str, ...]
    measure_s: float
    budget_s: float
    autotune_s: float
    options: dict[str, Any]
    kernelbench: str | None


def kforge_options(order: Order) -> dict[str, Any]:
    """The budget is per region; a process measures many rows, so its own budget must not end with the first."""
    options: dict[str, Any] = {"budget_s": 86400.0, "region_budget_s": order.budget_s}
    if order.precision in ("mixed", "strict"):
        options["precision"] = order.precision
    return options | order.options


def build(order: Order) -> workloads.Case:
    """The case in its precision and mode on its device."""
    fact = next(fact for fact in workloads.facts(order.scale) if fact.id == order.id)
    if order.kernelbench:
        case = kernelbench.build(Path(order.kernelbench), fact, order.device)
    else:
        case = workloads.build(fact, order.device)
    dtype = torch.bfloat16 if order.precision == "bf16" else torch.float32
    inputs = tuple(i.to(dtype) if isinstance(i, torch.Tensor) and i.is_floating_point() else i for i in case.inputs)
    module = case.module.to(dtype).train(order.mode == "train")
    return workloads.Case(fact, module, inputs)


@dataclasses.dataclass
class Compiled:
    """The variants of a case that ran, what they gave, how long the first call took, and why the others did not."""

    calls: dict[str, variants.Call]
    outputs: dict[str, list[torch.Tensor]]
    compile_s: dict[str, float]
    failed: dict[str, str]


def compile_all(order: Order, case: workloads.Case) -> Compiled:
    """First calls of every variant. One that fails leaves its reason; a device that is lost ends the row."""
    made = Compiled({}, {}, {}, {})
    for name in order.variants:
        function = variants.compiled(name, case.module, order.device, kforge_options(order))
        limit_s = order.autotune_s if name == "max-autotune" else None
        began = time.monotonic()
        try:
            with variants.time_limit(limit_s, name):
                made.outputs[name] = compare.tensors_of(function(*case.inputs))
        except Exception as error:
            if "CUDA error" in str(error) or name == "eager":
                raise
            made.failed[name] = f"{type(error).__name__}: {' '.join(str(error).split())[:200]}"
            continue
        made.compile_s[name] = round(time.monotonic() - began, 3)
        made.calls[name] = lambda function=function: function(*case.inputs)
    return made


def errors(order: Order, case: workloads.Case, made: Compiled) -> dict[str, Any]:
    """Relative RMS error of each variant against fp64, and kforge's over eager's."""
    if order.mode == "train" and case.fact.random:
        return {"relative_rms": {}, "ratio": None, "right": None, "note": "two calls differ: not comparable"}
    exact = compare.oracle(case.module, case.inputs)
    found = {name: compare.distance(outputs, exact) for name, outputs in made.outputs.items()}
    relative = {name: d.relative for name, d in found.items()}
    result: dict[str, Any] = {"relative_rms": relative, "ratio": None, "right": None}
    if "kforge" in found:
        reference = found.get("autocast", found["eager"]) if order.precision == "mixed" else found["eager"]
        result["against"] = "autocast" if reference is not found["eager"] else "eager"
        dtype = torch.float16 if order.precision == "mixed" else made.outputs["eager"][0].dtype
        verdict = compare.judge(found["kforge"], reference, dtype)
        result["ratio"], result["right"] = verdict.ratio, verdict.right
    return result


def summary(samples: measure.Samples) -> dict[str, dict[str, float]]:
    """Median, quartiles and count of each series, in microseconds."""
    result = {}
    for name, series in samples.items():
        low, median, high = (float(v) for v in np.percentile(series, [25, 50, 75]))
        result[name] = {"median": round(median, 3), "q1": round(low, 3), "q3": round(high, 3), "n": len(series)}
    return result


def speedup(samples: measure.Samples) -> dict[str, Any] | None:
    """kforge against the fastest baseline of the same run."""
    baselines = [name for name in variants.BASELINES if name in samples]
    if "kforge" not in samples or not baselines:
        return None
    best = min(baselines, key=lambda name: measure.median(samples[name]))
    found = measure.ratio(samples[best], samples["kforge"])
    return {"against": best, "value": round(found.value, 4), "low": round(found.low, 4), "high": round(found.high, 4)}


def regions() -> dict[str, Any]:
    """What kforge did with the case's regions."""
    reports = [
        {
            "title": r.title,
            "state": r.state,
            "scheme": r.scheme,
            "reason": r.reason,
            "speedup": r.speedup,
            "error_ratio": r.error_ratio,
            "schedule": r.schedule,
            "roofline_share": round(r.floor_us / r.candidate_us, 4) if r.floor_us and r.candidate_us else None,
        }
        for r in kforge_dynamo.report()
    ]
    return {"stats": kforge_dynamo.stats(), "regions": reports}


def clean(device: str) -> None:
    """As if nothing had been compiled in this process."""
    torch.compiler.reset()
    kforge_dynamo.reset()
    gc.collect()
    if device == "cuda":
        torch.cuda.empty_cache()


def measure_row(order: Order) -> dict[str, Any]:
    """The row as it is stored, without what names it."""
    clean(order.device)
    torch.set_float32_matmul_precision(order.precision if order.precision in ("high", "medium") else "highest")
    with torch.no_grad():
        case = build(order)
        made = compile_all(order, case)
        row: dict[str, Any] = {"name": case.fact.name, "kind": case.fact.kind, **place(order.device)}
        row["options"] = kforge_options(order)
        row["compile_s"], row["failed"] = made.compile_s, made.failed
        row["kforge"] = regions() if "kforge" in made.calls else None
        row["error"] = errors(order, case, made)
        made.outputs.clear()
        for call in made.calls.values():
            call()
        wall = measure.wall(made.calls, order.device, order.measure_s)
        row["wall_us"], row["wall_ratio"] = summary(wall), speedup(wall)
        row["device_us"] = row["device_ratio"] = row["method"] = None
        if order.device == "cuda":
            timed, row["method"] = measure.device(made.calls, order.measure_s)
            row["device_us"], row["device_ratio"] = summary(timed), speedup(timed)
    return row
