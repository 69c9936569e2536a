"""The C++ expression of every pointwise op and reduction, by the classes of its operands.

`tests/codegen/cpp/test_expressions.py` holds this table and the op table together.
"""

from __future__ import annotations

import math
import struct
from collections.abc import Callable, Sequence
from typing import cast

from kforge_dynamo.codegen.cpp.cells import Cell
from kforge_dynamo.codegen.cpp.program import Inexpressible
from kforge_dynamo.records.task import Const

_CALLS = {
    "reciprocal": "(1.0f / {0})",
    "sqrt": "sqrt_({0})",
    "rsqrt": "(1.0f / sqrt_({0}))",
    "exp": "exp_({0})",
    "exp2": "exp2_({0})",
    "expm1": "expm1_({0})",
    "log": "log_({0})",
    "log2": "log2_({0})",
    "log1p": "log1p_({0})",
    "sin": "sin_({0})",
    "cos": "cos_({0})",
    "tanh": "tanh_({0})",
    "sigmoid": "sigmoid_({0})",
    "erf": "erf_({0})",
    "div": "({0} / {1})",
}
"""Real functions: operands and result are of class "f"."""
_ROUNDING = {"floor": "floor_({0})", "ceil": "ceil_({0})", "round": "round_even({0})", "trunc": "trunc_({0})"}
_TESTS = {"isnan": "isnan_({0})", "isinf": "isinf_({0})", "isfinite": "isfinite_({0})"}
_ARITHMETIC = {
    "neg": {"f": "(-{0})", "i": "(-{0})"},
    "abs": {"f": "abs_({0})", "i": "({0} < 0 ? -{0} : {0})"},
    "sign": {"f": "sign_({0})", "i": "(({0} > 0 ? set1l(1) : set1l(0)) - ({0} < 0 ? set1l(1) : set1l(0)))"},
    "relu": {"f": "max_known(set1(0.0f), {0})", "i": "max_({0}, set1l(0))"},
    "add": {"f": "({0} + {1})", "i": "({0} + {1})", "b": "({0} | {1})"},
    "sub": {"f": "({0} - {1})", "i": "({0} - {1})"},
    "mul": {"f": "({0} * {1})", "i": "({0} * {1})", "b": "({0} & {1})"},
    "maximum": {"f": "max_({0}, {1})", "i": "max_({0}, {1})", "b": "({0} | {1})"},
    "minimum": {"f": "min_({0}, {1})", "i": "min_({0}, {1})", "b": "({0} & {1})"},
}
_COMPARISONS = {"eq": "==", "ne": "!=", "lt": "<", "le": "<=", "gt": ">", "ge": ">="}
_OF_MASKS = {
    "eq": "({0} == {1})",
    "ne": "({0} != {1})",
    "lt": "(~{0} & {1})",
    "le": "(~{0} | {1})",
    "gt": "({0} & ~{1})",
    "ge": "({0} | ~{1})",
}
_LOGIC = {"logical_and": "&", "logical_or": "|", "logical_xor": "^"}

Writer = Callable[[Cell, Sequence[str]], str]


def literal(const: Const, kind: str) -> str:
    """A constant as a C++ vector of class `kind`."""
    value = const.value
    if kind == "b":
        return f"set1i({-1 if value else 0})"
    if kind == "i":
        return f"set1l({int(value)}ll)"
    return f"set1({real(float(value))})"


def real(value: float) -> str:
    """A float as a C++ literal of the nearest fp32 number."""
    if math.isnan(value):
        return '__builtin_nanf("")'
    try:
        value = struct.unpack("f", struct.pack("f", value))[0]
    except OverflowError:
        value = math.inf if value > 0 else -math.inf
    if math.isinf(value):
        return "__builtin_inff()" if value > 0 else "-__builtin_inff()"
    return f"{value.hex()}f"


def operand_kind(cell: Cell) -> str:
    """The class in which a pointwise cell's operands meet: that of its first operand which is no constant."""
    kinds = cell.arg_kinds[1:] if cell.op == "where" else cell.arg_kinds
    return next((kind for kind in kinds if kind != "c"), cell.kind)


def pointwise(cell: Cell, names: Sequence[str]) -> str:
    """The C++ expression of a cell for operands called `names`. Raises: Inexpressible."""
    kind = operand_kind(cell)
    if cell.op in ("copy", "convert"):
        return _convert(cell, names[0], kind)
    if cell.op == "where":
        return f"select({names[0]}, {names[1]}, {names[2]})"
    if cell.op == "logical_not":
        return f"(~nonzero({names[0]}))"
    if cell.op in _LOGIC:
        return f"(nonzero({names[0]}) {_LOGIC[cell.op]} nonzero({names[1]}))"
    if cell.op in _COMPARISONS:
        return _compare(cell, names, kind)
    if cell.op == "pow" and kind == "f":
        return _power(cell, names)
    return _plain(cell, names, kind)


def _plain(cell: Cell, names: Sequence[str], kind: str) -> str:
    text: str | None = None
    if cell.op in _CALLS and kind == "f":
        text = _CALLS[cell.op]
    elif cell.op in _ROUNDING and kind != "b":
        text = _ROUNDING[cell.op] if kind == "f" else "{0}"
    elif cell.op in _TESTS:
        text = _TESTS[cell.op] if kind == "f" else f"set1i({-1 if cell.op == 'isfinite' else 0})"
    elif cell.op in ("maximum", "minimum") and kind == "f":
        return _extreme(cell, names)
    elif cell.op in _ARITHMETIC:
        text = _ARITHMETIC[cell.op].get(kind)
    if text is None:
        raise Inexpressible(f"{cell.op} of {_NOUNS[kind]} values")
    return text.format(*names)


_NOUNS = {"f": "real", "i": "integer", "b": "boolean"}


def _extreme(cell: Cell, names: Sequence[str]) -> str:
    """One instruction where an operand is a constant that is no NaN."""
    word = cell.op[:3]
    for index, arg in enumerate(cell.args):
        if isinstance(arg, Const) and not math.isnan(arg.value):
            return f"{word}_known({names[index]}, {names[1 - index]})"
    return f"{word}_({names[0]}, {names[1]})"


def _compare(cell: Cell, names: Sequence[str], kind: str) -> str:
    if kind == "b":
        return _OF_MASKS[cell.op].format(*names)
    text = f"({names[0]} {_COMPARISONS[cell.op]} {names[1]})"
    return text if kind == "f" else f"__builtin_convertvector({text}, B)"


def _power(cell: Cell, names: Sequence[str]) -> str:
    base, exponent = names
    if isinstance(cell.args[1], Const):
        exact = {0.0: "set1(1.0f)", 1.0: base, 2.0: f"({base} * {base})", 3.0: f"({base} * {base} * {base})",
                 0.5: f"sqrt_({base})", -0.5: f"(1.0f / sqrt_({base}))", -1.0: f"(1.0f / {base})",
                 -2.0: f"(1.0f / ({base} * {base}))"}  # fmt: skip
        found = exact.get(float(cell.args[1].value))
        if found is not None:
            return found
    return f"pow_({base}, {exponent})"


def _convert(cell: Cell, name: str, kind: str) -> str:
    if cell.kind == "b":
        return f"nonzero({name})"
    if cell.kind == "i":
        return f"to_int({name})"
    short = {"bfloat16": "bf16", "float16": "f16"}.get(cell.dtype)
    if cell.op == "convert" and short is not None:
        return f"rounded(to_real({name}), {short}())"
    return f"to_real({name})" if kind != "f" else name


class Fold:
    """How a reduction accumulates: C++ type, first value, step, and the scalar step across lanes."""

    def __init__(self, cell: Cell) -> None:
        self.op = cell.op
        self.kind = cell.kind
        self.arg_kind = cell.arg_kinds[0]
        self.is_index = cell.op in ("argmax", "argmin")
        if cell.op in ("any", "all"):
            self.kind = "b"
        elif cell.op in ("amax", "amin") and self.arg_kind == "b":
            self.op = "any" if cell.op == "amax" else "all"
        if self.is_index and self.arg_kind != "f":
            raise Inexpressible(f"{cell.op} of {_NOUNS[self.arg_kind]} values")
        if cell.op == "mean" and self.arg_kind != "f":
            raise Inexpressible(f"mean of {_NOUNS[self.arg_kind]} values")
        self.vector = {"f": "V", "i": "I", "b": "B"}["f" if self.is_index else self.kind]
        self.scalar = {"f": "float", "i": "int64_t", "b": "int32_t"}[self.kind]

    @property
    def start(self) -> str:
        """The neutral element."""
        low, high = ("-__builtin_inff()", "__builtin_inff()") if self.vector == "V" else ("INT64_MIN", "INT64_MAX")
        value = {"amax": low, "argmax": low, "amin": high, "argmin": high, "all": "-1"}.get(self.op, "0")
        return f"{ {'V': 'set1', 'I': 'set1l', 'B': 'set1i'}[self.vector] }({value})"

    def operand(self, name: str) -> str:
        """The operand in the accumulator's class."""
        if self.op in ("any", "all"):
            return f"nonzero({name})"
        return f"to_int({name})" if self.kind == "i" and not self.is_index else name

    def step(self, total: str, name: str) -> str:
        """The accumulator after one more operand; vectors and scalars alike."""
        return {
            "sum": f"{total} + {name}",
            "mean": f"{total} + {name}",
            "amax": f"max_({total}, {name})",
            "amin": f"min_({total}, {name})",
            "any": f"{total} | {name}",
            "all": f"{total} & {name}",
        }[self.op]

    def lift(self, scalar: str) -> str:
        """A scalar result as a vector of the cell's class."""
        return {"f": "set1", "i": "set1l", "b": "set1i"}[self.kind] + f"({scalar})"


def mean_count(cell: Cell) -> int:
    """How many elements go into one mean."""
    return math.prod(cell.domain[axis] for axis in cast("tuple[int, ...]", cell.axes))
