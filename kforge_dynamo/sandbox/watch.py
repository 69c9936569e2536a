"""Which threads a launch started, and what it left in the memory of its own library: what no output shows.

A new thread inherits the name of the thread that started it. So the launching thread carries a name of its own during a launch,
and threads of that name are the candidate's, whatever else this process does meanwhile (Inductor compiles in another thread).
On systems without /proc nothing is known and nothing is said.
"""

from __future__ import annotations

import contextlib
import ctypes
import hashlib
import threading
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol, runtime_checkable

import torch

from kforge_dynamo.languages.base import Launcher, Prepared
from kforge_dynamo.records.guardrail import Guards
from kforge_dynamo.sandbox.layout import same_bits
from kforge_dynamo.sandbox.trap import Trapped, trap

_TASKS = Path("/proc/self/task")
_MAPS = Path("/proc/self/maps")
_NAME = "kforge-launch"


@runtime_checkable
class Elsewhere(Protocol):
    """A launcher whose kernel runs in another process, and is observed there."""

    def watched(
        self, inputs: Sequence[torch.Tensor], outputs: Sequence[torch.Tensor], sizes: Sequence[int], *, trapped: bool
    ) -> None:
        """One launch. Raises: LaunchFault."""


@dataclass(frozen=True, slots=True)
class KeptForm:
    """The form in which a graph runs a winner whose preparation of weights is kept: prepared once, at the site's `sizes`."""

    prepared: Prepared
    sizes: tuple[int, ...]
    atomics: bool


class LaunchFault(RuntimeError):
    """A launch did what no kernel may do; the text ends with the rule."""


def observed(
    launcher: Launcher,
    inputs: Sequence[torch.Tensor],
    outputs: Sequence[torch.Tensor],
    sizes: Sequence[int],
    *,
    threads: int,
    trapped: bool,
    known: frozenset[int],
    guards: Guards,
    kept: KeptForm | None = None,
) -> None:
    """One launch in this process, which may use `threads` threads and, where `trapped`, no operation of torch's; `known` are
    the threads that launches of other candidates left (see `launch_threads`).

    Raises: LaunchFault, and what the launcher raises.
    """
    if isinstance(launcher, Elsewhere):
        launcher.watched(inputs, outputs, sizes, trapped=trapped and guards.trap)
        return
    blank = (
        []
        if kept is None
        else [torch.empty_strided(o.size(), o.stride(), dtype=o.dtype, device=o.device).copy_(o) for o in outputs]
    )
    try:
        with _named(), trap(on=trapped and guards.trap):
            launcher(inputs, outputs, sizes)
        if kept is not None:
            _launch_kept(kept, inputs, outputs, blank, sizes, trapped and guards.trap)
    except Trapped as caught:
        raise LaunchFault(f"{caught} [rule trap]") from caught
    started = len(launch_threads() - known) if guards.threads else 0
    if started > max(threads, 1) - 1:
        words = f"{started} threads that launches started are there, a team of {threads} needs {threads - 1}"
        raise LaunchFault(f"{words} [rule threads]")


def _launch_kept(
    kept: KeptForm,
    inputs: Sequence[torch.Tensor],
    outputs: Sequence[torch.Tensor],
    blank: Sequence[torch.Tensor],
    sizes: Sequence[int],
    trapped: bool,
) -> None:
    """The same call in the kept form, twice over one copy. Raises: LaunchFault where it differs, or writes to the copy."""
    copies = kept.prepared.copies(inputs[0].device)
    with _named():
        kept.prepared.pack(inputs, copies, kept.sizes)
    before = [copy.clone() for copy in copies]
    for _ in range(2):
        with _named(), trap(on=trapped):
            kept.prepared.rest(inputs, [*blank, *copies], sizes)
        if not all(map(same_bits, copies, before)):
            raise LaunchFault(
                "a launch of each call wrote to what weights_only launches prepared, which outlives it [rule state]"
            )
        if not kept.atomics and not all(map(same_bits, outputs, blank)):
            raise LaunchFault("with the preparation of weights kept from another call the outputs are others [rule state]")


def launch_threads() -> frozenset[int]:
    """Numbers of the threads that launches have started and that are still there."""
    return frozenset(int(task.parent.name) for task in _TASKS.glob("*/comm") if _name_of(task) == _NAME)


@contextlib.contextmanager
def _named() -> Iterator[None]:
    """This thread bears the launches' name inside."""
    own, before = _TASKS / str(threading.get_native_id()) / "comm", ""
    with contextlib.suppress(OSError):
        before = own.read_text().strip()
        own.write_text(_NAME)
    try:
        yield
    finally:
        with contextlib.suppress(OSError):
            own.write_text(before or "python")


def _name_of(task: Path) -> str:
    try:
        return task.read_text().strip()
    except OSError:  # it ended meanwhile
        return ""


def written_memory(folder: str) -> str:
    """A digest of the pages of the libraries loaded from `folder` that can be written. Zeroed data that needs pages of its own
    is not among them; the compiled object is refused for such data."""
    digest, root = hashlib.sha256(), f"{Path(folder).resolve()}/"
    if not folder:
        return ""
    try:
        lines = _MAPS.read_text().splitlines()
    except OSError:
        return ""
    for line in lines:
        span, flags, _, _, _, *name = line.split(maxsplit=5)
        start, stop = (int(part, 16) for part in span.split("-"))
        if name and name[0].startswith(root) and flags.startswith("rw"):
            digest.update(ctypes.string_at(start, stop - start))
    return digest.hexdigest()
