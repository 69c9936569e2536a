"""Column indices as linear forms over the axes of a kernel's block.

A block of a kernel has one dimension of rows and one a *column axis*. The columns `(c0, c1, ...)` of a task's value are
reached by one form each: `constant + sum(coefficient * axis)`. Reshapes flatten forms and split them again; when a split
needs a finer axis it says so with `Refine`, and the scope is built again with that axis cut in two.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass


class Unsupported(Exception):
    """A kernel form cannot express a value; the text is a reason a user can read. Caught inside this package."""


class Refine(Unsupported):
    """Axis `axis` must be cut into `(extent // inner, inner)`."""

    def __init__(self, axis: int, inner: int) -> None:
        super().__init__(f"axis {axis} needs an inner extent of {inner}")
        self.axis, self.inner = axis, inner


@dataclass(frozen=True, slots=True)
class Form:
    """`constant + sum(coefficient * axis)`; `terms` are (axis, coefficient), sorted, coefficients positive."""

    constant: int = 0
    terms: tuple[tuple[int, int], ...] = ()

    @property
    def axes(self) -> frozenset[int]:
        """The axes it varies along."""
        return frozenset(axis for axis, _ in self.terms)

    def scaled(self, factor: int, shift: int = 0) -> Form:
        """`factor * self + shift`."""
        return Form(self.constant * factor + shift, tuple((axis, coefficient * factor) for axis, coefficient in self.terms))

    def plus(self, other: Form) -> Form:
        """The sum."""
        total = dict(self.terms)
        for axis, coefficient in other.terms:
            total[axis] = total.get(axis, 0) + coefficient
        return Form(self.constant + other.constant, tuple(sorted(total.items())))


ZERO = Form()
Access = tuple[Form, ...]
"""One form a column dimension of a value."""


def numbers(cols: Sequence[int | str]) -> tuple[int, ...]:
    """`cols` when all extents are numbers. Raises: Unsupported for a symbolic extent."""
    for extent in cols:
        if isinstance(extent, str):
            raise Unsupported(f"the size {extent!r} inside a row is symbolic, and only the product's K may be")
    return tuple(int(extent) for extent in cols)


def flatten(access: Access, cols: Sequence[int]) -> Form:
    """The row-major flat index into `cols`."""
    flat = ZERO
    for form, suffix in zip(access, suffixes(cols), strict=True):
        flat = flat.plus(form.scaled(suffix))
    return flat


def split(flat: Form, cols: Sequence[int], extents: Sequence[int]) -> Access:
    """One form a dimension of `cols` for the flat index. Raises: Refine, Unsupported."""
    parts = []
    for suffix in suffixes(cols):
        quotient, flat = _divmod(flat, suffix, extents)
        parts.append(quotient)
    return tuple(parts)


def suffixes(cols: Sequence[int]) -> tuple[int, ...]:
    """Row-major strides of a dense value with these columns."""
    return tuple(math.prod(cols[position + 1 :]) for position in range(len(cols)))


def identity(cols: Sequence[int], extents: Sequence[int]) -> Access:
    """The access of a value that covers all axes in row-major order. Raises: Refine, Unsupported."""
    flat = Form(0, tuple((axis, stride) for axis, stride in enumerate(suffixes(extents)) if extents[axis] > 1))
    return split(flat, cols, extents)


def _divmod(flat: Form, divisor: int, extents: Sequence[int]) -> tuple[Form, Form]:
    if divisor == 1:
        return flat, ZERO
    whole = tuple((axis, coefficient // divisor) for axis, coefficient in flat.terms if coefficient % divisor == 0)
    rest = tuple((axis, coefficient) for axis, coefficient in flat.terms if coefficient % divisor != 0)
    largest = flat.constant % divisor + sum(coefficient * (extents[axis] - 1) for axis, coefficient in rest)
    if largest < divisor:
        return Form(flat.constant // divisor, whole), Form(flat.constant % divisor, rest)
    for axis, coefficient in rest:
        inner = divisor // coefficient
        if divisor % coefficient == 0 and 1 < inner < extents[axis] and extents[axis] % inner == 0:
            raise Refine(axis, inner)
    raise Unsupported(f"a reshape cuts a row at multiples of {divisor}, which its other shapes do not allow")
