"""Triton expressions of the pointwise ops, one entry an op of `semantics.table`.

Half-precision values live in registers as fp32; only a `convert` rounds. `Flavour` chooses between the precise and the
fast form of the functions that have two.
"""

from __future__ import annotations

import math
import struct
from collections.abc import Callable
from dataclasses import dataclass
from enum import Enum

from kforge_dynamo.codegen.triton.forms import Unsupported

REGISTER = {
    "float16": "tl.float32",
    "bfloat16": "tl.float32",
    "float32": "tl.float32",
    "int64": "tl.int64",
    "int32": "tl.int32",
    "int16": "tl.int16",
    "int8": "tl.int8",
    "uint8": "tl.uint8",
    "bool": "tl.int1",
}
"""The type in which a value of a task dtype is computed."""

MEMORY = REGISTER | {"float16": "tl.float16", "bfloat16": "tl.bfloat16"}
"""The type in which a value of a task dtype is stored."""

HALVES = ("float16", "bfloat16")
FLOATS = (*HALVES, "float32")
ITEM_BYTES = {"float16": 2, "bfloat16": 2, "float32": 4, "int64": 8, "int32": 4, "int16": 2, "int8": 1, "uint8": 1, "bool": 1}


class Flavour(Enum):
    """PRECISE for fp32 promises, FAST where the product's operands have at most 11 bits."""

    PRECISE = ""
    FAST = "_fast"


@dataclass(frozen=True, slots=True)
class Term:
    """An operand: its text and the task dtype it has; `constant` where it is a Python scalar."""

    text: str
    dtype: str
    constant: bool | int | float | None = None


def literal(value: bool | int | float, dtype: str) -> str:
    """`value` as a Python literal of the dtype's kind; floats as fp32 sees them."""
    if dtype == "bool":
        return repr(bool(value))
    if dtype not in FLOATS:
        return repr(int(value))
    single = _single(float(value))
    if math.isnan(single):
        return 'float("nan")'
    if math.isinf(single):
        return 'float("inf")' if single > 0 else 'float("-inf")'
    return repr(single)


def _single(value: float) -> float:
    try:
        return float(struct.unpack("f", struct.pack("f", value))[0])
    except OverflowError:
        return math.copysign(math.inf, value)


def pointwise(op: str, args: list[Term], out: str, flavour: Flavour) -> str:
    """The expression of `op` for operands of one dtype (the condition of `where` aside). Raises: Unsupported."""
    if out not in REGISTER or any(term.dtype not in REGISTER for term in args):
        raise Unsupported(f"{op} computes in {out if out not in REGISTER else args[0].dtype}, which has no Triton form here")
    if op == "convert":
        return convert(args[0].text, args[0].dtype, out)
    if op == "pow":
        return _power(args, flavour)
    if op not in EXPRESSIONS:
        raise Unsupported(f"{op} has no Triton expression")
    return EXPRESSIONS[op](args, flavour)


def convert(text: str, source: str, out: str) -> str:
    """`text` of dtype `source` as dtype `out`; a narrowing to half precision rounds and comes back as fp32."""
    if source not in REGISTER or out not in REGISTER:
        raise Unsupported(f"a conversion from {source} to {out} has no Triton form here")
    if out in HALVES:
        return text if source == out else f"{text}.to({MEMORY[out]}).to(tl.float32)"
    if out == "bool":
        return text if source == "bool" else f"({text} != 0)"
    return text if REGISTER[source] == REGISTER[out] else f"{text}.to({REGISTER[out]})"


def _is_float(args: list[Term]) -> bool:
    return any(term.dtype in FLOATS for term in args)


Build = Callable[[list[Term], Flavour], str]


def _infix(symbol: str) -> Build:
    return lambda a, _: f"({a[0].text} {symbol} {a[1].text})"


def _logical(symbol: str) -> Build:
    return lambda a, _: f"(({a[0].text} != 0) {symbol} ({a[1].text} != 0))"


def _call(function: str) -> Build:
    return lambda a, _: f"{function}({', '.join(term.text for term in a)})"


def _flavoured(function: str) -> Build:
    return lambda a, flavour: f"{function}{flavour.value}({a[0].text})"


def _rounding(function: str) -> Build:
    """Rounding functions are the identity on integers."""
    return lambda a, _: f"{function}({a[0].text})" if _is_float(a) else a[0].text


def _extreme(function: str, plain: str) -> Build:
    """NaN wins, as in torch; integers have none."""
    return lambda a, _: f"{function if _is_float(a) else plain}({a[0].text}, {a[1].text})"


def _divide(a: list[Term], flavour: Flavour) -> str:
    if flavour is Flavour.FAST:
        return f"({a[0].text} / {a[1].text})"
    numerator, denominator = (term.text if term.constant is None else f"tl.full((), {term.text}, tl.float32)" for term in a)
    return f"tl.div_rn({numerator}, {denominator})"


def _finite_test(of_float: str, of_integer: str) -> Build:
    return lambda a, _: (of_float if _is_float(a) else of_integer).format(x=a[0].text)


def _root(a: list[Term], flavour: Flavour) -> str:
    return f"tl.sqrt_rn({a[0].text})" if flavour is Flavour.PRECISE else f"tl.sqrt({a[0].text})"


def _power(args: list[Term], flavour: Flavour) -> str:
    base, exponent = args
    if base.constant is not None and float(base.constant) == 2.0 and exponent.constant is None:
        return f"tl.exp2({exponent.text})"
    if exponent.constant is None:
        raise Unsupported("pow has an exponent that is not a constant, and no Triton form that is accurate for one")
    value = float(exponent.constant)
    if value.is_integer() and 0 <= abs(value) <= 16:
        return _whole_power(base, int(value))
    if not _is_float(args):
        raise Unsupported(f"pow of integers with the exponent {value} has no Triton form")
    if value in (0.5, -0.5):
        # torch.pow(-inf, 0.5) is inf, and of -0.0 it is 0.0, where the square root gives NaN and -0.0
        root = f"tl.where({base.text} == float('-inf'), float('inf'), {_root([base], flavour)} + 0.0)"
        return root if value > 0 else f"(1.0 / {root})"
    raise Unsupported(f"pow with the exponent {value} has no Triton form that is accurate; whole numbers and ±0.5 have")


def _whole_power(base: Term, exponent: int) -> str:
    if exponent == 0:
        return f"({base.text} * 0 + 1)" if base.dtype not in FLOATS else f"tl.where({base.text} == {base.text}, 1.0, 1.0)"
    if exponent < 0 and base.dtype not in FLOATS:
        raise Unsupported("pow of integers with a negative exponent has no Triton form")
    product = _squared(base.text, abs(exponent))
    return product if exponent > 0 else f"(1.0 / {product})"


def _squared(text: str, exponent: int) -> str:
    if exponent == 1:
        return text
    half = _squared(text, exponent // 2)
    return f"({half} * {half} * {text})" if exponent % 2 else f"({half} * {half})"


EXPRESSIONS: dict[str, Build] = {
    "neg": lambda a, _: f"(-{a[0].text})",
    "abs": _call("tl.abs"),
    "sign": lambda a, _: f"(({a[0].text} > 0).to({REGISTER[a[0].dtype]}) - ({a[0].text} < 0).to({REGISTER[a[0].dtype]}))",
    "reciprocal": lambda a, flavour: _divide([Term("1.0", a[0].dtype, 1.0), a[0]], flavour),
    "sqrt": _root,
    "rsqrt": lambda a, flavour: f"(1.0 / tl.sqrt_rn({a[0].text}))" if flavour is Flavour.PRECISE else f"tl.rsqrt({a[0].text})",
    "exp": _flavoured("kf_exp"),
    "exp2": _call("tl.exp2"),
    "expm1": _flavoured("kf_expm1"),
    "log": _flavoured("kf_log"),
    "log2": _call("kf_log2"),
    "log1p": _flavoured("kf_log1p"),
    "sin": _call("tl.sin"),
    "cos": _call("tl.cos"),
    "tanh": _flavoured("kf_tanh"),
    "sigmoid": _flavoured("kf_sigmoid"),
    "erf": _call("tl.erf"),
    "relu": lambda a, _: f"kf_largest({a[0].text}, 0.0)" if _is_float(a) else f"tl.maximum({a[0].text}, 0)",
    "floor": _rounding("tl.floor"),
    "ceil": _rounding("tl.ceil"),
    "round": _rounding("kf_round"),
    "trunc": _rounding("kf_trunc"),
    "isnan": _finite_test("({x} != {x})", "({x} != {x})"),
    "isinf": _finite_test('(tl.abs({x}) == float("inf"))', "({x} != {x})"),
    "isfinite": _finite_test('(tl.abs({x}) < float("inf"))', "({x} == {x})"),
    "logical_not": lambda a, _: f"({a[0].text} == 0)",
    "add": _infix("+"),
    "sub": _infix("-"),
    "mul": _infix("*"),
    "div": _divide,
    "maximum": _extreme("kf_largest", "tl.maximum"),
    "minimum": _extreme("kf_smallest", "tl.minimum"),
    "eq": _infix("=="),
    "ne": _infix("!="),
    "lt": _infix("<"),
    "le": _infix("<="),
    "gt": _infix(">"),
    "ge": _infix(">="),
    "logical_and": _logical("&"),
    "logical_or": _logical("|"),
    "logical_xor": _logical("^"),
    "where": _call("tl.where"),
}
"""`convert` and `pow` have functions of their own."""
