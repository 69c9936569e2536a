"""How many threads torch uses for what: the candidate runs on the user's number, the check of a small region on one.

A barrier between two threads costs a time slice wherever another process (a compiler, say) wants the second core, and the
check of a small region is some thousand short operations.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager

import torch

from kforge_dynamo.records.task import Task
from kforge_dynamo.sandbox.rows import flop, value_bytes

_SMALL_FLOP = 1 << 30
_SMALL_BYTES = 1 << 26


@contextmanager
def threads(count: int) -> Iterator[None]:
    """torch's number of threads is `count` inside."""
    before = torch.get_num_threads()
    torch.set_num_threads(count)
    try:
        yield
    finally:
        torch.set_num_threads(before)


def for_checks(task: Task, sizes: Sequence[int], most: int) -> int:
    """The number of threads for oracle, e0 and gate at these sizes, at most `most`."""
    axes = dict(zip(task.axes, sizes, strict=True))
    small = flop(task, sizes) <= _SMALL_FLOP and value_bytes(task, axes, 8) <= _SMALL_BYTES
    return 1 if small else most
