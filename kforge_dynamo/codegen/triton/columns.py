"""The launch over the columns: joins the states that tiles left of statistics over the rows, and what follows from them."""

from __future__ import annotations

from typing import cast

from kforge_dynamo.codegen.triton import reductions
from kforge_dynamo.codegen.triton.compose import Composer
from kforge_dynamo.codegen.triton.epilogue import state_names
from kforge_dynamo.codegen.triton.expressions import HALVES, MEMORY, REGISTER
from kforge_dynamo.codegen.triton.forms import Unsupported
from kforge_dynamo.codegen.triton.kernel import Kernel
from kforge_dynamo.codegen.triton.place import AxisPlace, Piece, Place, Text
from kforge_dynamo.codegen.triton.reductions import Elements
from kforge_dynamo.codegen.triton.schedule import Schedule
from kforge_dynamo.codegen.triton.scope import columns_of, components, node_of
from kforge_dynamo.codegen.triton.signature import Signature, times
from kforge_dynamo.codegen.triton.stages import Stages
from kforge_dynamo.codegen.triton.tiles import Product, component, flat_scope, flavour_of
from kforge_dynamo.records.candidate import Buffer, Launch
from kforge_dynamo.records.task import Node, Task

_COLUMNS, _TILES = 64, 32
"""Columns of a program, and states of a column that it loads at a time."""


def column_kernels(task: Task, product: Product | None, schedule: Schedule, stages: Stages) -> list[Kernel]:
    """The launches for the statistics and the outputs without rows, one a number of columns. Raises: Unsupported."""
    by_columns: dict[int, tuple[list[int], list[int]]] = {}
    for number in stages.column_partials:
        by_columns.setdefault(columns_of(task, number), ([], []))[0].append(number)
    for position in stages.column_outputs:
        by_columns.setdefault(columns_of(task, task.outputs[position]), ([], []))[1].append(position)
    return [
        ColumnKernel(task, product, schedule, columns, statistics, outputs).kernel(f"columns{index or ''}")
        for index, (columns, (statistics, outputs)) in enumerate(by_columns.items())
    ]


class ColumnKernel:
    """Writes one launch over the columns."""

    def __init__(self, task: Task, product: Product | None, schedule: Schedule, columns: int, statistics: list[int],
                 outputs: list[int]) -> None:  # fmt: skip
        self.task, self.product, self.schedule, self.columns = task, product, schedule, columns
        self.statistics, self.outputs = statistics, outputs
        self.signature, self.text = Signature(), Text(depth=1)
        self.composer = Composer(task, self.signature, None, self.text, flavour_of(schedule.scheme))
        self.buffers: list[Buffer] = []
        self.composer.enter(self._place())

    def _place(self) -> Place:
        members: list[int] = []
        for number in [*self.statistics, *[self.task.outputs[position] for position in self.outputs]]:
            if number in components(self.task):
                members += component(self.task, number)
        scope = flat_scope(self.task, sorted(set(members)), self.columns)
        return Place(scope, (AxisPlace(self.columns, _COLUMNS, "column", False, self.columns % _COLUMNS != 0),), 1, 1)

    def kernel(self, name: str) -> Kernel:
        """The kernel under this name. Raises: Unsupported."""
        self.text.line(f"column = tl.program_id(0) * {_COLUMNS} + tl.arange(0, {_COLUMNS})[None, :]")
        for number in self.statistics:
            self._statistic(number)
        for position in self.outputs:
            self.composer.store(self.task.outputs[position], self.signature.output(position), rows=False)
        source = f"@triton.jit\ndef {name}({', '.join(self.signature.parameters)}):\n" + "\n".join(self.text.lines) + "\n"
        grid = (str(-(-self.columns // _COLUMNS)),)
        return Kernel(source, Launch(name, grid, self.signature.arguments, (), 4, 1), tuple(self.buffers))

    def _statistic(self, number: int) -> None:
        """Joins a statistic's states and keeps the result in a buffer of its own."""
        if self.product is None:
            raise Unsupported("a statistic over the rows of no product has no Triton form")
        node = cast(Node, node_of(self.task, number))
        operand = self.task.value(cast(int, node.args[0])).dtype
        dtypes = reductions.state_dtypes(node.op, operand, node.out.dtype)
        start = reductions.start(node.op, node.out.dtype if node.op == "sum" else operand)
        shape = f"(1, {_COLUMNS})"
        names = [
            self.text.fresh("z", f"tl.full({shape}, {value}, {REGISTER[dtype]})")
            for value, dtype in zip(start, dtypes, strict=True)
        ]
        self._join(number, node, names, operand)
        total = f"({self.signature.size(times(self.task.row_axes))} * 1.0)"
        correction = self.composer.correction(node)
        text = reductions.finished(node.op, names, total, correction)
        result = self.text.say("v", f"({text}).to({REGISTER[node.out.dtype]})")
        self.composer.blocks[number] = Piece(result, frozenset({0}) if self.columns > 1 else frozenset(), False, node.out.dtype)
        self.buffers.append(Buffer(f"statistic{number}", node.out.dtype, str(self.columns)))
        stored = f"{result}.to({MEMORY[node.out.dtype]})" if node.out.dtype in HALVES else result
        pointer = self.signature.buffer(f"statistic{number}")
        self.text.line(f"tl.store({pointer} + column, {stored}, mask=column < {self.columns})")

    def _join(self, number: int, node: Node, names: list[str], operand: str) -> None:
        assert self.product is not None
        rows = self.signature.size(times(self.task.row_axes[self.product.batch :]))
        batch = self.signature.size(times(self.task.row_axes[: self.product.batch]))
        block_m = self.schedule.block_m
        mark = f"states{number}"
        self.text.line(f"{mark} = tl.cdiv({rows}, {block_m}) * {batch}")
        zero = self.text.fresh("n", f"tl.zeros((1, {_COLUMNS}), tl.float32)")
        self.text.open(f"for start in range(0, {mark}, {_TILES}):")
        self.text.line(f"tile = start + tl.arange(0, {_TILES})[:, None]")
        guard = f"mask=(tile < {mark}) & (column < {self.columns}), other=0"
        states = [
            self.text.say("p", f"tl.load({self.signature.buffer(name)} + tile * {self.columns} + column, {guard})")
            for name in state_names(number, len(names))
        ]
        count = f"(tl.minimum({rows} - (tile % tl.cdiv({rows}, {block_m})) * {block_m}, {block_m}) * 1.0)"
        elements = Elements("", operand, f"(tile < {mark})", (0,), count)
        joined = reductions.of_states(self.text.say, node.op, states, elements, self.composer.flavour)
        seen = self.text.say("w", f"tl.sum(tl.where(tile < {mark}, {count}, 0.0), axis=0, keep_dims=True)")
        for name, text in zip(names, reductions.merged(self.text.say, node.op, names, joined, zero, seen, operand), strict=True):
            self.text.line(f"{name}_next = {text}")
        for name in names:
            self.text.line(f"{name} = {name}_next")
        self.text.line(f"{zero} = {zero} + {seen}")
        self.text.close()
