"""Values of inputs: the classes of data a kernel must be right on, each inside the domain that an input's uses imply.

| class | left operand | right operand | other inputs |
|---|---|---|---|
| unit | N(0, 1) | N(0, 1 / K) | N(0, 1) |
| normal | N(0, 1) | N(0, 1) | N(0, 1) |
| uniform | U(0, 1) | U(-1, 1) / sqrt(K) | U(-1, 1) |
| same_sign | U(0, 1) | U(0, 1) / sqrt(K) | U(0, 1) |
| small, large | unit, and what varies by row times 1e-3 or 1e3 | | |
| scaled | rows times 2^U(-20, 20) | columns times 2^U(-20, 20) | N(0, 1) |
| sparse | 90 % zeros | N(0, 1 / K) | 90 % zeros; masks of 0 and -inf |
| equal_rows | all rows alike | N(0, 1 / K) | N(0, 1) |
| one_hot | one 1 a row | N(0, 1) | N(0, 1) |
| integers | {0, 1} | {0, 1} | {0, 1}; masks of 0 and -inf |
| non_finite | unit with one NaN, one +inf and one -inf in the first rows | | |
| outlier | unit with one column times 2^20 | unit, half of its columns 0 there | N(0, 1) |

`same_sign` is there because truncation while accumulating is a bias that zero-mean data average out, `non_finite` because
maxima, comparisons and split products treat NaN and infinity by rules of their own; that class proves nothing by itself.
`outlier` is for the setting "strict" alone: a large column that meets zeros must not cost the other terms their digits.
Seeds come from the operating system once a worker, so no candidate knows the values.
"""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from dataclasses import dataclass

import torch

from kforge_dynamo.records.guardrail import ALL, Guards
from kforge_dynamo.records.task import InputRole, InputSpec, Task
from kforge_dynamo.sandbox.dissect import prune
from kforge_dynamo.sandbox.domains import Values, domains, statistics
from kforge_dynamo.semantics.evaluate import Mode, Policy, dtype_of, evaluate, shape_of

_EXPONENT = {"float16": 4.0}  # 2^+-20 a row and a column leaves fp16's range
_WIDEST_EXPONENT = 20.0


@dataclass(frozen=True, slots=True)
class InputClass:
    """`base` draws all roles; `by_row` multiplies what varies by row; `spread` scales rows and columns apart."""

    name: str
    base: str
    by_row: float = 1.0
    spread: bool = False
    masks: bool = False
    exact: bool = False
    counts: bool = True


CLASSES: tuple[InputClass, ...] = (
    InputClass("unit", "unit"),
    InputClass("normal", "normal"),
    InputClass("uniform", "uniform"),
    InputClass("same_sign", "same_sign"),
    InputClass("small", "unit", by_row=1e-3),
    InputClass("large", "unit", by_row=1e3),
    InputClass("scaled", "unit", spread=True),
    InputClass("sparse", "sparse", masks=True),
    InputClass("equal_rows", "equal_rows"),
    InputClass("one_hot", "one_hot"),
    InputClass("integers", "integers", masks=True, exact=True),
    InputClass("non_finite", "unit", counts=False),
)
STRICT = InputClass("outlier", "outlier")
EXTRA_SCALES: tuple[InputClass, ...] = tuple(
    InputClass(f"unit_x{scale:g}", "unit", by_row=scale) for scale in (3.0, 10.0, 30.0, 100.0, 0.1, 1e-2)
)
"""Tried where a mutant passes on every class: one of them makes most clamps and thresholds bind."""

BY_NAME = {item.name: item for item in (*CLASSES, *EXTRA_SCALES, STRICT)}


class Seeds:
    """Hidden seeds: a digest of a secret of this process, the class and a number."""

    def __init__(self, secret: bytes) -> None:
        self._secret = secret

    def seed(self, name: str, number: int) -> int:
        """The seed of draw `number` of the class."""
        text = self._secret + f"{name}:{number}".encode()
        return int.from_bytes(hashlib.sha256(text).digest()[:8], "big") >> 1


def draw(
    task: Task, sizes: Sequence[int], chosen: InputClass, seed: int, device: torch.device, guards: Guards = ALL
) -> list[torch.Tensor]:
    """One tensor an input of `task`, dense, in the shape of its spec (extent 1 where the spec's stride is 0)."""
    axes = dict(zip(task.axes, sizes, strict=True))
    generator = torch.Generator(device).manual_seed(seed)
    draws = _Draws(task, axes, chosen, generator, device)
    implied = domains(task)
    if not guards.domains:
        implied = tuple(
            Values.ANY if "float" in item.value.dtype else values for item, values in zip(task.inputs, implied, strict=True)
        )
    tensors = [draws.one(item, values) for item, values in zip(task.inputs, implied, strict=True)]
    if guards.domains:
        _settle_statistics(task, tensors, axes)
    return tensors


def drawn_shape(item: InputSpec, axes: dict[str, int]) -> tuple[int, ...]:
    """The shape in which an input is drawn: what repeats by a stride of 0 is drawn once."""
    shape = shape_of(item.value.shape, axes)
    return tuple(1 if stride == 0 else int(extent) for extent, stride in zip(shape, item.strides, strict=True))


def full_shape(item: InputSpec, axes: dict[str, int]) -> tuple[int, ...]:
    """The shape in which a kernel sees it."""
    return tuple(int(extent) for extent in shape_of(item.value.shape, axes))


class _Draws:
    def __init__(
        self, task: Task, axes: dict[str, int], chosen: InputClass, generator: torch.Generator, device: torch.device
    ) -> None:
        self._task, self._axes, self._chosen = task, axes, chosen
        self._generator, self._device = generator, device
        self._row_rank = len(task.row_axes)
        halves = any(item.value.dtype == "float16" for item in task.inputs)
        self._outlier = 8.0 if halves else 20.0

    def one(self, item: InputSpec, values: Values) -> torch.Tensor:
        shape = drawn_shape(item, self._axes)
        dtype = dtype_of(item.value.dtype)
        if values is Values.BOOLEAN:
            return self._rand(shape) < 0.5
        if values is Values.INDEX:
            return (self._rand(shape) * self._index_bound()).to(dtype)
        if values is Values.MASK and self._chosen.masks:
            return self._mask(shape).to(dtype)
        return self._in_domain(self._floating(item, shape), values).to(dtype)

    def _rand(self, shape: tuple[int, ...]) -> torch.Tensor:
        return torch.rand(shape, generator=self._generator, device=self._device)

    def _randn(self, shape: tuple[int, ...]) -> torch.Tensor:
        return torch.randn(shape, generator=self._generator, device=self._device)

    def _index_bound(self) -> int:
        anchor = self._task.anchor
        last = anchor.out.cols[-1] if anchor is not None else 2
        return last if isinstance(last, int) else self._axes[last]

    def _mask(self, shape: tuple[int, ...]) -> torch.Tensor:
        """0 and -inf, with the first column open so that no row is masked throughout."""
        mask = torch.zeros(shape, device=self._device)
        mask[self._rand(shape) < 0.3] = -torch.inf
        mask[..., 0] = 0.0
        return mask

    def _floating(self, item: InputSpec, shape: tuple[int, ...]) -> torch.Tensor:
        base, role = self._chosen.base, item.role
        if role is InputRole.LHS:
            x = self._left(base, shape)
        elif role is InputRole.RHS:
            x = self._right(base, shape)
        else:
            x = self._other(base, shape)
        if item.value.varies_by_row and role is not InputRole.RHS:
            x = x * self._chosen.by_row
        if self._chosen.spread:
            x = self._spread(x, item)
        return self._with_non_finite(x, item) if self._chosen.name == "non_finite" else x

    def _left(self, base: str, shape: tuple[int, ...]) -> torch.Tensor:
        if base in ("uniform", "same_sign"):
            return self._rand(shape)
        if base == "integers":
            return (self._rand(shape) < 0.5).float()
        if base == "sparse":
            return self._randn(shape) * (self._rand(shape) < 0.1)
        if base == "equal_rows":
            alike = (1,) * self._row_rank + shape[self._row_rank :]
            return self._randn(alike).expand(shape).contiguous()
        if base == "outlier":
            x = self._randn(shape)
            x[..., shape[-1] // 2] *= 2.0**self._outlier
            return x
        if base == "one_hot":
            return torch.zeros(shape, device=self._device).scatter_(-1, self._hot(shape), 1.0)
        return self._randn(shape)

    def _hot(self, shape: tuple[int, ...]) -> torch.Tensor:
        return (self._rand((*shape[:-1], 1)) * shape[-1]).long().clamp_(max=shape[-1] - 1)

    def _right(self, base: str, shape: tuple[int, ...]) -> torch.Tensor:
        if base == "integers":
            return (self._rand(shape) < 0.5).float()
        if base in ("normal", "one_hot"):
            return self._randn(shape)
        scale = float(max(shape[-2], 1) ** -0.5)
        if base == "uniform":
            return (self._rand(shape) * 2 - 1) * scale
        if base == "outlier":
            x = self._randn(shape) * scale
            x[..., shape[-2] // 2, ::2] = 0.0
            return x
        return (self._rand(shape) if base == "same_sign" else self._randn(shape)) * scale

    def _other(self, base: str, shape: tuple[int, ...]) -> torch.Tensor:
        if base == "integers":
            return (self._rand(shape) < 0.5).float()
        if base == "uniform":
            return self._rand(shape) * 2 - 1
        if base == "same_sign":
            return self._rand(shape)
        if base == "sparse":
            return self._randn(shape) * (self._rand(shape) < 0.1)
        return self._randn(shape)

    def _spread(self, x: torch.Tensor, item: InputSpec) -> torch.Tensor:
        limit = _EXPONENT.get(item.value.dtype, _WIDEST_EXPONENT)
        anchored = self._task.anchor is not None
        if item.role is InputRole.RHS:
            shape = (1,) * (x.dim() - 1) + (x.shape[-1],)
        elif item.role is InputRole.LHS or (not anchored and item.value.varies_by_row):
            shape = tuple(x.shape[: self._row_rank]) + (1,) * (x.dim() - self._row_rank)
        else:
            return x
        return x * torch.exp2((self._rand(shape) * 2 - 1) * limit)

    def _with_non_finite(self, x: torch.Tensor, item: InputSpec) -> torch.Tensor:
        anchored = self._task.anchor is not None
        if item.role is not InputRole.LHS and (anchored or not item.value.varies_by_row):
            return x
        flat = x.reshape(-1, x.shape[-1])
        for row, value in enumerate((torch.nan, torch.inf, -torch.inf)):
            if row + 1 < flat.shape[0]:  # at least one row stays finite
                flat[row, int(self._rand((1,)) * flat.shape[1])] = value
        return flat.reshape(x.shape)

    def _in_domain(self, x: torch.Tensor, values: Values) -> torch.Tensor:
        if values is Values.POSITIVE:
            return 1.0 + 3.0 * x if self._chosen.exact else x.abs() + 0.05 * x.abs().mean() + 1e-30
        if values is Values.NONZERO:
            return 1.0 + x if self._chosen.exact else torch.where(x < 0, x - 0.05, x + 0.05)
        return x


def _settle_statistics(task: Task, tensors: list[torch.Tensor], axes: dict[str, int]) -> None:
    """Sets saved maxima to those of the drawn data: exp(product - something else) would overflow as no graph does."""
    for statistic in statistics(task):
        item = task.inputs[statistic.number]
        shape = drawn_shape(item, axes)
        inputs = [tensor.expand(full_shape(spec, axes)) for tensor, spec in zip(tensors, task.inputs, strict=True)]
        (minuend,) = evaluate(prune(task, (statistic.of,)), inputs, dict(axes), Policy(Mode.ORACLE))
        if minuend.dim() != len(shape):
            continue  # seen through a reshape: the maximum of which columns is not known here
        reduced = tuple(dim for dim, extent in enumerate(shape) if extent == 1 and minuend.shape[dim] != 1)
        top = minuend.amax(dim=reduced, keepdim=True) if reduced else minuend
        tensors[statistic.number] = top.expand(shape).to(tensors[statistic.number].dtype).contiguous()
