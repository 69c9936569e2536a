"""A region by its reference: the task's own graph, compiled by Inductor through AOTAutograd, eager where that fails.

Private API, read in torch 2.11.0, 2.13.0 and 2.14.1: `torch._inductor.compile(gm, inputs)`, which its own docstring offers.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable, Mapping, Sequence

import torch
from torch.fx.experimental.proxy_tensor import make_fx

from kforge_dynamo import ledger
from kforge_dynamo.languages.base import RawDims
from kforge_dynamo.records.task import Task
from kforge_dynamo.semantics.evaluate import evaluate, shape_of

_COMPILED_SIZES = 4  # more distinct sizes than this run eagerly: each compile takes seconds


class Reference:
    """Computes `task` for inputs in the graph's own shapes, whose strides `raw_dims` finds. Safe to call from several threads."""

    def __init__(self, task: Task, raw_dims: RawDims) -> None:
        self._task = task
        self._raw_dims = raw_dims
        self._compiled: dict[tuple[int, ...], Callable[..., Sequence[torch.Tensor]]] = {}
        self._lock = threading.Lock()

    def __call__(self, inputs: Sequence[torch.Tensor], outputs: Sequence[torch.Tensor], sizes: Sequence[int]) -> None:
        """Fills `outputs`."""
        function = self._function(inputs, tuple(sizes))
        with torch.no_grad():
            for target, value in zip(outputs, function(*inputs), strict=True):
                target.copy_(value.reshape(target.shape))

    def _function(self, inputs: Sequence[torch.Tensor], sizes: tuple[int, ...]) -> Callable[..., Sequence[torch.Tensor]]:
        eager = self._eager(sizes)
        with self._lock:
            if sizes in self._compiled:
                return self._compiled[sizes]
            if len(self._compiled) >= _COMPILED_SIZES or _capturing(inputs):
                return eager
            self._compiled[sizes] = _compile(eager, inputs)
            return self._compiled[sizes]

    def _eager(self, sizes: tuple[int, ...]) -> Callable[..., Sequence[torch.Tensor]]:
        axes = dict(zip(self._task.axes, sizes, strict=True))
        return lambda *tensors: evaluate(self._task, self._shaped(tensors, axes), axes)

    def _shaped(self, tensors: Sequence[torch.Tensor], axes: Mapping[str, int]) -> list[torch.Tensor]:
        """The tensors as the task's inputs, by the strides that a kernel would read."""
        shaped = []
        for item, dims, tensor in zip(self._task.inputs, self._raw_dims, tensors, strict=True):
            strides = [0 if dim is None else tensor.stride(dim) for dim in dims]
            shaped.append(tensor.as_strided(shape_of(item.value.shape, axes), strides))
        return shaped


def _capturing(inputs: Sequence[torch.Tensor]) -> bool:
    return inputs[0].is_cuda and torch.cuda.is_current_stream_capturing()


def _compile(
    eager: Callable[..., Sequence[torch.Tensor]], inputs: Sequence[torch.Tensor]
) -> Callable[..., Sequence[torch.Tensor]]:
    try:
        with torch.no_grad():
            graph = make_fx(eager)(*inputs)
            compiled: Callable[..., Sequence[torch.Tensor]] = torch._inductor.compile(graph, list(inputs))
        return compiled
    except Exception as error:  # noqa: BLE001  no compiler, say: the uncompiled evaluation is right, only slower
        ledger.say_once(f"a region's reference runs uncompiled: {type(error).__name__}: {str(error)[:200]}", logging.INFO)
        return eager
