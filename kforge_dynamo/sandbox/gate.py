"""The gate: is an output as near to the oracle as eager's own arithmetic is, as a whole and in every row and column?

Errors are absolute, against fp64. As a whole, RMS, 99.9th percentile and maximum may each be twice e0's (three times, where
fewer than 4096 elements are pooled), or `rounding_floor` of the output's dtype. A row (a column) may have twice the larger of
what eager has there and eager's median row, relative to the row's own RMS, or the same floor.

Twice is sound only where e0's statistic is a steady number. Where a softmax of large values or a mean far from zero puts the
error of a whole row into one rounding, an honest kernel differs from eager by more than two. So e0 is drawn several times
(`oracle`), the spread of the draws gives a number of degrees of freedom, and below about 30 of them the factor is the
far quantile of a root-mean-square of that many variables: `quantile_factors`. One row in a hundred (two, where there are
fewer; any, where few variables dominate the whole) may be over its limit, none over twice its limit.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import torch

from kforge_dynamo.records.guardrail import ALL, Guards

FACTOR = 2.0
FEW_FACTOR = 3.0
ENOUGH = 4096
_SURE = 7.0  # in standard deviations: 4.75 would be one in 1e6 of normal variables, but rounding errors have heavier tails
_SUBSAMPLE = 1 << 17
_REJUDGED_ROWS, _REJUDGED_SHARE = 16, 0.1
_STRAY_LINES, _STRAY_SHARE, _STRAY_FACTOR = 2, 0.01, 2.0


@dataclass(frozen=True, slots=True)
class Errors:
    """Statistics of absolute errors: over all elements, and the RMS of every row `(R,)` and column `(C,)`."""

    count: int
    rms: float
    tail: float
    peak: float
    rows: torch.Tensor
    cols: torch.Tensor


@dataclass(frozen=True, slots=True)
class Choice:
    """An index output: `values` (R, n) are the oracle's, `slack` (R,) how far below the best a faithful kernel may choose.

    `fixed` (R,) marks rows whose index must be `index`: exact data, and rows whose winner is a NaN.
    """

    values: torch.Tensor
    slack: torch.Tensor
    index: torch.Tensor
    fixed: torch.Tensor
    largest: bool


@dataclass(frozen=True, slots=True)
class Truth:
    """What an output must be near to, for one draw of inputs. All tensors are `(R, C)`: rows flattened, columns flattened.

    `low` and `high` bound the values that a jump (a comparison, a rounding) may take within e0 of the product; they equal
    the oracle elsewhere and are None where nothing jumps. `classes` holds 0 where the value must be finite, 1, 2, 3 where it
    must be NaN, +inf, -inf, and 4 where eager and the oracle disagree and nothing is demanded; None where all are finite.
    `exact` demands the oracle's values themselves. `at` are the rows that the oracle covers, None for all.
    """

    where: str
    dtype: torch.dtype
    oracle: torch.Tensor
    low: torch.Tensor | None
    high: torch.Tensor | None
    classes: torch.Tensor | None
    exact: bool
    narrowed: bool
    e0: Errors
    row_limit: torch.Tensor
    col_limit: torch.Tensor
    factor: float
    peak_factor: float
    oracle_rms: float
    choice: Choice | None
    at: torch.Tensor | None
    whole: Whole | None


@dataclass(frozen=True, slots=True)
class Whole:
    """Eager's whole output where the oracle covers sampled rows only. Every row must lie within `relative` of it: twice the
    most that the gate allows a sampled row, which is 4 e0, or twice the most that eager is off in one.

    Rows have their own condition: a softmax of two nearly equal large values amplifies any rounding. So the few rows that
    lie further off are judged by the oracle itself: `again` gives their truth.
    """

    eager: torch.Tensor
    relative: float
    again: Callable[[torch.Tensor], Truth]


@dataclass(frozen=True, slots=True)
class Judgement:
    """`ratio` is the RMS error over e0's (over half an ulp where e0 is below that); `fault` is None for what passed, else the
    words end with the name of the rule in `Guards`."""

    ratio: float
    e0: float
    fault: str | None


def quantile_factors(freedom: torch.Tensor) -> torch.Tensor:
    """What the RMS of so many variables hardly ever exceeds, over its expectation.

    Source: the cube-root approximation of the chi-square quantile by Wilson and Hilferty, PNAS 17 (1931).
    """
    v = 2.0 / (9.0 * freedom.clamp(min=1.0))
    return (1.0 - v + _SURE * v.sqrt()).pow(1.5)


def half_ulp(dtype: torch.dtype) -> float:
    """Half the distance of neighbouring numbers at 1.0."""
    return torch.finfo(dtype).eps / 2 if dtype.is_floating_point else 0.0


def rounding_floor(dtype: torch.dtype, guards: Guards = ALL) -> float:
    """The error below which nothing is demanded, relative: half the distance of neighbouring numbers at 1.0; for fp32, two.

    An fp32 operand split in two numbers of 11 bits keeps 22 bits. That is 2^-22, and shows only where a row has a single
    term and eager rounds once (one-hot rows): the norm-wise contract of "highest" allows it there by a wide margin. The
    largest error of what the gate must reject, bf16 in two parts, is 2^-16.
    """
    if not dtype.is_floating_point:
        return 0.0
    if not guards.floor:
        return 1e-4 if dtype.itemsize >= 4 else 1e-2
    return torch.finfo(dtype).eps * (2.0 if dtype is torch.float32 else 0.5)


def smallest(dtype: torch.dtype) -> float:
    """Absolute errors below this are no errors: half a subnormal of fp16, what flushing subnormals to zero costs elsewhere."""
    if not dtype.is_floating_point:
        return 0.0
    info = torch.finfo(dtype)
    return info.tiny * info.eps / 2 if dtype is torch.float16 else info.tiny


def deviation(value: torch.Tensor, truth_low: torch.Tensor, truth_high: torch.Tensor | None) -> torch.Tensor:
    """Distance of `value` from the interval, fp64; from `truth_low` alone where there is no upper end."""
    if truth_high is None:
        return (value.double() - truth_low).abs_()
    wide = value.double()
    return torch.maximum(truth_low - wide, wide - truth_high).clamp_(min=0.0)


def summarise(error: torch.Tensor) -> Errors:
    """Statistics of errors `(R, C)`."""
    square = error * error
    rows, cols = square.mean(dim=1).sqrt_(), square.mean(dim=0).sqrt_()
    rms = float(rows.square().mean().sqrt()) if error.numel() else 0.0
    return Errors(error.numel(), rms, _percentile(error), float(error.max()) if error.numel() else 0.0, rows, cols)


def _percentile(error: torch.Tensor) -> float:
    """The 99.9th percentile; of a large tensor, that of every n-th element."""
    flat = error.reshape(-1)
    if flat.numel() == 0:
        return 0.0
    flat = flat[:: -(-flat.numel() // _SUBSAMPLE)]
    rank = max(1, flat.numel() - flat.numel() // 1000)
    return float(flat.kthvalue(rank).values)


def judge(values: Sequence[torch.Tensor], truths: Sequence[Truth], guards: Guards = ALL) -> Judgement:
    """Whether one output, for all the seeds of a class, passes. `values` have the shape `(R, C)` of the task's output."""
    found: list[Errors] = []
    for value, truth in zip(values, truths, strict=True):
        seen = value if truth.at is None else value[truth.at]
        fault = _plain_fault(seen, truth, guards) or _whole_fault(value, truth, guards)
        if fault is not None:
            return Judgement(math.inf, _relative_e0(truths), f"{truth.where}: {fault}")
        if not truth.dtype.is_floating_point:
            continue
        errors = summarise(_error(seen, truth, guards))
        fault = _line_fault(errors, truth, guards)
        if fault is not None:
            return Judgement(_ratio([errors], [truth]), _relative_e0(truths), f"{truth.where}: {fault}")
        found.append(errors)
    if not found:
        return Judgement(0.0, 0.0, None)
    return _judge_pooled(values, truths, found, guards)


def _error(value: torch.Tensor, truth: Truth, guards: Guards) -> torch.Tensor:
    error = deviation(value, truth.oracle if truth.low is None else truth.low, truth.high)
    if truth.classes is not None:
        error[truth.classes != 0] = 0.0
    return error if guards.finite else error.nan_to_num_(0.0, 0.0, 0.0)


def _plain_fault(value: torch.Tensor, truth: Truth, guards: Guards) -> str | None:
    """Faults that need no statistics: non-finite values, integers, booleans, indices, exact data."""
    if not truth.dtype.is_floating_point:
        if not guards.discrete:
            return None
        fault = _equality_fault(value, truth) if truth.choice is None else _choice_fault(value, truth.choice)
        return _ruled(fault, "discrete")
    if guards.finite and truth.classes is not None:
        fault = _class_fault(value, truth.classes)
        if fault is not None:
            return _ruled(fault, "finite")
    elif guards.finite and not bool(torch.isfinite(value).all()):
        return _ruled(f"{_position(~torch.isfinite(value))} is not finite, the reference is", "finite")
    return _ruled(_equality_fault(value, truth), "exact") if truth.exact else None


def _ruled(fault: str | None, guard: str) -> str | None:
    return None if fault is None else f"{fault} [rule {guard}]"


def _equality_fault(value: torch.Tensor, truth: Truth) -> str | None:
    off = deviation(value, truth.oracle if truth.low is None or truth.exact else truth.low, None if truth.exact else truth.high)
    if truth.classes is not None:
        off[truth.classes != 0] = 0.0
    if not bool((off != 0).any()):
        return None
    spot = tuple(int(i) for i in (off != 0).nonzero()[0])
    kind = "exact data, on which eager equals the oracle bit for bit" if truth.exact else "away from every tie"
    count = int((off != 0).sum())
    return f"{list(spot)} is {value[spot].item()}, expected {truth.oracle[spot].item()} ({kind}; {count} such elements)"


def non_finite_classes(tensor: torch.Tensor) -> torch.Tensor:
    """0 finite, 1 NaN, 2 +inf, 3 -inf, as int8."""
    classes = torch.isnan(tensor).to(torch.int8)
    classes[tensor == torch.inf] = 2
    classes[tensor == -torch.inf] = 3
    return classes


def _class_fault(value: torch.Tensor, classes: torch.Tensor) -> str | None:
    found = non_finite_classes(value) if value.dtype.is_floating_point else torch.zeros_like(classes)
    wrong = (found != classes) & (classes != 4)
    if not bool(wrong.any()):
        return None
    spot = tuple(int(i) for i in wrong.nonzero()[0])
    names = ("finite", "NaN", "+inf", "-inf")
    return f"{list(spot)} is {names[int(found[spot])]}, the reference is {names[int(classes[spot])]}"


def _choice_fault(value: torch.Tensor, choice: Choice) -> str | None:
    index = value.reshape(-1).long()
    count = choice.values.shape[1]
    outside = (index < 0) | (index >= count)
    if bool(outside.any()):
        return f"row {int(outside.nonzero()[0])}: index {int(index[outside][0])} is not below {count}"
    wrong = choice.fixed & (index != choice.index)
    if bool(wrong.any()):
        row = int(wrong.nonzero()[0])
        return f"row {row}: index {int(index[row])}, expected {int(choice.index[row])} (the first of equals, or a NaN)"
    chosen = choice.values.gather(1, index[:, None])[:, 0]
    best = choice.values.amax(dim=1) if choice.largest else choice.values.amin(dim=1)
    short = ((best - chosen).abs() > choice.slack) & ~choice.fixed
    if not bool(short.any()):
        return None
    row = int(short.nonzero()[0])
    return f"row {row}: index {int(index[row])} holds {float(chosen[row]):.6g}, the best is {float(best[row]):.6g}"


def _line_fault(errors: Errors, truth: Truth, guards: Guards) -> str | None:
    """A few lines may be over their limit by less than two: rounding errors have heavier tails than normal variables."""
    for name, found, limit in (("row", errors.rows, truth.row_limit), ("column", errors.cols, truth.col_limit)):
        if not getattr(guards, f"{name}s"):
            continue
        over = ~(found <= limit)  # so that a NaN is over
        count = int(over.sum())
        stray = 1.0 if truth.factor > FACTOR else _STRAY_SHARE  # a few variables that dominate all lines stray together
        if count <= max(_STRAY_LINES, stray * found.numel()) and bool((found <= _STRAY_FACTOR * limit).all()):
            continue
        ratio = (found / limit.clamp(min=1e-300)).nan_to_num(torch.inf)
        worst = int(ratio.argmax())
        words = f"{float(found[worst]):.3g}, {float(ratio[worst]):.3g} times what is allowed ({count} such)"
        return f"{name} {worst} has an RMS error of {words} [rule {name}s]"
    return None


def _whole_fault(value: torch.Tensor, truth: Truth, guards: Guards) -> str | None:
    whole = truth.whole
    if whole is None or not truth.dtype.is_floating_point or not guards.whole:
        return None
    known = torch.isfinite(whole.eager)
    error = torch.where(known, value.double() - whole.eager, 0.0).square_().mean(dim=1).sqrt_()
    own = torch.where(known, whole.eager.double(), 0.0).square_().mean(dim=1).sqrt_()
    over = ~(error <= (whole.relative * own).clamp(min=smallest(truth.dtype)))
    if not bool(over.any()):
        return None
    rows = over.nonzero().reshape(-1)
    if rows.numel() <= max(_REJUDGED_ROWS, int(_REJUDGED_SHARE * over.numel())):
        return _rows_fault(value, whole.again(rows), guards)
    row = int(rows[0])
    words = f"row {row} by {float(error[row]):.3g}, allowed is {float(whole.relative * own[row]):.3g} (4 e0)"
    return f"{rows.numel()} of all rows lie too far from eager: {words} [rule whole]"


def _rows_fault(value: torch.Tensor, truth: Truth, guards: Guards) -> str | None:
    """Rows that are far from eager, against the oracle: each by what eager's own error in that row allows."""
    assert truth.at is not None
    seen = value[truth.at]
    fault = _plain_fault(seen, truth, guards)
    if fault is not None:
        return fault
    found = summarise(_error(seen, truth, guards)).rows
    over = ~(found <= _STRAY_FACTOR * truth.row_limit)
    if not bool(over.any()):
        return None
    row = int(over.nonzero()[0])
    limit, name = float(truth.row_limit[row]), int(truth.at[row])
    return f"row {name} has an RMS error of {float(found[row]):.3g}, allowed is {limit:.3g}, twice in a few rows [rule whole]"


def _judge_pooled(values: Sequence[torch.Tensor], truths: Sequence[Truth], found: Sequence[Errors], guards: Guards) -> Judgement:
    ratio, e0 = _ratio(found, truths), _relative_e0(truths)
    count = sum(errors.count for errors in found)
    factor = max(FACTOR if count >= ENOUGH else FEW_FACTOR, max(truth.factor for truth in truths))
    floor = rounding_floor(truths[0].dtype, guards)
    least = smallest(truths[0].dtype)
    allowed = max(factor * _pooled(truths, "rms"), floor * _mean_square([t.oracle_rms for t in truths]), least)
    if guards.rms and not _mean_square([errors.rms for errors in found]) <= allowed:
        words = f"the RMS error is {ratio:.3g} times e0, allowed is {factor:.3g} [rule rms]"
        return Judgement(ratio, e0, f"{truths[0].where}: {words}")
    for name, words in (("tail", "99.9th percentile"), ("peak", "maximum")):
        bound = max(factor, max(truth.peak_factor for truth in truths))
        allowed = max(bound * _pooled(truths, name), floor * max(t.oracle_rms for t in truths), least)
        worst = max(getattr(errors, name) for errors in found)
        if worst <= allowed or not getattr(guards, name):
            continue
        worst = max(_beyond_rounding(value, truth, name, guards) for value, truth in zip(values, truths, strict=True))
        if not worst <= allowed:
            times = worst / max(allowed / bound, 1e-300)
            words = f"the {words} of the error is {times:.3g} times e0's, allowed is {bound:.3g} [rule {name}]"
            return Judgement(ratio, e0, f"{truths[0].where}: {words}")
    return Judgement(ratio, e0, None)


def _beyond_rounding(value: torch.Tensor, truth: Truth, name: str, guards: Guards) -> float:
    """The statistic over the elements that are further off than a correct rounding of the oracle would be.

    An element four times the RMS is allowed half an ulp of its own. Behind a narrowing conversion a product next to the
    midpoint of two neighbours may fall to either side: there it is a whole ulp.
    """
    seen = value if truth.at is None else value[truth.at]
    error = _error(seen, truth, guards)
    rounding = truth.oracle.abs() * (rounding_floor(truth.dtype, guards) * (2.0 if truth.narrowed else 1.0))
    error[error <= rounding] = 0.0
    return float(getattr(summarise(error), name))


def _pooled(truths: Sequence[Truth], name: str) -> float:
    values = [float(getattr(truth.e0, name)) for truth in truths]
    return _mean_square(values) if name == "rms" else max(values)


def _mean_square(values: Sequence[float]) -> float:
    return math.sqrt(sum(value * value for value in values) / len(values))


def _ratio(found: Sequence[Errors], truths: Sequence[Truth]) -> float:
    floor = half_ulp(truths[0].dtype) * _mean_square([truth.oracle_rms for truth in truths])
    return _mean_square([errors.rms for errors in found]) / max(_pooled(truths, "rms"), floor, smallest(truths[0].dtype))


def _relative_e0(truths: Sequence[Truth]) -> float:
    size = _mean_square([truth.oracle_rms for truth in truths])
    return _pooled(truths, "rms") / size if size > 0 else 0.0


def _position(mask: torch.Tensor) -> str:
    return f"{[int(i) for i in mask.nonzero()[0]]} ({int(mask.sum())} such elements)"
