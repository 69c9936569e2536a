"""A call of a candidate as a graph makes it: outputs allocated, and what outlives a call where something does."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Sequence

import torch

from kforge_dynamo.languages.allocation import allocator
from kforge_dynamo.languages.base import Bindable, Bound, Launcher, Prepared, Proven
from kforge_dynamo.records.target import Numerics
from kforge_dynamo.records.task import Task
from kforge_dynamo.sandbox.lasting import lasting
from kforge_dynamo.sandbox.layout import same_bits
from kforge_dynamo.semantics.evaluate import dtype_of, shape_of


def candidate_call(
    task: Task, sizes: Sequence[int], launcher: Launcher, device: torch.device, numerics: Numerics
) -> CandidateCall:
    """The candidate as generated code calls it under `numerics`."""
    return CandidateCall(task, sizes, launcher, device, *lasting(launcher, numerics))


class CandidateCall:
    """Outputs allocated, then what `runtime.Runner` does for fixed sizes. With `prepared`, copies of weights stay from the first
    call at their addresses until `forget`; with `proven` they stay, and the launches find out by themselves."""

    def __init__(
        self,
        task: Task,
        sizes: Sequence[int],
        launcher: Launcher,
        device: torch.device,
        prepared: Prepared | None,
        proven: Proven | None,
    ) -> None:
        axes = dict(zip(task.axes, sizes, strict=True))
        self._allocate, self._device, self._sizes = allocator(device), device, tuple(sizes)
        self._prepared, self._proven = prepared, proven
        self._weights = () if prepared is None else prepared.weights
        self._weights = self._weights if proven is None else proven.weights
        self._forms = []
        for number in task.outputs:
            spec = task.value(number)
            shape = tuple(int(extent) for extent in shape_of(spec.shape, axes))
            self._forms.append((shape, torch.empty(shape, device="meta").stride(), dtype_of(spec.dtype)))
        run = prepared.rest if prepared is not None else proven.run if proven is not None else launcher
        self._runner = _Runner(run, len(task.inputs), tuple(sizes))
        self._copies: dict[tuple[int, ...], list[torch.Tensor]] = {}
        self._packed: dict[tuple[int, ...], list[torch.Tensor]] = {}

    def __call__(self, inputs: Sequence[torch.Tensor]) -> list[torch.Tensor]:
        outputs = [self._allocate(shape, strides, dtype) for shape, strides, dtype in self._forms]
        if not self._weights:
            self._runner.bound(*inputs, *outputs)
            return outputs
        place = tuple([inputs[number].data_ptr() for number in self._weights])
        copies = self._copies.get(place)
        first = copies is None
        if copies is None:
            copies = self._copies[place] = self._made(inputs)
        self._runner.bound(*inputs, *outputs, *copies)
        if first and self._proven is not None:
            self._packed[place] = [tensor.clone() for tensor in copies[: len(self._proven.copies)]]
        return outputs

    def forget(self) -> None:
        """Weights have changed: copies are made anew, unless that is for the launches to see."""
        self._packed.clear()
        if self._proven is None:
            self._copies.clear()

    def wrote(self) -> bool:
        """Whether a call has changed a copy since it was made."""
        pairs = [zip(self._copies[place], packed, strict=False) for place, packed in self._packed.items()]
        return any(not all(same_bits(left, right) for left, right in pair) for pair in pairs)

    def _made(self, inputs: Sequence[torch.Tensor]) -> list[torch.Tensor]:
        if self._prepared is None:
            assert self._proven is not None
            return self._proven.memory(self._device)
        place = tuple([inputs[number].data_ptr() for number in self._weights])
        found = self._prepared.copies(self._device)
        self._prepared.pack(inputs, found, self._sizes)
        self._packed[place] = [tensor.clone() for tensor in found]
        return found


class _Runner:
    """The steps of a call in `runtime`, so that a candidate is timed with what a spliced winner costs."""

    def __init__(self, launcher: Launcher, inputs: int, sizes: tuple[int, ...]) -> None:
        self._launcher, self._inputs, self._sizes = launcher, inputs, sizes
        self._calls: Counter[str] = Counter()
        self.bound: Callable[..., None] = self._first

    def _first(self, *tensors: torch.Tensor) -> None:
        """Binds for the strides of these inputs, which all sets of inputs share."""
        inputs = tensors[: self._inputs]
        found: Bound | None = None
        if isinstance(self._launcher, Bindable):
            found = self._launcher.bind(self._sizes, [tensor.stride() for tensor in inputs], tensors[-1].device)
        self.bound = self._unbound if found is None else self._counting(found)
        self.bound(*tensors)

    def _counting(self, bound: Bound) -> Callable[..., None]:
        calls = self._calls

        def run(*tensors: torch.Tensor) -> None:
            calls["calls"] += 1
            if not bound(*tensors):
                raise ValueError("a timed call got a tensor that is not aligned, or another device was current")

        return run

    def _unbound(self, *tensors: torch.Tensor) -> None:
        self._calls["calls"] += 1
        self._launcher(tensors[: self._inputs], tensors[self._inputs :], self._sizes)
