"""The launch over the rows: finishes what tiles could not, from a value kept in memory, parts of the product, or states.

Each program takes a few rows. A row that fits in registers is loaded once, and every reduction and output follows from the
block (`whole`). A longer row is walked over in chunks, once for each level of reductions and once for the outputs. Where no
reduction spans the row, chunks become programs of their own (`grid`).
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import cast

from kforge_dynamo.codegen.triton import reductions
from kforge_dynamo.codegen.triton.compose import Composer
from kforge_dynamo.codegen.triton.epilogue import state_names
from kforge_dynamo.codegen.triton.expressions import REGISTER
from kforge_dynamo.codegen.triton.forms import Unsupported
from kforge_dynamo.codegen.triton.kernel import Kernel
from kforge_dynamo.codegen.triton.place import AxisPlace, Leaf, Piece, Place, Text, row_place, shaped
from kforge_dynamo.codegen.triton.reductions import Elements
from kforge_dynamo.codegen.triton.schedule import Schedule
from kforge_dynamo.codegen.triton.scope import Scope, columns_of, components, node_of, scope_of
from kforge_dynamo.codegen.triton.signature import RowIndex, Signature, times
from kforge_dynamo.codegen.triton.stages import RowPartial, Stages, is_statistic, walk
from kforge_dynamo.codegen.triton.tiles import Product, flavour_of
from kforge_dynamo.records.candidate import Launch
from kforge_dynamo.records.task import Node, Task
from kforge_dynamo.semantics.table import OPS, Kind

WHOLE_ROW = 32768
"""Elements of a row, padded, up to which a program holds all of it: 64 registers a thread with 16 warps."""
CHUNK = 4096
"""Elements that a program holds of a longer row."""
WIDEST = 65536
"""The most elements that a block may have: what a group inside the row may span."""


def power_above(count: int) -> int:
    """The smallest power of two that is at least `count`."""
    return 1 << max(0, count - 1).bit_length()


def row_kernels(task: Task, product: Product | None, schedule: Schedule, stages: Stages, lost: bool = False) -> list[Kernel]:
    """The launches that write the row outputs, with `lost` of the rows that this buffer marks; none where there are none.

    Raises: Unsupported.
    """
    if not stages.row_outputs:
        return []
    roots = components(task)
    scalars = row_scalars(task, stages)
    groups: list[tuple[int, ...]] = [stages.row_outputs]
    if not scalars and not stages.row_partials:
        by_root: dict[int | None, list[int]] = {}
        for position in stages.row_outputs:
            by_root.setdefault(roots.get(task.outputs[position]), []).append(position)
        groups = [tuple(group) for group in by_root.values()]
    return [
        RowKernel(task, product, schedule, stages, scalars, group).kernel(f"rows{index or ''}", lost)
        for index, group in enumerate(groups)
    ]


def row_scalars(task: Task, stages: Stages) -> list[int]:
    """Reductions over a whole row that the row outputs need and no state gives, in order of evaluation."""
    given = {partial.number for partial in stages.row_partials}
    found: set[int] = set()

    def stop(number: int) -> bool:
        node = node_of(task, number)
        if number in given or number == stages.kept or is_statistic(task, number):
            return True
        if node is not None and node.op == "gemm":
            return True
        if node is None or OPS[node.op].kind is not Kind.REDUCTION or columns_of(task, number) > 1:
            return False
        if columns_of(task, cast(int, node.args[0])) > 1:
            found.add(number)
        return False

    walk(task, [task.outputs[position] for position in stages.row_outputs], stop)
    for partial in stages.row_partials:
        if partial.shift is not None:
            walk(task, [partial.shift], stop)
    return sorted(found)


def leaves_of(task: Task, product: Product | None, stages: Stages, schedule: Schedule, composer: Composer) -> None:
    """Tells the composer what earlier launches left in memory."""
    for number in stages.column_partials:
        composer.leaves[number] = Leaf(f"buf:statistic{number}", columns_of(task, number), False, task.value(number).dtype)
    if product is None:
        return
    if stages.raw:
        composer.raw = Leaf("buf:parts", product.columns, True, "float32", schedule.split)
    if stages.kept is not None:
        at = next((f"out:{position}" for position in stages.tile_outputs if task.outputs[position] == stages.kept), "buf:kept")
        composer.leaves[stages.kept] = Leaf(at, columns_of(task, stages.kept), True, task.value(stages.kept).dtype)


class RowKernel:
    """Writes one launch over the rows."""

    def __init__(self, task: Task, product: Product | None, schedule: Schedule, stages: Stages, scalars: Sequence[int],
                 outputs: Sequence[int]) -> None:  # fmt: skip
        self.task, self.product, self.schedule, self.stages = task, product, schedule, stages
        self.scalars, self.outputs = scalars, outputs
        self.roots = components(task)
        self.signature, self.text, self.head = Signature(), Text(depth=1), list[str]()
        self.scopes = {root: scope_of(task, [n for n, r in self.roots.items() if r == root]) for root in self._used_roots()}
        self.rank = max([1, *[len(scope.extents) for scope in self.scopes.values()]])
        self.grid_chunks = not scalars and not stages.row_partials and len(self.scopes) == 1
        self.elements = max(
            [1, *[min(self._padded(scope), CHUNK if self._chunked(scope) else WHOLE_ROW) for scope in self.scopes.values()]]
        )
        self.row_block = max(1, min(64, CHUNK // max(self.elements, self._state_width())))
        self.current: int | None = None
        self.composer = Composer(
            task, self.signature, RowIndex(task, self.signature, self.head, 0), self.text, flavour_of(schedule.scheme)
        )
        leaves_of(task, product, stages, schedule, self.composer)

    def kernel(self, name: str, lost: bool = False) -> Kernel:
        """The kernel under this name. Raises: Unsupported."""
        self.composer.enter(row_place(self.rank, self.row_block))
        self._states()
        self._reduce()
        self._write()
        rows = self.signature.size(times(self.task.row_axes))
        start = f"row = {shaped(f'(tl.program_id(0) * {self.row_block} + tl.arange(0, {self.row_block}))', 0, self.rank)}"
        lines = [start, f"row_ok = row < {rows}"]
        lines += (
            [f"row_ok = row_ok & (tl.load({self.signature.buffer('lost')} + row, mask=row_ok, other=0) != 0)"] if lost else []
        )
        lines += self.head
        body = [*["    " + line for line in lines], *self.text.lines]
        source = f"@triton.jit\ndef {name}({', '.join(self.signature.parameters)}):\n" + "\n".join(body) + "\n"
        grid = (f"cdiv({times(self.task.row_axes)}, {self.row_block})", str(self._programs()))
        total = self.row_block * max(self.elements, self._state_width())
        warps = 4 if total <= 4096 else 8 if total <= 16384 else 16
        return Kernel(source, Launch(name, grid, self.signature.arguments, (), warps, 1), ())

    # shape

    def _used_roots(self) -> set[int]:
        used = {cast(int, cast(Node, node_of(self.task, number)).args[0]) for number in self.scalars}
        used |= {self.task.outputs[position] for position in self.outputs}
        return {self.roots[number] for number in used if number in self.roots}

    def _padded(self, scope: Scope) -> int:
        return math.prod(power_above(extent) for extent in scope.extents)

    def _chunked(self, scope: Scope) -> bool:
        return self._padded(scope) > (1024 if self.grid_chunks else WHOLE_ROW)

    def _chunk(self, scope: Scope) -> int:
        """Extent of a chunk along the outermost axis."""
        inner = math.prod(power_above(extent) for extent in scope.extents[1:])
        if inner > WIDEST:
            raise Unsupported(f"a group of {inner} inside the row is more than a program can hold")
        return min(power_above(scope.extents[0]), max(1, (1024 if self.grid_chunks else CHUNK) // inner))

    def _programs(self) -> int:
        if not self.grid_chunks:
            return 1
        (scope,) = self.scopes.values()
        return -(-scope.extents[0] // self._chunk(scope)) if self._chunked(scope) else 1

    def _tiles(self) -> int:
        return -(-self.product.columns // self.schedule.cut_n) if self.product is not None else 1

    def _state_width(self) -> int:
        return power_above(self._tiles()) if self.stages.row_partials else 1

    def _place(self, root: int, start: str | None) -> Place:
        """The block over a component, of which `start` is the first index along the outermost axis (None: all of it)."""
        scope = self.scopes[root]
        axes = []
        for axis, extent in enumerate(scope.extents):
            block = self._chunk(scope) if axis == 0 and start is not None else power_above(extent)
            vector = f"tl.arange(0, {block})"
            position = 1 + self.rank - len(scope.extents) + axis
            index = shaped(f"({start} + {vector})" if axis == 0 and start is not None else vector, position, self.rank)
            self.text.line(f"c{root}_{axis} = {index}")
            axes.append(AxisPlace(extent, block, f"c{root}_{axis}", axis > 0 or block >= extent, extent % block != 0))
        return Place(scope, tuple(axes), self.rank, self.row_block)

    # states of tiles

    def _states(self) -> None:
        done: dict[int, tuple[str, ...]] = {}
        for partial in self.stages.row_partials:
            owner = partial if partial.within is None else self._partial(partial.within)
            if owner.number not in done:
                done[owner.number] = self._combined(owner)
            state = done[owner.number]
            if partial.shift is not None:
                shift = self.composer.value(partial.shift, self.composer.natural(partial.shift))
                text = reductions.exponentials(state, shift.text, flavour_of(self.schedule.scheme))
            else:
                assert self.product is not None
                count = f"{float(self._count(partial.node))!r}"
                text = reductions.finished(partial.node.op, state, count, self.composer.correction(partial.node))
            name = self.text.say("v", f"({text}).to({REGISTER[partial.node.out.dtype]})")
            self.composer.given[partial.number] = Piece(name, frozenset(), True, self.task.value(partial.number).dtype)

    def _count(self, node: Node) -> int:
        return columns_of(self.task, cast(int, node.args[0]))

    def _partial(self, number: int) -> RowPartial:
        return next(partial for partial in self.stages.row_partials if partial.number == number)

    def _combined(self, partial: RowPartial) -> tuple[str, ...]:
        """The state of the whole row, from the states that the tiles left along N."""
        assert self.product is not None and self.composer.rows is not None
        tiles, width = self._tiles(), self._state_width()
        block, columns = self.schedule.cut_n, self.product.columns
        tile = self.text.say("tile", shaped(f"tl.arange(0, {width})", 1, self.rank))
        mask = None if tiles == width else f"({tile} < {tiles})"
        operand = self.task.value(cast(int, partial.node.args[0])).dtype
        dtypes = reductions.state_dtypes(partial.node.op, operand, partial.node.out.dtype)
        total = self.signature.size(times(self.task.row_axes))
        guard = "row_ok" if mask is None else f"row_ok & {mask}"
        place = f"{tile}.to(tl.int64) * {total} + {self.composer.rows.flat()}, mask={guard}, other=0"
        states = [
            self.text.say("p", f"tl.load({self.signature.buffer(name)} + {place})")
            for name in state_names(partial.number, len(dtypes))
        ]
        count = f"(tl.minimum({columns} - {tile} * {block}, {block}) * 1.0)"
        elements = Elements("", operand, mask, (1,), count)
        return reductions.of_states(self.text.say, partial.node.op, states, elements, flavour_of(self.schedule.scheme))

    # reductions over the row

    def _reduce(self) -> None:
        for root, group in self._levels():
            if self._chunked(self.scopes[root]):
                self._reduce_chunks(root, group)
                continue
            self._enter_whole(root)
            for number in group:
                self.composer.given[number] = self.composer.value(number, self.composer.natural(number))

    def _levels(self) -> list[tuple[int, list[int]]]:
        """Reductions in groups of one component; in a chunked one no member needs another of its group."""
        groups: list[tuple[int, list[int]]] = []
        for number in self.scalars:
            root = self.roots[cast(int, cast(Node, node_of(self.task, number)).args[0])]
            if groups and groups[-1][0] == root and not (self._chunked(self.scopes[root]) and self._needs(number, groups[-1][1])):
                groups[-1][1].append(number)
            else:
                groups.append((root, [number]))
        return groups

    def _needs(self, number: int, others: Sequence[int]) -> bool:
        met: set[int] = set()

        def stop(visited: int) -> bool:
            met.add(visited)
            return visited in self.composer.given

        walk(self.task, [number], stop)
        return bool(met & set(others) - {number})

    def _enter_whole(self, root: int) -> None:
        if self.current != root:
            self.composer.enter(self._place(root, None))
            self.current = root

    def _reduce_chunks(self, root: int, group: Sequence[int]) -> None:
        scope, chunk = self.scopes[root], self._chunk(self.scopes[root])
        inner = math.prod(scope.extents[1:])
        nodes = {number: cast(Node, node_of(self.task, number)) for number in group}
        shape = f"({', '.join([str(self.row_block), *['1'] * self.rank])})"
        names: dict[int, tuple[str, ...]] = {}
        for number, node in nodes.items():
            operand = self.task.value(cast(int, node.args[0])).dtype
            dtypes = reductions.state_dtypes(node.op, operand, node.out.dtype)
            start = reductions.start(node.op, node.out.dtype if node.op == "sum" else operand)
            names[number] = tuple(
                self.text.fresh("z", f"tl.full({shape}, {value}, {REGISTER[dtype]})")
                for value, dtype in zip(start, dtypes, strict=True)
            )
        self._open_chunks(root)
        count, seen = f"(min({chunk}, {scope.extents[0]} - start) * {float(inner)!r})", f"(start * {float(inner)!r})"
        for number, node in nodes.items():
            state, elements = self.composer.block_state(node, count)
            merged = reductions.merged(self.text.say, node.op, names[number], state, seen, count, elements.dtype)
            fresh = [self.text.say("u", f"tl.broadcast_to({text}, {shape})") for text in merged]
            for name, text in zip(names[number], fresh, strict=True):
                self.text.line(f"{name} = {text}")
        self._close_chunks()
        self._finish_chunks(nodes, names)

    def _finish_chunks(self, nodes: dict[int, Node], names: dict[int, tuple[str, ...]]) -> None:
        for number, node in nodes.items():
            text = reductions.finished(node.op, names[number], f"{float(self._count(node))!r}", self.composer.correction(node))
            name = self.text.say("v", f"({text}).to({REGISTER[node.out.dtype]})")
            self.composer.given[number] = Piece(name, frozenset(), True, node.out.dtype)

    def _open_chunks(self, root: int) -> None:
        self.text.open(f"for start in range(0, {self.scopes[root].extents[0]}, {self._chunk(self.scopes[root])}):")
        self.composer.enter(self._place(root, "start"))
        self.current = None

    def _close_chunks(self) -> None:
        self.text.close()
        self.composer.enter(row_place(self.rank, self.row_block))

    # outputs

    def _write(self) -> None:
        by_root: dict[int | None, list[int]] = {}
        for position in self.outputs:
            by_root.setdefault(self.roots.get(self.task.outputs[position]), []).append(position)
        if self.current in by_root:  # first what the present block can give
            by_root = {self.current: by_root.pop(self.current), **by_root}
        for root, positions in by_root.items():
            if root is None:
                self._store(positions)
            elif not self._chunked(self.scopes[root]):
                self._enter_whole(root)
                self._store(positions)
            elif self.grid_chunks:
                self.text.line(f"start = tl.program_id(1) * {self._chunk(self.scopes[root])}")
                self.composer.enter(self._place(root, "start"))
                self._store(positions)
            else:
                self._open_chunks(root)
                self._store(positions)
                self._close_chunks()

    def _store(self, positions: Sequence[int]) -> None:
        for position in positions:
            self.composer.store(self.task.outputs[position], self.signature.output(position), rows=True)
