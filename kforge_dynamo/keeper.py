"""What a winner prepares of weights, kept between calls.

A plan may start with launches that read nothing but weights (packing, splitting, folding). A `Keeper` serves one site of a
compiled graph: it keeps what those launches wrote, one copy for each set of weights that the site is called with, and leaves
the launches out while the weights are the tensors they were: the same object and storage, address and version, and nothing
that changes weights behind the version's back (a fused optimizer's step, `invalidate`) in between. Writes through `.data`
are seen by none of these; so a graph has keepers only where the user said that there are none (`prepack="trust"`), or where
Inductor froze the weight. Where anything speaks against a copy, the winner runs whole: that is always right.

Every stream may read a copy, because the host waits once when one is made. A copy that was read while a CUDA graph was
captured keeps its address, and is made anew in place at `invalidate`, an optimizer's step and `load_state_dict`.

Private torch API, read in torch 2.11.0, 2.13.0 and 2.14.1: `torch.multiprocessing.reductions.StorageWeakRef`, and
`UntypedStorage._cdata`, which is unique for as long as a weak reference lives.
"""

from __future__ import annotations

import functools
import logging
import os
import threading
import time
import weakref
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol

import torch
from torch.multiprocessing.reductions import StorageWeakRef
from torch.optim.optimizer import register_optimizer_step_post_hook

from kforge_dynamo import ledger
from kforge_dynamo.errors import BuildError
from kforge_dynamo.languages.base import Prepared

_SHARE = 5
"""Of the memory that would be free without copies, one part in so many may hold copies."""
LEAST_USES, MOST_WASTED = 4, 16
"""A keeper ends when so many copies had to be made anew before they were used this often: the weights never rest."""
MOST_REFUSED = 4096
IDLE_S = 60.0
"""A copy that was not used for so long gives way to any other, and so long a refusal for want of memory holds."""


class Kept(Protocol):
    """A copy, as far as others need to know it to share memory with it. `worth` are bytes that a call does not move, for each
    byte kept; `used_s` is the clock at the last use; what a CUDA graph has `captured` stays."""

    tensors: list[torch.Tensor]
    size_bytes: int
    worth: float
    used_s: float
    captured: bool


class Holder(Protocol):
    """Whoever keeps copies."""

    def copies(self) -> Sequence[Kept]:
        """All that there are now."""

    def renew(self) -> None:
        """Weights have changed in a way that cannot be seen. The caller holds the lock."""

    def drop(self, copy: Any) -> None:
        """Frees a copy that gives way to another."""


lock = threading.RLock()
"""Held while copies are made and room is made for them."""
holders: weakref.WeakSet[Holder] = weakref.WeakSet()
read_by_graphs: set[Holder] = set()
"""Those with copies that a CUDA graph reads: they outlive the compiled graph."""
_epoch = 0
_limit_bytes: int | None = None
_hooked: set[str] = set()
_free_seen: dict[torch.device, int | None] = {}


def invalidate() -> None:
    """Weights have changed in a way that kforge cannot see, through `.data` or from outside torch: with `prepack="trust"` copies
    made of them are made anew. To be called after the change, before the next call of a compiled model."""
    global _epoch
    with lock:
        _epoch += 1
        for holder in tuple(holders):
            holder.renew()


def limit(count_bytes: int | None) -> None:
    """Sets how much memory of a device copies may take in this process; None for a fifth of what is free."""
    global _limit_bytes
    _limit_bytes = count_bytes


def kept_bytes(device: torch.device | None = None) -> int:
    """Memory of all copies now, or of those on a device."""
    with lock:
        copies = [copy for holder in tuple(holders) for copy in holder.copies()]
    return sum(copy.size_bytes for copy in copies if device is None or copy.tensors[0].device == device)


@dataclass(frozen=True, slots=True, eq=False)
class _Weight:
    """A tensor that a copy was made of, as it was then; `view` is size, strides and offset of what the site is passed."""

    address: int

    tensor: weakref.ref[torch.Tensor]
    version: int
    storage: StorageWeakRef
    view: tuple[tuple[int, ...], tuple[int, ...], int]

    def rests(self, base: torch.Tensor) -> bool:
        """Whether `base` is that tensor, with the bits it had."""
        return self.tensor() is base and base._version == self.version and not self.moved(base)

    def moved(self, base: torch.Tensor) -> bool:
        """Whether the tensor has memory of other origin by now."""
        return base.untyped_storage()._cdata != self.storage.cdata or base.data_ptr() != self.address


@dataclass(eq=False)
class _Copy:
    """`worth` are bytes that a call does not move, for each byte kept; `streams` those that have read it; `used_s` is the
    clock at the last use."""

    weights: tuple[_Weight, ...]
    tensors: list[torch.Tensor]
    epoch: int
    size_bytes: int
    worth: float
    streams: set[int] = field(default_factory=set)
    uses: int = 0
    used_s: float = 0.0
    captured: bool = False

    def rests(self, bases: Sequence[Any]) -> bool:
        """Whether it is still what the launches would write."""
        if self.epoch != _epoch:
            return False
        return all(weight.rests(base) for weight, base in zip(self.weights, bases, strict=True))


class Keeper:
    """The copies of one site. `positions` are the inputs that weights come in; a copy reads those of `prepared.weights`."""

    def __init__(self, prepared: Prepared, positions: Sequence[int], sizes: Sequence[int]) -> None:
        """Raises: ValueError where a copy reads an input that is no weight here."""
        self._prepared, self._sizes = prepared, tuple(sizes)
        self._inputs = prepared.weights
        self._bases = [list(positions).index(number) for number in prepared.weights]
        self._copies: dict[tuple[int, ...], _Copy] = {}
        self._refused: dict[tuple[int, ...], tuple[int, float]] = {}
        self._wasted = self._count = 0
        with lock:  # others walk over the set
            holders.add(self)

    def copies(self) -> tuple[_Copy, ...]:
        """All that there are now."""
        return tuple(self._copies.values())

    def find(self, inputs: Sequence[torch.Tensor], passed: Sequence[Any]) -> list[torch.Tensor] | None:
        """The copies for a call with these inputs, made where they are not there; None where the winner has to run whole."""
        bases = [passed[at] for at in self._bases]
        # a kernel for a CPU may pack for the number of threads that will read
        place = (torch.get_num_threads(), *map(id, bases), *[inputs[number].data_ptr() for number in self._inputs])
        found = self._copies.get(place)
        if found is None or not found.rests(bases):
            found = self._make(place, inputs, bases)
            if found is None:
                return None
        found.uses += 1
        found.used_s = time.monotonic()
        if found.tensors[0].is_cuda:
            self._read_by_stream(found)
        return found.tensors

    def renew(self) -> None:
        """Makes anew, in place, what CUDA graphs read. The caller holds the lock."""
        for place, copy in tuple(self._copies.items()):
            bases = [weight.tensor() for weight in copy.weights]
            if copy.captured and all(isinstance(base, torch.Tensor) for base in bases):
                views = [_view(base, weight) for base, weight in zip(bases, copy.weights, strict=True) if base is not None]
                inputs = [views[0]] * self._count
                for number, view in zip(self._inputs, views, strict=True):
                    inputs[number] = view
                self._make(place, inputs, bases)

    def _make(self, place: tuple[int, ...], inputs: Sequence[torch.Tensor], bases: Sequence[Any]) -> _Copy | None:
        captured = place in self._copies and self._copies[place].captured
        if not captured and (self._wasted >= MOST_WASTED or self._refusing(place) or not all(map(_known, bases))):
            return None
        self._count = len(inputs)
        device = inputs[self._inputs[0]].device
        if device.type == "cuda" and torch.cuda.is_current_stream_capturing():
            return None
        with lock:
            old = self._copies.get(place)
            if old is not None and old.rests(bases):
                return old
            self._drop_moved()
            made = self._made(place, inputs, bases, old)
            if old is not None:
                self._end(place, old)
                ledger.count("repacks")
            if made is None:
                if len(self._refused) >= MOST_REFUSED:
                    self._refused.clear()
                self._refused[place] = (_epoch, time.monotonic())
                return None
            self._copies[place] = made
            return made

    def _made(
        self, place: tuple[int, ...], inputs: Sequence[torch.Tensor], bases: Sequence[Any], old: _Copy | None
    ) -> _Copy | None:
        """A copy, published by the caller when it is whole: in place of `old` where a CUDA graph reads that, else in memory of
        its own. None where there is no room or the launches do not start."""
        device = inputs[self._inputs[0]].device
        dies = functools.partial(_forget, weakref.ref(self), place)
        weights = tuple(_weight(base, inputs[number], dies) for base, number in zip(bases, self._inputs, strict=True))
        epoch = _epoch
        read = sum(inputs[number].numel() * inputs[number].element_size() for number in self._inputs)
        in_place = old is not None and old.captured
        try:
            tensors = old.tensors if old is not None and in_place else self._memory(device, read)
            if tensors is None:
                return None
            if in_place:
                wait(device, everything=True)
                for tensor, buffer in zip(tensors, self._prepared.buffers, strict=True):
                    if buffer.zeroed:
                        tensor.zero_()
            self._prepared.pack(inputs, tensors, self._sizes)
        except (BuildError, torch.OutOfMemoryError) as error:
            if in_place:  # a graph would go on reading what is not the weight
                raise
            ledger.say_once(f"a copy of a weight could not be kept: {error}", logging.INFO)
            return None
        wait(device)
        size_bytes = bytes_of(tensors)
        worth = (read + size_bytes) / max(size_bytes, 1)
        made = _Copy(weights, tensors, epoch, size_bytes, worth, used_s=time.monotonic(), captured=in_place)
        _watch("steps")
        return made

    def _memory(self, device: torch.device, read_bytes: int) -> list[torch.Tensor] | None:
        """Memory for a copy, under the limit; copies of less worth give way."""
        with torch.inference_mode(False):
            shapes = self._prepared.copies(torch.device("meta"))
            need = bytes_of(shapes)
            worth = (read_bytes + need) / max(need, 1)
            return self._prepared.copies(device) if make_room(device, need, worth) else None

    def _end(self, place: tuple[int, ...], copy: _Copy) -> None:
        if self._copies.get(place) is copy:
            del self._copies[place]
            self._wasted += copy.uses < LEAST_USES and not copy.captured and copy.epoch == _epoch  # else others' weights changed

    def _refusing(self, place: tuple[int, ...]) -> bool:
        epoch, since_s = self._refused.get(place, (-1, 0.0))
        return epoch == _epoch and time.monotonic() - since_s < IDLE_S

    def _drop_moved(self) -> None:
        """Frees what was copied of memory that its weight has left."""
        for place, copy in tuple(self._copies.items()):
            pairs = [(weight, weight.tensor()) for weight in copy.weights]
            if not copy.captured and any(base is None or weight.moved(base) for weight, base in pairs):
                self._end(place, copy)

    def drop(self, copy: _Copy) -> None:
        """Frees a copy that gives way to another."""
        for place, other in tuple(self._copies.items()):
            if other is copy:
                self._copies.pop(place, None)

    def _read_by_stream(self, copy: _Copy) -> None:
        device = copy.tensors[0].device
        if torch.cuda.is_current_stream_capturing():
            copy.captured = True
            read_by_graphs.add(self)
            _watch("loads")
            return
        stream = torch.cuda.current_stream(device)
        if stream.cuda_stream not in copy.streams:
            for tensor in copy.tensors:
                tensor.record_stream(stream)
            copy.streams.add(stream.cuda_stream)

    def forget(self, place: tuple[int, ...], dead: weakref.ref[torch.Tensor]) -> None:
        """A weight has died; what was copied of it goes. The place may belong to another weight by now."""
        copy = self._copies.get(place)
        if copy is not None and any(weight.tensor is dead for weight in copy.weights):
            self._end(place, copy)
        if not any(copy.captured for copy in self.copies()):
            read_by_graphs.discard(self)


def _forget(keeper: weakref.ref[Keeper], place: tuple[int, ...], dead: weakref.ref[torch.Tensor]) -> None:
    owner = keeper()
    if owner is not None:
        owner.forget(place, dead)


def _known(base: Any) -> bool:
    """Whether changes of a weight can be seen: tensors made in inference mode have no version."""
    return isinstance(base, torch.Tensor) and not base.is_inference()


def _weight(base: torch.Tensor, seen: torch.Tensor, dies: Callable[[weakref.ref[torch.Tensor]], None]) -> _Weight:
    view = (tuple(seen.shape), tuple(seen.stride()), int(seen.storage_offset()))
    return _Weight(base.data_ptr(), weakref.ref(base, dies), base._version, StorageWeakRef(base.untyped_storage()), view)  # type: ignore[no-untyped-call]


def _view(base: torch.Tensor, weight: _Weight) -> torch.Tensor:
    return base.detach().as_strided(*weight.view)


def wait(device: torch.device, everything: bool = False) -> None:
    """For this stream's work on a device, or for that of every stream."""
    if device.type == "cuda" and everything:
        torch.cuda.synchronize(device)
    elif device.type == "cuda":
        torch.cuda.current_stream(device).synchronize()


def bytes_of(tensors: Sequence[torch.Tensor]) -> int:
    """Memory of tensors."""
    return sum(tensor.numel() * tensor.element_size() for tensor in tensors)


def make_room(device: torch.device, need: int, worth: float, capturing: bool = False) -> bool:
    """Whether a copy of `need` bytes may be made; others of less worth, and those that nobody uses, are dropped for it where
    that is enough. `capturing`: the driver is not asked what is free; what it said last counts. The caller holds the lock."""
    held = [(copy, holder) for holder in tuple(holders) for copy in holder.copies() if copy.tensors[0].device == device]
    kept = sum(copy.size_bytes for copy, _ in held)
    most = _limit_bytes
    if most is None:
        free = _free_seen.get(device) if capturing else _free_bytes(device)
        _free_seen[device] = free
        most = None if free is None else (free + kept) // _SHARE
    if most is None or kept + need <= most:
        return True
    idle_s = time.monotonic() - IDLE_S
    worths = {copy: 0.0 if copy.used_s < idle_s else copy.worth for copy, _ in held if not copy.captured}
    poorer = sorted((pair for pair in held if worths.get(pair[0], worth) < worth), key=lambda pair: worths[pair[0]])
    if kept + need - sum(copy.size_bytes for copy, _ in poorer) > most:
        return False
    for copy, holder in poorer:
        if kept + need <= most:
            break
        holder.drop(copy)
        kept -= copy.size_bytes
    return True


def _free_bytes(device: torch.device) -> int | None:
    if device.type == "cuda":
        return int(torch.cuda.mem_get_info(device)[0])
    try:
        return os.sysconf("SC_AVPHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
    except (ValueError, OSError, AttributeError):  # not a name of this system
        return None


def _watch(what: str) -> None:
    """Hears of optimizers' steps once there is a copy, and of `load_state_dict` once a CUDA graph reads one: then no Python runs
    at a call that could look at versions, and torch has no hook for all modules."""
    if what in _hooked:
        return
    _hooked.add(what)
    if what == "steps":
        register_optimizer_step_post_hook(lambda *_: invalidate())
        return
    load: Callable[..., Any] = torch.nn.Module.load_state_dict

    @functools.wraps(load)
    def load_state_dict(*args: Any, **kwargs: Any) -> Any:
        try:
            return load(*args, **kwargs)
        finally:
            invalidate()

    torch.nn.Module.load_state_dict = load_state_dict  # type: ignore[method-assign]


ledger.measure("prepacked", lambda: sum(len(holder.copies()) for holder in tuple(holders)))
ledger.measure("prepacked_bytes", kept_bytes)
