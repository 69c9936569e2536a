"""`Schedule`: the choices that make one kernel of a task."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Schedule:
    """How the product is computed and how the rows are divided.

    `product`: "none" (no product in the task), "library" (torch's GEMM for each block of rows, inside the team),
    "library_whole" (torch's GEMM once with all threads, then the rows).
    `rows` is the number of rows of a block.
    """

    product: str
    rows: int
