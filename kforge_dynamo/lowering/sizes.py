"""Sizes and strides that may be symbolic, compared and divided without ever adding a guard.

A `Size` is a Python int, or the sympy expression of a SymInt. `bool(SymInt)` specialises a graph after its guards were
frozen, so everything here answers "proven" or "not proven" from the expressions alone.

Private torch API: `SymInt.node.expr`, `SymNode.hint`, `ShapeEnv.create_symintnode`; read in torch 2.11 to 2.14.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from functools import lru_cache
from itertools import pairwise
from typing import Any, TypeAlias

import sympy
import torch

Size: TypeAlias = Any
"""int, or sympy.Expr where the size is symbolic."""

SymSize: TypeAlias = int | torch.SymInt
"""What torch's shapes hold."""


def size_of(value: SymSize) -> Size:
    """`value` as an int where it is one (also a SymInt that was specialised), else as an expression."""
    if isinstance(value, int):
        return int(value)
    expr = value.node.expr
    return int(expr) if isinstance(expr, int) or expr.is_Integer else expr


def sizes_of(tensor: torch.Tensor) -> tuple[Size, ...]:
    """The shape of a (fake) tensor."""
    return tuple(size_of(value) for value in tensor.shape)


def strides_of(tensor: torch.Tensor) -> tuple[Size, ...]:
    """The strides of a (fake) tensor, in elements."""
    return tuple(size_of(value) for value in tensor.stride())


def is_static(size: Size) -> bool:
    """Whether `size` is a number."""
    return isinstance(size, int)


def same(a: Size, b: Size) -> bool:
    """Whether the two are proven equal."""
    if isinstance(a, int) and isinstance(b, int):
        return a == b
    return _same_expressions(a, b)


@lru_cache(maxsize=4096)
def _same_expressions(a: Size, b: Size) -> bool:
    return bool(a == b) or sympy.expand(a - b) == 0


def product(sizes: Iterable[Size]) -> Size:
    """The product, 1 for none."""
    total: Size = 1
    for size in sizes:
        total = total * size
    return _plain(total)


def quotient(a: Size, b: Size) -> Size | None:
    """`a / b` where the division is proven exact, else None."""
    if isinstance(a, int) and isinstance(b, int):
        return a // b if b and a % b == 0 else None
    return _exact_quotient(a, b)


@lru_cache(maxsize=4096)
def _exact_quotient(a: Size, b: Size) -> Size | None:
    try:
        ratio = sympy.cancel(sympy.sympify(a) / sympy.sympify(b))
    except (sympy.PolynomialError, ZeroDivisionError):
        return None
    _, denominator = sympy.fraction(sympy.together(ratio))
    return _plain(ratio) if denominator == 1 else None


def _plain(value: Size) -> Size:
    return int(value) if not isinstance(value, int) and value.is_Integer else value


def is_dense(sizes: Sequence[Size], strides: Sequence[Size]) -> bool:
    """Whether the strides are proven row-major without gaps; dimensions of extent 1 may have any stride."""
    expected: Size = 1
    for size, stride in zip(reversed(sizes), reversed(strides), strict=True):
        if isinstance(size, int) and size == 1:
            continue
        if not same(stride, expected):
            return False
        expected = product((expected, size))
    return True


def regroup(old: Sequence[Size], new: Sequence[Size]) -> list[tuple[range, range]] | None:
    """The finest split of both shapes (without extents of 1) into runs of equal product, None where none is proven."""
    groups: list[tuple[range, range]] = []
    i = j = 0
    while i < len(old) and j < len(new):
        start_i, start_j = i, j
        left, right = old[i], new[j]
        i, j = i + 1, j + 1
        while not same(left, right):
            extend = _shorter(left, right)
            if extend is None or (extend == 0 and i == len(old)) or (extend == 1 and j == len(new)):
                return None
            if extend == 0:
                left, i = product((left, old[i])), i + 1
            else:
                right, j = product((right, new[j])), j + 1
        groups.append((range(start_i, i), range(start_j, j)))
    return groups if i == len(old) and j == len(new) else None


def _shorter(left: Size, right: Size) -> int | None:
    """Which side has the smaller product: 0, 1, or None where that is not proven."""
    if isinstance(left, int) and isinstance(right, int):
        return 0 if left < right else 1
    if quotient(right, left) is not None:
        return 0
    return 1 if quotient(left, right) is not None else None


def view_strides(sizes: Sequence[Size], strides: Sequence[Size], shape: Sequence[Size]) -> tuple[Size, ...] | None:
    """The strides of the same memory seen in `shape`, None where that is not proven to be a pure view."""
    old = [(size, stride) for size, stride in zip(sizes, strides, strict=True) if not _is_one(size)]
    kept = [position for position, size in enumerate(shape) if not _is_one(size)]
    groups = regroup([size for size, _ in old], [shape[position] for position in kept])
    if groups is None:
        return None
    result: list[Size] = [1] * len(shape)
    for olds, news in groups:
        run = [old[index] for index in olds]
        if any(not same(a[1], b[0] * b[1]) for a, b in pairwise(run)):
            return None
        stride = run[-1][1]
        for position in reversed([kept[index] for index in news]):
            result[position] = stride
            stride = product((stride, shape[position]))
    return tuple(result)


def _is_one(size: Size) -> bool:
    return isinstance(size, int) and size == 1


def hints_of(values: Iterable[object]) -> dict[Size, int]:
    """For every bare symbol among the SymInts and tensor shapes of `values`: the size that was seen when tracing."""
    hints: dict[Size, int] = {}
    for value in values:
        found: tuple[object, ...] = (value,)
        if isinstance(value, torch.Tensor):
            found = () if value.is_nested else tuple(value.shape)
        for size in found:
            if isinstance(size, torch.SymInt) and size.node.has_hint() and isinstance(size.node.expr, sympy.Symbol):
                hints[size.node.expr] = int(size.node.hint)
    return hints


def hint(size: Size, hints: Mapping[Size, int]) -> int | None:
    """The number `size` had when the graph was traced, None for a size that depends on data."""
    if isinstance(size, int):
        return size
    value = size.subs(dict(hints))
    return int(value) if value.is_Integer else None


def to_sym(size: Size, like: Iterable[SymSize], hints: Mapping[Size, int]) -> SymSize:
    """`size` as torch's shapes hold it; `like` has a SymInt of the same graph where `size` is symbolic."""
    if isinstance(size, int):
        return size
    symbolic = next(value for value in like if isinstance(value, torch.SymInt))
    created: torch.SymInt = symbolic.node.shape_env.create_symintnode(size, hint=hint(size, hints))
    return created
