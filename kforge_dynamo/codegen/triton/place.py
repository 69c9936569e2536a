"""Where values live in a kernel: pieces of blocks, leaves in memory, and the column axes of the current block."""

from __future__ import annotations

from dataclasses import dataclass

from kforge_dynamo.codegen.triton.forms import Form
from kforge_dynamo.codegen.triton.scope import Scope


@dataclass(frozen=True, slots=True)
class Piece:
    """A variable of a kernel: the column axes its block extends along, whether it has rows, and the task dtype it holds."""

    text: str
    axes: frozenset[int]
    rows: bool
    dtype: str


@dataclass(frozen=True, slots=True)
class Leaf:
    """A value that an earlier launch wrote, dense, to the argument `out:I` or `buf:NAME`; without `rows` it has one row for all.

    `copies` of it lie behind one another where K was split, and stand for their sum.
    """

    argument: str
    columns: int
    rows: bool
    dtype: str
    copies: int = 1


@dataclass(frozen=True, slots=True)
class AxisPlace:
    """One column axis in a block: its extent, the block's extent along it, the text of the index (of the block's rank),
    and whether the block holds all of it."""

    extent: int
    block: int
    index: str
    complete: bool
    masked: bool

    @property
    def mask(self) -> str | None:
        """Which indices exist, None when all do."""
        return f"({self.index} < {self.extent})" if self.masked else None


@dataclass(frozen=True, slots=True)
class Place:
    """The current block: `row_block` rows, then `rank` column dimensions of which the last ones are the scope's axes."""

    scope: Scope
    axes: tuple[AxisPlace, ...]
    rank: int
    row_block: int

    def position(self, axis: int) -> int:
        """The block's dimension that a column axis has."""
        return 1 + self.rank - len(self.axes) + axis

    @property
    def shape(self) -> str:
        """The whole block's shape as a Python tuple."""
        extents = [self.row_block, *[1] * (self.rank - len(self.axes)), *[axis.block for axis in self.axes]]
        return f"({', '.join(str(extent) for extent in extents)})"

    def index(self, form: Form) -> str:
        """The text of a form."""
        parts = [str(form.constant)] if form.constant or not form.terms else []
        for axis, coefficient in form.terms:
            text = self.axes[axis].index
            parts.append(text if coefficient == 1 else f"{text} * {coefficient}")
        return parts[0] if len(parts) == 1 and "*" not in parts[0] else f"({' + '.join(parts)})"

    def masks(self, axes: frozenset[int]) -> list[str]:
        """The masks needed along these axes."""
        return [mask for axis in sorted(axes) if (mask := self.axes[axis].mask) is not None]


def row_place(rank: int, row_block: int) -> Place:
    """A block of one value a row."""
    return Place(Scope((), {}), (), rank, row_block)


class Text:
    """Lines of a kernel's body with their indentation, and fresh names.

    Names are assigned once, so a text that was already said in the same block gives the name it got then; what a loop
    reassigns is written with `line`, and read only before that.
    """

    def __init__(self, depth: int) -> None:
        self.lines: list[str] = []
        self._depth, self._names = depth, 0
        self._said: list[dict[str, str]] = [{}]

    def line(self, text: str) -> None:
        """Adds a line at the current depth."""
        self.lines.append("    " * self._depth + text)

    def say(self, letter: str, text: str) -> str:
        """The name of a variable that holds `text`; a line `name = text` is added where there is none yet."""
        if text.isidentifier():
            return text
        known = self._said[-1].get(text)
        if known is None:
            known = self.fresh(letter, text)
            self._said[-1][text] = known
        return known

    def fresh(self, letter: str, text: str) -> str:
        """The same, with a variable of its own that a loop may reassign."""
        self._names += 1
        name = f"{letter}{self._names}"
        self.line(f"{name} = {text}")
        return name

    def open(self, header: str) -> None:
        """Starts a block."""
        self.line(header)
        self._depth += 1
        self._said.append({})

    def close(self) -> None:
        """Ends it."""
        self._depth -= 1
        self._said.pop()


def shaped(vector: str, position: int, rank: int) -> str:
    """A vector as a block of `rank + 1` dimensions that extends along `position`."""
    subscript = ", ".join(":" if dimension == position else "None" for dimension in range(rank + 1))
    return f"{vector}[{subscript}]"
