"""Views resolved: each computed value as a `Cell` that reads sources through layouts.

A source is something that lies in memory (an input, the product, a value of an earlier phase: a `Root`) or another cell.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from math import prod
from typing import cast

from kforge_dynamo.codegen.cpp.layout import Layout, boundaries, broadcast, chain, dense, sliced
from kforge_dynamo.codegen.cpp.program import Program, over_rows
from kforge_dynamo.records.task import Attribute, Const
from kforge_dynamo.semantics.table import OPS, Kind

POINTERS = {"float32": "float", "float16": "f16", "bfloat16": "bf16", "bool": "uint8_t", "int64": "int64_t", "int32": "int32_t"}
"""C++ element type of memory by dtype."""
EXACT = {"f": "float", "b": "uint8_t", "i": "int64_t"}
"""C++ element type that holds a class without rounding."""


@dataclass(frozen=True, slots=True)
class Root:
    """A value that lies in memory: `pointer` is a C++ expression for the start of the row."""

    pointer: str
    ctype: str
    layout: Layout


@dataclass(frozen=True, slots=True)
class Use:
    """An operand: `layout` maps the linear index of the reading cell's domain to an element of `source`."""

    source: int
    layout: Layout


@dataclass(frozen=True, slots=True)
class Cell:
    """A pointwise value or a reduction. `domain` is what its loop runs over; `axes` are the reduced positions in it."""

    number: int
    op: str
    args: tuple[Use | Const, ...]
    attrs: tuple[tuple[str, Attribute], ...]
    domain: tuple[int, ...]
    axes: tuple[int, ...] | None
    kind: str
    arg_kinds: tuple[str, ...]
    dtype: str

    @property
    def uses(self) -> tuple[Use, ...]:
        """The operands that are no constants."""
        return tuple(arg for arg in self.args if isinstance(arg, Use))

    @property
    def is_reduction(self) -> bool:
        """Whether it has fewer elements than its domain."""
        return self.axes is not None

    @property
    def size(self) -> int:
        """Elements of the result."""
        if self.axes is None:
            return prod(self.domain)
        return prod(extent for axis, extent in enumerate(self.domain) if axis not in self.axes)

    @property
    def span(self) -> int:
        """Elements of the domain."""
        return prod(self.domain)

    @property
    def runs(self) -> tuple[tuple[int, bool], ...]:
        """The domain as maximal runs of kept and reduced dimensions: (extent, reduced), outermost first."""
        found: list[tuple[int, bool]] = []
        for axis, extent in enumerate(self.domain):
            reduced = self.axes is not None and axis in self.axes
            if extent == 1:
                continue
            if found and found[-1][1] == reduced:
                found[-1] = (found[-1][0] * extent, reduced)
            else:
                found.append((extent, reduced))
        return tuple(found)

    @property
    def cuts(self) -> frozenset[int]:
        """Where a loop over the domain must be split on account of this cell."""
        edges = set(boundaries([extent for extent, _ in self.runs])[1:-1]) if self.is_reduction else set()
        for use in self.uses:
            edges |= use.layout.cuts
        return frozenset(edges)


@dataclass(slots=True)
class Resolver:
    """Turns the nodes that lead to `targets` into cells, in order. `roots` are not computed but read."""

    program: Program
    roots: Mapping[int, Root]
    cells: dict[int, Cell] = field(default_factory=dict)
    forced: set[int] = field(default_factory=set)
    """Cells that have to lie in memory before they are read, however they are read."""
    copies: dict[int, int] = field(default_factory=dict)
    """For a target that is itself a view or a root: the cell that copies it."""
    _views: dict[int, tuple[int, Layout]] = field(default_factory=dict)
    _fresh: int = -1

    def run(self, targets: Iterable[int]) -> None:
        """Resolves everything that `targets` need."""
        targets = list(targets)
        needed = self._needed(targets)
        for number in self.program.numbers():
            if number in needed and not self._is_view(number):
                self._cell(number)
        for target in targets:
            if target not in self.cells:
                self.copies[target] = self._copy(target)

    def _needed(self, targets: list[int]) -> set[int]:
        needed: set[int] = set()
        stack = list(targets)
        while stack:
            number = stack.pop()
            node = self.program.node(number)
            if number in needed or number in self.roots or node is None:
                continue
            needed.add(number)
            stack.extend(arg for arg in node.args if not isinstance(arg, Const))
        return needed

    def _is_view(self, number: int) -> bool:
        node = self.program.node(number)
        return node is not None and number not in self.roots and node.op in OPS and OPS[node.op].kind is Kind.VIEW

    def _cell(self, number: int) -> None:
        node = self.program.node(number)
        assert node is not None and not over_rows(node)
        kinds = tuple("c" if isinstance(arg, Const) else self.program.kind(arg) for arg in node.args)
        kind, dtype = self.program.kind(number), node.out.dtype
        if node.op in OPS and OPS[node.op].kind is Kind.REDUCTION:
            arg = cast(int, node.args[0])
            domain, axes = self.program.cols(arg), cast("tuple[int, ...]", node.attr("axes"))
            axes = tuple(axis % len(domain) for axis in axes)
            self._put(Cell(number, node.op, (Use(*self._view(arg)),), node.attrs, domain, axes, kind, kinds, dtype))
            return
        domain = self.program.cols(number)
        args = tuple(arg if isinstance(arg, Const) else self._operand(arg, domain) for arg in node.args)
        self._put(Cell(number, node.op, args, node.attrs, domain, None, kind, kinds, dtype))

    def _put(self, cell: Cell) -> None:
        """Stores the cell; where its operands cannot share one loop nest, the awkward ones are copied first."""
        if not chain(cell.cuts, cell.span):
            args = tuple(self._flattened(arg, cell) if isinstance(arg, Use) and arg.layout.cuts else arg for arg in cell.args)
            cell = Cell(cell.number, cell.op, args, cell.attrs, cell.domain, cell.axes, cell.kind, cell.arg_kinds, cell.dtype)
        self.cells[cell.number] = cell

    def _flattened(self, use: Use, cell: Cell) -> Use:
        kind = cell.arg_kinds[cell.args.index(use)]
        return Use(self._copied(use, (cell.span,), kind, cell.dtype), dense(cell.span))

    def _copied(self, use: Use, domain: tuple[int, ...], kind: str, dtype: str) -> int:
        number, self._fresh = self._fresh, self._fresh - 1
        self.cells[number] = Cell(number, "copy", (use,), (), domain, None, kind, (kind,), dtype)
        self.forced.add(number)
        return number

    def _copy(self, number: int) -> int:
        source, layout = self._view(number)
        use = Use(source, layout)
        return self._copied(use, (self.program.size(number),), self.program.kind(number), self.program.spec(number).dtype)

    def _operand(self, number: int, domain: tuple[int, ...]) -> Use:
        source, layout = self._view(number)
        cols = self.program.cols(number)
        repeated = broadcast(layout, cols, domain)
        if repeated is None:
            source = self._copy(number)
            repeated = broadcast(dense(self.program.size(number)), cols, domain)
            assert repeated is not None
        return Use(source, repeated)

    def _view(self, number: int) -> tuple[int, Layout]:
        """Where the value lies and how: views are followed to the cell or root they look at."""
        if number in self._views:
            return self._views[number]
        if number in self.roots:
            found = number, self.roots[number].layout
        elif not self._is_view(number):
            found = number, dense(self.program.size(number))
        else:
            found = self._through(number)
        self._views[number] = found
        return found

    def _through(self, number: int) -> tuple[int, Layout]:
        node = self.program.node(number)
        assert node is not None
        arg = cast(int, node.args[0])
        source, layout = self._view(arg)
        if node.op == "reshape":
            return source, layout
        turned = self._turned(number, layout)
        if turned is None:
            source = self._copy(arg)
            turned = self._turned(number, dense(self.program.size(arg)))
            assert turned is not None
        return source, turned

    def _turned(self, number: int, layout: Layout) -> Layout | None:
        node = self.program.node(number)
        assert node is not None
        cols = self.program.cols(cast(int, node.args[0]))
        if node.op == "expand":
            out = self.program.cols(number)
            return broadcast(layout, (1,) * (len(out) - len(cols)) + cols, out)
        axis, start, stop, step = (cast(int, node.attr(name)) for name in ("axis", "start", "stop", "step"))
        return sliced(layout, cols, axis % len(cols), start, stop, step)
