"""Copies of weights that each call proves to be right still, on the device.

A `Prover` serves one site of a compiled graph under `prepack="verify"`. It only hands out memory: what was prepared of a set of
weights, and the notes by which the launches see whether the weights have changed since (`languages.triton_proof`). The host
decides nothing, so a copy is never stale, however the weights are written, and a copy whose address another tensor gets is
that tensor's, once its bits have been seen.

What has to hold is that calls that share a copy follow one another on the device:

- Every stream has a copy of its own, and a call holds the copy's lock while it launches: two threads on one stream do not
  mix their launches. Streams that torch did not make may be destroyed and their number be given to others; they get none.
- A call that is captured into a CUDA graph gets a copy that no other call uses, in the graph's own memory. Its notes must be
  zero before the first replay but not in each, and cannot be set while a graph is captured; so they are made with the copy
  of an earlier call. Without one, or for a second capture since, the winner runs whole. The notes stay for good: a replay
  after the weights are gone writes to them.
- Where launching fails in the middle the copy is dropped: its notes may tell of weights that nothing was prepared of.

Copies count and give way as the keeper's do. Under Inductor's own CUDA graphs there are none (see `graph_pass`).

Private torch API, read in torch 2.11.0, 2.13.0 and 2.14.1: `torch._C._cuda_getCurrentRawStream`, which Inductor's wrappers call,
`torch._C._cuda_isCurrentStreamCapturing`, and that the `stream_id` of a stream that torch did not make is its address, an even
number that is not 0, while those of its own are 0 or odd (c10/cuda/CUDAStream.cpp).
"""

from __future__ import annotations

import functools
import itertools
import threading
import time
import weakref
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import torch

from kforge_dynamo import keeper
from kforge_dynamo.languages.base import Bound, Proven, memory_of

_MOST_STREAMS = 4
"""Copies of one set of weights that are not in graphs."""
_numbers = itertools.count()
_notes_of_graphs: list[list[torch.Tensor]] = []


@dataclass(eq=False)
class Copy:
    """`tensors` are what a call takes behind its outputs; `weights` the tensors it was made for and their addresses; `launching`
    holds while a call launches, and for good where that failed. See `keeper.Kept`."""

    tensors: list[torch.Tensor]
    weights: tuple[tuple[weakref.ref[torch.Tensor], int], ...]
    size_bytes: int
    captured: bool
    used_s: float
    worth: float = 1.0
    uses: int = 0
    launching: bool = False
    lock: threading.Lock = field(default_factory=threading.Lock)

    def moved(self) -> bool:
        """Whether a weight is gone, or has other memory by now."""
        found = [(weight(), address) for weight, address in self.weights]
        return any(base is None or base.data_ptr() != address for base, address in found)


class Prover:
    """The copies of one site. `positions` are the inputs that weights come in; a copy is made of those of `proven.weights`."""

    def __init__(self, proven: Proven, positions: Sequence[int]) -> None:
        """Raises: ValueError where a copy is made of an input that is no weight here."""
        self._proven, self._inputs = proven, proven.weights
        self._bases = [list(positions).index(number) for number in proven.weights]
        self._copies: dict[tuple[int, ...], Copy] = {}
        self._spare: dict[tuple[int, ...], list[torch.Tensor]] = {}
        self._refused: dict[tuple[int, ...], float] = {}
        self._wasted = 0
        with keeper.lock:
            keeper.holders.add(self)

    def copies(self) -> tuple[Copy, ...]:
        """All that there are now."""
        return tuple(self._copies.values())

    def renew(self) -> None:
        """Nothing: the next call finds out by itself."""

    def find(self, inputs: Sequence[torch.Tensor], passed: Sequence[Any]) -> Copy | None:
        """The copy for a call with these inputs, to be used under its lock; None where the winner has to run whole."""
        addresses = tuple([inputs[number].data_ptr() for number in self._inputs])
        weight = inputs[self._inputs[0]]
        stream = 0
        if weight.is_cuda:
            stream = torch._C._cuda_getCurrentRawStream(weight.get_device())
            if torch._C._cuda_isCurrentStreamCapturing():
                return self._capture(addresses, inputs, passed)
        found = self._copies.get((stream, *addresses))
        if found is None:
            found = self._make(stream, addresses, inputs, passed)
            if found is None:
                return None
        elif addresses not in self._spare and weight.is_cuda:
            self._lay_by(addresses, weight.device)
        found.uses += 1
        found.used_s = time.monotonic()
        return found

    def run(self, copy: Copy, bound: Bound, tensors: Sequence[torch.Tensor]) -> bool:
        """A call with a copy; False with nothing launched."""
        with copy.lock:
            if copy.launching:  # another call has failed in the middle: what its notes say is not what was prepared
                self.drop(copy)
                return False
            copy.launching = True
            done = bound(*tensors)
            copy.launching = False
            return done

    def drop(self, copy: Copy) -> None:
        """Frees a copy: it gives way to another, its weight is gone, or a call with it has failed."""
        for place, other in tuple(self._copies.items()):
            if other is copy:
                self._copies.pop(place, None)
                self._wasted += copy.uses < keeper.LEAST_USES and not copy.captured

    def _make(
        self, stream: int, addresses: tuple[int, ...], inputs: Sequence[torch.Tensor], passed: Sequence[Any]
    ) -> Copy | None:
        device = inputs[self._inputs[0]].device
        place = (stream, *addresses)
        if self._wasted >= keeper.MOST_WASTED or time.monotonic() < self._refused.get(place, 0.0) or _foreign(device):
            return None
        with keeper.lock:
            found = self._copies.get(place)
            if found is not None:
                return found
            for other in self.copies():
                if not other.captured and other.moved():
                    self.drop(other)
            streams = sum(other[1:] == addresses for other in self._copies if other[0] >= 0)
            made = self._fresh(passed, device) if streams < _MOST_STREAMS else None
            if made is None:
                if len(self._refused) >= keeper.MOST_REFUSED:
                    self._refused.clear()
                self._refused[place] = time.monotonic() + keeper.IDLE_S
                return None
            self._copies[place] = made
        if device.type == "cuda":
            self._lay_by(addresses, device)
        return made

    def _fresh(self, passed: Sequence[Any], device: torch.device, notes: list[torch.Tensor] | None = None) -> Copy | None:
        """A copy under the limit, in memory of the current stream; with `notes` for a graph that is being captured."""
        with torch.inference_mode(False):
            need = keeper.bytes_of(self._proven.memory(torch.device("meta")))
            if not keeper.make_room(device, need, Copy.worth, capturing=notes is not None):
                return None
            tensors = memory_of(self._proven.copies, device)
            tensors += memory_of(self._proven.notes, device) if notes is None else notes
        bases = [passed[at] for at in self._bases]
        dies = functools.partial(_forget, weakref.ref(self))
        weights = tuple((weakref.ref(base, dies), base.data_ptr()) for base in bases if isinstance(base, torch.Tensor))
        return Copy(tensors, weights, need, notes is not None, time.monotonic())

    def _capture(self, addresses: tuple[int, ...], inputs: Sequence[torch.Tensor], passed: Sequence[Any]) -> Copy | None:
        if torch.are_deterministic_algorithms_enabled() and torch.utils.deterministic.fill_uninitialized_memory:  # type: ignore[attr-defined]
            return None  # torch would fill the copy with NaN in each replay
        with keeper.lock:
            notes = self._spare.pop(addresses, None)
            made = None if notes is None else self._fresh(passed, inputs[self._inputs[0]].device, notes)
            if notes is None or made is None:
                return None
            _notes_of_graphs.append(notes)
            self._copies[(-1 - next(_numbers), *addresses)] = made
            keeper.read_by_graphs.add(self)
            return made

    def _lay_by(self, addresses: tuple[int, ...], device: torch.device) -> None:
        """Notes for a graph that may be captured later, zero before anything else is launched."""
        with keeper.lock, torch.inference_mode(False):
            self._spare[addresses] = memory_of(self._proven.notes, device)
        keeper.wait(device)

    def forget(self, dead: weakref.ref[torch.Tensor]) -> None:
        """A weight has died; what was made of it goes."""
        for place, copy in tuple(self._copies.items()):
            if any(weight is dead for weight, _ in copy.weights):
                self.drop(copy)
                self._spare.pop(place[1:], None)
        if not any(copy.captured for copy in self.copies()):
            keeper.read_by_graphs.discard(self)


def _forget(prover: weakref.ref[Prover], dead: weakref.ref[torch.Tensor]) -> None:
    owner = prover()
    if owner is not None:
        owner.forget(dead)


def _foreign(device: torch.device) -> bool:
    """Whether the current stream is none of torch's own."""
    if device.type != "cuda":
        return False
    number = int(torch.cuda.current_stream(device).stream_id)
    return number != 0 and number % 2 == 0
