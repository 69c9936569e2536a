"""`Schedule`: every choice that the generator makes for a task, as data."""

from __future__ import annotations

from dataclasses import dataclass, field

from kforge_dynamo.records.codec import LATER


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

    `copies`: "none" multiplies operands as they lie in memory, rounded or split on the way; "both" reads parts of them that
    launches before the product left in scratch memory, "left" parts of the left operand only, while the right one is split
    in registers: by a scale for each block of K, or with `sampled` by one from a sample of each column. `together`: the
    products of parts come from one load of each block of K instead of one pass over K each.
    `promote`: the accumulator is added to a second one each so much of K (0: never), by a condition inside the loop over
    K or, with `drain`, between loops, whose loads in flight end with them.

    `fold`: a reduction over the product's columns is done to the right operand instead, by launches ahead of a small
    product that all the rest describes.
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
    copies: str = field(default="none", metadata=LATER)
    together: bool = field(default=False, metadata=LATER)
    promote: int = field(default=0, metadata=LATER)
    drain: bool = field(default=False, metadata=LATER)
    sampled: bool = field(default=False, metadata=LATER)
    fold: bool = field(default=False, metadata=LATER)

    @property
    def cut_n(self) -> int:
        """Columns of a piece of the tile."""
        return self.block_n // self.cuts
