"""Can the gate tell this region from a wrong one? Mutants are judged before any candidate is.

Zeros, the mean, the output for other inputs, and the region with one op dropped are wrong kernels. A class of inputs on
which zeros, the mean or stale data pass proves nothing and does not count. Each op must be missed by some class that counts;
scales between the classes are tried for those that none misses, and a scale that helps joins the classes. A mutant that
equals the region within half an ulp on every class that counts is *equivalent* (a clamp behind a tanh, a division by 1) and
is named so. A region of which no class counts, or with a mutant that differs and passes everywhere, is not testable.

Half precision has one exception. Where operands or outputs are fp16 or bf16, eager's own rounding may hide one op of many from
every judge that lets an honest kernel pass (a factor inside an erf, behind a logsumexp over thousands of bf16 values). Such a
mutant is *indistinct*: it lies within what eager itself is off, on every class. A few of them, at most a third of the mutants
and none of them a reduction, leave the region testable, and are named in the evidence.

All this is done on few rows: rows are a domain, so the region with 16 rows is a region of the same task.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

import torch

from kforge_dynamo.records.task import Task
from kforge_dynamo.sandbox.bench import Bench
from kforge_dynamo.sandbox.dissect import Mutant, mutants
from kforge_dynamo.sandbox.gate import Truth, half_ulp, smallest
from kforge_dynamo.sandbox.inputs import CLASSES, EXTRA_SCALES, STRICT, InputClass
from kforge_dynamo.sandbox.oracle import Parts
from kforge_dynamo.sandbox.rows import flop
from kforge_dynamo.sandbox.verify import judge_outputs
from kforge_dynamo.semantics.evaluate import Mode, Policy, dtype_of, evaluate
from kforge_dynamo.semantics.table import OPS, Kind

_ORACLE = Policy(Mode.ORACLE)
_COMPARABLE = 0.99
_FP64_SHARE = 2.0**-10  # where eager has lost nearly all digits, fp64 has lost some: less than this is no difference
_STALE = 1 << 20  # the number of a draw that no check uses
_MOST_ROWS, _FEWEST_ROWS = 64, 8
_INDISTINCT_SHARE = 3  # at most one mutant in three
_ELEMENTS, _FLOP = 1 << 14, 1 << 26


@dataclass(frozen=True, slots=True)
class Discrimination:
    """`classes` are those to check a candidate on: those that prove something, whose names are `counting`, and the one with
    NaN and infinity. `equivalent` names mutants that are no mutants, `indistinct` those that half precision hides. `reason`
    says why the region is not testable, if so."""

    classes: tuple[InputClass, ...]
    counting: tuple[str, ...]
    equivalent: tuple[str, ...]
    indistinct: tuple[str, ...]
    reason: str | None


@dataclass(slots=True)
class _Suspect:
    """A mutant of the head or of the rest, and what the classes said so far."""

    mutant: Mutant
    of_head: bool
    caught: str | None = None
    differs: bool = False


@dataclass(slots=True)
class _State:
    suspects: list[_Suspect]
    classes: list[InputClass] = field(default_factory=list)
    counting: list[str] = field(default_factory=list)


def few_rows(task: Task, sizes: Sequence[int]) -> tuple[int, ...]:
    """Sizes with as many rows as the mutants need, never more than given."""
    axes = dict(zip(task.axes, sizes, strict=True))
    ones = tuple(1 if axis in task.row_axes else axes[axis] for axis in task.axes)
    anchor = task.anchor
    width = int(anchor.out.cols[-1]) if anchor is not None and anchor.out.cols else 1
    rows = min(_ELEMENTS // max(width, 1), _FLOP // max(flop(task, ones), 1))
    rows = max(_FEWEST_ROWS, min(_MOST_ROWS, rows))
    inner = task.row_axes[-1] if task.row_axes else ""
    return tuple(
        min(size, rows if axis == inner else 2) if axis in task.row_axes else size
        for axis, size in zip(task.axes, sizes, strict=True)
    )


def discriminate(bench: Bench, sizes: Sequence[int]) -> Discrimination:
    """Judges the mutants of the task of `bench` at (few rows of) `sizes`."""
    small = few_rows(bench.task, sizes)
    state = _State(_suspects(bench.parts))
    strict = (STRICT,) if bench.numerics.fp32 == "strict" and bench.task.anchor is not None else ()
    for chosen in (*CLASSES, *strict):
        _try_class(bench, small, chosen, state, always=True)
    for chosen in EXTRA_SCALES:
        if all(suspect.caught for suspect in state.suspects):
            break
        _try_class(bench, small, chosen, state, always=False)
    missed = [suspect for suspect in state.suspects if suspect.caught is None]
    equivalent = tuple(suspect.mutant.name for suspect in missed if not suspect.differs)
    wrong = [suspect.mutant.name for suspect in missed if suspect.differs]
    indistinct = tuple(wrong) if _hidden_by_rounding(bench.task, wrong, len(state.suspects)) else ()
    wrong = [name for name in wrong if name not in indistinct]
    reason = None
    if not state.counting:
        reason = "not testable: zeros, the mean or stale data pass on every class of inputs (the result hardly depends on them)"
    elif wrong:
        reason = f"not testable: a kernel without {wrong[0]} differs from the region, but passes on every class of inputs"
    return Discrimination(tuple(state.classes), tuple(state.counting), equivalent, indistinct, reason)


def _hidden_by_rounding(task: Task, names: Sequence[str], suspects: int) -> bool:
    """Whether half precision accounts for these mutants that pass everywhere (see the module's docstring)."""
    halves = any(item.value.dtype in ("float16", "bfloat16") for item in task.inputs)
    reductions = any(name.split()[0] in OPS and OPS[name.split()[0]].kind is Kind.REDUCTION for name in names)
    return halves and not reductions and len(names) * _INDISTINCT_SHARE <= suspects


def _suspects(parts: Parts) -> list[_Suspect]:
    roots = [place for place, feed in enumerate(parts.feeds) if feed in parts.cut]
    found = [_Suspect(mutant, False) for mutant in mutants(parts.rest, roots)]
    if parts.task.anchor is not None:
        found += [_Suspect(mutant, True) for mutant in mutants(parts.head, ())]
    return found


@dataclass(frozen=True, slots=True)
class _Case:
    """One class at few rows: inputs, the oracle's products, and the truth of each output."""

    inputs: list[torch.Tensor]
    products: list[torch.Tensor]
    truths: list[Truth]


def _try_class(bench: Bench, sizes: tuple[int, ...], chosen: InputClass, state: _State, *, always: bool) -> None:
    case = _case(bench, sizes, chosen)
    if not chosen.counts:
        state.classes.append(chosen)
        return
    if any(_comparable(truth) < _COMPARABLE for truth in case.truths):
        return
    counts = all(_fails(bench, case, outputs) for outputs in _trivial(bench, sizes, chosen, case))
    helped = False
    for suspect in state.suspects:
        if suspect.caught is not None:
            continue
        outputs = _mutated(bench, sizes, case, suspect)
        suspect.differs = suspect.differs or (counts and _differ(case, outputs))
        if counts and _fails(bench, case, outputs):
            suspect.caught, helped = chosen.name, True
    if counts and (always or helped):
        state.classes.append(chosen)
        state.counting.append(chosen.name)


def _case(bench: Bench, sizes: tuple[int, ...], chosen: InputClass) -> _Case:
    drawn = bench.draw(sizes, chosen, 0)
    inputs = bench.expanded(sizes, drawn)
    axes = dict(zip(bench.task.axes, sizes, strict=True))
    products = list(evaluate(bench.parts.head, inputs, axes, _ORACLE))
    return _Case(inputs, products, bench.truths(sizes, chosen, 0, drawn))


def _comparable(truth: Truth) -> float:
    return 1.0 if truth.classes is None else float((truth.classes == 0).float().mean())


def _trivial(bench: Bench, sizes: tuple[int, ...], chosen: InputClass, case: _Case) -> list[list[torch.Tensor]]:
    """The outputs of kernels that do not compute: zeros, one constant, the result for other inputs."""
    oracles = [truth.oracle for truth in case.truths]
    other = bench.draw(sizes, chosen, _STALE)
    axes = dict(zip(bench.task.axes, sizes, strict=True))
    stale = evaluate(bench.task, bench.expanded(sizes, other), axes, _ORACLE)
    found = [
        [torch.zeros_like(oracle) for oracle in oracles],
        [value.double().reshape(oracle.shape) for value, oracle in zip(stale, oracles, strict=True)],
    ]
    if any(oracle.numel() > 1 for oracle in oracles):  # one number is its own mean
        found.append([torch.full_like(oracle, float(oracle.mean())) for oracle in oracles])
    return found


def _mutated(bench: Bench, sizes: tuple[int, ...], case: _Case, suspect: _Suspect) -> list[torch.Tensor]:
    axes = dict(zip(bench.task.axes, sizes, strict=True))
    parts = bench.parts
    if suspect.of_head:
        products = evaluate(suspect.mutant.task, case.inputs, axes, _ORACLE)
        outputs = evaluate(parts.rest, parts.fed(case.inputs, products), axes, _ORACLE)
    else:
        outputs = evaluate(suspect.mutant.task, parts.fed(case.inputs, case.products), axes, _ORACLE)
    return [value.double().reshape(truth.oracle.shape) for value, truth in zip(outputs, case.truths, strict=True)]


def _fails(bench: Bench, case: _Case, outputs: Sequence[torch.Tensor]) -> bool:
    """Whether the gate rejects `outputs`, rounded to the dtypes of the task's outputs."""
    shaped = []
    for number, value in zip(bench.task.outputs, outputs, strict=True):
        spec = bench.task.value(number)
        rounded = value.nan_to_num(0.0).to(dtype_of(spec.dtype)) if "float" not in spec.dtype else value.to(dtype_of(spec.dtype))
        shaped.append(rounded.reshape((value.shape[0],) + (1,) * (len(spec.rows) - 1) + (value.shape[1],)))
    return not judge_outputs(bench.task, [shaped], [case.truths]).passed


def _differ(case: _Case, outputs: Sequence[torch.Tensor]) -> bool:
    for value, truth in zip(outputs, case.truths, strict=True):
        size = torch.maximum(truth.oracle.abs(), truth.oracle.square().mean(dim=1, keepdim=True).sqrt())
        unclear = torch.maximum(truth.row_limit[:, None], truth.col_limit) * _FP64_SHARE
        allowed = torch.maximum(half_ulp(truth.dtype) * size + smallest(truth.dtype), unclear)
        close = (value - truth.oracle).abs() <= allowed
        if truth.classes is not None:
            close |= truth.classes != 0
        if not bool(close.all()):
            return True
    return False


__all__ = ["Discrimination", "discriminate", "few_rows"]
