"""Reductions as states: what a block leaves of its elements, how two states merge, what a state means at the end.

- `sum`, `mean`, `any`, `all`, `amax`, `amin` keep one number, `argmax` and `argmin` a number and its index, the first of
  equals, NaN first of all.
- `var` keeps the mean and the sum of squared distances from it (Welford's; Chan's formula merges two), never E[x²] - E[x]².
- `expsum` keeps the maximum and the sum of exp(x - maximum), the latter with 0 in place of an infinite maximum. The sum of
  exp(x - m) for an m that is known only once the whole row has been seen is then `exp(maximum - m) * sum`, again with 0 in
  place of +inf. Infinities end as they would in `exp(x - m)`: +inf gives an infinite sum, -inf adds nothing, and where m is
  that infinity itself the result is NaN; a block of -inf alone cannot hide the maximum of another.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from kforge_dynamo.codegen.triton.expressions import FLOATS, Flavour, literal
from kforge_dynamo.codegen.triton.forms import Unsupported

Say = Callable[[str, str], str]
"""Writes `name = text` with a fresh name that starts with the first word, and returns the name."""

_FARTHEST = 2**31 - 1
_INTEGER_RANGE = {"int64": 63, "int32": 31, "int16": 15, "int8": 7}


@dataclass(frozen=True, slots=True)
class Elements:
    """What is reduced: a block's text, its dtype, the mask of its real elements along the reduced dimensions (None: all are),
    the dimensions of the block, how many elements there are, and the text of an element's index."""

    text: str
    dtype: str
    mask: str | None
    positions: tuple[int, ...]
    count: str
    index: str = "0"


def state_dtypes(op: str, dtype: str, out: str) -> tuple[str, ...]:
    """The dtypes of a state's numbers, for elements of `dtype`. Raises: Unsupported."""
    wide = "float32" if dtype in FLOATS else dtype
    if op in ("sum", "mean"):
        return ("float32" if out in FLOATS else out,)
    if op in ("amax", "amin", "argmax", "argmin"):
        if wide != "float32" and wide not in _INTEGER_RANGE:
            raise Unsupported(f"{op} of {dtype} has no Triton form here")
        return (wide,) if op in ("amax", "amin") else (wide, "int32")
    if op in ("any", "all"):
        return ("int32",)
    if op in ("var", "expsum"):
        return ("float32", "float32")
    raise Unsupported(f"the reduction {op} has no Triton form")


def start(op: str, dtype: str) -> tuple[str, ...]:
    """Literals of the state of no elements (`var` and `expsum` merge with a count and a reference of nothing)."""
    if op in ("sum", "mean", "any"):
        return ("0.0" if op == "mean" or (op == "sum" and dtype in FLOATS) else "0",)
    if op == "all":
        return ("1",)
    if op in ("var", "expsum"):
        return ("0.0", "0.0")
    edge = _least(op, dtype)
    return (edge,) if op in ("amax", "amin") else (edge, str(_FARTHEST))


def _least(op: str, dtype: str) -> str:
    largest = op in ("amin", "argmin")
    if dtype in FLOATS:
        return literal(float("inf") if largest else float("-inf"), "float32")
    bits = _INTEGER_RANGE[dtype]
    return str(2**bits - 1 if largest else -(2**bits))


def of_block(say: Say, op: str, elements: Elements) -> tuple[str, ...]:
    """The state of a block's elements; dimensions are kept."""
    if op in ("sum", "mean"):
        return (_folded(say, "s", _masked(say, elements, "0.0" if elements.dtype in FLOATS else "0"), elements, "tl.sum"),)
    if op in ("any", "all"):
        truth = say("t", f"({elements.text} != 0).to(tl.int32)")
        inner = Elements(truth, "int32", elements.mask, elements.positions, elements.count)
        function, neutral = ("tl.max", "0") if op == "any" else ("tl.min", "1")
        return (_folded(say, "m", _masked(say, inner, neutral), elements, function),)
    if op == "var":
        return _spread(say, elements)
    if op == "expsum":
        return _exponentials(say, elements)
    masked = _masked(say, elements, _least(op, elements.dtype))
    extreme = _folded(say, "m", masked, elements, _extreme(op, elements.dtype))
    if op in ("amax", "amin"):
        return (extreme,)
    hit = f"(({masked} == {extreme}) | ({masked} != {masked}))"
    if elements.mask is not None:
        hit = f"({hit} & {elements.mask})"
    candidates = say("i", f"tl.where({hit}, {elements.index}, {_FARTHEST})")
    return extreme, _folded(say, "i", candidates, elements, "tl.min")


def of_states(say: Say, op: str, states: Sequence[str], elements: Elements, flavour: Flavour) -> tuple[str, ...]:
    """The state of all elements behind the states that a block holds along one of its dimensions.

    `elements` carries mask and dimension of that block; its `count` is the text of each state's number of elements.
    """
    if op == "var":
        mean, square = states
        weight = say("w", elements.count if elements.mask is None else f"tl.where({elements.mask}, {elements.count}, 0.0)")
        total = _folded(say, "n", weight, elements, "tl.sum")
        shares = say("t", _zero_outside(f"{weight} * {mean}", elements))
        middle = say("a", f"{_folded(say, 's', shares, elements, 'tl.sum')} / {total}")
        spread = say("t", _zero_outside(f"{square} + {weight} * ({mean} - {middle}) * ({mean} - {middle})", elements))
        return middle, _folded(say, "q", spread, elements, "tl.sum")
    if op == "expsum":
        top = _masked(say, Elements(states[0], "float32", elements.mask, elements.positions, "1"), "float('-inf')")
        highest = _folded(say, "m", top, elements, _extreme("amax", "float32"))
        scaled = _zero_outside(exponentials(states, _finite(highest), flavour), elements)
        return highest, _folded(say, "s", say("t", scaled), elements, "tl.sum")
    if op in ("argmax", "argmin"):
        return of_block(say, op, Elements(states[0], elements.dtype, elements.mask, elements.positions, "1", states[1]))
    inner = Elements(states[0], elements.dtype, elements.mask, elements.positions, "1")
    if op in ("any", "all"):
        inner = Elements(states[0], "int32", elements.mask, elements.positions, "1")
    return of_block(say, op, inner)


def merged(say: Say, op: str, left: Sequence[str], right: Sequence[str], seen: str, count: str, dtype: str) -> tuple[str, ...]:
    """Two states as one; `seen` elements are behind the left, `count` behind the right one. `expsum` never merges so."""
    if op in ("sum", "mean"):
        return (f"{left[0]} + {right[0]}",)
    if op in ("any", "all"):
        return (f"tl.{'maximum' if op == 'any' else 'minimum'}({left[0]}, {right[0]})",)
    if op == "var":
        share = say("w", f"{count} / ({seen} + {count})")
        gap = say("g", f"{right[0]} - {left[0]}")
        return f"{left[0]} + {gap} * {share}", f"{left[1]} + {right[1]} + {gap} * ({gap} * ({seen} * {share}))"
    if op in ("amax", "amin"):
        name = "maximum" if op == "amax" else "minimum"
        return (f"{_nan_extreme(name)}({left[0]}, {right[0]})" if dtype in FLOATS else f"tl.{name}({left[0]}, {right[0]})",)
    sign = ">" if op == "argmax" else "<"
    # columns come in ascending order, so the left index wins every tie, and a NaN on the left wins over anything
    later = say("b", f"({left[0]} == {left[0]}) & (({right[0]} {sign} {left[0]}) | ({right[0]} != {right[0]}))")
    # where no element of the left was real, its index is out of range and must not win a tie with an infinity
    later = say("b", f"{later} | ({left[1]} == {_FARTHEST})")
    return f"tl.where({later}, {right[0]}, {left[0]})", f"tl.where({later}, {right[1]}, {left[1]})"


def finished(op: str, state: Sequence[str], count: str, correction: float) -> str:
    """The reduction's value; `count` is the text of the number of elements, as a float."""
    if op == "mean":
        return f"{state[0]} / {count}"
    if op == "var":
        return f"{state[1]} / {_degrees(count, correction)}"
    if op in ("any", "all"):
        return f"({state[0]} != 0)"
    if op in ("argmax", "argmin"):
        return f"{state[1]}.to(tl.int64)"
    return state[0]


def exponentials(state: Sequence[str], shift: str, flavour: Flavour) -> str:
    """The sum of exp(x - shift) from an `expsum` state."""
    bounded = f"tl.where({state[0]} == float('inf'), 0.0, {state[0]})"
    return f"{state[1]} * kf_exp{flavour.value}({bounded} - {shift})"


def _degrees(count: str, correction: float) -> str:
    try:
        return f"tl.full((), {max(0.0, float(count) - correction)!r}, tl.float32)"
    except ValueError:
        return f"tl.maximum({count} - {correction!r}, 0.0)"


def _spread(say: Say, elements: Elements) -> tuple[str, str]:
    mean = say("a", f"{_folded(say, 's', _masked(say, elements, '0.0'), elements, 'tl.sum')} / {elements.count}")
    distance = say("d", _zero_outside(f"{elements.text} - {mean}", elements))
    return mean, _folded(say, "q", say("d", f"{distance} * {distance}"), elements, "tl.sum")


def _exponentials(say: Say, elements: Elements) -> tuple[str, str]:
    highest = _folded(say, "m", _masked(say, elements, "float('-inf')"), elements, _extreme("amax", "float32"))
    # the argument is at most 0, where the error of the hardware's exponential, |x| * 2^-24, shrinks with its weight exp(x)
    terms = say("e", _zero_outside(f"tl.exp({elements.text} - {_finite(highest)})", elements))
    return highest, _folded(say, "s", terms, elements, "tl.sum")


def _finite(text: str) -> str:
    return f"tl.where(tl.abs({text}) == float('inf'), 0.0, {text})"


def _extreme(op: str, dtype: str) -> str:
    if dtype not in FLOATS:
        return "tl.max" if op in ("amax", "argmax") else "tl.min"
    return _nan_extreme("maximum" if op in ("amax", "argmax") else "minimum")


def _nan_extreme(name: str) -> str:
    return "kf_largest" if name == "maximum" else "kf_smallest"


def _zero_outside(text: str, elements: Elements) -> str:
    return text if elements.mask is None else f"tl.where({elements.mask}, {text}, 0.0)"


def _masked(say: Say, elements: Elements, neutral: str) -> str:
    if elements.mask is None:
        return elements.text
    return say("x", f"tl.where({elements.mask}, {elements.text}, {neutral})")


def _folded(say: Say, letter: str, text: str, elements: Elements, function: str) -> str:
    """`function` over the dimensions one after the other, innermost first, each kept."""
    for position in sorted(elements.positions, reverse=True):
        call = f"tl.reduce({text}, {position}, {function}, keep_dims=True)"
        text = say(letter, call if function.startswith("kf_") else f"{function}({text}, axis={position}, keep_dims=True)")
    return text
