"""Kernels of tasks whose reduction moves into the right operand: the operand reduced, the small product, and lost rows again."""

from __future__ import annotations

from dataclasses import replace

from kforge_dynamo.codegen.cpp.program import Inexpressible
from kforge_dynamo.codegen.cpp.schedule import Schedule
from kforge_dynamo.codegen.cpp.source import PARAMETERS, Part, Written, arguments, doors, lanes_of, opening, part, write
from kforge_dynamo.records.candidate import Buffer, Launch, LaunchPlan
from kforge_dynamo.records.target import Target
from kforge_dynamo.records.task import InputSpec, Task
from kforge_dynamo.semantics.algebra import Folded, fold
from kforge_dynamo.semantics.cost import ITEM_BYTES


def written(task: Task, schedule: Schedule, target: Target) -> Written:
    """The source and plan of `task` by `schedule`, folded where it says so. Raises: Inexpressible."""
    if not schedule.fold:
        return write(task, schedule, target)
    found = fold(task)
    if found is None:
        raise Inexpressible("the reduction over the product's columns does not move into the operand")
    if schedule.product not in ("own", "dot"):
        raise Inexpressible("the product with the reduced operand is computed by the kernel's own loops")
    small = part(found.task, replace(schedule, fold=False), target)
    whole = part(task, _exact(target), target)
    return _together(task, found, small, whole, target)


def _exact(target: Target) -> Schedule:
    """The kernel for rows that the fold has lost; they are rare, so any will do that takes every layout."""
    return (
        Schedule("own", 24, 0, "columns", 6, 2, 256) if lanes_of(target) < 16 else Schedule("own", 24, 0, "columns", 12, 2, 256)
    )


def _named(prefix: str, buffers: tuple[Buffer, ...]) -> tuple[Buffer, ...]:
    return tuple(replace(buffer, name=f"{prefix}_{buffer.name}") for buffer in buffers)


def _together(task: Task, folded: Folded, small: Part, whole: Part, target: Target) -> Written:
    (axis,) = task.row_axes
    depth = folded.task.inputs[folded.rhs].value.cols[0]
    own = (
        Buffer("reduced", "float32", f"{depth} * {folded.groups}"),
        Buffer("told", "float32", f"{axis} * {folded.groups}"),
        *(Buffer(f"vector{number}", "float32", str(folded.groups)) for number in folded.vectors),
    )
    buffers = (*own, *_named("small", small.buffers), *_named("whole", whole.buffers))
    body = "\n".join(
        [
            "namespace small {", small.body, "}",
            "namespace whole {", whole.body, "}",
            f"static void pack{PARAMETERS} {{",
            *_reduce(task, folded),
            "}",
            f"static void entry{PARAMETERS} {{",
            *_multiply(task, folded, len(own)),
            *_again(task, folded, len(own) + len(small.buffers)),
            "}\n",
        ]
    )  # fmt: skip
    texts = (*small.texts, *whole.texts, "fold.h")
    reduced = [*(f"in:{number}" for number in _places(folded)), *(f"buf:{own[at].name}" for at in _places(folded).values())]
    pack = Launch("kforge_pack", ("1",), tuple(reduced), weights_only=True)
    plan = LaunchPlan(buffers, (pack, Launch("kforge_entry", ("1",), arguments(task, buffers))))
    return Written("\n".join([opening(texts, target), body, doors(task, len(buffers), packs=True)]), plan)


def _stride_at(task: Task, index: int) -> int:
    """Where the strides of an input begin among all."""
    return sum(len(item.strides) for item in task.inputs[:index])


def _places(folded: Folded) -> dict[int, int]:
    """The buffer of each reduced input."""
    return {folded.rhs: 0, **{number: 2 + place for place, number in enumerate(folded.vectors)}}


def _reduce(task: Task, folded: Folded) -> list[str]:
    depth = folded.task.inputs[folded.rhs].value.cols[0]
    scale = f"1.0 / {folded.width}" if folded.mean else "1.0"
    lines = []
    for number, place in _places(folded).items():
        at, source = _stride_at(task, number) + 1, f"(const float*)inputs[{number}]"
        k, steps = (depth, f"strides[{at}], strides[{at + 1}]") if number == folded.rhs else (1, f"1, strides[{at}]")
        what = f"(float*)buffers[{place}], {source}, {steps}, {k}, {folded.groups}, {folded.width}, {scale}, nullptr"
        lines.append(f"fold_columns({{{what}}}, threads);")
    return lines


def _multiply(task: Task, folded: Folded, own: int) -> list[str]:
    """The small product; its inputs' strides are the call's but for those that were reduced."""
    places = _places(folded)
    inputs = [f"buffers[{places[i]}]" if i in places else f"inputs[{i}]" for i in range(len(task.inputs))]
    outputs = [*(f"outputs[{i}]" for i in range(len(task.outputs))), "buffers[1]"]
    steps: list[str] = []
    for index, item in enumerate(task.inputs):
        if index in places:
            steps += _dense(folded.task.inputs[index])
        else:
            steps += [f"strides[{_stride_at(task, index) + d}]" for d in range(len(item.strides))]
    return [
        f"void* const reads[] = {{{', '.join(inputs)}}};",
        f"void* const writes[] = {{{', '.join(outputs)}}};",
        f"const int64_t steps[] = {{{', '.join(steps)}}};",
        f"small::entry(reads, writes, buffers + {own}, sizes, steps, threads);",
    ]


def _dense(item: InputSpec) -> list[str]:
    """Strides of a reduced input, which is dense from the dimension of stride 1 outwards."""
    extents = [int(extent) for extent in item.value.shape]
    order = sorted((d for d, kind in enumerate(item.strides) if kind != 0), key=lambda d: (item.strides[d] != 1, -d))
    steps, total = [0] * len(extents), 1
    for d in order:
        steps[d], total = total, total * extents[d]
    return [str(step) for step in steps]


def _again(task: Task, folded: Folded, skipped: int) -> list[str]:
    """The rows in which the reduced value is not finite, by the original kernel."""
    lines = [
        f"const Lost lost = lost_rows((const float*)buffers[1], sizes[0], {folded.groups});",
        "if (lost.end == 0) return;",
        "const int64_t rows[] = {lost.end - lost.first};",
    ]
    inputs, outputs = [], []
    for index, item in enumerate(task.inputs):
        step = f" + lost.first * strides[{_stride_at(task, index)}] * {ITEM_BYTES[item.value.dtype]}"
        inputs.append(f"(char*)inputs[{index}]{step if item.value.varies_by_row else ''}")
    for place, number in enumerate(task.outputs):
        spec = task.value(number)
        if not spec.varies_by_row:
            raise Inexpressible("an output that does not vary by row, in a kernel that does some rows again")
        size = ITEM_BYTES[spec.dtype]
        for extent in spec.cols:
            size *= int(extent)
        outputs.append(f"(char*)outputs[{place}] + lost.first * {size}")
    lines += [f"void* const again[] = {{{', '.join(inputs)}}};", f"void* const places[] = {{{', '.join(outputs)}}};"]
    return [*lines, f"whole::entry(again, places, buffers + {skipped}, rows, strides, threads);"]
