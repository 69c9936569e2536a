"""What is done with a tile of the product while it is in registers: outputs, states of reductions, what is kept for later."""

from __future__ import annotations

import math
from dataclasses import replace
from typing import cast

from kforge_dynamo.codegen.triton import reductions
from kforge_dynamo.codegen.triton.compose import Composer
from kforge_dynamo.codegen.triton.expressions import HALVES, ITEM_BYTES, MEMORY
from kforge_dynamo.codegen.triton.forms import flatten, numbers
from kforge_dynamo.codegen.triton.place import Place, Text, shaped
from kforge_dynamo.codegen.triton.reductions import Elements
from kforge_dynamo.codegen.triton.schedule import Schedule
from kforge_dynamo.codegen.triton.scope import node_of
from kforge_dynamo.codegen.triton.signature import Signature, times
from kforge_dynamo.codegen.triton.stages import RowPartial, Stages
from kforge_dynamo.codegen.triton.tiles import (
    Product,
    column_lines,
    enter_cut,
    piece_of_row,
    suffix,
    tile_composer,
    tile_place,
)
from kforge_dynamo.records.candidate import Buffer
from kforge_dynamo.records.task import Node, Task


def state_names(number: int, count: int) -> tuple[str, ...]:
    """Names of the buffers that hold the states of a reduction."""
    return tuple(f"state{number}_{part}" for part in range(count))


class Epilogue:
    """Writes the lines that follow the loop over K, for all pieces of the tile."""

    def __init__(self, task: Task, product: Product, schedule: Schedule, stages: Stages, signature: Signature,
                 by_pointer: bool) -> None:  # fmt: skip
        self.task, self.product, self.schedule, self.stages = task, product, schedule, stages
        self.signature, self.by_pointer = signature, by_pointer
        self.buffers: list[Buffer] = []
        self.place: Place = tile_place(task, product, schedule)
        self.end, self.at = "", "tile_n"

    def lines(self, rows: str, note: list[str]) -> list[str]:
        """The lines; `rows` is the name of the number of rows, `note` what is to be done with the product first."""
        head: list[str] = []
        body = Text(depth=0)
        composer = tile_composer(self.task, self.product, self.schedule, body, head, self.signature)
        indices = []
        for cut in range(self.schedule.cuts):
            self.place, self.end = tile_place(self.task, self.product, self.schedule, cut), suffix(self.schedule, cut)
            self.at = piece_of_row(self.schedule, cut)
            indices += column_lines(self.place, self.schedule, cut)
            enter_cut(composer, self.product, self.place, self.end)
            if self.stages.raw:
                self._store_part(composer)
            else:
                self._store_all(composer)
        vector = shaped("(tile_m * BLOCK_M + tl.arange(0, BLOCK_M))", 0, self.place.rank)
        return [f"row = {vector}", f"row_ok = row < {rows}", *indices, *note, *self._pieces(), *head, *body.lines]

    def _pieces(self) -> list[str]:
        """The product in pieces, each with the dimensions of its place."""
        if self.product.columns == 1:
            return ["product = tl.sum(tl.where(c0 == 0, product, 0.0), axis=1, keep_dims=True)"]
        m, n, names, lines = self.schedule.block_m, self.schedule.block_n, ["product"], []
        while len(names) < self.schedule.cuts:
            n //= 2
            halves = [(f"{name}_0", f"{name}_1") for name in names]
            for name, (low, high) in zip(names, halves, strict=True):
                lines.append(f"{low}, {high} = tl.split(tl.permute(tl.reshape({name}, ({m}, 2, {n})), (0, 2, 1)))")
            names = [name for pair in halves for name in pair]
        for cut, name in enumerate(names):
            piece = f"product{suffix(self.schedule, cut)}"
            if self.place.rank > 1 or name != piece:
                lines.append(f"{piece} = tl.reshape({name}, {self.place.shape})" if self.place.rank > 1 else f"{piece} = {name}")
        return lines

    def _round_kept(self, composer: Composer) -> None:
        """A value that later launches read in half precision is rounded for this one as well: statistics of other values
        than those they normalise would not cancel."""
        kept = self.stages.kept
        composer.blocks.clear()
        if kept is None or not self.stages.column_partials or self.task.value(kept).dtype not in HALVES:
            return
        piece = composer.value(kept, composer.natural(kept))
        rounded = composer.text.say("v", f"{piece.text}.to({MEMORY[piece.dtype]}).to(tl.float32)")
        composer.blocks[kept] = replace(piece, text=rounded)
        composer.enter(self.place)

    def _store_part(self, composer: Composer) -> None:
        assert composer.rows is not None
        columns = self.product.columns
        self._buffer("parts", "float32", f"{times(self.task.row_axes)}*{columns * self.schedule.split}")
        step = f"part_of_k.to(tl.int64) * {self.signature.size(times(self.task.row_axes))}"
        pointer = f"{self.signature.buffer('parts')} + ({step} + {composer.rows.flat()}) * {columns}"
        flat = flatten(composer.natural(self.product.number), numbers(self.product.node.out.cols))
        index = f" + {self.place.index(flat)}" if flat.terms else ""
        mask = " & ".join(["row_ok", *self.place.masks(flat.axes)])
        composer.text.line(f"tl.store({pointer}{index}, product{self.end}, mask={mask})")

    def _store_all(self, composer: Composer) -> None:
        self._round_kept(composer)
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
            self._buffer("kept", spec.dtype, f"{times(self.task.row_axes)}*{math.prod(numbers(spec.cols))}")
            self._store(composer, kept, "buf:kept")

    def _buffer(self, name: str, dtype: str, elements: str) -> None:
        if all(buffer.name != name for buffer in self.buffers):
            self.buffers.append(Buffer(name, dtype, elements))

    def _store(self, composer: Composer, number: int, target: str) -> None:
        spec = self.task.value(number)
        whole = math.prod(numbers(spec.cols)) == self.product.columns > 1
        aligned = self.product.columns * ITEM_BYTES[spec.dtype] % 16 == 0 and spec.dtype in ("float32", *HALVES)
        if self.schedule.store == "pointer" or self.by_pointer or not (whole and aligned and len(self.task.row_axes) == 1):
            composer.store(number, self.signature.pointer(target), rows=True)
            return
        self._store_by_descriptor(composer, number, target)

    def _store_by_descriptor(self, composer: Composer, number: int, target: str) -> None:
        """A bulk store; what lies outside the output is not written."""
        piece = composer.value(number, composer.natural(number))
        m, n, dtype = self.schedule.block_m, self.schedule.cut_n, MEMORY[piece.dtype]
        columns, rows = self.product.columns, self.task.row_axes[0]
        width = n // 2 if self.schedule.store == "halves" else n
        tiles = self.signature.descriptor(f"desc:{target}:{rows}:{columns}:{columns}:{m}:{width}")
        value = composer.text.fresh("o", f"tl.broadcast_to({piece.text}, {self.place.shape})")
        corner = f"tile_m * BLOCK_M, {self.at} * " + ("BLOCK_N" if self.schedule.cuts == 1 else str(n))
        if self.schedule.store == "descriptor":
            composer.text.line(f"{tiles}.store([{corner}], tl.reshape({value}, ({m}, {n})).to({dtype}))")
            return
        composer.text.line(f"{value}a, {value}b = tl.split(tl.permute(tl.reshape({value}, ({m}, 2, {n // 2})), (0, 2, 1)))")
        composer.text.line(f"{tiles}.store([{corner}], {value}a.to({dtype}))")
        composer.text.line(f"{tiles}.store([{corner} + {n // 2}], {value}b.to({dtype}))")

    def _row_state(self, composer: Composer, partial: RowPartial) -> None:
        assert composer.rows is not None
        n, block = self.product.columns, self.schedule.cut_n
        count = f"{float(block)!r}" if n % block == 0 else f"(min({block}, N - {self.at} * {block}) * 1.0)"
        state, elements = composer.block_state(partial.node, count)
        dtypes = reductions.state_dtypes(partial.node.op, elements.dtype, partial.node.out.dtype)
        total = self.signature.size(times(self.task.row_axes))
        pieces = -(-n // self.schedule.block_n) * self.schedule.cuts
        for name, text, dtype in zip(state_names(partial.number, len(state)), state, dtypes, strict=True):
            self._buffer(name, dtype, f"{times(self.task.row_axes)}*{pieces}")
            pointer = f"{self.signature.buffer(name)} + {self.at}.to(tl.int64) * {total} + {composer.rows.flat()}"
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
        batch, varying = self.task.row_axes[: self.product.batch], self.task.row_axes[self.product.batch :]
        count = f"(min(BLOCK_M, {self.signature.size(times(varying))} - tile_m * BLOCK_M) * 1.0)"
        elements = Elements(text, piece.dtype, "row_ok", (0,), count)
        state = reductions.of_block(composer.text.say, node.op, elements)
        dtypes = reductions.state_dtypes(node.op, piece.dtype, node.out.dtype)
        columns = math.prod(numbers(self.task.value(operand).cols))
        line = "tile_m" if not self.product.batch else "(batch * tiles_m + tile_m)"
        tiles = f"cdiv({times(varying)}, {self.schedule.block_m})*{times(batch)}"
        masks = self.place.masks(flat.axes)
        guard = f", mask={' & '.join(masks)}" if masks else ""
        for name, value, dtype in zip(state_names(number, len(state)), state, dtypes, strict=True):
            self._buffer(name, dtype, f"{tiles}*{columns}")
            pointer = f"{self.signature.buffer(name)} + {line} * {columns} + {self.place.index(flat)}"
            composer.text.line(f"tl.store({pointer}, {value}{guard})")
