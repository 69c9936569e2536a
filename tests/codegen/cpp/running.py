"""Builds and runs candidates in this process, on memory with guard zones, and judges their error by eager's."""

from __future__ import annotations

import functools
import tempfile
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import torch

from kforge_dynamo.codegen import cpp
from kforge_dynamo.codegen.cpp import Schedule
from kforge_dynamo.languages.base import Launcher, canonical_dims
from kforge_dynamo.languages.cpp import LANGUAGE
from kforge_dynamo.records.target import Numerics, Target
from kforge_dynamo.records.task import InputRole, InputSpec, Task
from kforge_dynamo.semantics.evaluate import Mode, Policy, dtype_of, evaluate, shape_of
from kforge_dynamo.targets import detect

NUMERICS = Numerics("highest", False, False, False)
GUARD = 64
PITCH_EXTRA = 5
NONE = Schedule("none", 16)


@functools.cache
def folder() -> Path:
    return Path(tempfile.mkdtemp(prefix="kforge cpp "))


def target(units: int = 2, arch: str | None = None) -> Target:
    found = detect(torch.device("cpu"))
    assert found is not None
    return replace(found, units=units, arch=arch or found.arch)


def launcher(task: Task, schedule: Schedule, on: Target | None = None) -> Launcher:
    on = on or target()
    candidate = cpp.emit(task, schedule, (), on, NUMERICS)
    artifact = LANGUAGE.build(candidate, task, on, folder())
    return LANGUAGE.load(artifact, candidate, task, canonical_dims(task))


def random_inputs(task: Task, sizes: dict[str, int], seed: int = 0, scale: float = 1.0) -> list[torch.Tensor]:
    """One tensor an input, of the spec's shape and stride classes, NaN in every gap and around."""
    generator = torch.Generator().manual_seed(seed)
    return [_laid_out(item, _values(item, sizes, generator, scale), sizes) for item in task.inputs]


def _values(item: InputSpec, sizes: dict[str, int], generator: torch.Generator, scale: float) -> torch.Tensor:
    shape, dtype = shape_of(item.value.shape, sizes), dtype_of(item.value.dtype)
    if dtype == torch.bool:
        return torch.rand(shape, generator=generator) > 0.5
    if not dtype.is_floating_point:
        return torch.randint(-4, 5, shape, generator=generator).to(dtype)
    values = torch.randn(shape, generator=generator) * scale
    if item.role is InputRole.RHS:
        values = values / float(item.value.cols[0] if isinstance(item.value.cols[0], int) else sizes["k"]) ** 0.5
    return values.to(dtype)


def laid_out(item: InputSpec, values: torch.Tensor, sizes: dict[str, int]) -> torch.Tensor:
    return _laid_out(item, values.to(dtype_of(item.value.dtype)), sizes)


def _laid_out(item: InputSpec, values: torch.Tensor, sizes: dict[str, int]) -> torch.Tensor:
    """`values` in memory that has the strides of the spec's classes."""
    extents = [int(extent) for extent in shape_of(item.value.shape, sizes)]
    order = sorted(range(len(extents)), key=lambda d: (item.strides[d] != 1, -d))
    strides, dense = [0] * len(extents), 1
    for d in order:
        kind = item.strides[d]
        if kind == 0:
            strides[d] = 0 if extents[d] > 1 else dense
            continue
        strides[d] = dense if kind != "pitch" else dense + PITCH_EXTRA
        dense = strides[d] * extents[d]
    storage = _filled(dense + 2 * GUARD, values.dtype)
    view = storage.as_strided(extents, strides, GUARD)
    source = values
    for d, stride in enumerate(strides):
        if stride == 0 and extents[d] > 1:
            source = source.narrow(d, 0, 1).expand(extents)
    for d, stride in enumerate(strides):
        if stride == 0 and extents[d] > 1:
            view, source = view.narrow(d, 0, 1), source.narrow(d, 0, 1)
    view.copy_(source)
    return storage.as_strided(extents, strides, GUARD)


def _filled(count: int, dtype: torch.dtype) -> torch.Tensor:
    if dtype.is_floating_point:
        return torch.full((count,), float("nan"), dtype=dtype)
    return torch.full((count,), 1 if dtype == torch.bool else 77, dtype=dtype)


def outputs_of(task: Task, sizes: dict[str, int]) -> tuple[list[torch.Tensor], list[torch.Tensor]]:
    """Dense outputs inside larger storages: (outputs, storages)."""
    outputs, storages = [], []
    for number in task.outputs:
        spec = task.value(number)
        shape = shape_of(spec.shape, sizes)
        count = int(torch.Size(shape).numel())
        storage = _filled(count + 2 * GUARD, dtype_of(spec.dtype))
        storages.append(storage)
        outputs.append(storage[GUARD : GUARD + count].view(shape))
    return outputs, storages


def run(
    task: Task, launch: Launcher, sizes: dict[str, int], inputs: Sequence[torch.Tensor], threads: int = 2
) -> list[torch.Tensor]:
    """The outputs; the guard zones around them and the inputs must be as they were."""
    outputs, storages = outputs_of(task, sizes)
    before = [tensor.clone() for tensor in inputs]
    set_before = torch.get_num_threads()
    torch.set_num_threads(threads)
    try:
        launch(inputs, outputs, tuple(sizes[axis] for axis in task.axes))
    finally:
        torch.set_num_threads(set_before)
    for storage, output in zip(storages, outputs, strict=True):
        fresh = _filled(GUARD, storage.dtype)
        for zone in (storage[:GUARD], storage[GUARD + output.numel() :]):
            assert torch.equal(zone.isnan(), fresh.isnan()) and torch.equal(zone.nan_to_num(), fresh.nan_to_num()), (
                "a stray write"
            )
    for tensor, copy in zip(inputs, before, strict=True):
        assert torch.equal(tensor.nan_to_num(), copy.nan_to_num()), "an input changed"
    return outputs


def judge(
    task: Task,
    sizes: dict[str, int],
    inputs: Sequence[torch.Tensor],
    outputs: Sequence[torch.Tensor],
    share: float = 1.0,
    room: float = 1.0,
) -> None:
    """Each output's error is at most twice eager's, or half a unit in the last place (two units for the worst element);
    `share` of the elements count. `room` widens all of it, for outputs so small that eager's own error is a matter of luck."""
    oracle = evaluate(task, inputs, sizes, Policy(Mode.ORACLE))
    eager = evaluate(task, inputs, sizes)
    for place, (found, wanted, usual) in enumerate(zip(outputs, oracle, eager, strict=True)):
        assert found.shape == wanted.shape
        if not wanted.is_floating_point():
            _judge_exact(task, sizes, inputs, place, found, usual)
            continue
        _judge_real(place, found, wanted, usual, share, room)


def _judge_exact(
    task: Task, sizes: dict[str, int], inputs: Sequence[torch.Tensor], place: int, found: torch.Tensor, usual: torch.Tensor
) -> None:
    """Equal to eager's; an index may also name another extreme value, where the operands' own dtype cannot tell the two apart."""
    different = found != usual
    node = task.nodes[task.outputs[place] - len(task.inputs)] if task.outputs[place] >= len(task.inputs) else None
    if node is None or node.op not in ("argmax", "argmin") or node.attr("axes") == "rows":
        assert not different.any(), f"output {place}: {different.double().mean().item():.1%} differ"
        return
    (axis,) = node.attr("axes")  # type: ignore[union-attr,misc]
    (values,) = evaluate(replace(task, outputs=(node.args[0],)), inputs, sizes, Policy(Mode.ORACLE))  # type: ignore[arg-type]
    dim = values.ndim - len(task.value(node.args[0]).cols) + axis  # type: ignore[arg-type,operator]
    ours, theirs = (values.gather(dim, index.reshape_as(values.narrow(dim, 0, 1))) for index in (found, usual))
    coarse = max((torch.finfo(x.dtype).eps for x in inputs if x.is_floating_point()), default=0.0)
    room = 2.0 * coarse * values.abs().nan_to_num().amax(dim, keepdim=True)
    near = (ours - theirs).abs() <= room
    assert (near | ~different.reshape_as(near)).all(), f"output {place}: an index that does not name the extreme value"


def _judge_real(place: int, found: torch.Tensor, wanted: torch.Tensor, usual: torch.Tensor, share: float, room: float) -> None:
    odd = ~(usual.isfinite() & wanted.isfinite())
    same = (found.isnan() == usual.isnan()) & ((found == usual) | ~usual.isinf())
    assert (same | ~odd).double().mean().item() >= share, f"output {place}: NaN or infinity in other places"
    plain = ~odd
    if not plain.any():
        return
    ours = (found.double() - wanted)[plain].abs().nan_to_num(nan=float("inf"))
    theirs = (usual.double() - wanted)[plain].abs()
    scale = wanted[plain].abs()
    ulp = torch.finfo(usual.dtype).eps / 2
    keep = max(1, int(share * ours.numel()))
    kept = ours.sort().values[:keep]
    factor = room * (2.0 if keep >= 4096 else 3.0)
    ulp = room * ulp
    spread = scale.square().mean().sqrt().item()
    rms, e0 = kept.square().mean().sqrt().item(), theirs.square().mean().sqrt().item()
    assert rms <= max(factor * e0, ulp * spread), f"output {place}: rms error {rms:.3g}, eager has {e0:.3g}"
    worst, top = kept.max().item(), theirs.max().item()
    assert worst <= max(factor * top, 4 * ulp * scale.max().item()), (
        f"output {place}: worst error {worst:.3g}, eager has {top:.3g}"
    )


def check(
    task: Task,
    sizes: dict[str, int],
    schedule: Schedule,
    *,
    threads: int = 2,
    seed: int = 0,
    scale: float = 1.0,
    share: float = 1.0,
    on: Target | None = None,
) -> None:
    """Runs `task` on random inputs and judges it."""
    launch = launcher(task, schedule, on)
    inputs = random_inputs(task, sizes, seed, scale)
    judge(task, sizes, inputs, run(task, launch, sizes, inputs, threads), share)
