"""What a worker keeps about one task: its parts, the truths computed so far, and the classes that prove something."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Sequence

import torch

from kforge_dynamo.records.guardrail import ALL, Guards
from kforge_dynamo.records.target import Numerics
from kforge_dynamo.records.task import Task
from kforge_dynamo.sandbox.gate import Truth
from kforge_dynamo.sandbox.inputs import InputClass, Seeds, draw, full_shape
from kforge_dynamo.sandbox.oracle import Parts, Setting, truths
from kforge_dynamo.sandbox.rows import MOST_ELEMENTS, MOST_ELEMENTS_LATER

CACHE_BYTES, _DEVICE_SHARE = 1 << 30, 32
DRAWN_BYTES = 1 << 28
_NOISY, _NOISY_LATER = 7, 4  # draws of e0's noise for the seed that every candidate meets, and for those of the final stage


class Bench:
    """Truths of one task under one setting, computed once per sizes, class and seed, the oldest dropped beyond 1 GB, or beyond
    a thirty-second of a GPU's memory where that is more."""

    def __init__(self, task: Task, numerics: Numerics, device: torch.device, seeds: Seeds, guards: Guards = ALL) -> None:
        self.task, self.numerics, self.device, self.guards = task, numerics, device, guards
        self.parts = Parts.of(task)
        self._seeds = seeds
        self._most_bytes = CACHE_BYTES
        if device.type == "cuda":
            self._most_bytes = max(CACHE_BYTES, torch.cuda.get_device_properties(device).total_memory // _DEVICE_SHARE)
        self._drawn: OrderedDict[tuple[tuple[int, ...], str, int], list[torch.Tensor]] = OrderedDict()
        self._truths: OrderedDict[tuple[tuple[int, ...], str, int], list[Truth]] = OrderedDict()

    def draw(self, sizes: Sequence[int], chosen: InputClass, number: int) -> list[torch.Tensor]:
        """Draw `number` of a class, one tensor an input, in the shape it is drawn in (see `inputs.draw`). Not to be changed."""
        key = (tuple(sizes), chosen.name, number)
        if key not in self._drawn:
            seed = self._seeds.seed(chosen.name, number)
            self._drawn[key] = draw(self.task, sizes, chosen, seed, self.device, self.guards)
            while len(self._drawn) > 1 and sum(_all_bytes(found) for found in self._drawn.values()) > DRAWN_BYTES:
                self._drawn.popitem(last=False)
        self._drawn.move_to_end(key)
        return self._drawn[key]

    def release(self) -> None:
        """Forgets the drawn inputs; they are drawn again when they are needed."""
        self._drawn.clear()

    def expanded(self, sizes: Sequence[int], drawn: Sequence[torch.Tensor]) -> list[torch.Tensor]:
        """The drawn tensors in the full shapes of their specs."""
        axes = dict(zip(self.task.axes, sizes, strict=True))
        return [tensor.expand(full_shape(item, axes)) for tensor, item in zip(drawn, self.task.inputs, strict=True)]

    def truths(self, sizes: Sequence[int], chosen: InputClass, number: int, drawn: Sequence[torch.Tensor]) -> list[Truth]:
        """The truth of each output for that draw."""
        key = (tuple(sizes), chosen.name, number)
        if key not in self._truths:
            seed = self._seeds.seed(f"{chosen.name} noise", number)
            inputs = self.expanded(sizes, drawn)
            where = f"{chosen.name}, sizes {tuple(sizes)}"
            limits = (_NOISY, MOST_ELEMENTS) if number == 0 else (_NOISY_LATER, MOST_ELEMENTS_LATER)
            setting = Setting(self.numerics, where, chosen.exact, chosen.base == "equal_rows", seed, *limits, self.guards)
            self._truths[key] = truths(
                self.parts, setting, sizes, inputs, lambda: self.expanded(sizes, self.draw(sizes, chosen, number))
            )
            self._forget()
        self._truths.move_to_end(key)
        return self._truths[key]

    def _forget(self) -> None:
        while len(self._truths) > 1 and sum(_bytes(found) for found in self._truths.values()) > self._most_bytes:
            self._truths.popitem(last=False)


def _all_bytes(tensors: Sequence[torch.Tensor]) -> int:
    return sum(tensor.numel() * tensor.element_size() for tensor in tensors)


def _bytes(found: Sequence[Truth]) -> int:
    total = 0
    for truth in found:
        held = [truth.oracle, truth.low, truth.high, truth.classes, None if truth.whole is None else truth.whole.eager]
        total += _all_bytes([tensor for tensor in held if tensor is not None])
    return total
