"""The forms in which a part of a winner's work outlives a call, checked against all its launches on fresh memory.

What is kept may be kept because it follows from weights alone (`KeptForm`), or because the device has looked whether they have
changed (`ProvenForm`). Neither is believed of a candidate: each runs here as a graph runs it, and what it writes is compared.
"""

from __future__ import annotations

import secrets
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass

import torch

from kforge_dynamo.languages.base import Launcher, Prepared, Preparing, Proven, Proving
from kforge_dynamo.records.target import Numerics
from kforge_dynamo.sandbox.layout import same_bits
from kforge_dynamo.sandbox.watch import Form, LaunchFault, blank_like

Around = Callable[[], AbstractContextManager[None]]
Tensors = Sequence[torch.Tensor]


def form_of(launcher: Launcher, numerics: Numerics, sizes: Sequence[int], atomics: bool) -> Form | None:
    """The form in which a graph runs a loaded candidate under `numerics`; None where it runs it whole."""
    prepared, proven = lasting(launcher, numerics)
    if prepared is not None:
        return KeptForm(prepared, tuple(sizes), atomics)
    return None if proven is None else ProvenForm(proven, atomics)


def lasting(launcher: Launcher, numerics: Numerics) -> tuple[Prepared | None, Proven | None]:
    """What a graph takes of a launcher under `numerics`, at most one of the two."""
    if numerics.kept:
        return (launcher.prepared() if isinstance(launcher, Preparing) else None), None
    return None, (launcher.proven() if numerics.proven and isinstance(launcher, Proving) else None)


@dataclass(frozen=True, slots=True)
class KeptForm:
    """Weights are prepared once, at the site's `sizes`."""

    prepared: Prepared
    sizes: tuple[int, ...]
    atomics: bool

    def check(self, inputs: Tensors, outputs: Tensors, blank: Tensors, sizes: Sequence[int], around: Around) -> None:
        """See `watch.Form`: the same call twice over one copy, which must stay as it is."""
        copies = self.prepared.copies(inputs[0].device)
        with around():
            self.prepared.pack(inputs, copies, self.sizes)
        before = [copy.clone() for copy in copies]
        for _ in range(2):
            with around():
                self.prepared.rest(inputs, [*blank, *copies], sizes)
            if not all(map(same_bits, copies, before)):
                words = "a launch of each call wrote to what weights_only launches prepared, which outlives it"
                raise LaunchFault(f"{words} [rule state]")
            if not self.atomics and not all(map(same_bits, outputs, blank)):
                raise LaunchFault("with the preparation of weights kept from another call the outputs are others [rule state]")


@dataclass(frozen=True, slots=True)
class ProvenForm:
    """All launches run, on memory that lasts; those that prepare weights find out whether they have anything to do. What they
    prepare has the same bits each time, also where the plan has atomic additions elsewhere."""

    proven: Proven
    atomics: bool

    def check(self, inputs: Tensors, outputs: Tensors, blank: Tensors, sizes: Sequence[int], around: Around) -> None:
        """See `watch.Form`: over garbage; with the weights as they were; with one bit of each of them changed; and as they
        were again. After each call the copies are those that fresh memory gets, from a call with other activations."""
        memory = self._memory(inputs)
        known = [memory[: len(self.proven.copies)]]
        self._call(inputs, outputs, blank, memory, sizes, around, "on memory that held something else")
        known.append(self._alone(inputs, blank, sizes, around))
        self._same(known, "what is prepared of weights depends on other inputs, or a launch of each call writes to it")
        self._call(inputs, outputs, blank, memory, sizes, around, "with weights that had not changed")
        self._same(known, "a call with unchanged weights writes to what was prepared of them")
        others = [_changed(item) if number in self.proven.weights else item for number, item in enumerate(inputs)]
        expected, found = ([blank_like(item) for item in blank] for _ in range(2))
        fresh = self._memory(others)
        with around():
            self.proven.run(others, [*expected, *fresh], sizes)
        self._call(others, expected, found, memory, sizes, around, "with weights of which one bit had changed")
        self._same([known[0], fresh], "when weights change, what is prepared of them is not what fresh memory gets")
        self._call(inputs, outputs, blank, memory, sizes, around, "with weights that were changed and changed back")
        self._same(known, "when weights change back, what is prepared of them does not")

    def _alone(self, inputs: Tensors, blank: Tensors, sizes: Sequence[int], around: Around) -> list[torch.Tensor]:
        """What fresh memory gets of these weights, from a call whose other inputs are zero."""
        others = [item if number in self.proven.weights else torch.zeros_like(item) for number, item in enumerate(inputs)]
        memory = self._memory(others)
        with around():
            self.proven.run(others, [*[blank_like(item) for item in blank], *memory], sizes)
        return memory[: len(self.proven.copies)]

    def _same(self, known: Sequence[Tensors], words: str) -> None:
        if not all(same_bits(left, right) for left, right in zip(*known, strict=False)):
            raise LaunchFault(f"{words} [rule state]")

    def _memory(self, inputs: Tensors) -> list[torch.Tensor]:
        memory = self.proven.memory(inputs[0].device)
        for copy in memory[: len(self.proven.copies)]:
            copy.view(torch.uint8).fill_(0xFF)
        return memory

    def _call(
        self, inputs: Tensors, outputs: Tensors, blank: Tensors, memory: Tensors, sizes: Sequence[int], around: Around, when: str
    ) -> None:
        for item in blank:
            item.fill_(float("nan") if item.is_floating_point() else 77)
        with around():
            self.proven.run(inputs, [*blank, *memory], sizes)
        if not self.atomics and not all(map(same_bits, outputs, blank)):
            raise LaunchFault(
                f"with the preparation of weights kept from another call, {when}, the outputs are others [rule state]"
            )


def _changed(weight: torch.Tensor) -> torch.Tensor:
    """The same but for the last bit of one element, whichever."""
    single = weight
    for dim, stride in enumerate(weight.stride()):
        single = single.narrow(dim, 0, 1) if stride == 0 and weight.shape[dim] > 1 else single
    copy = blank_like(single)
    bits = copy.view({2: torch.int16, 4: torch.int32}[copy.element_size()])
    place = tuple(secrets.randbelow(extent) for extent in bits.shape)
    bits[place] = bits[place] ^ 1
    return copy.expand(weight.shape)
