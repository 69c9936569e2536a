"""Writes the statements that compute a task's values in a block, from whatever the kernel already has of them."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import replace
from typing import cast

from kforge_dynamo.codegen.triton import reductions
from kforge_dynamo.codegen.triton.expressions import HALVES, MEMORY, REGISTER, Flavour, Term, convert, literal, pointwise
from kforge_dynamo.codegen.triton.forms import ZERO, Access, Form, Unsupported, flatten, numbers, split
from kforge_dynamo.codegen.triton.place import Leaf, Piece, Place, Text
from kforge_dynamo.codegen.triton.reductions import Elements
from kforge_dynamo.codegen.triton.scope import node_of
from kforge_dynamo.codegen.triton.signature import RowIndex, Signature, times
from kforge_dynamo.records.task import Const, Node, Task
from kforge_dynamo.semantics.table import OPS, Kind


class Composer:
    """Computes values of `task` at a `place`.

    `raw` is the bare product (before alpha, beta and bias), `leaves` are values in memory, `given` values that earlier
    parts of the kernel hold one a row of, `blocks` values that they hold at their natural columns. All else is composed
    from inputs by the op table, each value at most once a place. Raises `Unsupported` where a value does not fit this
    kernel; lines written until then are not to be used.
    """

    def __init__(self, task: Task, signature: Signature, rows: RowIndex | None, text: Text, flavour: Flavour) -> None:
        self.task, self.signature, self.rows, self.text, self.flavour = task, signature, rows, text, flavour
        self.raw: Piece | Leaf | None = None
        self.leaves: dict[int, Leaf] = {}
        self.given: dict[int, Piece] = {}
        self.blocks: dict[int, Piece] = {}
        self._memo: dict[tuple[int, Access], Piece] = {}
        self._place: Place | None = None

    @property
    def place(self) -> Place:
        """The current block."""
        assert self._place is not None, "no place was entered"
        return self._place

    def enter(self, place: Place) -> None:
        """Goes to another block; what was computed in the last one is forgotten, `given` stays."""
        self._place = place
        self._memo = {}

    def natural(self, number: int) -> Access:
        """The access of a value on the current scope's axes. Raises: Unsupported."""
        cols = numbers(self.task.value(number).cols)
        if math.prod(cols) == 1:
            return (ZERO,) * len(cols)
        access = self.place.scope.naturals.get(number)
        if access is None:
            raise Unsupported("a value inside a row does not follow from the shapes of the row it is used with")
        return access

    def value(self, number: int, access: Access) -> Piece:
        """The piece that holds the value at these columns."""
        if number in self.given:
            return self.given[number]
        key = (number, access)
        if key not in self._memo:
            self._memo[key] = self._value(number, access)
        return self._memo[key]

    def _value(self, number: int, access: Access) -> Piece:
        if number in self.blocks:
            self._expect_natural(number, access)
            return self.blocks[number]
        if number in self.leaves:
            return self._leaf(self.leaves[number], access, numbers(self.task.value(number).cols))
        node = node_of(self.task, number)
        if node is None:
            return self._input(number, access)
        kind = OPS[node.op].kind
        if kind is Kind.GEMM:
            return self._product(node, access)
        if kind is Kind.VIEW:
            return self._view(node, access)
        if kind is Kind.REDUCTION:
            return self._reduction(node, number, access)
        return self._pointwise(node, access)

    # inputs and leaves

    def _input(self, number: int, access: Access) -> Piece:
        spec = self.task.inputs[number]
        if spec.value.dtype not in MEMORY:
            raise Unsupported(f"an input is {spec.value.dtype}, which has no Triton form here")
        count = len(spec.value.rows)
        parts, rows = self._row_offset(number)
        axes: set[int] = set()
        for position, form in enumerate(access):
            stride = spec.strides[count + position]
            if stride == 0 or form == ZERO:
                continue
            index = self.place.index(form)
            axes |= form.axes
            wide = index if not form.terms else f"{index}.to(tl.int64)"
            parts.append(index if stride == 1 else f"{wide} * {self.signature.stride(number, count + position)}")
        return self._load(self.signature.input(number), parts, frozenset(axes), rows, spec.value.dtype)

    def _row_offset(self, number: int) -> tuple[list[str], bool]:
        spec = self.task.inputs[number]
        terms = []
        for position, (extent, stride) in enumerate(zip(spec.value.rows, spec.strides, strict=False)):
            if extent != 1 and stride != 0:
                terms.append((cast(str, extent), "1" if stride == 1 else self.signature.stride(number, position)))
        if not terms:
            return [], False
        if self.rows is None:
            raise Unsupported("a value that varies by row is used where there are only columns")
        return [self.rows.offset(number, terms)], True

    def _leaf(self, leaf: Leaf, access: Access, cols: Sequence[int]) -> Piece:
        flat = flatten(access, cols)
        index = [self.place.index(flat)] if flat != ZERO else []
        pointer = self.signature.pointer(leaf.argument)
        if not leaf.rows:
            return self._load(pointer, index, flat.axes, False, leaf.dtype)
        if self.rows is None:
            raise Unsupported("a value that varies by row is used where there are only columns")
        total = self._load(pointer, [f"{self.rows.flat()} * {leaf.columns}", *index], flat.axes, True, leaf.dtype)
        for copy in range(1, leaf.copies):
            line = f"({self.rows.flat()} + {self.signature.size(times(self.task.row_axes))} * {copy}) * {leaf.columns}"
            more = self._load(pointer, [line, *index], flat.axes, True, leaf.dtype)
            total = Piece(self.text.say("v", f"{total.text} + {more.text}"), total.axes, True, leaf.dtype)
        return total

    def _load(self, pointer: str, parts: list[str], axes: frozenset[int], rows: bool, dtype: str) -> Piece:
        masks = (["row_ok"] if rows else []) + self.place.masks(axes)
        guard = f", mask={' & '.join(masks)}, other=0" if masks else ""
        loaded = f"tl.load({' + '.join([pointer, *parts])}{guard})"
        if dtype in HALVES:
            loaded += ".to(tl.float32)"
        return Piece(self.text.say("v", loaded), axes, rows, dtype)

    # nodes

    def _product(self, node: Node, access: Access) -> Piece:
        if self.raw is None:
            raise Unsupported("the product is not in this kernel's reach")
        if isinstance(self.raw, Leaf):
            product = self._leaf(self.raw, access, numbers(node.out.cols))
        else:
            self._expect_natural(self.task.nodes.index(node) + len(self.task.inputs), access)
            product = self.raw
        alpha, beta = cast(float, node.attr("alpha")), cast(float, node.attr("beta"))
        text = product.text if alpha == 1.0 else self.text.say("v", f"{product.text} * {literal(alpha, 'float32')}")
        axes, rows = product.axes, product.rows
        if len(node.args) == 3 and beta != 0.0:  # with beta = 0 torch ignores the bias, NaN or not
            bias = self.value(cast(int, node.args[2]), self._at(cast(int, node.args[2]), access))
            scaled = bias.text if beta == 1.0 else f"{bias.text} * {literal(beta, 'float32')}"
            text = self.text.say("v", f"{text} + {scaled}")
            axes, rows = axes | bias.axes, rows or bias.rows
        return Piece(text, axes, rows, node.out.dtype)

    def _at(self, number: int, access: Access) -> Access:
        """The access of an operand that broadcasts along the columns where its extent is 1."""
        cols = numbers(self.task.value(number).cols)
        return tuple(ZERO if extent == 1 else form for extent, form in zip(cols, access, strict=True))

    def _expect_natural(self, number: int, access: Access) -> None:
        if access != self.natural(number):
            raise Unsupported("a part of the row is used at the place of another")

    def _view(self, node: Node, access: Access) -> Piece:
        source = cast(int, node.args[0])
        cols = numbers(self.task.value(source).cols)
        if node.op == "slice":
            axis, begin, step = (cast(int, node.attr(name)) for name in ("axis", "start", "step"))
            moved = access[axis].scaled(step, begin)
            return self.value(source, (*access[:axis], moved, *access[axis + 1 :]))
        if node.op == "expand":
            return self.value(source, self._at(source, access))
        flat: Form = flatten(access, numbers(node.out.cols))
        return self.value(source, split(flat, cols, self.place.scope.extents))

    def _pointwise(self, node: Node, access: Access) -> Piece:
        terms, axes, rows = [], frozenset[int](), False
        dtype = next(self.task.value(arg).dtype for arg in reversed(node.args) if isinstance(arg, int))
        if node.op == "where" and all(isinstance(arg, Const) for arg in node.args[1:]):
            dtype = node.out.dtype
        for arg in node.args:
            if isinstance(arg, Const):
                terms.append(Term(literal(arg.value, dtype), dtype, arg.value))
                continue
            piece = self.value(arg, self._at(arg, access))
            terms.append(Term(piece.text, piece.dtype))
            axes, rows = axes | piece.axes, rows or piece.rows
        out = node.out.dtype
        text = pointwise(node.op, terms, out, self.flavour)
        if node.op not in ("convert", "where") and _natural_dtype(node.op, dtype) != out:
            text = convert(f"({text})", _natural_dtype(node.op, dtype), out)
        return Piece(self.text.say("v", text), axes, rows, out)

    # reductions

    def _reduction(self, node: Node, number: int, access: Access) -> Piece:
        if node.attr("axes") == "rows":
            raise Unsupported("a statistic over all rows is needed before it is known")
        self._expect_natural(number, access)
        state, elements = self.block_state(node)
        out = reductions.finished(node.op, state, elements.count, self.correction(node))
        operand = self.task.value(cast(int, node.args[0])).dtype
        held = "int64" if node.op in ("argmax", "argmin") else "bool" if node.op in ("any", "all") else operand
        if node.op in ("sum", "mean"):
            held = node.out.dtype
        text = self.text.say("v", convert(f"({out})", held, node.out.dtype))
        piece = self.value(cast(int, node.args[0]), self.natural(cast(int, node.args[0])))
        kept = frozenset(axis for form in access for axis in form.axes)
        return Piece(text, kept, piece.rows, node.out.dtype)

    def correction(self, node: Node) -> float:
        """The correction of a variance, 0 for the others."""
        return float(cast(float, node.attr("correction"))) if node.op == "var" else 0.0

    def reduced_axes(self, node: Node) -> frozenset[int]:
        """The axes of the current place that a reduction inside the row goes over."""
        source = self.natural(cast(int, node.args[0]))
        reduced = cast(tuple[int, ...], node.attr("axes"))
        return frozenset(axis for position in reduced for axis in source[position].axes)

    def block_state(self, node: Node, count: str | None = None) -> tuple[tuple[str, ...], Elements]:
        """The state that the block leaves of the operand of the reduction `node`. With the text `count` of the elements
        that it holds, axes of which it holds a part are allowed. Raises: Unsupported."""
        axes = self.reduced_axes(node)
        if count is None and not all(self.place.axes[axis].complete for axis in axes):
            raise Unsupported("a reduction needs more of the row than a block holds")
        elements = self.elements(node, axes)
        if count is not None:
            elements = replace(elements, count=count)
        op = node.op
        if op in ("sum", "mean") and elements.dtype not in ("float32", *HALVES):
            wide = f"{elements.text}.to({REGISTER[node.out.dtype]})"
            elements = replace(elements, text=wide, dtype=node.out.dtype)
        if not axes:
            return self._single(op, elements), elements
        return reductions.of_block(self.text.say, op, elements), elements

    def elements(self, node: Node, axes: frozenset[int]) -> Elements:
        """What a reduction inside the row over these axes of the block sees."""
        operand = cast(int, node.args[0])
        reductions.state_dtypes(node.op, self.task.value(operand).dtype, node.out.dtype)
        access = self.natural(operand)
        piece = self.value(operand, access)
        text = piece.text
        if not axes <= piece.axes:
            shape = [self.place.row_block if piece.rows else 1, *[1] * self.place.rank]
            for axis in axes | piece.axes:
                shape[self.place.position(axis)] = self.place.axes[axis].block
            text = self.text.say("x", f"tl.broadcast_to({text}, {tuple(shape)})")
        masks = self.place.masks(axes)
        mask = f"({' & '.join(masks)})" if len(masks) > 1 else masks[0] if masks else None
        count = math.prod(self.place.axes[axis].extent for axis in axes)
        positions = tuple(self.place.position(axis) for axis in sorted(axes))
        position = cast(tuple[int, ...], node.attr("axes"))[0]
        return Elements(text, piece.dtype, mask, positions, f"{float(count)!r}", self.place.index(access[position]))

    def _single(self, op: str, elements: Elements) -> tuple[str, ...]:
        """The state of one element, where all reduced extents are 1."""
        if op == "var":
            return elements.text, self.text.say("q", f"{elements.text} - {elements.text}")
        if op in ("any", "all"):
            return (f"({elements.text} != 0).to(tl.int32)",)
        if op in ("argmax", "argmin"):
            return elements.text, self.text.say("i", f"({elements.text} != {elements.text}).to(tl.int32) * 0")
        return (elements.text,)

    # outputs

    def store(self, number: int, pointer: str, rows: bool) -> None:
        """Writes the value to `pointer`, dense; with `rows` one row of it for each row."""
        spec = self.task.value(number)
        access, cols = self.natural(number), numbers(spec.cols)
        piece = self.value(number, access)
        flat = flatten(access, cols)
        parts = [self.place.index(flat)] if flat != ZERO else []
        if rows:
            assert self.rows is not None
            parts.insert(0, f"{self.rows.flat()} * {math.prod(cols)}")
        masks = (["row_ok"] if rows else []) + self.place.masks(flat.axes)
        guard = f", mask={' & '.join(masks)}" if masks else ""
        self.text.line(f"tl.store({' + '.join([pointer, *parts])}, {self.stored(piece)}{guard})")

    def stored(self, piece: Piece) -> str:
        """The piece's text in the type it has in memory."""
        return f"{piece.text}.to({MEMORY[piece.dtype]})" if piece.dtype in HALVES else piece.text


_TRUTHS = ("eq", "ne", "lt", "le", "gt", "ge", "isnan", "isinf", "isfinite", "logical_not", "logical_and", "logical_or",
           "logical_xor")  # fmt: skip


def _natural_dtype(op: str, dtype: str) -> str:
    return "bool" if op in _TRUTHS else dtype
