"""A launch plan in two: the launches that prepare weights, and those of every call, with what passes between them.

In either half the buffers that pass are outputs behind those of the task (in the first half they are the only ones), so that
whoever runs a half allocates them.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

from kforge_dynamo.errors import RecordError
from kforge_dynamo.records.candidate import Buffer, Launch, LaunchPlan
from kforge_dynamo.records.expression import compile_sizes
from kforge_dynamo.records.task import Task


@dataclass(frozen=True, slots=True)
class Halves:
    """`kept` are the buffers that `pack` writes and `rest` reads."""

    pack: LaunchPlan
    rest: LaunchPlan
    kept: tuple[Buffer, ...]


def halves(plan: LaunchPlan, outputs: int) -> Halves | None:
    """The two halves of a plan of a task with this many outputs; None where it prepares nothing that a call needs."""
    rest = tuple(launch for launch in plan.launches if not launch.weights_only)
    first, second = _used(plan.prepack), _used(rest)
    kept = tuple(buffer for buffer in plan.buffers if buffer.name in first & second)
    if not kept:
        return None
    return Halves(_half(plan, plan.prepack, first, kept, 0), _half(plan, rest, second, kept, outputs), kept)


def passed_in(plan: LaunchPlan, outputs: int, names: tuple[str, ...]) -> LaunchPlan:
    """The whole plan, with the buffers of these names as outputs behind those of a task that has so many; no launch is marked
    any more."""
    return _half(plan, plan.launches, {buffer.name for buffer in plan.buffers}, tuple(_named(plan, names)), outputs)


def _named(plan: LaunchPlan, names: tuple[str, ...]) -> list[Buffer]:
    known = {buffer.name: buffer for buffer in plan.buffers}
    return [known[name] for name in names]


def fault(plan: LaunchPlan, task: Task) -> str | None:
    """Why what the plan prepares may not outlive a call, None where it may: it follows from weights alone, for all sizes."""
    varying = [number for number in plan.packed_inputs if task.inputs[number].value.varies_by_row]
    if varying:
        return f"a launch that prepares weights reads input {varying[0]}, which varies by row"
    used = _used(plan.prepack)
    texts = [buffer.elements for buffer in plan.buffers if buffer.name in used]
    for launch in plan.prepack:
        texts += launch.grid
        for kind, *words in (argument.split(":") for argument in launch.args):
            texts += words if kind == "size" else words[2:] if kind == "desc" else ()
    try:
        compile_sizes(texts, ())()
    except RecordError as error:
        return f"a launch that prepares weights needs a size of the call: {error}"
    return None


def _used(launches: tuple[Launch, ...]) -> set[str]:
    words = [argument.removeprefix("desc:").split(":") for launch in launches for argument in launch.args]
    return {rest[0] for kind, *rest in words if kind == "buf"}


def _half(plan: LaunchPlan, launches: tuple[Launch, ...], used: set[str], kept: tuple[Buffer, ...], start: int) -> LaunchPlan:
    places = {buffer.name: start + place for place, buffer in enumerate(kept)}
    moved = tuple(
        replace(launch, weights_only=False, args=tuple(_moved(argument, places) for argument in launch.args))
        for launch in launches
    )
    buffers = tuple(buffer for buffer in plan.buffers if buffer.name in used and buffer.name not in places)
    return replace(plan, buffers=buffers, launches=moved, proof="")


def _moved(argument: str, places: dict[str, int]) -> str:
    head = "desc:" if argument.startswith("desc:") else ""
    kind, *rest = argument.removeprefix("desc:").split(":")
    if kind != "buf" or rest[0] not in places:
        return argument
    return head + ":".join(["out", str(places[rest[0]]), *rest[1:]])
