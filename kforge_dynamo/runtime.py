"""A call of a spliced region: the winner where it was verified, the compiled reference everywhere else.

`load` is what a compiled graph calls once when it is loaded; it returns the function that the graph then calls. The
function checks what may differ between calls (sizes that are symbolic, alignment on a GPU) and launches.
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
from kforge_dynamo.languages.base import Launcher
from kforge_dynamo.records.codec import from_text
from kforge_dynamo.records.outcome import CacheKey, Winner
from kforge_dynamo.records.site import Site
from kforge_dynamo.records.task import InputSpec
from kforge_dynamo.reference import Reference

Resolve = Callable[[Site], tuple[Winner, Launcher]]
"""Finds the winner of a site and loads it. Raises: KforgeError with the reason when there is none."""

_ALIGNMENT_BYTES = 16  # Triton specialises pointers on this; Source: triton/runtime/jit.py, 3.6 and 3.7
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
    """Callable as `runner(*inputs, *sizes, out=tensor)` for one output and `outs=(...)` for several.

    Sizes are passed only where the site does not fix them. `launcher` is None where no winner could be loaded.
    """

    def __init__(self, site: Site, resolve: Resolve) -> None:
        self.site = site
        self.launcher: Launcher | None = None
        self.winner: Winner | None = None
        self.reference = Reference(site.task, site.raw_dims)
        self._inputs = len(site.task.inputs)
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

    def __call__(self, *args: Any, out: torch.Tensor | None = None, outs: Sequence[torch.Tensor] = ()) -> None:
        """Fills the outputs, on the current stream."""
        inputs = args[: self._inputs]
        sizes = self._sizes or args[self._inputs :]
        outputs = outs if out is None else (out,)
        launcher = self.launcher
        if launcher is None or (self._sizes is None and not self._holds(sizes)) or (self._aligned and not self._fits(inputs)):
            self._fall_back(inputs, outputs, sizes)
            return
        counters["kforge"]["calls"] += 1
        launcher(inputs, outputs, sizes)

    def checked(self, inputs: Sequence[torch.Tensor], outputs: Sequence[torch.Tensor], sizes: Sequence[int]) -> None:
        """The same for a caller that does not freeze layouts: strides are compared with the site's as well."""
        if self.launcher is None or not self._holds(tuple(sizes)) or not self._fits(inputs) or not self._strides(inputs, sizes):
            self._fall_back(inputs, outputs, tuple(sizes))
            return
        counters["kforge"]["calls"] += 1
        self.launcher(inputs, outputs, sizes)

    def _holds(self, sizes: tuple[int, ...]) -> bool:
        return self.winner is not None and self.winner.domain.holds(sizes)

    def _fits(self, inputs: Sequence[torch.Tensor]) -> bool:
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
