"""Facts of a task and a device in words: sizes, strides, the precision rule, peaks."""

from __future__ import annotations

from collections.abc import Sequence

from kforge_dynamo.agents.search import Problem
from kforge_dynamo.records.target import Numerics
from kforge_dynamo.records.task import InputSpec, Task, ValueSpec
from kforge_dynamo.semantics.cost import ITEM_BYTES, elements, gemm_flops, moved_bytes

_FP32 = {
    "highest": "products of fp32 operands are as exact as fp32 arithmetic with fp32 accumulation (errors at most twice eager's)",
    "strict": "products of fp32 operands are exact to fp32 component by component: plain fp32, or three TF32 products (tf32x3)",
    "high": "fp32 operands may be rounded to TF32 (10 bits of mantissa), accumulation in fp32",
    "medium": "fp32 operands may be rounded to bf16, accumulation in fp32",
    "mixed": "fp32 operands may be rounded to fp16, accumulation in fp32",
}
_STRIDES = {"dense": "no gap", "pitch": "any, read it from the strides passed", 0: "0 (does not vary)", 1: "1"}


def precision_text(task: Task, numerics: Numerics) -> str:
    """What results are promised, in words."""
    dtypes = {item.value.dtype for item in task.inputs} | {node.out.dtype for node in task.nodes}
    lines = []
    if dtypes & {"float16", "bfloat16"}:
        lines.append(
            "half-precision operands: multiply them as they are, accumulate and compute the epilogue in fp32, round at the end"
        )
        lines.append("where the task says .to(torch.float16) or .to(torch.bfloat16) the value is rounded there")
    if "float32" in dtypes:
        lines.append(_FP32[numerics.fp32])
    if numerics.deterministic:
        lines.append("no atomic additions: two runs must agree bit by bit")
    lines.append("variance by two passes or Welford, never E[x^2] - E[x]^2; exp after subtracting the maximum")
    return "\n".join(f"- {line}" for line in lines)


def shapes_text(task: Task, sizes: Sequence[int]) -> str:
    """Sizes of the axes, then each input and output with dtype, shape and strides."""
    axes = dict(zip(task.axes, sizes, strict=True))
    lines = ["timed at " + (", ".join(f"{axis} = {size}" for axis, size in axes.items()) or "fixed sizes")]
    for number, item in enumerate(task.inputs):
        lines.append(f"in:{number} {item.role.value}: {_value(item.value)}, strides by dimension: {_strides(item)}")
    for number, value in enumerate(task.outputs):
        spec = task.value(value)
        lines.append(f"out:{number}: {_value(spec)}, {elements(spec, axes) * ITEM_BYTES[spec.dtype]:,} bytes")
    work = f"{gemm_flops(task, sizes):,} floating-point operations in products, {moved_bytes(task, sizes):,} bytes in and out"
    return "\n".join(f"- {line}" for line in [*lines, work])


def _value(spec: ValueSpec) -> str:
    return f"{spec.dtype} ({', '.join(str(extent) for extent in spec.shape)})"


def _strides(item: InputSpec) -> str:
    return ", ".join(_STRIDES.get(stride, str(stride)) for stride in item.strides)


def target_text(problem: Problem) -> str:
    """The device: name, units, memory, features, peaks, and the time that the roofline allows."""
    target = problem.target
    lines = [
        f"{target.name} ({target.kind}, {target.arch}), {target.units} {'threads' if target.kind == 'cpu' else 'multiprocessors'}"
    ]
    if target.shared_bytes:
        lines.append(f"shared memory of a block: {target.shared_bytes:,} bytes")
    if target.features:
        lines.append(f"features: {', '.join(target.features)}")
    lines += [f"{peak.name.replace('_', ' ')}: {peak.value:.4g} {peak.unit}" for peak in target.peaks]
    if problem.floor_us is not None:
        lines.append(f"no kernel can be faster than {problem.floor_us:.1f} us here (roofline)")
    return "\n".join(f"- {line}" for line in lines)
