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
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager
from pathlib import Path
from typing import Protocol, runtime_checkable

import torch

from kforge_dynamo.languages.base import Launcher
from kforge_dynamo.records.guardrail import Guards
from kforge_dynamo.sandbox.trap import Trapped, trap

_TASKS = Path("/proc/self/task")
_MAPS = Path("/proc/self/maps")
_NAME = "kforge-launch"


@runtime_checkable
class Elsewhere(Protocol):
    """A launcher whose kernel runs in another process, and is observed there."""

    def watched(
        self,
        inputs: Sequence[torch.Tensor],
        outputs: Sequence[torch.Tensor],
        sizes: Sequence[int],
        *,
        trapped: bool,
        in_form: bool,
    ) -> None:
        """One launch. Raises: LaunchFault."""


class LaunchFault(RuntimeError):
    """A launch did what no kernel may do; the text ends with the rule."""


class Form(Protocol):
    """Another form in which a graph runs a winner, beside all launches on fresh memory: a part of the work outlives a call."""

    def check(
        self,
        inputs: Sequence[torch.Tensor],
        outputs: Sequence[torch.Tensor],
        blank: Sequence[torch.Tensor],
        sizes: Sequence[int],
        around: Callable[[], AbstractContextManager[None]],
    ) -> None:
        """Fills `blank` by calls in this form, each of them inside `around`; `outputs` are those of all launches.

        Raises: LaunchFault where the form is not what the whole is.
        """


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
    form: Form | None = None,
    in_form: bool = False,
) -> None:
    """One launch in this process, which may use `threads` threads and, where `trapped`, no operation of torch's; `known` are
    the threads that launches of other candidates left (see `launch_threads`). Where the candidate has another `form`, both
    run, and `outputs` are those of the whole, or with `in_form` of the form: atomic additions make the two differ, so each
    has to be judged.

    Raises: LaunchFault, and what the launcher raises.
    """
    if isinstance(launcher, Elsewhere):
        launcher.watched(inputs, outputs, sizes, trapped=trapped and guards.trap, in_form=in_form)
        return
    second = [] if form is None else [blank_like(item) for item in outputs]
    whole, other = (second, outputs) if in_form and form is not None else (outputs, second)

    @contextlib.contextmanager
    def around() -> Iterator[None]:
        with _named(), trap(on=trapped and guards.trap):
            yield

    try:
        with around():
            launcher(inputs, whole, sizes)
        if form is not None:
            form.check(inputs, whole, other, sizes, around)
    except Trapped as caught:
        raise LaunchFault(f"{caught} [rule trap]") from caught
    started = len(launch_threads() - known) if guards.threads else 0
    if started > max(threads, 1) - 1:
        words = f"{started} threads that launches started are there, a team of {threads} needs {threads - 1}"
        raise LaunchFault(f"{words} [rule threads]")


def blank_like(tensor: torch.Tensor) -> torch.Tensor:
    """A copy of a tensor without gaps of others' making: same values, strides and dtype."""
    return torch.empty_strided(tensor.size(), tensor.stride(), dtype=tensor.dtype, device=tensor.device).copy_(tensor)


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
