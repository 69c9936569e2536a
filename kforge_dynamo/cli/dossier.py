"""The folder of one task: everything that the author of a kernel needs, person or program."""

from __future__ import annotations

import json
from pathlib import Path

from kforge_dynamo.cli.files import CANDIDATE_FILE, KERNEL, PLAN_FILE, TASK_FILE, device_of
from kforge_dynamo.codegen.builtin import BuiltinGenerator
from kforge_dynamo.errors import SettingsError
from kforge_dynamo.languages.triton import EXAMPLE
from kforge_dynamo.records.assignment import Assignment, candidate_text, task_text
from kforge_dynamo.records.candidate import Candidate, Launch, LaunchPlan
from kforge_dynamo.records.codec import plain
from kforge_dynamo.records.task import InputSpec
from kforge_dynamo.semantics import pytorch

_SCHEMES = {
    "strict": "every product component-wise as exact as fp32: schemes ieee, tf32x3",
    "highest": "fp32 accuracy: schemes ieee, tf32x3",
    "high": "operands may be rounded to 10 bits of mantissa (TF32), accumulation in fp32: also tf32",
    "medium": "operands may be rounded to bf16, accumulation in fp32: also bf16",
    "mixed": "operands may be rounded to fp16, accumulation in fp32: also fp16",
}


def write(assignment: Assignment, place: Path) -> None:
    """Fills the folder `place`; files of an earlier export are replaced, candidates stay. Raises: OSError."""
    (place / "candidates").mkdir(parents=True, exist_ok=True)
    (place / TASK_FILE).write_text(task_text(assignment), encoding="utf-8")
    (place / "reference.py").write_text(reference(assignment), encoding="utf-8")
    example = worked_example(assignment)
    folder = place / "example"
    folder.mkdir(exist_ok=True)
    suffix = {"cpp": ".cpp", "triton": ".py"}[example.language]
    (folder / f"{KERNEL}{suffix}").write_text(example.source, encoding="utf-8")
    plan = {"plan": plain(example.plan), "scheme": example.scheme}
    (folder / PLAN_FILE).write_text(json.dumps(plan, indent=1) + "\n", encoding="utf-8")
    (folder / CANDIDATE_FILE).write_text(candidate_text(example), encoding="utf-8")
    (place / "README.md").write_text(_readme(assignment, example, f"{KERNEL}{suffix}"), encoding="utf-8")


def worked_example(assignment: Assignment) -> Candidate:
    """The built-in generator's first guess for the task, where it has one for this device; else a small Triton kernel whose
    plan shows the form."""
    try:
        _, target = device_of(assignment, None)
        found = BuiltinGenerator().propose(assignment.task, assignment.sizes, target, assignment.numerics, (), 1)
    except SettingsError:
        found = ()
    if found:
        return found[0]
    launch = Launch("scaled", ("m", "cdiv(256, 128)"), ("in:0", "out:0", "size:m"), (("BLOCK", 128), ("N", 256)))
    return Candidate("triton", EXAMPLE, LaunchPlan((), (launch,)), "", "ieee", "example", None)


def reference(assignment: Assignment) -> str:
    """A Python program: sizes, inputs in their shapes and strides, and the task as a PyTorch function."""
    sizes = dict(zip(assignment.task.axes, assignment.sizes, strict=True))
    lines = [
        f'"""{assignment.title}: what the kernel must compute. The judge runs it in fp64; eager is the error to meet."""',
        "",
        "import torch",
        "",
        f"SIZES = {sizes!r}",
        "",
        "",
        "def inputs(seed=0):",
        '    """One set of inputs. The judge draws others: several distributions, hidden seeds, values its uses allow."""',
        "    torch.manual_seed(seed)",
        f"    m = dict(SIZES, device={assignment.device!r})",
        "    return [",
        *(f"        {_drawn(item)}," for item in assignment.task.inputs),
        "    ]",
        "",
        "",
        pytorch.source(assignment.task),
        "",
        'if __name__ == "__main__":',
        "    for value in reference(*inputs(), **SIZES):",
        "        print(tuple(value.shape), value.dtype, value.double().mean().item())",
        "",
    ]
    return "\n".join(lines)


def _drawn(item: InputSpec) -> str:
    shape = "(" + "".join(f'm["{extent}"], ' if isinstance(extent, str) else f"{extent}, " for extent in item.value.shape) + ")"
    place = f'dtype=torch.{item.value.dtype}, device=m["device"]'
    if item.value.dtype == "bool":
        text = f'(torch.rand({shape}, device=m["device"]) < 0.5)'
    elif item.value.dtype.startswith(("float", "bfloat")):
        text = f"torch.randn({shape}, {place})"
    else:
        text = f"torch.randint(0, 2, {shape}, {place})"
    order = sorted(range(len(item.strides)), key=lambda dim: item.strides[dim] == 1)
    if order == list(range(len(order))) or 1 not in item.strides:
        return text
    back = [order.index(dim) for dim in range(len(order))]
    return f"{text}.permute({order}).contiguous().permute({back})"


def _readme(assignment: Assignment, example: Candidate, kernel: str) -> str:
    axes = "\n".join(
        f"- `{item.axis}`: timed at {size}" + ("" if item.low == item.high else f", must be right from {item.low} to {item.high}")
        for item, size in zip(assignment.domain.ranges, assignment.sizes, strict=True)
    )
    inputs = "\n".join(
        f"- `in:{number}`: {item.value.dtype}, shape {tuple(item.value.shape)}, strides {tuple(item.strides)}"
        for number, item in enumerate(assignment.task.inputs)
    )
    outputs = "\n".join(
        f"- `out:{place}`: {assignment.task.value(number).dtype}, shape {tuple(assignment.task.value(number).shape)}, dense"
        for place, number in enumerate(assignment.task.outputs)
    )
    rule = _SCHEMES.get(assignment.numerics.fp32, assignment.numerics.fp32)
    return f"""# {assignment.title}

Write a kernel for `{assignment.device}` that computes `reference.py` and is faster than Inductor's version of it.

    kforge verify . example                    # judge the worked example
    kforge verify . candidates/mine.cpp        # judge yours; ends with status 0 only where it passed
    kforge evaluate --batch .                  # judge everything in candidates/
    kforge task submit . candidates/mine.cpp   # judge it and keep it where it wins: later compiles use it

## Sizes

{axes or "- none: every size is fixed"}

## Inputs and outputs

{inputs}
{outputs}

A stride of 0 repeats one element, 1 is contiguous, `dense` has no gap, `pitch` comes with the call.

## What is right

- Precision `{assignment.numerics.fp32}` for fp32 operands of the product: {rule}. fp16 and bf16 operands: accumulate and do
  the rest in fp32. A conversion to a narrower type in `reference.py` is a rounding and must be applied.
- Against the reference in fp64, RMS, 99.9th percentile and largest error are at most twice eager's, and so is the RMS error of
  each row and each column. NaN and infinity come out where eager has them.
- Two launches on equal inputs agree bit for bit, unless the plan says `"atomics": true`.
- Outputs arrive filled with NaN; inputs and everything around them must stay as they are.

## A candidate

One source and a launch plan as data; no host code. A folder with `{kernel}` and `plan.json`, or one `candidate.json`.
C++: one entry, and the plan may be left out:

    extern "C" __attribute__((visibility("default")))
    void kforge_entry(void* const* inputs, void* const* outputs, void* const* buffers,
                      const int64_t* sizes, const int64_t* strides, int threads);

`strides` are those of all inputs, in elements, one after the other; `sizes` follow the order above.

Triton: `@triton.jit` functions; a launch names its `kernel`, its `grid` and its `args`: `in:I`, `out:I`, `buf:NAME`,
`size:EXPR`, `stride:I:D`; `constants` go to the parameters of that name. Expressions know the names of the axes, integers,
`+ - * // %`, `cdiv`, `min` and `max`. `buffers` are scratch memory: name, dtype, elements.

The folder `example` holds a {example.language} candidate by {example.author}: source, `plan.json`, and both as `candidate.json`.
"""
