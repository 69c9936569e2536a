"""`Schedule`: the choices that make one kernel of a task."""

from __future__ import annotations

from dataclasses import dataclass, field

from kforge_dynamo.records.codec import LATER


@dataclass(frozen=True, slots=True)
class Schedule:
    """How the product is computed and how the work is divided.

    `product`: "none" (no product in the task); "library" (torch's GEMM for each block of rows, inside the team);
    "library_whole" (torch's GEMM once with all threads, then the rows); "own" (register tiles of `mr` lines by `nv` vectors,
    k in blocks of `kc`); "dot" (vectors along k, `mr` rows at a time: few rows, a weight that lies along k).
    `side` says for "own" which operand runs along vectors and is packed: "columns" packs the right operand, "rows" the left.
    With `fresh` a unit packs the columns it needs itself, block by block along k, instead of all threads packing all first.
    With `fold` a reduction over the product's columns is done to the right operand instead, ahead of a small product.
    A unit of work is `rows` rows by `cols` columns (0: all). `phased` computes the whole product first and the rows after a
    barrier; it is implied where a unit is no whole row and the epilogue needs one.
    """

    product: str
    rows: int
    cols: int = 0
    side: str = ""
    mr: int = 0
    nv: int = 0
    kc: int = 0
    phased: bool = False
    fresh: bool = False
    fold: bool = field(default=False, metadata=LATER)
