"""Inductor's version of a region in a process of its own: compiled once a task, there for every runner that is timed.

The process compiles on one thread and runs nothing, so the runners that it forks start with both versions loaded and no
thread of OpenMP behind them.
"""

from __future__ import annotations

import json
import socket
from collections.abc import Mapping, Sequence

import torch

from kforge_dynamo.errors import ToolchainError
from kforge_dynamo.languages.base import Language
from kforge_dynamo.records.codec import from_text, to_text
from kforge_dynamo.records.request import Request
from kforge_dynamo.sandbox import runner
from kforge_dynamo.sandbox.confine import confine_judge
from kforge_dynamo.sandbox.forks import Forks, Nursery, Role
from kforge_dynamo.sandbox.race import Rivals, compile_rivals
from kforge_dynamo.settings import sandbox_without

_LONGEST = 1 << 17


def role(languages: Mapping[str, Language]) -> Role:
    """What the forked process does: read the request's file, compile, say so, fork runners."""

    def run(fds: Sequence[int], data: dict[str, object]) -> None:
        (control,) = fds
        ours = socket.socket(fileno=control)
        confine_judge("cpu", sandbox_without())
        with socket.socket(fileno=ours.detach()) as server:
            text = b""
            while not text.endswith(b"\n"):
                chunk = server.recv(_LONGEST)
                if not chunk:
                    return
                text += chunk
            request = from_text(Request, text.decode())
            torch.set_num_threads(1)
            rivals = None
            try:
                rivals = compile_rivals(request, torch.device("cpu"), int(str(data["threads"])))
                words = ""
            except Exception as error:  # noqa: BLE001 (the border: what Inductor raises leaves the candidate untimed)
                words = f"{type(error).__name__}: {str(error)[:200]}"
            server.send(json.dumps({"words": words}).encode())
            if rivals is not None:
                found: Rivals = rivals
                Nursery(server, {"runner": lambda inner, _: runner.serve(languages, found, inner)}).serve(lambda: True)

    return run


class Rival:
    """The judge's side of one."""

    def __init__(self, forks: Forks, request: Request, threads: int) -> None:
        self._forks = forks
        self._control, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        try:
            self._child = forks.fork("rival", {"threads": threads}, (theirs.fileno(),))
        finally:
            theirs.close()
        text = to_text(request).encode() + b"\n"
        for start in range(0, len(text), _LONGEST):
            self._control.send(text[start : start + _LONGEST])
        self._words: str | None = None
        self.forks = Forks(self._control)

    def wait(self, seconds: float) -> str:
        """Returns when the baseline is compiled: an empty text, or why it cannot be. Raises: ToolchainError when it died."""
        if self._words is None:
            self._control.settimeout(max(seconds, 0.01))
            try:
                reply = self._control.recv(_LONGEST)
                self._words = str(json.loads(reply)["words"])
            except TimeoutError:
                raise
            except (OSError, ValueError) as error:
                raise ToolchainError(f"the process that compiles the baseline ended: {error}") from error
            finally:
                self._control.settimeout(None)
        return self._words

    def close(self) -> None:
        """Ends the process."""
        self._control.close()
        self._forks.end(self._child)
