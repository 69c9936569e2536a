"""Runs candidates in Triton's interpreter on CPU tensors and judges them; a program of its own, because Triton decides at
import whether it interprets. Requests and answers are JSON lines: see `Request` and `answer`."""

from __future__ import annotations

import json
import os
import pathlib
import sys
import tempfile
import traceback
from dataclasses import replace

import numpy as np
import proof_scenes
import torch

from kforge_dynamo.codegen import triton as generator
from kforge_dynamo.languages.base import canonical_dims
from kforge_dynamo.languages.triton import LANGUAGE
from kforge_dynamo.records.codec import from_text
from kforge_dynamo.records.target import Numerics, Target
from kforge_dynamo.records.task import InputRole, InputSpec, Task
from kforge_dynamo.semantics.evaluate import Mode, Policy, dtype_of, evaluate, shape_of

HIGHEST = Numerics("highest", fp16_reduced=False, bf16_reduced=False, deterministic=False)
HOPPER = Target("cuda", "nvidia", "NVIDIA H200", "sm_90", 132, 232448, None, ("fp16_dot", "tf32", "bf16_dot", "tma"), ())


def tensor_for(spec: InputSpec, sizes: dict[str, int], noise: torch.Generator, fill: str) -> torch.Tensor:
    """A tensor of the spec's shape whose strides have its classes; "pitch" leaves gaps."""
    shape = [int(extent) for extent in shape_of(spec.value.shape, sizes)]
    classes = [0 if extent == 1 else stride for extent, stride in zip(shape, spec.strides, strict=True)]
    order = [p for p, c in enumerate(classes) if c not in (0, 1)] + [p for p, c in enumerate(classes) if c == 1]
    gaps = [3 if classes[p] == "pitch" and p != order[0] else 0 for p in order]
    if any(classes[p] == "pitch" for p in order) and len(order) > 1:
        gaps[-1] = 3
    storage = [shape[p] + gap for p, gap in zip(order, gaps, strict=True)]
    values = _values(storage, dtype_of(spec.value.dtype), noise, fill, spec.role is InputRole.LHS)
    values = values[tuple(slice(0, shape[p]) for p in order)]
    inverse = sorted(range(len(order)), key=lambda position: order[position])
    values = values.permute(inverse)
    for position, stride in enumerate(classes):
        if stride == 0:
            values = values.unsqueeze(position)
    return values.expand(shape)


def _values(shape: list[int], dtype: torch.dtype, noise: torch.Generator, fill: str, left: bool) -> torch.Tensor:
    if dtype == torch.bool:
        return torch.rand(shape, generator=noise) < 0.5
    if not dtype.is_floating_point:
        return torch.randint(0, 5, shape, generator=noise).to(dtype)
    values = torch.randn(shape, generator=noise)
    if fill == "positive":
        values = values.abs() + 0.1
    if fill == "integers":
        values = torch.randint(0, 2, shape, generator=noise).float()
    if fill == "edges" and len(shape) > 1:
        flat = values.view(-1)
        for place, value in ((1, float("inf")), (3, float("-inf")), (5, float("nan"))):
            flat[place * (flat.numel() // 7) % flat.numel()] = value
    if len(shape) == 2:
        values = _lines(values, noise, fill, left)
    return values.to(dtype)


def _lines(x: torch.Tensor, noise: torch.Generator, fill: str, left: bool) -> torch.Tensor:
    """Operands by lines: rows of the left one, columns of the right one."""
    middle = x.shape[1] // 2
    if fill == "same sign":
        return x.abs()
    if fill == "lognormal":
        return x * torch.exp(2 * torch.randn(x.shape, generator=noise))
    if fill in ("scaled", "extreme", "tiny"):
        reach = {"scaled": 20.0, "extreme": 55.0, "tiny": 7.0}[fill]
        exponents = (torch.rand(x.shape[0], 1, generator=noise) * 2 - 1) * reach - (70.0 if fill == "tiny" else 0.0)
        return x * torch.exp2(exponents)
    if fill == "one hot":
        return torch.zeros_like(x).scatter_(1, torch.randint(0, x.shape[1], (x.shape[0], 1), generator=noise), x[:, :1])
    if fill == "outlier":
        x[1::2, middle] *= 2.0**20
        x[::2, middle] = 0.0
    if fill == "padded":
        x[-(x.shape[0] // 3) :] = float("nan")
    if fill == "edges of fp32" and not left:
        return x * 2.0**-12  # so that no product overflows: where it does, the order of additions decides between inf and NaN
    if fill == "edges of fp32":
        x[0], x[1], x[2] = 0.0, x[1] * 2.0**-140, x[2] / x[2].abs().max() * 3e38
        x[3, middle], x[4, middle] = 3.4e38, -float("inf")
    return x


def answer(request: dict) -> dict:
    """Runs one request and returns what became of it, by output: worst error, eager's, and whether classes agree."""
    task = from_text(Task, request["task"])
    schedule = from_text(generator.Schedule, request["schedule"])
    sizes = dict(zip(task.axes, request["sizes"], strict=True))
    noise = torch.Generator().manual_seed(request["seed"])
    inputs = [tensor_for(spec, sizes, noise, request["fill"]) for spec in task.inputs]
    if request["weight"] is not None:
        inputs[1].copy_(torch.tensor(request["weight"]).t())
    candidate = generator.emit(task, schedule, request["sizes"], HOPPER, HIGHEST)
    if request["once"]:
        launches = tuple(item for item in candidate.plan.launches if not item.kernel.endswith("_exact"))
        candidate = replace(candidate, plan=replace(candidate.plan, launches=launches))
    with tempfile.TemporaryDirectory() as folder:
        artifact = LANGUAGE.build(candidate, task, HOPPER, pathlib.Path(folder))
        launch = LANGUAGE.load(artifact, candidate, task, canonical_dims(task))
    eager = evaluate(task, inputs, sizes)
    oracle = evaluate(task, inputs, sizes, Policy(Mode.ORACLE))
    outputs = [torch.full(tensor.shape, 7, dtype=tensor.dtype) for tensor in eager]
    before = [tensor.clone() for tensor in inputs]
    launch(inputs, outputs, request["sizes"])
    again = in_halves(launch, inputs, outputs, request["sizes"]) if request["halves"] else {}
    changed = any(not torch.equal(a.nan_to_num(), b.nan_to_num()) for a, b in zip(before, inputs, strict=True))
    return {
        **again,
        "launches": [item.kernel for item in candidate.plan.launches],
        "changed": changed,
        "lost": [column for column, some in enumerate((~outputs[0].isfinite()).flatten(0, -2).any(dim=0).tolist()) if some],
        "outputs": [judged(*group) for group in zip(outputs, eager, oracle, strict=True)],
    } | (relative(inputs, outputs[0], oracle[0]) if len(task.nodes) == 1 and task.anchor is not None else {})


def in_halves(launch, inputs: list[torch.Tensor], outputs: list[torch.Tensor], sizes: list[int]) -> dict:
    """Whether one preparation serves two calls of other rows, as the whole plan does."""
    prepared = launch.prepared()
    copies = prepared.copies(torch.device("cpu"))
    stand_ins = [tensor if n in prepared.weights else torch.full_like(tensor, 7) for n, tensor in enumerate(inputs)]
    prepared.pack(stand_ins, copies, sizes)
    same = []
    for _ in range(2):
        found = [torch.full_like(tensor, 7) for tensor in outputs]
        prepared.rest(inputs, [*found, *copies], sizes)
        same += [torch.equal(a.nan_to_num(), b.nan_to_num()) for a, b in zip(found, outputs, strict=True)]
    return {"halves": all(same), "kept": [buffer.name for buffer in prepared.buffers]}


def relative(inputs: list[torch.Tensor], output: torch.Tensor, oracle: torch.Tensor) -> dict:
    """The largest error of a bare product over |a_i| |b_j|, and over the sum of |a_ik| |b_kj|."""
    a, b = (value.double().nan_to_num(0.0, 0.0, 0.0).reshape(value.shape[-2:]) for value in inputs[:2])
    error = (output.double() - oracle).abs()
    finite = error.isfinite() & oracle.float().isfinite()
    least = 2.0**-119  # below, the products of parts underflow as products do
    norms, terms = a.norm(dim=1)[:, None] * b.norm(dim=0), a.abs() @ b.abs()
    return {name: float((error / scale.clamp(min=least))[finite].max()) for name, scale in (("norms", norms), ("terms", terms))}


def judged(output: torch.Tensor, eager: torch.Tensor, oracle: torch.Tensor) -> dict:
    """Errors over the finite elements, against the oracle, relative to its RMS; and whether the others are of one class."""
    exact = not output.dtype.is_floating_point
    out, ref, base = output.double(), oracle.double(), eager.double()
    finite = base.isfinite() & ref.isfinite()
    classes = bool((class_of(out) == class_of(base))[~finite].all()) and bool(out[finite].isfinite().all())
    scale = float(ref[finite].square().mean().sqrt()) if finite.any() else 1.0

    def worst(x: torch.Tensor) -> float:
        return float((x - ref)[finite].abs().max()) if finite.any() else 0.0

    ulp = 0.0 if exact else torch.finfo(output.dtype).eps * scale
    return {"error": worst(out), "eager": worst(base), "ulp": ulp, "classes": classes, "shape": output.shape == eager.shape}


def class_of(x: torch.Tensor) -> torch.Tensor:
    """0 finite, 1 and -1 the infinities, 2 NaN."""
    return torch.where(x.isnan(), 2.0, torch.where(x.isinf(), x.sign(), torch.zeros_like(x)))


def repair() -> None:
    """What the interpreter does otherwise than a device (triton 3.6 and 3.7): `tl.dot` of bf16 reads its bits as integers, and
    `tl.fma` rounds the product. Operands are widened first, and fma is computed in fp64."""
    language = __import__("triton.language", fromlist=["language"])
    interpreter = __import__("triton.runtime.interpreter", fromlist=["interpreter"])
    builder, handle = interpreter.InterpreterBuilder, interpreter.TensorHandle
    dot = builder.create_dot

    def widened(operand):
        if getattr(operand.dtype, "scalar", operand.dtype) != language.bfloat16:
            return operand
        return handle((operand.data.astype(np.uint32) << 16).view(np.float32), language.float32)

    def fused(self, x, y, z):
        exact = x.data.astype(np.float64) * y.data.astype(np.float64) + z.data.astype(np.float64)
        return handle(exact.astype(np.float32), z.dtype.scalar)

    builder.create_dot = lambda self, a, b, *rest: dot(self, widened(a), widened(b), *rest)
    builder.create_fma = fused


def serve() -> None:
    """Answers requests until standard input ends."""
    assert os.environ.get("TRITON_INTERPRET") == "1"
    torch.set_num_threads(1)
    repair()
    for line in sys.stdin:
        try:
            request = json.loads(line)
            result = getattr(proof_scenes, request["scene"])(request) if "scene" in request else answer(request)
        except Exception:  # noqa: BLE001 the parent's test fails with these words
            result = {"failed": traceback.format_exc()}
        sys.stdout.write(json.dumps(result) + "\n")
        sys.stdout.flush()


if __name__ == "__main__":
    serve()
