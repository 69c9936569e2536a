"""`Site`: one place in a compiled graph where a winner is called. It travels as text inside the compiled graph.

A graph that Inductor cached carries its sites with it, so that a later process finds the winners again, and computes the
region by the reference when one is gone.
"""

from __future__ import annotations

from dataclasses import dataclass, field

from kforge_dynamo.records.codec import LATER
from kforge_dynamo.records.outcome import CacheKey
from kforge_dynamo.records.task import Task


@dataclass(frozen=True, slots=True)
class Site:
    """`raw_dims` as `languages.base.RawDims`; `output_ranks` of the tensors the graph expects.

    `sizes` are those of the task's axes when the graph was compiled; where they are not `fixed`, a call passes its own.
    `winner` is the digest of the candidate this graph was compiled for, empty where a search was still under way.
    `strides` are those of the tensors passed, where Inductor keeps every one of them at a number; else None.
    `weights` are the numbers of the inputs that are parameters or buffers of the model (or views of them) in a graph without
    gradients, where copies of them may be kept. A call then passes, behind all else, the tensor each of them is a view of.
    `proven`: each call finds out on the device whether the weights are those that the copies were made of.
    """

    key: CacheKey
    task: Task
    raw_dims: tuple[tuple[int | None, ...], ...]
    output_ranks: tuple[int, ...]
    sizes: tuple[int, ...]
    fixed: bool
    device: str
    winner: str
    strides: tuple[tuple[int, ...], ...] | None = None
    weights: tuple[int, ...] = field(default=(), metadata=LATER)
    proven: bool = field(default=False, metadata=LATER)
