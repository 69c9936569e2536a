"""The kernel of the product: tiles, the loop over K, and what is done with a tile while it is in registers.

Infinities and the split schemes. `tf32x3` writes each operand as high + low part and adds three products. An operand that is
not finite makes each accumulator of its row or column NaN or infinite whichever way it is split (its high part is infinite
or NaN, and the product of high parts is always added), but not always in the way in which fp32 would. So this kernel
notes for each tile whether an accumulator was not finite, and a second launch computes exactly those tiles again with
`ieee` products and the same epilogue. The rule: if all accumulators of a tile are finite, all operands that met in it are,
and the split's error bound holds: a low term is at most 2^-11 of its high term, so a sum of up to 2^10 low terms that overflows
has a high term that does. Otherwise the tile is what fp32 gives.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from kforge_dynamo.codegen.triton.epilogue import Epilogue
from kforge_dynamo.codegen.triton.forms import Unsupported
from kforge_dynamo.codegen.triton.operands import Operands, by_descriptor, by_pointer
from kforge_dynamo.codegen.triton.schedule import Schedule
from kforge_dynamo.codegen.triton.signature import Signature, times
from kforge_dynamo.codegen.triton.stages import Stages
from kforge_dynamo.codegen.triton.tiles import Product
from kforge_dynamo.records.candidate import Buffer, Launch
from kforge_dynamo.records.task import Task

_CHUNK = 8
_ROUNDED = {"fp16": ".to(tl.float16)", "bf16": ".to(tl.bfloat16)"}
SPLIT_SCHEMES = ("tf32x3",)
"""Schemes whose tiles are computed again where they are not finite."""


@dataclass(frozen=True, slots=True)
class Kernel:
    """A kernel's source, how it is launched, and the buffers it fills."""

    source: str
    launch: Launch
    buffers: tuple[Buffer, ...]


class ProductKernel:
    """Writes the kernel for one task and schedule; `exact` makes it the second launch of a split scheme."""

    def __init__(self, task: Task, product: Product, schedule: Schedule, stages: Stages, units: int, exact: bool = False) -> None:
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
        body = [*start, *self._indented([*place, *loop, *ending_lines], 2 if self.walks or self.exact else 1)]
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
            lines.append("part = tl.program_id(1)")
        if self.walks:
            batch = self.signature.size(times(self.task.row_axes[: self.product.batch]))
            work = "tiles" if batch == "1" else f"tiles * {batch}"
            flags = f"flatten={self.schedule.flatten}, warp_specialize={self.schedule.specialize}"
            lines.append(f"for work in tl.range(tl.program_id(0), {work}, PROGRAMS, {flags}):")
        else:
            lines.append("work = tl.program_id(0)")
        if self.exact:
            lines.append(f"if tl.load({self._flag()}) != 0:")
        return self._indented(lines, 1)

    def _flag(self) -> str:
        """Where the tile's note lies."""
        if self.schedule.split == 1:
            return f"{self.signature.buffer('unsafe')} + work"
        batch = self.signature.size(times(self.task.row_axes[: self.product.batch]))
        every = "tiles" if batch == "1" else f"tiles * {batch}"
        return f"{self.signature.buffer('unsafe')} + part * ({every}) + work"

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
        operands = self._operands()
        first, last = self._range()
        return [
            *self._part_lines(),
            *operands.before,
            "product = tl.zeros((BLOCK_M, BLOCK_N), dtype=tl.float32)",
            *(self._chunked(operands, first, last) if self.exact else self._summed(operands, "product", first, last)),
        ]

    def _summed(self, operands: Operands, into: str, first: str, last: str) -> list[str]:
        """The loop over K that adds to `into`."""
        return [
            f"for k in range({first}, {last}, BLOCK_K):",
            f"    x = {operands.loads[0]}{_ROUNDED.get(self._scheme, '')}",
            f"    y = {operands.loads[1]}{_ROUNDED.get(self._scheme, '')}",
            f"    {into} = tl.dot(x, y, {into}{self._precision()})",
            *[f"    {line}" for line in operands.after],
        ]

    def _chunked(self, operands: Operands, first: str, last: str) -> list[str]:
        """The same in chunks with sums of their own: one long chain of fp32 additions is less exact than a library's."""
        lines = [
            "part_sum = tl.zeros((BLOCK_M, BLOCK_N), dtype=tl.float32)",
            *self._summed(operands, "part_sum", "chunk", f"min(chunk + {_CHUNK} * BLOCK_K, {last})"),
            "product += part_sum",
        ]
        return [f"for chunk in range({first}, {last}, {_CHUNK} * BLOCK_K):", *[f"    {line}" for line in lines]]

    @property
    def _scheme(self) -> str:
        return "ieee" if self.exact else self.schedule.scheme

    def _precision(self) -> str:
        return f', input_precision="{self._scheme}"' if self._scheme in ("ieee", "tf32", "tf32x3") else ""

    def _operands(self) -> Operands:
        if self.schedule.descriptors and not self.exact:
            if self.schedule.split > 1:
                raise Unsupported("a split K comes by pointers")
            return by_descriptor(self.task, self.product, self.schedule, self.signature)
        depth = self.product.depth
        whole = isinstance(depth, int) and depth % self.schedule.block_k == 0
        return by_pointer(self.task, self.product, self.schedule, self.signature, whole)

    def _range(self) -> tuple[str, str]:
        depth = "K" if isinstance(self.product.depth, int) else self.signature.size(self.product.depth)
        return ("first", "last") if self.schedule.split > 1 else ("0", depth)

    def _part_lines(self) -> list[str]:
        if self.schedule.split == 1:
            return []
        depth = "K" if isinstance(self.product.depth, int) else self.signature.size(self.product.depth)
        return [
            f"share = tl.cdiv(tl.cdiv({depth}, BLOCK_K), SPLIT) * BLOCK_K",
            "first = part * share",
            f"last = min(first + share, {depth})",
        ]

    def _note(self) -> list[str]:
        """Whether the tile is to be computed again."""
        if self.schedule.scheme not in SPLIT_SCHEMES or self.exact:
            return []
        self.buffers.append(Buffer("unsafe", "int32", f"{self._work()}*{self.schedule.split}"))
        return [
            'unsafe_tile = tl.where(tl.abs(product) < float("inf"), 0, 1)',
            f"tl.store({self._flag()}, tl.max(tl.max(unsafe_tile, axis=1), axis=0))",
        ]

    @staticmethod
    def _indented(lines: Sequence[str], depth: int) -> list[str]:
        return ["    " * depth + line for line in lines]
