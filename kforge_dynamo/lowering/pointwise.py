"""ATen's pointwise ops in terms of the op table: one line an op, all overloads.

A rule is `(kind, operands, build)`: the names of the operands in the op's schema, the dtype it computes in, and a function
of the emitter, those operands (value numbers or constants) and the remaining arguments.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from enum import Enum
from typing import Any

from kforge_dynamo.lowering.emit import Arg, Emit
from kforge_dynamo.lowering.refusal import Refused
from kforge_dynamo.records.region import Reason
from kforge_dynamo.records.task import Const


class Computes(Enum):
    """The dtype of a rule's operands: the result's, the operands' common one, or bool."""

    RESULT = "result"
    COMMON = "common"
    BOOL = "bool"


Build = Callable[..., int]


@dataclass(frozen=True, slots=True)
class Rule:
    """How a pointwise op is said in the op table. `condition` names an operand that is bool whatever the others are."""

    computes: Computes
    operands: tuple[str, ...]
    build: Build
    condition: str = ""


RULES: dict[str, Rule] = {}
"""By the op's full name."""


def _rule(names: str, operands: str, computes: Computes = Computes.RESULT, condition: str = "") -> Callable[[Build], Build]:
    def register(build: Build) -> Build:
        for name in names.split():
            RULES[f"aten.{name}"] = Rule(computes, tuple(operands.split()), build, condition)
        return build

    return register


def _direct(op: str) -> Build:
    def build(e: Emit, *operands: Arg, args: Mapping[str, Any]) -> int:
        return e(op, *operands)

    return build


_UNARY = "neg abs sign reciprocal sqrt rsqrt exp exp2 expm1 log log2 log1p sin cos tanh sigmoid erf relu floor ceil round trunc"
for _name in _UNARY.split():
    RULES[f"aten.{_name}.default"] = Rule(Computes.RESULT, ("self",), _direct(_name))
for _name in ("isnan", "isinf", "isfinite"):
    RULES[f"aten.{_name}.default"] = Rule(Computes.COMMON, ("self",), _direct(_name))
for _name in ("maximum", "minimum"):
    RULES[f"aten.{_name}.default"] = Rule(Computes.RESULT, ("self", "other"), _direct(_name))
for _name in ("eq", "ne", "lt", "le", "gt", "ge"):
    for _overload in ("Tensor", "Scalar"):
        RULES[f"aten.{_name}.{_overload}"] = Rule(Computes.COMMON, ("self", "other"), _direct(_name))
for _name in ("logical_and", "logical_or", "logical_xor"):
    RULES[f"aten.{_name}.default"] = Rule(Computes.BOOL, ("self", "other"), _direct(_name))
    for _overload in ("Tensor", "Scalar"):
        RULES[f"aten.{_name.replace('logical', 'bitwise')}.{_overload}"] = RULES[f"aten.{_name}.default"]
for _name in ("logical_not", "bitwise_not"):
    RULES[f"aten.{_name}.default"] = Rule(Computes.BOOL, ("self",), _direct("logical_not"))
for _overload in ("Tensor_Tensor", "Tensor_Scalar"):
    RULES[f"aten.pow.{_overload}"] = Rule(Computes.RESULT, ("self", "exponent"), _direct("pow"))
RULES["aten.pow.Scalar"] = RULES["aten.pow.Tensor_Tensor"]


def _scaled(e: Emit, x: Arg, factor: object) -> Arg:
    """`factor * x` for a factor of the graph's arguments."""
    value = number(factor)
    if value == 1:
        return x
    if isinstance(x, int):
        return e("mul", x, Const(value))
    constant = x.value if isinstance(x, Const) else x
    return Const(constant * value)


def number(value: object) -> bool | int | float:
    """`value` as a Python number. Raises: Refused for a symbolic one."""
    if isinstance(value, bool | int | float):
        return value
    raise Refused(Reason.SYMBOLIC_SIZE, f"its argument {value} is a size of the graph, not a constant")


@_rule("add.Tensor add.Scalar", "self other")
def _add(e: Emit, x: Arg, y: Arg, args: Mapping[str, Any]) -> int:
    return e("add", x, _scaled(e, y, args["alpha"]))


@_rule("sub.Tensor sub.Scalar", "self other")
def _sub(e: Emit, x: Arg, y: Arg, args: Mapping[str, Any]) -> int:
    return e("sub", x, _scaled(e, y, args["alpha"]))


@_rule("rsub.Tensor rsub.Scalar", "self other")
def _rsub(e: Emit, x: Arg, y: Arg, args: Mapping[str, Any]) -> int:
    return e("sub", y, _scaled(e, x, args["alpha"]))


@_rule("mul.Tensor mul.Scalar", "self other")
def _mul(e: Emit, x: Arg, y: Arg, args: Mapping[str, Any]) -> int:
    return e("mul", x, y)


@_rule("div.Tensor div.Scalar div.Tensor_mode div.Scalar_mode", "self other")
def _div(e: Emit, x: Arg, y: Arg, args: Mapping[str, Any]) -> int:
    if args.get("rounding_mode") is not None:
        raise Refused(Reason.UNSUPPORTED_OP, "a division that rounds has no counterpart in the op table")
    return e("div", x, y)


@_rule("square.default", "self")
def _square(e: Emit, x: Arg, args: Mapping[str, Any]) -> int:
    return e("mul", x, x)


@_rule("clamp.default", "self")
def _clamp(e: Emit, x: int, args: Mapping[str, Any]) -> int:
    low, high = args["min"], args["max"]
    result = x if low is None else e("maximum", x, Const(number(low)))
    return result if high is None else e("minimum", result, Const(number(high)))


@_rule("clamp_min.default", "self")
def _clamp_min(e: Emit, x: Arg, args: Mapping[str, Any]) -> int:
    return e("maximum", x, Const(number(args["min"])))


@_rule("clamp_max.default", "self")
def _clamp_max(e: Emit, x: Arg, args: Mapping[str, Any]) -> int:
    return e("minimum", x, Const(number(args["max"])))


@_rule("clamp_min.Tensor", "self min")
def _clamp_min_tensor(e: Emit, x: Arg, low: Arg, args: Mapping[str, Any]) -> int:
    return e("maximum", x, low)


@_rule("clamp_max.Tensor", "self max")
def _clamp_max_tensor(e: Emit, x: Arg, high: Arg, args: Mapping[str, Any]) -> int:
    return e("minimum", x, high)


@_rule("clamp.Tensor", "self min max")
def _clamp_tensor(e: Emit, x: int, low: Arg | None, high: Arg | None, args: Mapping[str, Any]) -> int:
    result = x if low is None else e("maximum", x, low)
    return result if high is None else e("minimum", result, high)


@_rule("hardtanh.default", "self")
def _hardtanh(e: Emit, x: Arg, args: Mapping[str, Any]) -> int:
    return e("minimum", e("maximum", x, Const(number(args["min_val"]))), Const(number(args["max_val"])))


@_rule("relu6.default", "self")
def _relu6(e: Emit, x: Arg, args: Mapping[str, Any]) -> int:
    return e("minimum", e("maximum", x, 0.0), 6.0)


@_rule("leaky_relu.default", "self")
def _leaky_relu(e: Emit, x: Arg, args: Mapping[str, Any]) -> int:
    return e("where", e("gt", x, 0.0), x, e("mul", x, Const(number(args["negative_slope"]))))


@_rule("silu.default", "self")
def _silu(e: Emit, x: Arg, args: Mapping[str, Any]) -> int:
    return e("mul", x, e("sigmoid", x))


@_rule("softplus.default", "self")
def _softplus(e: Emit, x: int, args: Mapping[str, Any]) -> int:
    beta, threshold = Const(float(number(args["beta"]))), Const(float(number(args["threshold"])))
    scaled = e("mul", x, beta)
    return e("where", e("gt", scaled, threshold), x, e("div", e("log1p", e("exp", scaled)), beta))


@_rule("mish.default", "self")
def _mish(e: Emit, x: int, args: Mapping[str, Any]) -> int:
    soft = e("where", e("gt", x, 20.0), x, e("log1p", e("exp", x)))
    return e("mul", x, e("tanh", soft))


@_rule("gelu.default", "self")
def _gelu(e: Emit, x: Arg, args: Mapping[str, Any]) -> int:
    half = e("mul", x, 0.5)
    if args["approximate"] == "none":
        return e("mul", half, e("add", e("erf", e("mul", x, 0.7071067811865476)), 1.0))
    cube = e("mul", e("mul", x, x), x)
    inner = e("mul", e("add", x, e("mul", cube, 0.044715)), 0.7978845608028654)
    return e("mul", half, e("add", e("tanh", inner), 1.0))


@_rule("elu.default", "self")
def _elu(e: Emit, x: Arg, args: Mapping[str, Any]) -> int:
    alpha, scale, input_scale = (float(number(args[name])) for name in ("alpha", "scale", "input_scale"))
    negative = e("mul", e("expm1", e("mul", x, input_scale)), alpha * scale)
    return e("where", e("gt", x, 0.0), e("mul", x, scale), negative)


@_rule("hardsigmoid.default", "self")
def _hardsigmoid(e: Emit, x: Arg, args: Mapping[str, Any]) -> int:
    return e("div", e("minimum", e("maximum", e("add", x, 3.0), 0.0), 6.0), 6.0)


@_rule("hardswish.default", "self")
def _hardswish(e: Emit, x: Arg, args: Mapping[str, Any]) -> int:
    return e("div", e("mul", x, e("minimum", e("maximum", e("add", x, 3.0), 0.0), 6.0)), 6.0)


@_rule("threshold_backward.default", "grad_output self")
def _threshold_backward(e: Emit, gradient: Arg, x: Arg, args: Mapping[str, Any]) -> int:
    return e("where", e("le", x, Const(number(args["threshold"]))), 0.0, gradient)


@_rule("sigmoid_backward.default", "grad_output output")
def _sigmoid_backward(e: Emit, gradient: Arg, y: Arg, args: Mapping[str, Any]) -> int:
    return e("mul", gradient, e("mul", y, e("sub", 1.0, y)))


@_rule("tanh_backward.default", "grad_output output")
def _tanh_backward(e: Emit, gradient: Arg, y: Arg, args: Mapping[str, Any]) -> int:
    return e("mul", gradient, e("sub", 1.0, e("mul", y, y)))


@_rule("addcmul.default", "self tensor1 tensor2")
def _addcmul(e: Emit, x: Arg, a: Arg, b: Arg, args: Mapping[str, Any]) -> int:
    return e("add", x, e("mul", _scaled(e, a, args["value"]), b))


def _fma(e: Emit, a: Arg, b: Arg, c: Arg, args: Mapping[str, Any]) -> int:
    """One rounding fewer than the product and the sum, which eager rounds separately."""
    return e("add", e("mul", a, b), c)


RULES["prims.fma.default"] = Rule(Computes.RESULT, ("a", "b", "c"), _fma)


@_rule("addcdiv.default", "self tensor1 tensor2")
def _addcdiv(e: Emit, x: Arg, a: Arg, b: Arg, args: Mapping[str, Any]) -> int:
    return e("add", x, e("div", _scaled(e, a, args["value"]), b))


@_rule("where.self where.ScalarSelf where.ScalarOther where.Scalar", "condition self other", condition="condition")
def _where(e: Emit, condition: Arg, x: Arg, y: Arg, args: Mapping[str, Any]) -> int:
    if isinstance(condition, int) and not isinstance(x, int) and not isinstance(y, int):
        # a choice between two constants still needs a value that says its dtype: the condition as 0 and 1
        like = e.convert(condition, args["result_dtype"])
        return e("where", condition, e("where", condition, x, like), y)
    return e("where", condition, x, y)


@_rule("masked_fill.Scalar masked_fill.Tensor", "mask value self", condition="mask")
def _masked_fill(e: Emit, mask: Arg, value: Arg, x: Arg, args: Mapping[str, Any]) -> int:
    return e("where", mask, value, x)
