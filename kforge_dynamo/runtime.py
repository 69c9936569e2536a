"""A call of a spliced region: the winner where it was verified, the compiled reference everywhere else.

`entry` is what a compiled graph calls once when it is loaded; it returns the function that the graph then calls. Where
Inductor keeps sizes and strides at numbers, all that follows from them is done at the first call, and the function only
passes pointers on; else it also looks the sizes up. What may differ between calls (sizes that are symbolic, alignment on
a GPU, the current device) is checked in each.
"""

from __future__ import annotations

import logging
import math
import threading
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch
from torch._dynamo.utils import counters  # read in torch 2.11 to 2.14: the counters of ledger, without a call between

from kforge_dynamo import ledger
from kforge_dynamo.errors import BuildError
from kforge_dynamo.keeper import Keeper
from kforge_dynamo.languages.base import Bindable, Bound, Launcher, Preparing, Proving
from kforge_dynamo.prover import Prover
from kforge_dynamo.records.codec import from_text
from kforge_dynamo.records.outcome import CacheKey, Winner
from kforge_dynamo.records.site import Site
from kforge_dynamo.records.task import InputSpec
from kforge_dynamo.reference import Reference

Resolve = Callable[[Site], tuple[Winner, Launcher]]
"""Finds the winner of a site and loads it. Raises: KforgeError with the reason when there is none."""

_ALIGNMENT_BYTES = 16  # Triton specialises pointers on this; Source: triton/runtime/jit.py, 3.6 and 3.7
_MOST_SIZES = 512
"""Sets of symbolic sizes that an entry remembers before it starts over."""
_runners: dict[str, Runner] = {}
_lock = threading.Lock()
_resolve: list[Resolve] = []


def install(resolve: Resolve) -> None:
    """Sets how sites find their winners; the backend does this when it is imported."""
    _resolve[:] = [resolve]


def load(text: str) -> Runner:
    """The runner of the site that `text` describes; one a process and text. Never raises for a missing winner."""
    with _lock:
        runner = _runners.get(text)
        if runner is None:
            runner = _runners[text] = Runner(from_text(Site, text), _resolve[0])
    if runner.launcher is not None:
        ledger.count("spliced")
    return runner


def entry(text: str) -> Callable[..., None]:
    """The function that generated code calls, with inputs, outputs and the sizes that the site does not fix, by position; and
    behind them the tensors that the site's weights are views of."""
    runner = load(text)
    whole = _whole(runner)
    if not runner.site.weights:
        return whole
    return (_Proving if runner.site.proven else _Keeping)(runner, whole)


def _whole(runner: Runner) -> Callable[..., None]:
    """The entry that runs all launches of the winner in each call."""
    if runner.launcher is None or runner.site.strides is None or not isinstance(runner.launcher, Bindable):
        return runner.run
    return _fixed(runner, runner.launcher) if runner.site.fixed else _by_size(runner, runner.launcher)


def _fixed(runner: Runner, launcher: Bindable) -> Callable[..., None]:
    """The entry of a site whose sizes are fixed."""
    bound: Bound = _refuse

    def first(*tensors: torch.Tensor) -> bool:
        nonlocal bound
        bound = runner.bound(launcher, runner.site.sizes, tensors) or _refuse
        return bound(*tensors)

    bound = first

    def call(*tensors: torch.Tensor) -> None:
        if bound(*tensors):
            counters["kforge"]["calls"] += 1
        else:
            runner.run(*tensors)

    return call


def _by_size(runner: Runner, launcher: Bindable) -> Callable[..., None]:
    """The entry of a site whose sizes vary while its strides do not."""
    count = len(runner.site.task.inputs) + len(runner.site.task.outputs)
    known: dict[tuple[int, ...], Bound] = {}

    def first(sizes: tuple[int, ...], tensors: Sequence[torch.Tensor]) -> Bound:
        found = runner.bound(launcher, sizes, tensors) if runner.holds(sizes) else None
        if len(known) >= _MOST_SIZES:
            known.clear()
        known[sizes] = found = found or _refuse
        return found

    def call(*arguments: Any) -> None:
        sizes, tensors = arguments[count:], arguments[:count]
        if (known.get(sizes) or first(sizes, tensors))(*tensors):
            counters["kforge"]["calls"] += 1
        else:
            runner.run(*arguments)

    return call


class _Keeping:
    """The entry of a site whose winner may leave out what it prepared of weights; `whole` is the entry that never does."""

    def __init__(self, runner: Runner, whole: Callable[..., None]) -> None:
        self._runner, self._whole = runner, whole
        site = runner.site
        self._inputs = len(site.task.inputs)
        self._tensors = self._inputs + len(site.task.outputs)
        self._behind = len(site.weights)
        self._keeper: Keeper | None = None
        self._rest: Launcher | None = None
        self._bound: dict[tuple[int, ...], Bound] = {}
        self._asked = False

    def __call__(self, *arguments: Any) -> None:
        passed, bases = arguments[: -self._behind], arguments[-self._behind :]
        if not self._asked and self._runner.launcher is not None:
            self._ask(self._runner.launcher)
        copies = None if self._keeper is None else self._keeper.find(passed[: self._inputs], bases)
        if copies is not None:
            sizes, tensors = passed[self._tensors :], (*passed[: self._tensors], *copies)
            bound = self._bound.get(sizes)
            if bound is None:
                bound = self._first(sizes, tensors)
                if tensors[-1].is_cuda and bound(*tensors):
                    self._whole(*passed)  # compiles all launches as well: a capture that finds no copy takes them
                    return
            if bound(*tensors):
                counters["kforge"]["calls"] += 1
                return
        self._whole(*passed)

    def _ask(self, launcher: Launcher) -> None:
        """Takes the launcher apart, once, where it can be and reads no other input early than weights."""
        site = self._runner.site
        prepared = launcher.prepared() if isinstance(launcher, Preparing) else None
        if prepared is not None and site.strides is not None and set(prepared.weights) <= set(site.weights):
            self._rest = prepared.rest
            self._keeper = Keeper(prepared, site.weights, site.sizes)
        self._asked = True

    def _first(self, sizes: tuple[int, ...], tensors: Sequence[torch.Tensor]) -> Bound:
        site, rest = self._runner.site, self._rest
        now = site.sizes if site.fixed else sizes
        found: Bound | None = None
        if rest is not None and self._runner.holds(now):
            found = self._runner.bound(rest, now, tensors) if isinstance(rest, Bindable) else None
            found = found or self._unbound(rest, now)
        if len(self._bound) >= _MOST_SIZES:
            self._bound.clear()
        self._bound[sizes] = found = found or _refuse
        return found

    def _unbound(self, rest: Launcher, sizes: tuple[int, ...]) -> Bound:
        """By the launcher itself, which looks at everything again."""

        def bound(*tensors: torch.Tensor) -> bool:
            if not self._runner.fits(tensors[: self._inputs]):
                return False
            rest(tensors[: self._inputs], tensors[self._inputs :], sizes)
            return True

        return bound


class _Proving(_Keeping):
    """The entry of a site whose winner leaves that out where the device finds the weights unchanged."""

    _prover: Prover | None = None

    def __call__(self, *arguments: Any) -> None:
        passed, bases = arguments[: -self._behind], arguments[-self._behind :]
        if not self._asked and self._runner.launcher is not None:
            self._ask(self._runner.launcher)
        prover = self._prover
        copy = None if prover is None else prover.find(passed[: self._inputs], bases)
        if prover is not None and copy is not None:
            sizes, tensors = passed[self._tensors :], (*passed[: self._tensors], *copy.tensors)
            bound = self._bound.get(sizes)
            if bound is None:
                bound = self._first(sizes, tensors)
                if copy.tensors[0].is_cuda:
                    self._whole(*passed)  # compiles all launches as well: a capture that finds no notes takes them
            if prover.run(copy, bound, tensors):
                counters["kforge"]["calls"] += 1
                return
        self._whole(*passed)

    def _ask(self, launcher: Launcher) -> None:
        site = self._runner.site
        proven = launcher.proven() if isinstance(launcher, Proving) else None
        if proven is not None and site.strides is not None and set(proven.weights) <= set(site.weights):
            self._rest = proven.run
            self._prover = Prover(proven, site.weights)
        self._asked = True


def _refuse(*_: torch.Tensor) -> bool:
    return False


def renew(key: CacheKey) -> None:
    """A search for `key` has ended with a winner: runners that wait for it change over between two calls."""
    with _lock:
        waiting = [runner for runner in _runners.values() if runner.site.key == key and runner.launcher is None]
    for runner in waiting:
        runner.renew(_resolve[0])
        if runner.launcher is not None:
            ledger.count("spliced")


def forget() -> None:
    """Drops all runners, so that the next load resolves again. Graphs that already hold one keep it."""
    with _lock:
        _runners.clear()


class Runner:
    """Runs a site for any sizes, strides and device. `launcher` is None where no winner could be loaded."""

    def __init__(self, site: Site, resolve: Resolve) -> None:
        self.site = site
        self.launcher: Launcher | None = None
        self.winner: Winner | None = None
        self.reference = Reference(site.task, site.raw_dims)
        self._inputs = len(site.task.inputs)
        self._tensors = self._inputs + len(site.task.outputs)
        self._sizes = site.sizes if site.fixed else None
        self._aligned = not site.device.startswith("cpu")
        if site.winner:
            self.renew(resolve)

    def renew(self, resolve: Resolve) -> None:
        """Looks for the winner again. Readers see the old launcher or the new one, each of them right."""
        try:
            self.winner, self.launcher = resolve(self.site)
        except Exception as error:  # noqa: BLE001  whatever is wrong with a stored kernel, the region must still be computed
            ledger.say_once(f"a region runs by its reference because its winner could not be loaded: {error}")

    def run(self, *arguments: Any) -> None:
        """Fills the outputs, on the current stream: inputs, outputs, and the sizes that the site does not fix."""
        inputs, outputs = arguments[: self._inputs], arguments[self._inputs : self._tensors]
        sizes = self._sizes or arguments[self._tensors :]
        launcher = self.launcher
        if launcher is None or (self._sizes is None and not self.holds(sizes)) or (self._aligned and not self.fits(inputs)):
            self._fall_back(inputs, outputs, sizes)
            return
        counters["kforge"]["calls"] += 1
        launcher(inputs, outputs, sizes)

    def bound(self, launcher: Bindable, sizes: Sequence[int], tensors: Sequence[torch.Tensor]) -> Bound | None:
        """The launcher for `sizes` and the site's strides on the device of `tensors`; None where each call goes by `run`."""
        assert self.site.strides is not None
        try:
            return launcher.bind(sizes, self.site.strides, tensors[-1].device)
        except BuildError as error:  # `run` meets the same error, or not: it has the tensors themselves
            ledger.say_once(f"a winner could not be prepared ahead of its calls: {error}")
            return None

    def checked(self, inputs: Sequence[torch.Tensor], outputs: Sequence[torch.Tensor], sizes: Sequence[int]) -> None:
        """The same for a caller that does not freeze layouts: strides are compared with the site's as well."""
        if self.launcher is None or not self.holds(tuple(sizes)) or not self.fits(inputs) or not self._strides(inputs, sizes):
            self._fall_back(inputs, outputs, tuple(sizes))
            return
        counters["kforge"]["calls"] += 1
        self.launcher(inputs, outputs, sizes)

    def holds(self, sizes: tuple[int, ...]) -> bool:
        """Whether the winner was verified for these sizes."""
        return self.winner is not None and self.winner.domain.holds(sizes)

    def fits(self, inputs: Sequence[torch.Tensor]) -> bool:
        """Whether the addresses are such as the winner was compiled for."""
        return not self._aligned or all(tensor.data_ptr() % _ALIGNMENT_BYTES == 0 for tensor in inputs)

    def _strides(self, inputs: Sequence[torch.Tensor], sizes: Sequence[int]) -> bool:
        axes = dict(zip(self.site.task.axes, sizes, strict=True))
        return all(
            str(tensor.dtype) == f"torch.{spec.value.dtype}" and strides_match(spec, dims, tensor.stride(), axes)
            for spec, dims, tensor in zip(self.site.task.inputs, self.site.raw_dims, inputs, strict=True)
        )

    def _fall_back(self, inputs: Sequence[torch.Tensor], outputs: Sequence[torch.Tensor], sizes: tuple[int, ...]) -> None:
        counters["kforge"]["fallback_calls"] += 1
        if self.launcher is not None:
            ledger.say_once(
                f"region {self.site.key.task[:12]} got sizes {sizes} or an alignment its winner was not verified for; "
                "it runs by its compiled reference there. `kforge warm` with these shapes finds a winner for them",
                logging.INFO,
            )
        self.reference(inputs, outputs, sizes)


def strides_match(spec: InputSpec, dims: Sequence[int | None], strides: Sequence[int], axes: Mapping[str, int]) -> bool:
    """Whether a tensor with these strides is of the stride classes of `spec`; `dims` maps spec to tensor dimensions."""
    extents = [axes[extent] if isinstance(extent, str) else extent for extent in spec.value.shape]
    actual = [0 if dim is None or extent == 1 else strides[dim] for dim, extent in zip(dims, extents, strict=True)]
    for wanted, found, extent in zip(spec.strides, actual, extents, strict=True):
        if extent == 1 or wanted == "pitch":
            continue
        faster = math.prod(other for other, stride in zip(extents, actual, strict=True) if 0 < stride < found)
        if found != (faster if wanted == "dense" else wanted):
            return False
    return True
