"""Launches of a task whose reduction moves into the right operand: the operand reduced, the small product, and lost rows again.

The right operand is summed in fp64 by as many programs as the device has room for, each a part of the columns; a second
launch adds the parts and rounds. Both read weights alone. Rows whose reduced value is not finite are marked in `lost`, and
the launches of the original task do those rows again.
"""

from __future__ import annotations

from dataclasses import replace

from kforge_dynamo.codegen.triton.forms import Unsupported
from kforge_dynamo.codegen.triton.kernel import Kernel
from kforge_dynamo.codegen.triton.launches import kernels_of, kernels_of_lost_rows
from kforge_dynamo.codegen.triton.operands import stride_text, times_text
from kforge_dynamo.codegen.triton.schedule import Schedule
from kforge_dynamo.codegen.triton.signature import Signature
from kforge_dynamo.records.candidate import Buffer, Launch
from kforge_dynamo.records.task import Task
from kforge_dynamo.semantics.algebra import Folded, fold

_ALONG_K, _ALONG_N, _ALONG_VECTOR = 128, 32, 4096
"""Elements of the right operand that a program adds at a time: whole lines of the cache whichever way it lies; and of a vector.
Each is added to its own sum, and the sums are added at the end: a reduction in the loop would make warps wait in each step."""
_PROGRAMS = 8
"""Programs a multiprocessor that are needed to keep the memory busy."""
_MARKED = 16
"""Rows of a program that marks what is lost."""


def folded_kernels(task: Task, schedule: Schedule, units: int) -> list[Kernel]:
    """All launches of `task` by a schedule with `fold`. Raises: Unsupported."""
    found = fold(task)
    if found is None:
        raise Unsupported("the reduction over the product's columns does not move into the operand")
    small = [_turned(kernel, found) for kernel in kernels_of(found.task, replace(schedule, fold=False), units)]
    whole = Schedule("ieee", 64, 64, 16, 8, 4, 2)
    again = [_apart(kernel) for kernel in kernels_of_lost_rows(task, whole, units)]
    before = [kernel for number in (found.rhs, *found.vectors) for kernel in _reduced(task, found, number, units)]
    return [*before, *small, _marked(task, found), *again]


def parts_of(folded: Folded, depth: int, units: int) -> int:
    """How many programs share the columns of a group."""
    others = -(-depth // _ALONG_K) * folded.groups
    return max(1, min(-(-_PROGRAMS * units // others), -(-folded.width // _ALONG_N))) if depth > 1 else 1


def _reduced(task: Task, folded: Folded, number: int, units: int) -> list[Kernel]:
    """An input's columns summed group by group into the buffer `reduced` + its number, (groups, K); a vector's K is 1."""
    depth = int(folded.task.inputs[folded.rhs].value.cols[0]) if number == folded.rhs else 1
    parts = parts_of(folded, depth, units)
    along_k, along_n = (_ALONG_K, _ALONG_N) if depth > 1 else (1, min(_ALONG_VECTOR, 1 << (folded.width - 1).bit_length()))
    share = -(-folded.width // parts)
    signature = Signature()
    steps = [stride_text(task, signature, number, d) for d in range(len(task.row_axes), len(task.inputs[number].strides))]
    reads = f"{signature.input(number)} + {times_text('column', steps[-1])}[:, None]"
    reads += f" + {times_text('k', steps[0])}[None, :]" if number == folded.rhs else " + k[None, :]"
    inside = "(at < last)[:, None] & (k < K)[None, :]"
    target = signature.buffer("sums" if parts > 1 else f"reduced{number}")
    body = [
        f"k = tl.program_id(0) * {along_k} + tl.arange(0, {along_k})",
        f"group = tl.program_id(1) // {parts}",
        f"first = tl.program_id(1) % {parts} * {share}",
        f"last = tl.minimum(first + {share}, {folded.width})",
        f"each = tl.zeros(({along_n}, {along_k}), tl.float64)",
        f"for start in range(first, last, {along_n}):",
        f"    at = start + tl.arange(0, {along_n})",
        f"    column = group * {folded.width} + at",
        f"    x = tl.load({reads}, mask={inside}, other=0.0)",
        "    each += x.to(tl.float64)",
        "total = tl.sum(each, axis=0)",
        *([] if parts > 1 else _rounded(folded)),
        f"tl.store({target} + tl.program_id(1) * K + k, total, mask=k < K)",
    ]
    grid = (str(-(-depth // along_k)), str(folded.groups * parts))
    buffer = Buffer(f"reduced{number}", "float32", str(folded.groups * depth))
    sums = Buffer("sums", "float64", str(folded.groups * parts * depth))
    first = _kernel(f"reduce{number}", signature, body, grid, depth, (buffer, sums) if parts > 1 else (buffer,))
    return [first, _added(folded, depth, parts)] if parts > 1 else [first]


def _added(folded: Folded, depth: int, parts: int) -> Kernel:
    """The parts added, in order."""
    signature = Signature()
    sums, reduced = signature.buffer("sums"), signature.buffer(f"reduced{folded.rhs}")
    body = [
        f"k = tl.program_id(0) * {_ALONG_K} + tl.arange(0, {_ALONG_K})",
        f"total = tl.zeros(({_ALONG_K},), tl.float64)",
        f"for part in range({parts}):",
        f"    total += tl.load({sums} + (tl.program_id(1) * {parts} + part) * K + k, mask=k < K, other=0.0)",
        *_rounded(folded),
        f"tl.store({reduced} + tl.program_id(1) * K + k, total, mask=k < K)",
    ]
    return _kernel("add_right", signature, body, (str(-(-depth // _ALONG_K)), str(folded.groups)), depth, ())


def _rounded(folded: Folded) -> list[str]:
    """A mean divides in fp64, before the one rounding."""
    return [*([f"total = total / {folded.width}"] if folded.mean else []), "total = total.to(tl.float32)"]


def _kernel(name: str, signature: Signature, body: list[str], grid: tuple[str, ...], depth: int,
            buffers: tuple[Buffer, ...]) -> Kernel:  # fmt: skip
    names = [*signature.parameters, "K: tl.constexpr"]
    source = f"@triton.jit\ndef {name}({', '.join(names)}):\n" + "\n".join(f"    {line}" for line in body) + "\n"
    return Kernel(source, Launch(name, grid, signature.arguments, (("K", depth),), 4, 1, weights_only=True), buffers)


def _marked(task: Task, folded: Folded) -> Kernel:
    """`lost` is 1 for the rows in which a reduced value is not finite."""
    signature = Signature()
    (axis,) = task.row_axes
    rows, told, lost = signature.size(axis), signature.buffer("told"), signature.buffer("lost")
    block = min(256, 1 << max(0, folded.groups - 1).bit_length())
    body = [
        f"row = tl.program_id(0) * {_MARKED} + tl.arange(0, {_MARKED})",
        f"row_ok = row < {rows}",
        f"mark = tl.zeros(({_MARKED},), tl.int32)",
        f"for start in range(0, {folded.groups}, {block}):",
        f"    group = start + tl.arange(0, {block})",
        f"    place = row.to(tl.int64)[:, None] * {folded.groups} + group[None, :]",
        f"    x = tl.load({told} + place, mask=row_ok[:, None] & (group < {folded.groups})[None, :], other=0.0)",
        '    mark = tl.maximum(mark, tl.max(tl.where(tl.abs(x) < float("inf"), 0, 1), axis=1))',
        f"tl.store({lost} + row, mark, mask=row_ok)",
    ]
    source = (
        f"@triton.jit\ndef mark_rows({', '.join(signature.parameters)}):\n" + "\n".join(f"    {line}" for line in body) + "\n"
    )
    launch = Launch("mark_rows", (f"cdiv({axis}, {_MARKED})",), signature.arguments, (), 4, 1)
    buffers = (Buffer("told", "float32", f"{axis}*{folded.groups}"), Buffer("lost", "int32", axis))
    return Kernel(source, launch, buffers)


def _turned(kernel: Kernel, folded: Folded) -> Kernel:
    """A launch of the small task in terms of the original's arguments and the plan's buffers."""
    depth, last = folded.task.inputs[folded.rhs].value.cols[0], len(folded.task.outputs) - 1
    names = {f"stride:{folded.rhs}:2": f"size:{depth}", f"out:{last}": "buf:told"}
    starts = [(f"desc:in:{folded.rhs}:", f"desc:buf:reduced{folded.rhs}:"), (f"desc:out:{last}:", "desc:buf:told:")]
    for number in (folded.rhs, *folded.vectors):
        names[f"in:{number}"] = f"buf:reduced{number}"
        names |= _dense_strides(folded, number) if number != folded.rhs else {}
    args = []
    for argument in kernel.launch.args:
        for old, new in starts:
            argument = argument.replace(old, new, 1) if argument.startswith(old) else argument
        args.append(names.get(argument, argument))
    return replace(kernel, launch=replace(kernel.launch, args=tuple(args)))


def _dense_strides(folded: Folded, number: int) -> dict[str, str]:
    """The strides of a reduced vector over several dimensions, as sizes."""
    item = folded.task.inputs[number]
    found, total = {}, 1
    for dimension in reversed(range(len(item.strides))):
        if item.strides[dimension] == "dense":
            found[f"stride:{number}:{dimension}"] = f"size:{total}"
        total *= int(item.value.shape[dimension])
    return found


def _apart(kernel: Kernel) -> Kernel:
    """A launch of the original task under names that the small one's do not have."""
    name = kernel.launch.kernel
    args = tuple(
        argument.replace("buf:", "buf:whole_", 1) if argument.startswith("buf:") and argument != "buf:lost" else argument
        for argument in kernel.launch.args
    )
    return Kernel(
        kernel.source.replace(f"def {name}(", f"def whole_{name}(", 1),
        replace(kernel.launch, kernel=f"whole_{name}", args=args),
        tuple(replace(buffer, name=f"whole_{buffer.name}") for buffer in kernel.buffers),
    )
