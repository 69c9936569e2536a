"""`Schedule`: every choice that the generator makes for a task, as data."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Schedule:
    """How the product is computed and what is done with its tiles.

    `scheme` is the precision scheme of the product. A program computes tiles of `block_m` by `block_n`, `block_k` of K at a
    time, in groups of `group` tiles along M (for the L2 cache), with `warps` warps and `stages` loads in flight. K is cut in
    `split` parts, whose partial products a second launch adds in order.

    `descriptors`: operands come by tensor descriptors (Hopper's bulk copies). `persistent`: one program a multiprocessor
    walks over the tiles; `flatten` lets the loads of the next tile start under the end of the last, `specialize` gives
    loads and products warps of their own. `store`: "pointer", "descriptor", or "halves" (a descriptor for each half of the
    columns). `cuts`: the columns of a tile are finished in so many pieces, one after the other, which need fewer registers
    at a time. `reduce`: "partials" leaves a state a tile of each reduction over the row where that saves writing the
    product; "rows" writes the product and reduces it in a second launch.
    """

    scheme: str
    block_m: int
    block_n: int
    block_k: int
    group: int
    warps: int
    stages: int
    split: int = 1
    descriptors: bool = False
    persistent: bool = False
    flatten: bool = False
    specialize: bool = False
    store: str = "pointer"
    cuts: int = 1
    reduce: str = "partials"

    @property
    def cut_n(self) -> int:
        """Columns of a piece of the tile."""
        return self.block_n // self.cuts
