"""The op table: THE statement of what may stand in a region and what it means.

One row an op: its kind and its meaning in PyTorch, used by the reference evaluator in every precision. The lowering
translates ATen to these names, the generators hold an expression for each, and `tests/semantics/test_table.py`
holds the three together. NaN and infinity behave as torch's function does.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from enum import Enum

import torch

Meaning = Callable[..., torch.Tensor]


class Kind(Enum):
    """How an op relates its result to the rows and columns of its operands."""

    GEMM = "gemm"
    POINTWISE = "pointwise"
    REDUCTION = "reduction"
    VIEW = "view"


class Needs(Enum):
    """What a use implies about the values of its first operand; the verifier draws inputs inside it."""

    ANY = "any"
    POSITIVE = "positive"
    NONZERO = "nonzero"


@dataclass(frozen=True, slots=True)
class Op:
    """`meaning` takes tensors (or Python scalars), and for reductions the keyword `dims` (absolute dimensions, kept)."""

    name: str
    kind: Kind
    meaning: Meaning
    needs: Needs = Needs.ANY


def _variance(x: torch.Tensor, *, dims: tuple[int, ...], correction: float) -> torch.Tensor:
    return torch.var(x, dim=dims, correction=correction, keepdim=True)


def _single(function: Callable[..., torch.Tensor]) -> Meaning:
    """An index reduction over exactly one dimension."""

    def meaning(x: torch.Tensor, *, dims: tuple[int, ...]) -> torch.Tensor:
        (dim,) = dims
        return function(x, dim=dim, keepdim=True)

    return meaning


def _over(function: Callable[..., torch.Tensor]) -> Meaning:
    def meaning(x: torch.Tensor, *, dims: tuple[int, ...]) -> torch.Tensor:
        return function(x, dim=dims, keepdim=True)

    return meaning


def _product_free(*_: torch.Tensor) -> torch.Tensor:
    raise NotImplementedError("gemm and views are evaluated by semantics.evaluate, which knows the task's rows")


_UNARY: dict[str, Meaning] = {
    "neg": torch.neg,
    "abs": torch.abs,
    "sign": torch.sign,
    "reciprocal": torch.reciprocal,
    "sqrt": torch.sqrt,
    "rsqrt": torch.rsqrt,
    "exp": torch.exp,
    "exp2": torch.exp2,
    "expm1": torch.expm1,
    "log": torch.log,
    "log2": torch.log2,
    "log1p": torch.log1p,
    "sin": torch.sin,
    "cos": torch.cos,
    "tanh": torch.tanh,
    "sigmoid": torch.sigmoid,
    "erf": torch.erf,
    "relu": torch.relu,
    "floor": torch.floor,
    "ceil": torch.ceil,
    "round": torch.round,
    "trunc": torch.trunc,
    "isnan": torch.isnan,
    "isinf": torch.isinf,
    "isfinite": torch.isfinite,
    "logical_not": torch.logical_not,
}
_BINARY: dict[str, Meaning] = {
    "add": torch.add,
    "sub": torch.sub,
    "mul": torch.mul,
    "div": torch.div,
    "pow": torch.pow,
    "maximum": torch.maximum,
    "minimum": torch.minimum,
    "eq": torch.eq,
    "ne": torch.ne,
    "lt": torch.lt,
    "le": torch.le,
    "gt": torch.gt,
    "ge": torch.ge,
    "logical_and": torch.logical_and,
    "logical_or": torch.logical_or,
    "logical_xor": torch.logical_xor,
}
_REDUCTION: dict[str, Meaning] = {
    "sum": _over(torch.sum),
    "mean": _over(torch.mean),
    "amax": _over(torch.amax),
    "amin": _over(torch.amin),
    "any": _over(torch.any),
    "all": _over(torch.all),
    "argmax": _single(torch.argmax),
    "argmin": _single(torch.argmin),
    "var": _variance,
}
_NEEDS = {"sqrt": Needs.POSITIVE, "rsqrt": Needs.POSITIVE, "log": Needs.POSITIVE, "log2": Needs.POSITIVE,
          "log1p": Needs.POSITIVE, "reciprocal": Needs.NONZERO}  # fmt: skip


def _table() -> dict[str, Op]:
    ops = [Op("gemm", Kind.GEMM, _product_free)]
    for name, meaning in (_UNARY | _BINARY).items():
        ops.append(Op(name, Kind.POINTWISE, meaning, _NEEDS.get(name, Needs.ANY)))
    ops.append(Op("where", Kind.POINTWISE, torch.where))
    ops.append(Op("convert", Kind.POINTWISE, _product_free))
    ops.extend(Op(name, Kind.REDUCTION, meaning) for name, meaning in _REDUCTION.items())
    ops.extend(Op(name, Kind.VIEW, _product_free) for name in ("reshape", "slice", "expand"))
    return {op.name: op for op in ops}


OPS: dict[str, Op] = _table()
"""By name:

- `gemm(lhs, rhs[, bias])`, attributes `alpha`, `beta` (floats): `alpha * lhs @ rhs + beta * bias`. `lhs` has cols `(K,)`,
  `rhs` cols `(K, N)`; the axes in `rhs.rows` are the batch and lead the task's row axes. `bias` broadcasts to the product.
- pointwise: by PyTorch's function of that name. `convert` changes the dtype to the node's; narrowing is a rounding.
- reductions keep their dimensions. Attribute `axes`: a tuple of positions in `cols`, or the text "rows" (over all row axes).
  `var` has `correction` (float). `argmax` and `argmin` take one axis, return int64, the first of equals, NaN wins.
- `reshape` gives new `cols` of the same number of elements; `slice` has `axis`, `start`, `stop`, `step` in cols;
  `expand` repeats cols of extent 1.
"""
