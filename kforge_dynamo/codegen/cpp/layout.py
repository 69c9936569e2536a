"""Where the elements of a value lie: a mixed-radix decomposition of its linear index, with a stride a digit.

A `Layout` maps the linear (row-major) index of a value's `cols` to an address. Its atoms need not coincide with the
value's dimensions, so a reshape is the identity on a layout, and loops are cut only where some access needs it.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from math import prod


@dataclass(frozen=True, slots=True)
class Step:
    """A stride in elements: `factor`, times the C++ variable `symbol` where there is one."""

    factor: int
    symbol: str = ""

    def times(self, count: int) -> Step:
        """The stride of `count` such steps."""
        return Step(self.factor * count, self.symbol)

    @property
    def text(self) -> str:
        """As a C++ expression."""
        if not self.symbol or self.factor == 0:
            return str(self.factor)
        return self.symbol if self.factor == 1 else f"{self.symbol} * {self.factor}"


@dataclass(frozen=True, slots=True)
class Atom:
    """One digit of the linear index: `extent` values, `step` elements apart."""

    extent: int
    step: Step


@dataclass(frozen=True, slots=True)
class Layout:
    """`atoms` from the most to the least significant digit, extents of 1 left out; `offset` is a C++ expression."""

    atoms: tuple[Atom, ...]
    offset: str = "0"

    @property
    def size(self) -> int:
        """Number of elements of the value."""
        return prod(atom.extent for atom in self.atoms)

    @property
    def cuts(self) -> frozenset[int]:
        """Suffix products of the extents: where the linear index has to be split."""
        found, total = [], 1
        for atom in reversed(self.atoms):
            found.append(total)
            total *= atom.extent
        return frozenset(cut for cut in found if cut > 1)

    @property
    def is_dense(self) -> bool:
        """Whether the address equals the linear index."""
        return self.offset == "0" and (not self.atoms or self.atoms == (Atom(self.size, Step(1)),))


def dense(size: int) -> Layout:
    """The layout of a contiguous value of `size` elements."""
    return Layout((Atom(size, Step(1)),) if size > 1 else ())


def of_strides(extents: Sequence[int], steps: Sequence[Step]) -> Layout:
    """The layout of a value with dimensions `extents`, `steps` apart."""
    return merged(Layout(tuple(Atom(e, s) for e, s in zip(extents, steps, strict=True) if e > 1)))


def merged(layout: Layout) -> Layout:
    """The same map with neighbouring atoms joined where one stride continues the other."""
    atoms: list[Atom] = []
    for atom in layout.atoms:
        last = atoms[-1] if atoms else None
        if last is not None and last.step == atom.step.times(atom.extent):
            atoms[-1] = Atom(last.extent * atom.extent, atom.step)
        else:
            atoms.append(atom)
    return Layout(tuple(atoms), layout.offset)


def split(layout: Layout, cuts: Iterable[int]) -> Layout | None:
    """The same map with its atoms split at `cuts` (suffix products), None where a cut does not divide."""
    wanted = sorted(cuts)
    atoms: list[Atom] = []
    low = 1
    for atom in reversed(layout.atoms):
        high = low * atom.extent
        step, start = atom.step, low
        for cut in wanted:
            if not start < cut < high:
                continue
            if cut % start or high % cut:
                return None
            atoms.append(Atom(cut // start, step))
            step, start = step.times(cut // start), cut
        atoms.append(Atom(high // start, step))
        low = high
    return Layout(tuple(reversed(atoms)), layout.offset)


def chain(cuts: Iterable[int], size: int) -> bool:
    """Whether the cuts, in order, divide each other and `size`: then one loop nest serves all of them."""
    low = 1
    for cut in [*sorted(cuts), size]:
        if cut % low:
            return False
        low = cut
    return True


def boundaries(extents: Sequence[int]) -> tuple[int, ...]:
    """Suffix products of `extents`, the innermost first: 1, e[-1], e[-1] * e[-2], ..."""
    found = [1]
    for extent in reversed(extents):
        found.append(found[-1] * extent)
    return tuple(found)


def by_dimension(layout: Layout, extents: Sequence[int]) -> list[tuple[Atom, ...]] | None:
    """The atoms that make up each dimension, None where an atom straddles a boundary unevenly."""
    edges = boundaries(extents)
    pieces = split(layout, edges)
    if pieces is None:
        return None
    left = list(pieces.atoms)
    groups: list[tuple[Atom, ...]] = []
    for extent in reversed(extents):
        group: list[Atom] = []
        while prod(atom.extent for atom in group) < extent:
            group.insert(0, left.pop())
        groups.insert(0, tuple(group))
    return groups


def sliced(layout: Layout, extents: Sequence[int], axis: int, start: int, stop: int, step: int) -> Layout | None:
    """The layout of `value[..., start:stop:step, ...]` along `axis`, None where that axis is no single atom."""
    groups = by_dimension(layout, extents)
    if groups is None or len(groups[axis]) > 1:
        return None
    count = len(range(extents[axis])[start:stop:step])
    begin = range(extents[axis])[start:stop:step].start if count else 0
    old = groups[axis][0].step if groups[axis] else Step(0)
    groups[axis] = (Atom(count, old.times(step)),) if count > 1 else ()
    offset = layout.offset if begin == 0 else f"{layout.offset} + {old.times(begin).text}"
    if layout.offset == "0" and begin:
        offset = old.times(begin).text
    return merged(Layout(tuple(atom for group in groups for atom in group), offset))


def broadcast(layout: Layout, extents: Sequence[int], target: Sequence[int]) -> Layout | None:
    """The layout of the value repeated to `target`, dimension by dimension; None where an atom straddles a boundary."""
    if tuple(extents) == tuple(target):
        return layout
    groups = by_dimension(layout, extents)
    if groups is None:
        return None
    atoms: list[Atom] = []
    for group, extent, wanted in zip(groups, extents, target, strict=True):
        if extent == wanted:
            atoms.extend(group)
        elif wanted > 1:
            atoms.append(Atom(wanted, Step(0)))
    return merged(Layout(tuple(atoms), layout.offset))
