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

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import cast

from kforge_dynamo.codegen.triton import reductions
from kforge_dynamo.codegen.triton.compose import Composer
from kforge_dynamo.codegen.triton.expressions import HALVES, ITEM_BYTES, MEMORY
from kforge_dynamo.codegen.triton.forms import Unsupported, flatten, numbers
from kforge_dynamo.codegen.triton.operands import Operands, by_descriptor, by_pointer
from kforge_dynamo.codegen.triton.place import Place, Text
from kforge_dynamo.codegen.triton.reductions import Elements
from kforge_dynamo.codegen.triton.schedule import Schedule
from kforge_dynamo.codegen.triton.scope import node_of
from kforge_dynamo.codegen.triton.signature import Signature, times
from kforge_dynamo.codegen.triton.stages import RowPartial, Stages
from kforge_dynamo.codegen.triton.tiles import Product, tile_composer, tile_lines, tile_place
from kforge_dynamo.records.candidate import Buffer, Launch
from kforge_dynamo.records.task import Node, Task

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
        self.place: Place = tile_place(task, product, schedule)
        self.walks = schedule.persistent and not exact
        self.text = Text(depth=1)

    def kernel(self) -> Kernel:
        """The kernel. Raises: Unsupported."""
        body = [*self._start(), *self._indented([*self._tile(), *self._epilogue()], 2 if self.walks or self.exact else 1)]
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

    def _tile(self) -> list[str]:
        """Coordinates, operands, and the loop over K; leaves `product`."""
        operands = self._operands()
        first, last = self._range()
        return [
            *(["batch = work // tiles", "tile = work % tiles"] if self.product.batch else ["tile = work"]),
            f"width = GROUP * {self._tiles_n()}",
            "above = (tile // width) * GROUP",
            "height = min(tiles_m - above, GROUP)",
            "tile_m = above + (tile % width) % height",
            "tile_n = (tile % width) // height",
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

    # epilogue

    def _epilogue(self) -> list[str]:
        head: list[str] = []
        body = Text(depth=0)
        composer = tile_composer(self.task, self.product, self.place, self.schedule, body, head, self.signature)
        lines = tile_lines(self.place, self.schedule, self._rows)
        if self.schedule.scheme in SPLIT_SCHEMES and not self.exact:
            lines += self._note()
        lines += self._shaped()
        if self.stages.raw:
            self._store_part(composer)
        else:
            self._store_all(composer)
        return [*lines, *head, *body.lines]

    def _note(self) -> list[str]:
        self.buffers.append(Buffer("unsafe", "int32", f"{self._work()}*{self.schedule.split}"))
        return [
            'unsafe_tile = tl.where(tl.abs(product) < float("inf"), 0, 1)',
            f"tl.store({self._flag()}, tl.max(tl.max(unsafe_tile, axis=1), axis=0))",
        ]

    def _shaped(self) -> list[str]:
        if self.product.columns == 1:
            return ["product = tl.sum(tl.where(c0 == 0, product, 0.0), axis=1, keep_dims=True)"]
        return [f"product = tl.reshape(product, {self.place.shape})"] if self.place.rank > 1 else []

    def _store_part(self, composer: Composer) -> None:
        assert composer.rows is not None
        columns = self.product.columns
        self.buffers.append(Buffer("parts", "float32", f"{times(self.task.row_axes)}*{columns * self.schedule.split}"))
        step = f"part.to(tl.int64) * {self.signature.size(times(self.task.row_axes))}"
        pointer = f"{self.signature.buffer('parts')} + ({step} + {composer.rows.flat()}) * {columns}"
        cols = numbers(self.product.node.out.cols)
        flat = flatten(composer.natural(self.product.number), cols)
        index = f" + {self.place.index(flat)}" if flat.terms else ""
        composer.text.line(f"tl.store({pointer}{index}, product, mask={' & '.join(['row_ok', *self.place.masks(flat.axes)])})")

    def _store_all(self, composer: Composer) -> None:
        for number in self.stages.column_partials:
            self._column_state(composer, number)
        for partial in self.stages.row_partials:
            if partial.within is None:
                self._row_state(composer, partial)
        for position in self.stages.tile_outputs:
            self._store(composer, self.task.outputs[position], f"out:{position}")
        kept = self.stages.kept
        if kept is not None and all(self.task.outputs[position] != kept for position in self.stages.tile_outputs):
            spec = self.task.value(kept)
            self.buffers.append(Buffer("kept", spec.dtype, f"{times(self.task.row_axes)}*{math.prod(numbers(spec.cols))}"))
            self._store(composer, kept, "buf:kept")

    def _store(self, composer: Composer, number: int, target: str) -> None:
        spec = self.task.value(number)
        whole = math.prod(numbers(spec.cols)) == self.product.columns > 1
        aligned = self.product.columns * ITEM_BYTES[spec.dtype] % 16 == 0 and spec.dtype in ("float32", *HALVES)
        if self.schedule.store == "pointer" or self.exact or not (whole and aligned and len(self.task.row_axes) == 1):
            composer.store(number, self.signature.pointer(target), rows=True)
            return
        self._store_by_descriptor(composer, number, target)

    def _store_by_descriptor(self, composer: Composer, number: int, target: str) -> None:
        """Bulk stores; what lies outside the output is not written."""
        piece = composer.value(number, composer.natural(number))
        m, n = self.schedule.block_m, self.schedule.block_n
        dtype = MEMORY[piece.dtype]
        parts = 2 if self.schedule.store == "halves" else 1
        columns, rows = self.product.columns, self.task.row_axes[0]
        tiles = self.signature.descriptor(f"desc:{target}:{rows}:{columns}:{columns}:{m}:{n // parts}")
        value = composer.text.say("o", f"tl.broadcast_to({piece.text}, {self.place.shape})")
        corner = "tile_m * BLOCK_M, tile_n * BLOCK_N"
        if parts == 1:
            composer.text.line(f"{tiles}.store([{corner}], tl.reshape({value}, ({m}, {n})).to({dtype}))")
            return
        composer.text.line(f"{value}a, {value}b = tl.split(tl.permute(tl.reshape({value}, ({m}, 2, {n // 2})), (0, 2, 1)))")
        composer.text.line(f"{tiles}.store([{corner}], {value}a.to({dtype}))")
        composer.text.line(f"{tiles}.store([{corner} + {n // 2}], {value}b.to({dtype}))")

    def _row_state(self, composer: Composer, partial: RowPartial) -> None:
        assert composer.rows is not None
        n, block = self.product.columns, self.schedule.block_n
        count = f"{float(block)!r}" if n % block == 0 else f"(min({block}, N - tile_n * {block}) * 1.0)"
        state, elements = composer.block_state(partial.node, count)
        dtypes = reductions.state_dtypes(partial.node.op, elements.dtype, partial.node.out.dtype)
        total = self.signature.size(times(self.task.row_axes))
        for name, text, dtype in zip(state_names(partial.number, len(state)), state, dtypes, strict=True):
            self.buffers.append(Buffer(name, dtype, f"{times(self.task.row_axes)}*{self._tiles_n()}"))
            pointer = f"{self.signature.buffer(name)} + tile_n.to(tl.int64) * {total} + {composer.rows.flat()}"
            composer.text.line(f"tl.store({pointer}, {text}, mask=row_ok)")

    def _column_state(self, composer: Composer, number: int) -> None:
        """A state of each column over the tile's rows."""
        node = cast(Node, node_of(self.task, number))
        operand = cast(int, node.args[0])
        access = composer.natural(operand)
        piece = composer.value(operand, access)
        flat = flatten(access, numbers(self.task.value(operand).cols))
        extents = [self.place.axes[axis].block if axis in piece.axes else 1 for axis in range(len(self.place.axes))]
        text = composer.text.say("x", f"tl.broadcast_to({piece.text}, {(self.place.row_block, *extents)})")
        count = f"(min(BLOCK_M, {self._rows} - tile_m * BLOCK_M) * 1.0)"
        state = reductions.of_block(composer.text.say, node.op, Elements(text, piece.dtype, "row_ok", (0,), count))
        dtypes = reductions.state_dtypes(node.op, piece.dtype, node.out.dtype)
        columns = math.prod(numbers(self.task.value(operand).cols))
        line = "tile_m" if not self.product.batch else "(batch * tiles_m + tile_m)"
        batch, rows = self.task.row_axes[: self.product.batch], self.task.row_axes[self.product.batch :]
        tiles = f"cdiv({times(rows)}, {self.schedule.block_m})*{times(batch)}"
        masks = self.place.masks(flat.axes)
        guard = f", mask={' & '.join(masks)}" if masks else ""
        for name, value, dtype in zip(state_names(number, len(state)), state, dtypes, strict=True):
            self.buffers.append(Buffer(name, dtype, f"{tiles}*{columns}"))
            pointer = f"{self.signature.buffer(name)} + {line} * {columns} + {self.place.index(flat)}"
            composer.text.line(f"tl.store({pointer}, {value}{guard})")

    @staticmethod
    def _indented(lines: Sequence[str], depth: int) -> list[str]:
        return ["    " * depth + line for line in lines]


def state_names(number: int, count: int) -> tuple[str, ...]:
    """Names of the buffers that hold the states of a reduction."""
    return tuple(f"state{number}_{part}" for part in range(count))
