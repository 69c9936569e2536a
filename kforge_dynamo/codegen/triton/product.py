"""The kernel of the product: tiles, the loop over K (`loops`), and what is done with a tile while it is in registers.

A scheme of `schemes` that is `redone` notes for each tile whether an accumulator was not finite, and a second launch computes
exactly those tiles again with `ieee` products and the same epilogue.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from kforge_dynamo.codegen.triton.copies import Copy, copies_of, scaled_by_sample
from kforge_dynamo.codegen.triton.epilogue import Epilogue
from kforge_dynamo.codegen.triton.forms import Unsupported
from kforge_dynamo.codegen.triton.kernel import Kernel
from kforge_dynamo.codegen.triton.loops import Loop
from kforge_dynamo.codegen.triton.operands import (
    Operands,
    joined,
    left_by_descriptor,
    left_by_pointer,
    right_by_descriptor,
    right_by_pointer,
)
from kforge_dynamo.codegen.triton.reads import by_copies, scale_texts
from kforge_dynamo.codegen.triton.schedule import Schedule
from kforge_dynamo.codegen.triton.schemes import scheme_of
from kforge_dynamo.codegen.triton.signature import Signature, times
from kforge_dynamo.codegen.triton.stages import Stages
from kforge_dynamo.codegen.triton.tiles import Product
from kforge_dynamo.records.candidate import Buffer, Launch
from kforge_dynamo.records.task import Task

_EXACT_CHUNK = 8
"""Blocks of K that the exact launch adds up first: one long chain of fp32 additions is less exact than a library's."""


class ProductKernel:
    """Writes the kernel for one task and schedule; `exact` makes it the second launch of a split scheme, which computes the tiles
    that the first noted, or with `lost` those with a row that the buffer of this name marks."""

    def __init__(self, task: Task, product: Product, schedule: Schedule, stages: Stages, units: int, exact: bool = False,
                 lost: bool = False) -> None:  # fmt: skip
        self.lost = lost
        self.task, self.product, self.schedule, self.stages = task, product, schedule, stages
        self.units, self.exact = units, exact
        self.signature = Signature()
        self.buffers: list[Buffer] = []
        if product.columns == 1 < schedule.cuts:
            raise Unsupported("a product of one column is not finished in pieces")
        self.walks = schedule.persistent and not exact

    def kernel(self) -> Kernel:
        """The kernel. Raises: Unsupported."""
        start, place, loop = self._start(), self._place(), self._loop()
        ending = Epilogue(self.task, self.product, self.schedule, self.stages, self.signature, by_pointer=self.exact)
        ending_lines = ending.lines(self._rows, self._note())
        self.buffers += ending.buffers
        start += self._indented(place, 2 if self.walks or (self.exact and not self.lost) else 1)
        start += self._indented(self._lost_lines(), 1) if self.lost else []
        body = [*start, *self._indented([*loop, *ending_lines], 2 if self.walks or self.exact else 1)]
        constants = self._constants()
        names = [*self.signature.parameters, *[f"{name}: tl.constexpr" for name, _ in constants]]
        name = "tiled_product_exact" if self.exact else "tiled_product"
        source = f"@triton.jit\ndef {name}({', '.join(names)}):\n" + "\n".join(body) + "\n"
        launch = Launch(name, self._grid(), self.signature.arguments, constants, self.schedule.warps, self.schedule.stages)
        return Kernel(source, launch, tuple(self.buffers))

    # frame

    @property
    def _rows(self) -> str:
        return self.signature.size(times(self.task.row_axes[self.product.batch :]))

    def _tiles_n(self) -> int:
        return -(-self.product.columns // self.schedule.block_n)

    def _tiles(self) -> str:
        return f"cdiv({times(self.task.row_axes[self.product.batch :])}, {self.schedule.block_m})*{self._tiles_n()}"

    def _grid(self) -> tuple[str, ...]:
        work = self._work()
        return f"min({self.units}, {work})" if self.walks else work, str(self.schedule.split)

    def _work(self) -> str:
        """Tiles of all products of the batch, as a size expression."""
        return "*".join([self._tiles(), *self.task.row_axes[: self.product.batch]])

    def _constants(self) -> tuple[tuple[str, int], ...]:
        one = self.schedule
        values = {
            "N": self.product.columns,
            "BLOCK_M": one.block_m,
            "BLOCK_N": one.block_n,
            "BLOCK_K": one.block_k,
            "GROUP": one.group,
        }
        if isinstance(self.product.depth, int):
            values["K"] = self.product.depth
        if one.split > 1:
            values["SPLIT"] = one.split
        if self.walks:
            values["PROGRAMS"] = self.units
        return tuple(sorted(values.items()))

    def _start(self) -> list[str]:
        lines = [f"tiles_m = tl.cdiv({self._rows}, BLOCK_M)", f"tiles = tiles_m * {self._tiles_n()}"]
        if self.schedule.split > 1:
            lines.append("part_of_k = tl.program_id(1)")
        if self.walks:
            batch = self.signature.size(times(self.task.row_axes[: self.product.batch]))
            work = "tiles" if batch == "1" else f"tiles * {batch}"
            flags = f"flatten={self.schedule.flatten}, warp_specialize={self.schedule.specialize}"
            lines.append(f"for work in tl.range(tl.program_id(0), {work}, PROGRAMS, {flags}):")
        else:
            lines.append("work = tl.program_id(0)")
        if self.exact and not self.lost:
            lines.append(f"if tl.load({self._flag()}) != 0:")
        return self._indented(lines, 1)

    def _lost_lines(self) -> list[str]:
        """Whether the tile has a row that is to be done again."""
        return [
            "lost_row = tile_m * BLOCK_M + tl.arange(0, BLOCK_M)",
            f"lost_rows = tl.load({self.signature.buffer('lost')} + lost_row, mask=lost_row < {self._rows}, other=0)",
            "if tl.max(lost_rows, axis=0) != 0:",
        ]

    def _flag(self) -> str:
        """Where the tile's note lies."""
        if self.schedule.split == 1:
            return f"{self.signature.buffer('unsafe')} + work"
        batch = self.signature.size(times(self.task.row_axes[: self.product.batch]))
        every = "tiles" if batch == "1" else f"tiles * {batch}"
        return f"{self.signature.buffer('unsafe')} + part_of_k * ({every}) + work"

    def _place(self) -> list[str]:
        """Coordinates of the tile."""
        return [
            *(["batch = work // tiles", "tile = work % tiles"] if self.product.batch else ["tile = work"]),
            f"width = GROUP * {self._tiles_n()}",
            "above = (tile // width) * GROUP",
            "height = min(tiles_m - above, GROUP)",
            "tile_m = above + (tile % width) % height",
            "tile_n = (tile % width) // height",
        ]

    def _loop(self) -> list[str]:
        """Operands, and the loop over K; leaves `product`."""
        schedule = self.schedule
        if self.exact:
            promote = _EXACT_CHUNK * schedule.block_k
            schedule = replace(schedule, scheme="ieee", copies="none", together=False, sampled=False, promote=promote, drain=True)
        copies = copies_of(self.task, self.product, schedule)
        operands = self._operands(schedule, copies)
        scaled = (*copies, *scaled_by_sample(self.task, self.product, schedule))
        loop = Loop(schedule, operands, scale_texts(scaled, self.signature))
        return [*self._part_lines(), *operands.before, *loop.lines(*self._range(copies))]

    def _operands(self, schedule: Schedule, copies: Sequence[Copy]) -> Operands:
        if schedule.descriptors and not self.exact and schedule.split > 1:
            raise Unsupported("a split K comes by pointers")
        by_side = {copy.side: copy for copy in copies}
        if copies and not self.exact:
            return by_copies(self.task, self.product, schedule, self.signature, by_side["left"], by_side.get("right"))
        if schedule.descriptors and not self.exact:
            left = left_by_descriptor(self.task, self.product, schedule, self.signature)
            return joined(left, right_by_descriptor(self.task, self.product, schedule, self.signature))
        depth = self.product.depth
        whole = isinstance(depth, int) and depth % schedule.block_k == 0
        left = left_by_pointer(self.task, self.product, schedule, self.signature, whole)
        return joined(left, right_by_pointer(self.task, self.product, schedule, self.signature, whole))

    def _depth(self, copies: Sequence[Copy]) -> str:
        """The text of how far the loop over K goes: with two copies, over the zeros that fill them up."""
        if len(copies) == 2:
            return copies[0].depth if copies[0].depth.isdigit() else self.signature.size(copies[0].depth)
        return "K" if isinstance(self.product.depth, int) else self.signature.size(self.product.depth)

    def _range(self, copies: Sequence[Copy]) -> tuple[str, str]:
        return ("first", "last") if self.schedule.split > 1 else ("0", self._depth(copies))

    def _part_lines(self) -> list[str]:
        """The part of K that this program adds; the same for the exact launch, which replaces single parts."""
        if self.schedule.split == 1:
            return []
        copies = copies_of(self.task, self.product, self.schedule)
        unit, depth = str(copies[0].unit) if copies else str(self.schedule.block_k), self._depth(copies)
        return [
            f"share = tl.cdiv(tl.cdiv({depth}, {unit}), SPLIT) * {unit}",
            "first = part_of_k * share",
            f"last = min(first + share, {self._depth(() if self.exact else copies)})",
        ]

    def _note(self) -> list[str]:
        """Whether the tile is to be computed again."""
        if not scheme_of(self.schedule.scheme).redone or self.exact:
            return []
        self.buffers.append(Buffer("unsafe", "int32", f"{self._work()}*{self.schedule.split}"))
        return [
            'unsafe_tile = tl.where(tl.abs(product) < float("inf"), 0, 1)',
            f"tl.store({self._flag()}, tl.max(tl.max(unsafe_tile, axis=1), axis=0))",
        ]

    @staticmethod
    def _indented(lines: Sequence[str], depth: int) -> list[str]:
        return ["    " * depth + line for line in lines]
