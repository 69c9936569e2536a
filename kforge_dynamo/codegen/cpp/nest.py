"""The C++ text of one stage: a loop nest with vectors along its innermost loop."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from math import prod

from kforge_dynamo.codegen.cpp.cells import Cell, Root, Use
from kforge_dynamo.codegen.cpp.expressions import Fold, literal, mean_count, operand_kind, pointwise
from kforge_dynamo.codegen.cpp.layout import Atom, Layout, Step, split
from kforge_dynamo.codegen.cpp.stages import Stage
from kforge_dynamo.records.task import Const

VECTORS = {"f": "V", "b": "B", "i": "I"}
"""C++ vector type by class."""
_INLINE = "__attribute__((always_inline))"
_LENGTH = {"exp": 24, "exp2": 20, "expm1": 27, "log": 40, "log2": 40, "log1p": 57, "tanh": 32, "sigmoid": 28, "erf": 43}
"""Instructions of the functions that need many."""
_AHEAD = 100


@dataclass(frozen=True, slots=True)
class Sink:
    """Memory that a cell's row is written to, dense: `pointer` is a C++ expression for its first element."""

    pointer: str
    ctype: str


@dataclass(frozen=True, slots=True)
class Places:
    """Where a stage finds what it reads and where its cells go; `lanes` is the width of a vector in floats."""

    cells: Mapping[int, Cell]
    memory: Mapping[int, Root]
    sinks: Mapping[int, Sequence[Sink]]
    lanes: int


def variable(number: int) -> str:
    """The C++ variable that holds a cell."""
    return f"v{number}" if number >= 0 else f"c{-number}"


def _mark(copy: int) -> str:
    return f"_{copy}" if copy else ""


def operand_texts(cell: Cell, read: Mapping[int, str]) -> list[str]:
    """C++ text of the operands: `read` by position, constants spelled out."""
    meet = operand_kind(cell)
    return [
        literal(arg, "b" if cell.op == "where" and index == 0 else meet) if isinstance(arg, Const) else read[index]
        for index, arg in enumerate(cell.args)
    ]


@dataclass(slots=True)
class Nest:
    """Writes the loop nest of `stage`; with `ranged` its one loop runs over columns `c0` to `c1`."""

    stage: Stage
    places: Places
    ranged: bool = False
    lines: list[str] = field(default_factory=list)
    _before: list[str] = field(default_factory=list)
    _names: dict[tuple[int, Layout], str] = field(default_factory=dict)
    _loaded: set[tuple[int, Layout, int]] = field(default_factory=set)
    _same: set[str] = field(default_factory=set)
    _tables: dict[tuple[int, ...], str] = field(default_factory=dict)
    _vector_dims: int = 1

    def write(self) -> list[str]:
        """The nest, as lines of C++. Raises: Inexpressible."""
        reductions = [cell for cell in self.stage.cells if cell.is_reduction]
        self._vector_dims = self._packed_dims(reductions)
        if self._vector_dims > 1:
            self._packed(reductions)
        elif reductions and not self.stage.dims[-1][1]:
            self._columnwise(reductions)
        else:
            self._along(reductions)
        declared = [f"{VECTORS[cell.kind]} {variable(cell.number)};" for cell in reductions if cell.size == 1]
        tables = [f"static const int {name}[W] = {{{', '.join(map(str, where))}}};" for where, name in self._tables.items()]
        return [*declared, "{", *tables, *self.lines, "}"]

    # loads and pointwise statements

    def _statements(self, copies: int = 1) -> list[str]:
        """The body of the vector loop, reductions as `@number operand copy`. `copies` vectors are computed abreast."""
        body: list[str] = []
        local = {cell.number for cell in self.stage.cells}
        for cell in self.stage.cells:
            for copy in range(copies):
                read = {i: self._read(arg, local, body, copy) for i, arg in enumerate(cell.args) if isinstance(arg, Use)}
                if cell.is_reduction:
                    body.append(f"@{cell.number} {read[0]} {copy}")
                    continue
                name = variable(cell.number) + _mark(copy)
                body.append(f"const {VECTORS[cell.kind]} {name} = {pointwise(cell, operand_texts(cell, read))};")
                where = self._linear(kept_only=False) + (f" + {copy} * W" if copy else "")
                body.extend(f"store<L>({sink.pointer} + {where}, {name});" for sink in self.places.sinks.get(cell.number, ()))
        return body

    def _read(self, use: Use, local: set[int], body: list[str], copy: int) -> str:
        source = self.places.cells.get(use.source)
        if source is not None and source.size == 1:
            return variable(use.source)
        if source is not None and use.source in local and not source.is_reduction:
            return variable(use.source) + _mark(copy)
        key = (use.source, use.layout)
        if key not in self._names:
            self._names[key] = f"x{len(self._names)}"
            self._load(use, self._names[key], self._before)
        if (*key, copy) not in self._loaded and self._names[key] not in self._same:
            self._loaded.add((*key, copy))
            self._load(use, self._names[key] + _mark(copy), body, copy)
        return self._names[key] + ("" if self._names[key] in self._same else _mark(copy))

    def _load(self, use: Use, name: str, lines: list[str], copy: int | None = None) -> None:
        """Loads one operand: without `copy` only if it is the same along the vector loop, else for that copy."""
        memory = self.places.memory[use.source]
        pieces = split(use.layout, self.stage.cuts)
        assert pieces is not None
        steps = [atom.step for atom in pieces.atoms]
        count = len(steps) - self._vector_dims
        terms = [memory.pointer, *([use.layout.offset] if use.layout.offset != "0" else [])]
        terms += [f"i{d} * {step.text}" for d, step in enumerate(steps[:count]) if step.factor]
        base, inner = " + ".join(terms), steps[count:]
        if copy is None and all(step.factor == 0 for step in inner):
            lines.append(f"const auto {name} = every({base});")
            self._same.add(name)
        elif copy is not None:
            lines.append(f"const auto {name} = {self._vector_load(base, inner, f'(j + {copy} * W)' if copy else 'j')};")

    def _vector_load(self, base: str, steps: Sequence[Step], j: str) -> str:
        extents = [extent for extent, _ in self.stage.dims[-self._vector_dims :]]
        step = steps[-1]
        if all(outer == step.times(prod(extents[i + 1 :])) for i, outer in enumerate(steps)):
            return f"load<L>({base} + {j})" if step == Step(1) else f"spaced<L>({base} + {j} * {step.text}, {step.text})"
        where = []
        for lane in range(self.places.lanes):
            position, left = 0, lane
            for digit, extent in zip(reversed(steps[1:]), reversed(extents[1:]), strict=True):
                position, left = position + left % extent * digit.factor, left // extent
            where.append(position + left * steps[0].factor)
        table = self._tables.setdefault(tuple(where), f"w{len(self._tables)}")
        return f"pattern<L>({base} + {j} / {prod(extents[1:])} * {steps[0].text}, {table})"

    def _linear(self, kept_only: bool) -> str:
        """The linear index of the current element; with `kept_only` among the elements of a reduction's result."""
        dims = self.stage.dims
        outer = len(dims) - self._vector_dims
        terms: list[str] = []
        total = 1
        for d in reversed(range(len(dims))):
            extent, reduced = dims[d]
            if kept_only and reduced:
                continue
            if d < outer:
                terms.insert(0, f"i{d} * {total}")
            elif d == outer:
                terms.insert(0, f"j / {prod(e for e, r in dims[outer:] if r)}" if kept_only and self._vector_dims > 1 else "j")
            total *= extent
        return " + ".join(terms) or "0"

    def _reduced_index(self) -> str:
        """The position along the reduced dimensions, without the vector loop."""
        dims = self.stage.dims
        terms, total = ["0"], 1
        for d in reversed(range(len(dims))):
            extent, reduced = dims[d]
            if reduced:
                if d < len(dims) - self._vector_dims:
                    terms.append(f"i{d} * {total}")
                total *= extent
        return " + ".join(terms)

    # loop shapes

    def _packed_dims(self, reductions: Sequence[Cell]) -> int:
        """How many of the innermost loops go into one vector: more than one where the innermost are shorter than a vector."""
        dims, lanes = self.stage.dims, self.places.lanes
        count, inner = 1, dims[-1][0]
        while inner < lanes and lanes % inner == 0 and count < len(dims):
            inner, count = inner * dims[-1 - count][0], count + 1
        packed = dims[-count:]
        if count == 1 or lanes % prod(extent for extent, _ in packed[1:]):
            return 1
        symbols = any(atom.step.symbol for cell in self.stage.cells for use in cell.uses for atom in self._atoms(use)[-count:])
        if symbols or any(Fold(cell).is_index for cell in reductions):
            return 1
        split_here = not packed[0][1] and all(reduced for _, reduced in packed[1:])
        if reductions and not (split_here and not any(reduced for _, reduced in dims[:-count])):
            return 1
        return count

    def _atoms(self, use: Use) -> tuple[Atom, ...]:
        pieces = split(use.layout, self.stage.cuts)
        assert pieces is not None
        return pieces.atoms

    def _open(self, reduced: bool) -> int:
        """Opens the loops outside the vector loop that are (not) reduced; returns how many."""
        count = 0
        dims = self.stage.dims
        for d in range(len(dims) - self._vector_dims):
            if dims[d][1] == reduced:
                self.lines.append(f"for (long i{d} = 0; i{d} < {dims[d][0]}; ++i{d}) {{")
                count += 1
        return count

    def _vector_loop(self, unroll: int, paired: bool = False) -> None:
        extent = prod(extent for extent, _ in self.stage.dims[-self._vector_dims :])
        lanes = self.places.lanes
        end = "c1" if self.ranged else str(extent)
        self.lines.append(f"long j = {'c0' if self.ranged else '0'};")
        if paired and extent >= 2 * lanes:
            self.lines.append(f"for (; j + 2 * W <= {end}; j += 2 * W) pair(j);")
        elif unroll > 1:
            calls = " ".join(f"body(j + {u} * W, Lanes<W>(), {u});" for u in range(unroll))
            self.lines.append(f"for (; j + {unroll} * W <= {end}; j += {unroll} * W) {{ {calls} }}")
        if extent >= lanes:
            self.lines.append(f"for (; j + W <= {end}; j += W) body(j, Lanes<W>(), 0);")
        if extent % lanes:
            self.lines.append(f"if (j < {end}) body(j, Lanes<{extent % lanes}>(), 0);")

    def _body(self, lines: Sequence[str]) -> None:
        self.lines.append(f"auto body = [&](long j, auto lanes, int u) {_INLINE} {{")
        self.lines += ["constexpr int L = decltype(lanes)::count; (void)u;", *lines, "};"]

    def _pair(self, lines: Sequence[str]) -> None:
        self.lines.append(f"auto pair = [&](long j) {_INLINE} {{")
        self.lines += ["constexpr int L = W;", *lines, "};"]

    def _along(self, reductions: Sequence[Cell]) -> None:
        """Pointwise, or reductions whose innermost loop is reduced: accumulators live across the vector loop."""
        unroll = min(4, max(1, self.stage.dims[-1][0] // self.places.lanes)) if reductions else 1
        # a chain of functions longer than what a core looks ahead: two of them abreast
        paired = sum(_LENGTH.get(cell.op, 1) for cell in self.stage.cells) > _AHEAD
        kept = self._open(reduced=False)
        for cell in reductions:
            fold = Fold(cell)
            self.lines += [f"{fold.vector} a{cell.number}[{unroll}]; for (auto& a : a{cell.number}) a = {fold.start};"]
            if fold.is_index:
                self.lines.append(f"B k{cell.number}[{unroll}]; for (auto& k : k{cell.number}) k = set1i(-1);")
        inner = self._open(reduced=True)
        index = "set1i(" + self._reduced_index() + " + j) + iota()"
        body = self._steps(self._statements(), index, "[u]")
        self._loaded.clear()
        pair = self._steps(self._statements(2), index, "[0]") if paired else []
        self.lines += self._before
        self._body(body)
        if paired:
            self._pair(pair)
        self._vector_loop(unroll, paired)
        self.lines.append("}" * inner)
        for cell in reductions:
            self._finish_along(cell, unroll)
        self.lines.append("}" * kept)

    def _steps(self, body: Sequence[str], where: str, slot: str) -> list[str]:
        """`body` with the reductions' marks written out."""
        lines = []
        for line in body:
            if not line.startswith("@"):
                lines.append(line)
                continue
            number, operand, copy = line[1:].split(" ")
            fold = Fold(self.places.cells[int(number)])
            spot, at = (slot, where) if copy == "0" else (f"[{copy}]", f"{where} + {copy} * W")
            total = f"a{number}{spot}"
            if fold.is_index:
                largest = "true" if fold.op == "argmax" else "false"
                lines.append(f"{{ V b = {total}; B k = k{number}{spot}; index_step(b, k, {operand}, {at}, {largest});")
                lines.append(f"{total} = keep<L>({total}, b); k{number}{spot} = keep<L>(k{number}{spot}, k); }}")
            else:
                lines.append(f"{total} = keep<L>({total}, {fold.step(total, fold.operand(operand))});")
        return lines

    def _finish_along(self, cell: Cell, unroll: int) -> None:
        fold, number = Fold(cell), cell.number
        if fold.is_index:
            largest = "true" if fold.op == "argmax" else "false"
            value = f"index_across(a{number}, k{number}, {unroll}, {largest})"
        else:
            for u in range(1, unroll):
                self.lines.append(f"a{number}[0] = {fold.step(f'a{number}[0]', f'a{number}[{u}]')};")
            value = f"across(a{number}[0], []({fold.scalar} a, {fold.scalar} b) {{ return {fold.step('a', 'b')}; }})"
        if cell.op == "mean":
            value += f" / {mean_count(cell)}.0f"
        if cell.size == 1:
            self.lines.append(f"{variable(number)} = {fold.lift(value)};")
            self.lines += [f"store<1>({sink.pointer}, {variable(number)});" for sink in self.places.sinks.get(number, ())]
            return
        self.lines.append(f"const {VECTORS[cell.kind]} {variable(number)} = {fold.lift(value)};")
        where = self._linear(kept_only=True)
        self.lines += [f"store<1>({sink.pointer} + {where}, {variable(number)});" for sink in self.places.sinks[number]]

    def _columnwise(self, reductions: Sequence[Cell]) -> None:
        """Reductions that keep the innermost loop: a vector of accumulators for each vector of columns."""
        kept = self._open(reduced=False)
        outside, self.lines = self.lines, []
        inner = self._open(reduced=True)
        statements = self._steps(self._statements(), "set1i(" + self._reduced_index() + ")", "")
        body: list[str] = []
        for cell in reductions:
            fold = Fold(cell)
            body.append(f"{fold.vector} a{cell.number} = {fold.start};")
            if fold.is_index:
                body.append(f"B k{cell.number} = set1i(-1);")
        body += [*self.lines, *self._before, *statements, "}" * inner]
        for cell in reductions:
            body += self._finish_columns(cell)
        self.lines = outside
        self._body(body)
        self._vector_loop(1)
        self.lines.append("}" * kept)

    def _finish_columns(self, cell: Cell) -> list[str]:
        fold, name = Fold(cell), variable(cell.number)
        value = f"__builtin_convertvector(k{cell.number}, I)" if fold.is_index else f"a{cell.number}"
        if cell.op == "mean":
            value += f" / {mean_count(cell)}.0f"
        where = self._linear(kept_only=True)
        stores = [f"store<L>({sink.pointer} + {where}, {name});" for sink in self.places.sinks[cell.number]]
        return [f"const {VECTORS[cell.kind]} {name} = {value};", *stores]

    def _packed(self, reductions: Sequence[Cell]) -> None:
        """Innermost loops shorter than a vector, several to a vector; reductions fold groups of neighbouring lanes."""
        opened = self._open(reduced=False)
        group = prod(extent for extent, reduced in self.stage.dims if reduced)
        body: list[str] = []
        for line in self._statements():
            if not line.startswith("@"):
                body.append(line)
                continue
            number, operand, _ = line[1:].split(" ")
            cell = self.places.cells[int(number)]
            fold, name = Fold(cell), variable(cell.number)
            step = f"[]({fold.vector} a, {fold.vector} b) {{ return {fold.step('a', 'b')}; }}"
            scale = f" / {mean_count(cell)}.0f" if cell.op == "mean" else ""
            value = f"one_in<{group}>(within<{group}>({fold.operand(operand)}, {step}){scale})"
            body.append(f"const {VECTORS[cell.kind]} {name} = {value};")
            where = self._linear(kept_only=True)
            body += [f"store<L / {group}>({sink.pointer} + {where}, {name});" for sink in self.places.sinks[cell.number]]
        self.lines += self._before
        self._body(body)
        self._vector_loop(1)
        self.lines.append("}" * opened)
