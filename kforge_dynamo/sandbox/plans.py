"""Is a launch plan one? Every name, number and expression in it is checked before anything is built, so that what is wrong is
said once and in words."""

from __future__ import annotations

from collections.abc import Sequence

from kforge_dynamo.errors import RecordError
from kforge_dynamo.languages.formats import allowed_formats
from kforge_dynamo.records.candidate import Buffer, Candidate, Launch, LaunchPlan
from kforge_dynamo.records.expression import compile_sizes
from kforge_dynamo.records.prepack import fault
from kforge_dynamo.records.task import Task
from kforge_dynamo.sandbox.memory import region_bytes
from kforge_dynamo.semantics.evaluate import dtype_of

DTYPES = ("float32", "float64", "float16", "bfloat16", "int64", "int32", "int8", "uint8", "bool")
"""What a buffer may hold."""
_MOST_LAUNCHES, _MOST_BUFFERS, _MOST_ARGS = 64, 64, 256
_WARPS = (1, 2, 4, 8, 16, 32)
_MOST_STAGES = 16
_REGIONS, _SPARE_BYTES = 3, 2 << 30  # a search keeps within three times the region plus 2 GB


def check_plan(plan: LaunchPlan, task: Task, sizes: Sequence[int]) -> None:
    """Raises: RecordError with the part of the plan that is wrong, what was expected and what was found."""
    if len(plan.launches) > _MOST_LAUNCHES or len(plan.buffers) > _MOST_BUFFERS:
        found = f"{len(plan.launches)} launches and {len(plan.buffers)} buffers"
        raise RecordError(f"{found}, at most {_MOST_LAUNCHES} of each are taken")
    names = [buffer.name for buffer in plan.buffers]
    if len(set(names)) != len(names):
        raise RecordError(f"two buffers have one name: {sorted(names)}")
    total = sum(_buffer_bytes(buffer, task, sizes) for buffer in plan.buffers)
    most = _REGIONS * region_bytes(task, sizes) + _SPARE_BYTES
    if total > most:
        raise RecordError(f"the buffers need {total >> 20} MiB at sizes {tuple(sizes)}, at most {most >> 20} MiB are given")
    early = fault(plan, task)
    if early is not None:
        raise RecordError(early)
    for number, launch in enumerate(plan.launches):
        _check_launch(launch, f"launch {number}", task, sizes, frozenset(names))


def buffer_downcast(candidate: Candidate, task: Task) -> str | None:
    """Why a buffer's dtype is a downcast: a store into it rounds, without a word in the source. None when there is none."""
    allowed = allowed_formats(task, candidate.scheme)
    for buffer in candidate.plan.buffers:
        if buffer.dtype in ("float16", "bfloat16") and buffer.dtype not in allowed:
            words = f"the buffer {buffer.name} rounds to {buffer.dtype}"
            return f"{words}, which the scheme {candidate.scheme!r} does not name: a downcast"
    return None


def _buffer_bytes(buffer: Buffer, task: Task, sizes: Sequence[int]) -> int:
    if buffer.dtype not in DTYPES:
        raise RecordError(f"buffer {buffer.name}: expected one of {DTYPES} as dtype, found {buffer.dtype!r}")
    if not buffer.name.isidentifier():
        raise RecordError(f"buffer {buffer.name[:40]!r}: a name of letters, digits and _ was expected")
    (elements,) = _evaluated((buffer.elements,), task, sizes, f"buffer {buffer.name}")
    if elements < 0:
        raise RecordError(f"buffer {buffer.name}: {buffer.elements} is {elements} at sizes {tuple(sizes)}")
    return elements * dtype_of(buffer.dtype).itemsize


def _check_launch(launch: Launch, where: str, task: Task, sizes: Sequence[int], buffers: frozenset[str]) -> None:
    if not launch.kernel.isidentifier():
        raise RecordError(f"{where}: {launch.kernel[:40]!r} is no name of a kernel")
    if not 1 <= len(launch.grid) <= 3:
        raise RecordError(f"{where}: a grid has one to three extents, found {len(launch.grid)}")
    if len(launch.args) > _MOST_ARGS:
        raise RecordError(f"{where}: {len(launch.args)} arguments, at most {_MOST_ARGS} are passed")
    grid = _evaluated(launch.grid, task, sizes, f"{where}, grid")
    if min(grid) < 1:
        raise RecordError(f"{where}: the grid {launch.grid} is {grid} at sizes {tuple(sizes)}")
    if launch.num_warps not in _WARPS or not 1 <= launch.num_stages <= _MOST_STAGES:
        raise RecordError(f"{where}: num_warps {launch.num_warps} is not in {_WARPS}, or num_stages {launch.num_stages} is odd")
    for argument in launch.args:
        _check_argument(argument, where, task, sizes, buffers)


def _check_argument(argument: str, where: str, task: Task, sizes: Sequence[int], buffers: frozenset[str]) -> None:
    kind, *rest = argument.split(":")
    place = f"{where}, {argument[:60]}"
    known = {"in": len(task.inputs), "out": len(task.outputs)}
    if kind == "desc" and len(rest) == 7:
        _check_argument(":".join(rest[:2]), where, task, sizes, buffers)
        _evaluated(rest[2:], task, sizes, place)
    elif kind == "size" and len(rest) == 1:
        _evaluated(rest, task, sizes, place)
    elif kind == "buf" and len(rest) == 1:
        if rest[0] not in buffers:
            raise RecordError(f"{where}: {argument} names none of the buffers {sorted(buffers)}")
    elif kind in known and len(rest) == 1:
        _index(rest[0], known[kind], place)
    elif kind == "stride" and len(rest) == 2:
        number = _index(rest[0], known["in"], place)
        _index(rest[1], len(task.inputs[number].value.shape), place)
    else:
        raise RecordError(f"{where}: {argument[:60]!r} is none of in:I, out:I, buf:NAME, size:EXPR, stride:I:D, desc:...")


def _index(text: str, count: int, where: str) -> int:
    if not text.isascii() or not text.isdigit() or int(text[:9]) >= count:
        raise RecordError(f"{where}: a number below {count} was expected, found {text[:20]!r}")
    return int(text)


def _evaluated(expressions: Sequence[str], task: Task, sizes: Sequence[int], where: str) -> tuple[int, ...]:
    try:
        found = compile_sizes(list(expressions), task.axes)(*sizes)
    except (RecordError, ArithmeticError, ValueError, RecursionError, MemoryError) as error:
        raise RecordError(f"{where}: {str(error)[-200:]}") from error
    if any(abs(value) >= 1 << 62 for value in found):
        raise RecordError(f"{where}: {list(expressions)} does not fit 63 bits at sizes {tuple(sizes)}")
    return found
