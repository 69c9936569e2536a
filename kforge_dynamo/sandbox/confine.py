"""What each process of the sandbox may do: the layers, each applied where the system has it and reported where it has not.

| process | runs | network | files it writes | programs, processes | memory, files, cores |
|---|---|---|---|---|---|
| judge | oracle, gate, Inductor; on a GPU the candidate | none | temporary folder, compilers' caches, devices | yes | no core |
| runner, building | the compiler on a candidate's source | none | the artifact folder | yes | limited |
| runner, running | the candidate (CPU) | none | none | threads alone | limited |

Layers can be left out one by one with `KFORGE_SANDBOX`, to find out which of them is in the way on a strange machine.
On a GPU fewer apply, because its driver works through devices, ioctl and very large mappings: no limit on address space, no
namespaces, no lists of readable files; the other layers leave devices and ioctl alone.
"""

from __future__ import annotations

import contextlib
import os
import resource
import signal
import sys
import tempfile
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path

from kforge_dynamo.sandbox import kernel
from kforge_dynamo.settings import compiler_folders
from kforge_dynamo.surroundings import SANDBOX_LAYERS, TRITON_FOLDER

_SYSTEM = (
    "/usr", "/lib", "/lib64", "/bin", "/sbin", "/opt", "/nix/store", "/gnu/store", "/proc", "/sys", "/etc/ld.so.cache",
    "/etc/ld.so.conf", "/etc/ld.so.conf.d", "/etc/alternatives", "/etc/localtime", "/dev/null", "/dev/zero", "/dev/urandom",
    "/dev/random",
)  # fmt: skip
"""What programs and libraries of a Linux system live in; nothing of a user's."""
_DEVICES = ("/dev", "/proc")
_LARGEST_FILE = 1 << 28
_OPEN_FILES = 256
_ROOM_BYTES = 4 << 30  # address space beyond what the process has, for compilers and small kernels
_A_THREAD_BYTES = 1 << 28  # a stack and an arena of glibc
_HARD_S = 30.0  # processor time past the deadline at which the kernel itself ends the process

Fact = tuple[str, str | None]
"""A layer, and why it is not active (None where it is)."""


@dataclass(frozen=True, slots=True)
class Bounds:
    """What a runner may use: bytes of its task beyond the usual, threads, seconds, and where it builds."""

    task_bytes: int
    threads: int
    seconds: float
    folder: str


def apply(steps: Iterable[tuple[str, Callable[[], None]]], without: frozenset[str]) -> list[Fact]:
    """Applies the steps in order, without the layers in `without`; a layer that fails is reported and the others go on."""
    facts: list[Fact] = []
    for layer, step in steps:
        if layer in without:
            facts.append((layer, "left out by KFORGE_SANDBOX"))
            continue
        try:
            step()
        except (OSError, ValueError) as error:
            facts.append((layer, str(error)))
        else:
            facts.append((layer, None))
    return facts


def confine_judge(kind: str, without: frozenset[str]) -> list[Fact]:
    """For the process that judges, on a device of `kind`, and for what compiles the baseline."""
    steps: list[tuple[str, Callable[[], None]]] = [("limits", _no_core), ("seccomp", kernel.no_new_privileges)]
    if kind == "cpu":
        steps.append(("namespaces", kernel.without_network))
    steps.append(("landlock", lambda: kernel.landlock(None, [*_writable(kind), *_DEVICES])))
    steps.append(("seccomp", lambda: kernel.refuse_calls(kernel.ADMINISTRATION, alone=False)))
    return merged(apply(steps, without))


def confine_builder(bounds: Bounds, without: frozenset[str]) -> list[Fact]:
    """For a runner before it builds the candidate."""
    write = [bounds.folder, "/dev/null"]
    steps: list[tuple[str, Callable[[], None]]] = [
        ("limits", lambda: _limit(bounds)),
        ("seccomp", kernel.no_new_privileges),
        ("namespaces", kernel.without_network),
        ("capabilities", kernel.drop_capabilities),
        ("landlock", lambda: kernel.landlock(readable(), write)),
        ("seccomp", lambda: kernel.refuse_calls(kernel.ADMINISTRATION, alone=False)),
    ]
    return merged(apply(steps, without))


def confine_runner(bounds: Bounds, without: frozenset[str], write: Sequence[str] = ()) -> list[Fact]:
    """For a runner before it loads the candidate: from here on it computes and nothing else, but for writes below `write`."""
    steps: list[tuple[str, Callable[[], None]]] = [
        ("landlock", lambda: kernel.landlock([*readable(), bounds.folder], ["/dev/null", *write])),
        ("seccomp", lambda: kernel.refuse_calls((*kernel.ADMINISTRATION, *kernel.OUTSIDE), alone=True)),
    ]
    return merged(apply(steps, without))


def readable() -> list[str]:
    """What a compiler, Python and their libraries need to read."""
    return [*_SYSTEM, sys.prefix, sys.base_prefix, *(path for path in sys.path if path), *compiler_folders()[0]]


def _writable(kind: str) -> list[str]:
    """The temporary folder and the caches of compilers; Triton's is made first, as it cannot be made afterwards."""
    folders = [tempfile.gettempdir(), *compiler_folders()[1]]
    for path in folders:
        if kind != "cpu" and os.path.basename(path) == TRITON_FOLDER:
            os.makedirs(path, exist_ok=True)
    return folders


def _no_core() -> None:
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))


def _limit(bounds: Bounds) -> None:
    _no_core()
    seconds = int(bounds.threads * bounds.seconds + _HARD_S)
    room = _ROOM_BYTES + bounds.threads * _A_THREAD_BYTES + 4 * bounds.task_bytes
    used = int(Path("/proc/self/statm").read_text().split()[0]) * resource.getpagesize()
    for name, value in (
        (resource.RLIMIT_CPU, seconds),
        (resource.RLIMIT_FSIZE, _LARGEST_FILE),
        (resource.RLIMIT_NOFILE, _OPEN_FILES),
        (resource.RLIMIT_AS, used + room),
    ):
        hard = resource.getrlimit(name)[1]
        value = value if hard == resource.RLIM_INFINITY else min(value, hard)
        resource.setrlimit(name, (value, value))
    with contextlib.suppress(OSError):  # a process that has just changed its user may not
        Path("/proc/self/oom_score_adj").write_text("1000")  # where memory ends, this process goes first


def merged(facts: Iterable[Fact]) -> list[Fact]:
    """One fact a layer: the first reason against it, if there is one."""
    found: dict[str, str | None] = {}
    for layer, reason in facts:
        found[layer] = found.get(layer) or reason
    return list(found.items())


def end_with(parent: int) -> None:
    """This process is killed when `parent`, which has just forked it, ends."""
    try:
        kernel.die_with_parent(signal.SIGKILL)
    except (OSError, AttributeError):  # not Linux: the watch of the pipe remains
        return
    if os.getppid() != parent:
        os._exit(1)


def describe(facts: Iterable[Fact]) -> str:
    """The layers as one line: active ones by name, the others with their reasons."""
    items = dict(facts)
    active = [name for name in SANDBOX_LAYERS if name in items and items[name] is None]
    missing = [f"{name} ({items[name]})" for name in SANDBOX_LAYERS if items.get(name) is not None]
    return ", ".join(active or ["none"]) + (f"; not active: {', '.join(missing)}" if missing else "")
