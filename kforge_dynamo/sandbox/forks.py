"""A process that forks others on demand. It has imported torch, runs one thread, and has used neither OpenMP nor a device, so
a fork takes milliseconds and is as good as a fresh program.

Requests and replies are JSON over a socket of packets, file descriptors travel beside them. Nothing else in the sandbox
forks. The process that serves here adopts orphans, so whatever a fork leaves behind ends up below it and is killed.
"""

from __future__ import annotations

import contextlib
import gc
import json
import os
import select
import signal
import socket
import traceback
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

from kforge_dynamo.errors import ToolchainError
from kforge_dynamo.sandbox import kernel
from kforge_dynamo.sandbox.confine import Bounds, Fact, confine_builder, confine_judge, confine_runner, end_with, merged
from kforge_dynamo.settings import sandbox_without

Role = Callable[[Sequence[int], dict[str, object]], None]
"""What a forked process does with the file descriptors and the data of its request; it ends when this returns."""
_LONGEST = 1 << 17
_MOST_FDS = 8
_LOOK_S = 0.5
_ENDED_BADLY = 70


def fork(role: Callable[[], None], keep: Sequence[int]) -> int:
    """A child that runs `role` with the descriptors 0 to 2 and `keep` alone, and dies with this thread. Returns its number."""
    parent = os.getpid()
    gc.freeze()  # a collection in the child would copy every page that it looks at
    child = os.fork()
    if child:
        gc.unfreeze()
        return child
    code = _ENDED_BADLY
    try:
        end_with(parent)
        signal.signal(signal.SIGINT, signal.SIG_IGN)
        _close_others(keep)
        role()
        code = 0
    except SystemExit as error:
        code = error.code if isinstance(error.code, int) else _ENDED_BADLY
    except BaseException:  # noqa: BLE001 (the border: a fork must never return into the code of its parent)
        _complain()
    finally:
        os._exit(code)


def _complain() -> None:
    with contextlib.suppress(OSError):
        os.write(2, traceback.format_exc().encode()[-4000:])


def _close_others(keep: Sequence[int]) -> None:
    low = 3
    for number in sorted({item for item in keep if item > 2}):
        os.closerange(low, number)
        low = number + 1
    os.closerange(low, os.sysconf("SC_OPEN_MAX") if os.sysconf("SC_OPEN_MAX") < 1 << 16 else 1 << 16)


def probe(role: str, user: int | None = None) -> list[Fact]:
    """The layers that a "judge", or a "runner" on a CPU, gets here, found out by a process that applies them and ends.

    A root process may ask for what another `user` would get.
    """
    read, write = os.pipe()

    def apply() -> None:
        if user is not None:
            os.setgroups([])
            os.setgid(user)
            os.setuid(user)
        without = sandbox_without()
        bounds = Bounds(0, 1, 1.0, "/nowhere")
        facts = (
            confine_judge("cpu", without)
            if role == "judge"
            else [*confine_builder(bounds, without), *confine_runner(bounds, without)]
        )
        os.write(write, json.dumps(merged(facts)).encode())

    child = fork(apply, (write,))
    os.close(write)
    with os.fdopen(read) as answer:
        text = answer.read()
    os.waitpid(child, 0)
    return [(str(layer), reason) for layer, reason in json.loads(text or "[]")]


class Nursery:
    """The serving side. `control` is its end of a socketpair of SOCK_SEQPACKET."""

    def __init__(self, control: socket.socket, roles: Mapping[str, Role]) -> None:
        self._control, self._roles = control, roles
        self._children: set[int] = set()
        with contextlib.suppress(OSError, AttributeError):
            kernel.adopt_orphans()

    def know(self, child: int) -> None:
        """`child` is no orphan."""
        self._children.add(child)

    def serve(self, go_on: Callable[[], bool]) -> None:
        """Until the other end closes, or `go_on`, which is asked twice a second, returns false."""
        poller = select.poll()
        poller.register(self._control, select.POLLIN)
        while go_on():
            if not poller.poll(_LOOK_S * 1000):
                continue
            try:
                text, fds, _, _ = socket.recv_fds(self._control, _LONGEST, _MOST_FDS)
            except OSError:
                return
            if not text:
                return
            reply = self._answer(json.loads(text), fds)
            for number in fds:
                os.close(number)
            try:
                self._control.send(json.dumps(reply).encode())
            except OSError:
                return

    def _answer(self, request: dict[str, object], fds: Sequence[int]) -> dict[str, object]:
        if request["do"] == "fork":
            role, data = self._roles[str(request["role"])], request["data"]
            assert isinstance(data, dict)
            child = fork(lambda: role(fds, data), fds)
            self._children.add(child)
            return {"child": child}
        child = int(str(request["child"]))
        return {"code": self.end(child) if child in self._children else None}

    def end(self, child: int) -> int:
        """Kills a child if it still runs, and all that it left behind. Returns its code (negative: a signal's number)."""
        self._children.discard(child)
        done, status = os.waitpid(child, os.WNOHANG)
        if not done:
            with contextlib.suppress(ProcessLookupError):
                os.kill(child, signal.SIGKILL)
            _, status = os.waitpid(child, 0)
        self._sweep()
        return os.waitstatus_to_exitcode(status)

    def end_all(self) -> None:
        """Ends every child."""
        for child in tuple(self._children):
            self.end(child)

    def _sweep(self) -> None:
        """Kills adopted processes until none is left."""
        while strangers := children_of(os.getpid()) - self._children:
            for number in strangers:
                with contextlib.suppress(ProcessLookupError):
                    os.kill(number, signal.SIGKILL)
                with contextlib.suppress(ChildProcessError):
                    os.waitpid(number, 0)


def children_of(parent: int) -> set[int]:
    """The numbers of the processes whose parent is `parent`; empty where /proc does not say."""
    found = set()
    for place in Path("/proc").glob("[0-9]*/stat"):
        with contextlib.suppress(OSError, ValueError, IndexError):  # a process may end meanwhile
            if int(place.read_text().rpartition(")")[2].split()[1]) == parent:
                found.add(int(place.parent.name))
    return found


class Forks:
    """The asking side."""

    def __init__(self, control: socket.socket) -> None:
        self._control = control

    def fork(self, role: str, data: dict[str, object], fds: Sequence[int]) -> int:
        """Starts a process and returns its number. The caller keeps its own descriptors and closes them.

        Raises: ToolchainError when nobody serves any more.
        """
        return int(str(self._ask({"do": "fork", "role": role, "data": data}, fds)["child"]))

    def end(self, child: int) -> int:
        """Ends a process; see `Nursery.end`."""
        return int(str(self._ask({"do": "end", "child": child}, ())["code"]))

    def close(self) -> None:
        """The server ends, and with it all its children."""
        self._control.close()

    def _ask(self, request: dict[str, object], fds: Sequence[int]) -> dict[str, object]:
        try:
            socket.send_fds(self._control, [json.dumps(request).encode()], list(fds))
            reply = json.loads(self._control.recv(_LONGEST))
        except (OSError, ValueError) as error:
            raise ToolchainError(f"the sandbox's forking process is gone: {error}") from error
        return dict(reply)
