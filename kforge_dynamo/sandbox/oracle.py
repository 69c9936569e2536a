"""Truth for one draw of inputs: the region in fp64, and e0, the error that eager's own arithmetic makes at the setting.

e0 is drawn several times. The first draw is eager itself, whose product is computed at the full size also where only some rows
are judged (a library adds up K in another order where there are few rows); in the others the product is the oracle's plus
normal noise of the size of eager's error (see `noise`), and the epilogue is eager's. What these draws scatter tells the gate how
steady eager's error is (see `limits`). In one more draw the noise has the same size everywhere: it tells what an element whose
normal draws happened to be small may be off by.

A comparison, a rounding or a choice of the epilogue jumps when the product moves across a threshold. There no kernel can be
held to the oracle's side. So where a task has such ops the oracle is also evaluated with the product moved by 1 and by 8
times e0, up and down; an element that does not move in proportion has a jump within reach, and any value between the
evaluations found is right for it. Indices of a maximum may point at any value that lies within e0 of the best.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import cast

import torch

from kforge_dynamo.records.guardrail import Guards
from kforge_dynamo.records.target import Numerics
from kforge_dynamo.records.task import Task
from kforge_dynamo.sandbox.dissect import has_steps, is_narrowed, numbers, products, prune, tail
from kforge_dynamo.sandbox.gate import (
    ENOUGH,
    Choice,
    Errors,
    Truth,
    Whole,
    deviation,
    non_finite_classes,
    quantile_factors,
    rounding_floor,
    summarise,
)
from kforge_dynamo.sandbox.limits import freedom, line_limit, peak_freedom
from kforge_dynamo.sandbox.noise import noise_scales, noise_shape
from kforge_dynamo.sandbox.precision import baseline_policy
from kforge_dynamo.sandbox.rows import Sampled, evaluate_in_blocks, rows_holding, sample_rows, select, select_values
from kforge_dynamo.semantics.evaluate import Mode, Policy, dtype_of, evaluate
from kforge_dynamo.semantics.table import OPS, Kind

_ORACLE = Policy(Mode.ORACLE)
_REACH = 8.0  # e0's largest of 1e6 normal errors is 5 times its RMS; a faithful kernel may have 1.6 times that
_FEW_ELEMENTS = 1 << 18
_MANY_ELEMENTS = 1 << 20


@dataclass(frozen=True, slots=True)
class Parts:
    """A task split at its products, once for all draws."""

    task: Task
    cut: tuple[int, ...]
    head: Task
    rest: Task
    feeds: tuple[int, ...]
    steps: bool

    @classmethod
    def of(cls, task: Task) -> Parts:
        """`task` split."""
        cut = products(task)
        behind = tail(task, cut)
        return cls(task, cut, prune(task, cut), behind.task, behind.feeds, has_steps(task))

    def fed(self, inputs: Sequence[torch.Tensor], values: Sequence[torch.Tensor]) -> list[torch.Tensor]:
        """The inputs of `rest`, given the task's inputs and the values of the cut."""
        by_number = dict(enumerate(inputs)) | dict(zip(self.cut, values, strict=True))
        return [by_number[number] for number in self.feeds]


@dataclass(frozen=True, slots=True)
class Draws:
    """All that is evaluated for one draw of inputs, each a list by output, and the rows it covers."""

    oracle: list[torch.Tensor]
    eager: list[torch.Tensor]
    noisy: list[list[torch.Tensor]]
    sure: list[torch.Tensor]
    moved: list[list[torch.Tensor]]
    products: tuple[list[torch.Tensor], list[torch.Tensor]]


@dataclass(frozen=True, slots=True)
class Setting:
    """How a draw is to be judged: `exact` asks for equality where eager has it, `alike` says that all rows of the left
    operand are equal; `seed` feeds the noise, of which there are at most `most_draws`; outputs of more than `most_elements`
    are judged by sampled rows; `where` names the draw; `guards` are the rules that are on."""

    numerics: Numerics
    where: str
    exact: bool
    alike: bool
    seed: int
    most_draws: int
    most_elements: int
    guards: Guards


def truths(
    parts: Parts,
    setting: Setting,
    sizes: Sequence[int],
    inputs: Sequence[torch.Tensor],
    redraw: Callable[[], Sequence[torch.Tensor]],
) -> list[Truth]:
    """The truth of every output. `inputs` have the full shapes of their specs; `redraw` makes the same ones again later."""
    generator = torch.Generator().manual_seed(setting.seed)
    sampled = sample_rows(parts.task, sizes, setting.most_elements, generator, inputs[0].device)
    found = _truths_at(parts, setting, sizes, inputs, sampled)
    return found if sampled is None else _with_whole(parts, setting, sizes, inputs, found, redraw)


def _truths_at(
    parts: Parts, setting: Setting, sizes: Sequence[int], inputs: Sequence[torch.Tensor], sampled: Sampled | None
) -> list[Truth]:
    """The truth of the sampled rows, of all where there is no sample."""
    seen = list(inputs) if sampled is None else select(parts.task, inputs, sampled.rows)
    few = tuple(sizes) if sampled is None else sampled.sizes
    policy = baseline_policy(parts.task, setting.numerics, setting.guards)
    if sampled is None or policy.wide_gemm:
        plain = list(evaluate_in_blocks(parts.head, seen, few, policy))
    else:
        plain = select_values(parts.task, parts.cut, _product(parts, inputs, sizes, policy), sampled.rows)
    draws = _draws(parts, setting, few, seen, plain)
    found = []
    for place, number in enumerate(parts.task.outputs):
        spec = parts.task.value(number)
        rank = len(spec.rows)
        flat = _Flat(
            dtype_of(spec.dtype),
            _flat(draws.oracle[place], rank),
            _flat(draws.eager[place], rank),
            [_flat(sample[place], rank) for sample in draws.noisy],
            _flat(draws.sure[place], rank),
            [_flat(sample[place], rank) for sample in draws.moved],
        )
        choice = _choice(parts, number, few, seen, draws.products)
        narrowed = is_narrowed(parts.task, number)
        name = f"output {place}, class {setting.where}"
        truth = _truth(flat, name, setting, narrowed)
        found.append(replace(truth, choice=choice, at=None if sampled is None else sampled.flat))
    return found


def _flat(tensor: torch.Tensor, rank: int) -> torch.Tensor:
    return tensor.reshape(tensor.shape[:rank].numel(), -1)


def _product(parts: Parts, inputs: Sequence[torch.Tensor], sizes: Sequence[int], policy: Policy) -> list[torch.Tensor]:
    """The values of the cut as the library computes them for all rows at once."""
    return list(evaluate(parts.head, inputs, dict(zip(parts.task.axes, sizes, strict=True)), policy))


def _draws(
    parts: Parts, setting: Setting, sizes: Sequence[int], inputs: Sequence[torch.Tensor], plain: list[torch.Tensor]
) -> Draws:
    """`plain` is the cut as eager computes it."""
    generator = torch.Generator(inputs[0].device).manual_seed(setting.seed)
    numerics = setting.numerics
    policy = baseline_policy(parts.task, numerics, setting.guards)
    exact = list(evaluate_in_blocks(parts.head, inputs, sizes, _ORACLE))

    def run(values: Sequence[torch.Tensor], chosen: Policy) -> list[torch.Tensor]:
        return list(evaluate_in_blocks(parts.rest, parts.fed(inputs, values), sizes, chosen))

    oracle = run(exact, _ORACLE)
    scales = noise_scales(parts.task, parts.cut, inputs, sizes, exact, plain, numerics.fp32 == "strict")
    signed = [value + scale * _signs(value, generator) for value, scale in zip(exact, scales, strict=True)]
    sure = run([value.to(like.dtype) for value, like in zip(signed, plain, strict=True)], policy)
    noisy = []
    for turn in range(min(setting.most_draws, _sample_count(oracle))):
        alike = setting.alike and turn % 2 == 0  # tiles may round equal rows differently
        shapes = [noise_shape(parts.task, number, value.shape, alike) for number, value in zip(parts.cut, exact, strict=True)]
        normal = [torch.randn(shape, generator=generator, device=inputs[0].device) for shape in shapes]
        shifted = [value + scale * noise for value, scale, noise in zip(exact, scales, normal, strict=True)]
        noisy.append(run([value.to(like.dtype) for value, like in zip(shifted, plain, strict=True)], policy))
    moved = []
    for direction in (_ones, _signs) if parts.steps else ():
        signs = [direction(value, generator) for value in exact]
        for reach in (_REACH, -_REACH, 1.0, -1.0):
            shifted = [v + reach * scale * sign for v, scale, sign in zip(exact, scales, signs, strict=True)]
            moved.append(run(shifted, _ORACLE))
    return Draws(oracle, run(plain, policy), noisy, sure, moved, (exact, plain))


def _sample_count(outputs: Sequence[torch.Tensor]) -> int:
    largest = max(output.numel() for output in outputs)
    return 7 if largest <= _FEW_ELEMENTS else 3 if largest <= _MANY_ELEMENTS else 2


def _ones(like: torch.Tensor, _: torch.Generator) -> torch.Tensor:
    return torch.ones((), device=like.device)


def _signs(like: torch.Tensor, generator: torch.Generator) -> torch.Tensor:
    return torch.randint(0, 2, like.shape, generator=generator, device=like.device, dtype=torch.int8) * 2 - 1


@dataclass(frozen=True, slots=True)
class _Flat:
    """One output of all draws as `(R, C)`."""

    dtype: torch.dtype
    oracle: torch.Tensor
    eager: torch.Tensor
    noisy: list[torch.Tensor]
    sure: torch.Tensor
    moved: list[torch.Tensor]


def _truth(flat: _Flat, where: str, setting: Setting, narrowed: bool) -> Truth:
    guards = setting.guards
    classes = _classes(flat)
    oracle = flat.oracle.double()
    if classes is not None:
        oracle = torch.where(classes == 0, oracle, 0.0)
    low, high = _jumps(flat, oracle, guards)
    same = setting.exact and guards.exact and bool((flat.eager.double() == flat.oracle).all())

    def errors(value: torch.Tensor) -> torch.Tensor:
        error = deviation(value, oracle if low is None else low, high)
        if classes is not None:
            error[classes != 0] = 0.0
        return error.nan_to_num_(0.0, 0.0, 0.0)

    draws = [errors(value) for value in (flat.eager, *flat.noisy)] if flat.dtype.is_floating_point else [oracle * 0.0]
    steady = [summarise(error) for error in draws]
    own_rows, own_cols = oracle.square().mean(dim=1).sqrt_(), oracle.square().mean(dim=0).sqrt_()
    few = oracle.numel() < ENOUGH
    energy = torch.stack([error.square() for error in draws]).mean(dim=0)
    sure = summarise(errors(flat.sure)) if flat.dtype.is_floating_point else steady[0]
    rows = line_limit([item.rows for item in steady], own_rows, energy, sure.rows, flat.dtype, few, guards)
    cols = line_limit([item.cols for item in steady], own_cols, energy.T, sure.cols, flat.dtype, few, guards)
    e0 = Errors(
        oracle.numel(),
        max(steady[0].rms, (sum(item.rms**2 for item in steady) / len(steady)) ** 0.5),
        max(item.tail for item in steady),
        max(item.peak for item in steady),
        steady[0].rows,
        steady[0].cols,
    )
    rms = float(own_rows.square().mean().sqrt()) if oracle.numel() else 0.0
    factor, peak_factor = quantile_factors(torch.tensor([freedom(energy, steady), peak_freedom(energy)])).tolist()
    factors = (factor, max(factor, peak_factor))
    rest = (*factors, rms, None, None, None)
    return Truth(where, flat.dtype, oracle, low, high, classes, same, narrowed, e0, rows, cols, *rest)


def _classes(flat: _Flat) -> torch.Tensor | None:
    """See `gate.Truth.classes`; where a draw of e0 is not as finite as the oracle is, nothing is demanded either."""
    if not flat.dtype.is_floating_point:
        return None
    ours = non_finite_classes(flat.oracle.to(flat.dtype))
    classes = ours
    for value in (flat.eager, *flat.noisy):
        found = non_finite_classes(value)
        classes = torch.where(found == ours, classes, torch.full_like(ours, 4))
    return classes if bool(classes.any()) else None


def _jumps(flat: _Flat, oracle: torch.Tensor, guards: Guards) -> tuple[torch.Tensor | None, torch.Tensor | None]:
    """The interval of right values of each element; (None, None) where nothing jumps."""
    if not flat.moved:
        return None, None
    runs = [_known(value, oracle) for value in flat.moved]
    if not flat.dtype.is_floating_point:
        runs += [value.double() for value in (flat.eager, *flat.noisy)]
        stacked = torch.stack([oracle, *runs])
        return stacked.amin(dim=0), stacked.amax(dim=0)
    jumping = torch.zeros_like(oracle, dtype=torch.bool)
    square = oracle.square()
    visible = torch.minimum(square.mean(dim=1, keepdim=True), square.mean(dim=0)).sqrt_() * rounding_floor(flat.dtype, guards)
    for far_up, far_down, near_up, near_down in zip(*(iter([run - oracle for run in runs]),) * 4, strict=True):
        bent = torch.maximum((far_up - _REACH * near_up).abs_(), (far_down - _REACH * near_down).abs_())
        bent = torch.maximum(bent, (near_up + near_down).abs_() * _REACH)
        far = torch.maximum(far_up.abs_(), far_down.abs_())
        jumping |= (bent > 0.5 * far) & (torch.maximum(bent, far) > visible)
    if not bool(jumping.any()):
        return None, None
    stacked = torch.stack([oracle, *runs])
    return torch.where(jumping, stacked.amin(dim=0), oracle), torch.where(jumping, stacked.amax(dim=0), oracle)


def _known(value: torch.Tensor, oracle: torch.Tensor) -> torch.Tensor:
    wide = value.double()
    return torch.where(torch.isfinite(wide), wide, oracle)


def _choice(
    parts: Parts,
    number: int,
    sizes: Sequence[int],
    inputs: Sequence[torch.Tensor],
    values: tuple[list[torch.Tensor], list[torch.Tensor]],
) -> Choice | None:
    """The values that an argmax or argmin output chooses from, seen through views; None for other outputs."""
    task, count = parts.task, len(parts.task.inputs)
    while number >= count and OPS[task.nodes[number - count].op].kind is Kind.VIEW:
        (number,) = numbers(task.nodes[number - count].args)
    if number < count or task.nodes[number - count].op not in ("argmax", "argmin"):
        return None
    node = task.nodes[number - count]
    (source,) = numbers(node.args)
    behind = tail(prune(task, (source,)), ()) if source < count else tail(_returning(task, source), parts.cut)
    runs = []
    for cut, policy in zip(values, (_ORACLE, Policy(Mode.EAGER)), strict=True):
        by_number = dict(enumerate(inputs)) | dict(zip(parts.cut, cut, strict=True))
        (value,) = evaluate_in_blocks(behind.task, [by_number[feed] for feed in behind.feeds], sizes, policy)
        axis = len(task.row_axes) + cast(tuple[int, ...], node.attr("axes"))[0]
        runs.append(value.movedim(axis, -1).reshape(-1, value.shape[axis]))
    return _choice_among(runs[0], runs[1], node.op == "argmax")


def _returning(task: Task, number: int) -> Task:
    return Task(task.row_axes, task.col_axes, task.inputs, task.nodes, (number,))


def _choice_among(oracle: torch.Tensor, eager: torch.Tensor, largest: bool) -> Choice:
    finite = torch.isfinite(oracle) & torch.isfinite(eager.double())
    error = torch.where(finite, eager.double() - oracle, 0.0).square().mean(dim=1).sqrt()
    size = torch.where(finite, oracle, 0.0).square().mean(dim=1).sqrt()
    slack = 2 * _REACH * torch.maximum(error, error.median()).clamp(min=0.0)
    slack = torch.where(slack > 0, torch.maximum(slack, rounding_floor(eager.dtype) * size), slack)
    pick = torch.argmax if largest else torch.argmin
    index, eagers = pick(oracle, dim=1), pick(eager, dim=1)
    odd = torch.isnan(oracle).any(dim=1) | ~torch.isfinite(oracle.gather(1, index[:, None])[:, 0])
    fixed = ((slack == 0) | odd) & (index == eagers)
    slack = torch.where(odd & ~fixed, torch.inf, slack)
    return Choice(oracle.nan_to_num(0.0, 1e300, -1e300), slack, index, fixed, largest)


def _with_whole(
    parts: Parts,
    setting: Setting,
    sizes: Sequence[int],
    inputs: Sequence[torch.Tensor],
    found: list[Truth],
    redraw: Callable[[], Sequence[torch.Tensor]],
) -> list[Truth]:
    policy = replace(baseline_policy(parts.task, setting.numerics, setting.guards), wide_gemm=False)
    outputs = evaluate_in_blocks(parts.rest, parts.fed(inputs, _product(parts, inputs, sizes, policy)), sizes, policy)

    def again(place: int, rows: torch.Tensor) -> Truth:
        return _truths_at(parts, setting, sizes, redraw(), rows_holding(parts.task, sizes, rows))[place]

    whole = []
    for place, (output, number, truth) in enumerate(zip(outputs, parts.task.outputs, found, strict=True)):
        flat = _flat(output, len(parts.task.value(number).rows))
        relative = max(_usual_distance(truth, flat), 2 * rounding_floor(truth.dtype, setting.guards))
        whole.append(replace(truth, whole=Whole(flat, relative, functools.partial(again, place))))
    return whole


def _usual_distance(truth: Truth, eager: torch.Tensor) -> float:
    """How far from eager, relative to a row's own RMS, the rows of a faithful kernel lie, by what the sampled rows show:
    twice the most that the gate allows one, or where values jump, twice the most that eager is off in one."""
    own = truth.oracle.square().mean(dim=1).sqrt_()
    known = (own > 0) & torch.isfinite(truth.row_limit)
    if truth.low is None:
        limits = truth.row_limit
    else:
        sampled = eager if truth.at is None else eager[truth.at]
        off = torch.where(torch.isfinite(sampled), sampled.double() - truth.oracle, 0.0)
        limits = off.square().mean(dim=1).sqrt_()
    return 2 * float((limits[known] / own[known]).max()) if bool(known.any()) else 0.0
