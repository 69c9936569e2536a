"""The worker's own program: `python -m kforge_dynamo.sandbox.jobs`, started by `sandbox.worker` and by nothing else.

For a CPU it imports torch once, on one thread and before anything uses OpenMP, and then only forks:

- the *judge* answers requests (`judge`). When it dies, the next one is there in milliseconds, and the parent is told how;
- a *rival* compiles Inductor's version of one region, and forks the runners that are timed beside it (`rival`);
- a *runner* builds and runs one candidate and ends (`runner`).

For a GPU, or without the layer "runner", the program is the judge, and runs the candidate itself: a device's context takes
longer to make than a candidate to judge, and none of torch's imports promises that a driver survives a fork. Before it uses
the device it forks processes that compile candidates which will be asked for (`ahead`).

Everything ends with the parent: the program leads a process group, and kills it when the request pipe closes or the parent's
number changes.
"""

from __future__ import annotations

import argparse
import contextlib
import functools
import importlib
import os
import signal
import socket
import sys
import threading
import time
from collections.abc import Mapping, Sequence
from typing import cast

import torch

from kforge_dynamo.errors import KforgeError
from kforge_dynamo.languages.base import Language
from kforge_dynamo.sandbox import judge, rival, runner
from kforge_dynamo.sandbox.ahead import Compilers
from kforge_dynamo.sandbox.baseline import warm_up
from kforge_dynamo.sandbox.forks import Nursery, fork
from kforge_dynamo.sandbox.pipes import ended, line
from kforge_dynamo.settings import sandbox_without

_POLL_S = 1.0


def main(arguments: Sequence[str] | None = None) -> int:
    """Serves until the request pipe closes or the parent ends."""
    options = _options(arguments)
    device = torch.device(options.device)
    torch.set_num_threads(1)
    languages = _languages(options.languages)
    _tell(options.write, "stage", "Inductor's first compile")
    if device.type == "cpu" and sys.platform == "linux" and "runner" not in sandbox_without():
        _prime(languages, device)
        _fork_judges(options, device, languages)
    else:
        ahead = None if device.type == "cpu" else Compilers(languages, device.type)  # they are forked before anything else runs
        threading.Thread(target=_watch, args=(options.parent,), daemon=True).start()
        job = judge.Job(options.read, options.write, None, device, options.threads, os.urandom(16))
        judge.run(job, languages, _end, ahead)
    _end()
    return 0


def _fork_judges(options: argparse.Namespace, device: torch.device, languages: Mapping[str, Language]) -> None:
    """One judge after the other, and whatever they ask for, while the parent lives."""

    def parent_lives() -> bool:  # a process forked by the parent may hold the pipe open after the parent's death
        return os.getppid() == int(options.parent)

    secret = os.urandom(16)
    while parent_lives():
        here, there = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        nursery = Nursery(here, {"runner": lambda fds, data: runner.serve(languages, None, fds), "rival": rival.role(languages)})
        job = judge.Job(options.read, options.write, there.fileno(), device, options.threads, secret)
        child = fork(
            functools.partial(judge.run, job, languages, lambda: os._exit(judge.OVER)), (job.read, job.write, there.fileno())
        )
        nursery.know(child)
        there.close()
        nursery.serve(parent_lives)
        here.close()
        code = nursery.end(child)
        nursery.end_all()
        if code == judge.OVER:
            return
        _tell(options.write, "died", f"the worker {ended(code)}")


def _watch(parent: int) -> None:
    while os.getppid() == parent:
        time.sleep(_POLL_S)
    _end()


def _tell(pipe: int, kind: str, text: str) -> None:
    with contextlib.suppress(OSError):  # nobody reads any more: the watch of the parent ends this process
        os.write(pipe, line({"kind": kind, "text": text, "number": 0, "last": False}))


def _prime(languages: Mapping[str, Language], device: torch.device) -> None:
    """What every fork would have to do again: versions of compilers, Inductor's first compile."""
    for language in languages.values():
        with contextlib.suppress(KforgeError, OSError):  # said again, with its reason, where the language is needed
            language.toolchain()
    warm_up(device)


def _end() -> None:
    if os.getpgrp() == os.getpid():
        os.killpg(os.getpid(), signal.SIGKILL)
    os._exit(1)


def _languages(path: str) -> Mapping[str, Language]:
    module, _, name = path.partition(":")
    return cast("Mapping[str, Language]", getattr(importlib.import_module(module), name))


def _options(arguments: Sequence[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="kforge_dynamo.sandbox.jobs")
    parser.add_argument("--languages", required=True, help="MODULE:NAME of the mapping from names to languages")
    parser.add_argument("--device", required=True)
    parser.add_argument("--threads", type=int, required=True)
    parser.add_argument("--read", type=int, required=True)
    parser.add_argument("--write", type=int, required=True)
    parser.add_argument("--parent", type=int, required=True)
    return parser.parse_args(arguments)


if __name__ == "__main__":
    raise SystemExit(main())
