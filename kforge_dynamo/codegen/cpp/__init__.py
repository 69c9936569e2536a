"""The built-in generator for CPUs: C++ from a task and a schedule."""

from __future__ import annotations

from collections.abc import Sequence

from kforge_dynamo.codegen.cpp.folded import written
from kforge_dynamo.codegen.cpp.program import Inexpressible
from kforge_dynamo.codegen.cpp.schedule import Schedule
from kforge_dynamo.codegen.cpp.space import gain_us, neighbours, space
from kforge_dynamo.records.candidate import Candidate
from kforge_dynamo.records.codec import to_text
from kforge_dynamo.records.target import Numerics, Target
from kforge_dynamo.records.task import Task
from kforge_dynamo.semantics.algebra import fold

__all__ = ["AUTHOR", "Schedule", "emit", "gain_us", "neighbours", "prepares", "proves", "rejects", "space"]

AUTHOR = "builtin:cpp"
"""Who the candidates say wrote them."""


def rejects(task: Task, target: Target) -> str | None:
    """Why no kernel of this generator computes `task` on `target`; None when one does."""
    if target.kind != "cpu":
        return f"C++ kernels run on CPUs, the target is {target.kind}"
    try:
        written(task, Schedule("library" if task.anchor is not None else "none", 32), target)
    except Inexpressible as reason:
        return f"{reason}; Inductor keeps the region"
    return None


def prepares(task: Task) -> bool:
    """Whether a kernel may prepare weights ahead of all else: where a reduction moves into the right operand."""
    return fold(task) is not None


def proves(task: Task) -> bool:
    """Never: what is prepared is a sum over the weight, and to look whether it has changed costs as much as to add it up."""
    del task
    return False


def emit(task: Task, schedule: Schedule, sizes: Sequence[int], target: Target, numerics: Numerics) -> Candidate:
    """The candidate of `task` by `schedule`. The source serves all sizes of the axes; `sizes` only shaped the schedule.

    Raises: Inexpressible for a task that `rejects` refuses.
    """
    del sizes, numerics
    text = written(task, schedule, target)
    anchor = task.anchor
    narrow = anchor is not None and task.inputs[anchor.args[0]].value.dtype != "float32"  # type: ignore[index]
    scheme = "native" if narrow else "ieee"
    return Candidate("cpp", text.source, text.plan, to_text(schedule), scheme, AUTHOR)
