"""The worker's own program: `python -m kforge_dynamo.sandbox.jobs`, started by `sandbox.worker` and by nothing else.

Requests come and answers go as lines of JSON over two file descriptors of their own, so what a compiler or a candidate
prints cannot be taken for an answer. The process ends with its parent: it leads a process group, and kills the group when
the request pipe closes or its parent's number changes.
"""

from __future__ import annotations

import argparse
import importlib
import json
import os
import queue
import signal
import threading
import time
import traceback
from collections.abc import Callable, Mapping, Sequence
from typing import BinaryIO, cast

import torch

from kforge_dynamo.errors import BuildError, RecordError
from kforge_dynamo.languages.base import Language
from kforge_dynamo.records.codec import from_text, to_text
from kforge_dynamo.records.outcome import Status, Trial, Verdict
from kforge_dynamo.records.request import Request
from kforge_dynamo.sandbox.baseline import warm_up
from kforge_dynamo.sandbox.evaluation import Evaluator

_EVIDENCE_LINES = 6
_POLL_S = 1.0
_DEVICE_LOST = 3


def main(arguments: Sequence[str] | None = None) -> int:
    """Serves requests until the pipe closes."""
    options = _options(arguments)
    torch.set_num_threads(options.threads)
    device = torch.device(options.device)
    if device.type == "cuda":
        torch.cuda.set_device(device)
    answers = os.fdopen(options.write, "wb")
    lock = threading.Lock()

    def tell(kind: str, text: str, number: int = 0, last: bool = False) -> None:
        with lock:
            answers.write(json.dumps({"kind": kind, "text": text, "number": number, "last": last}).encode() + b"\n")
            answers.flush()

    incoming: queue.SimpleQueue[bytes] = queue.SimpleQueue()
    _start(_read, os.fdopen(options.read, "rb"), incoming)
    _start(_watch_parent, options.parent)
    evaluator = Evaluator(_languages(options.languages), device, os.urandom(16), lambda text: tell("stage", text))
    tell("stage", "Inductor's first compile")
    warm_up(device)
    tell("ready", str(torch.__version__))
    while True:
        message = json.loads(incoming.get())
        trial, lost = answer(evaluator, message["text"])
        tell("trial", to_text(trial), message["number"], lost)
        if lost:
            return _DEVICE_LOST


def answer(evaluator: Evaluator, text: str) -> tuple[Trial, bool]:
    """The trial for a request's text, and whether this process is of no more use (the device's context is lost)."""
    request = from_text(Request, text)
    try:
        return evaluator.evaluate(request), False
    except RecordError as error:
        return _failed(request, Status.REJECTED, f"malformed plan: {error}"), False
    except BuildError as error:  # a kernel that compiles at its first call
        return _failed(request, Status.COMPILE_ERROR, str(error)[-2000:]), False
    except torch.OutOfMemoryError as error:
        torch.cuda.empty_cache()
        return _failed(request, Status.RUNTIME_ERROR, f"out of device memory: {str(error)[:300]}"), False
    except Exception as error:  # noqa: BLE001 (the border: what a candidate or a compiler raises is data for the search)
        lines = traceback.format_exception(error)
        words = "".join(lines[-_EVIDENCE_LINES:])[-2000:]
        return _failed(request, Status.RUNTIME_ERROR, words), _device_lost(request.target.kind, error)


def _failed(request: Request, status: Status, words: str) -> Trial:
    return Trial(request.candidate, Verdict(status, None, None, "worker", words), ())


def _device_lost(kind: str, error: Exception) -> bool:
    """Whether the CUDA context can no longer be used: after an illegal access every call fails."""
    if kind != "cuda":
        return False
    try:
        torch.cuda.synchronize()
    except RuntimeError:
        return True
    return "CUDA error" in str(error)


def _languages(path: str) -> Mapping[str, Language]:
    module, _, name = path.partition(":")
    return cast("Mapping[str, Language]", getattr(importlib.import_module(module), name))


def _start(function: Callable[..., None], *arguments: object) -> None:
    threading.Thread(target=function, args=arguments, daemon=True).start()


def _read(source: BinaryIO, incoming: queue.SimpleQueue[bytes]) -> None:
    """Passes lines on; the end of the pipe is the end of the parent's interest."""
    for line in source:
        incoming.put(line)
    _end()


def _watch_parent(parent: int) -> None:
    """A process forked by the parent may hold the pipe open after the parent's death."""
    while os.getppid() == parent:
        time.sleep(_POLL_S)
    _end()


def _end() -> None:
    if os.getpgrp() == os.getpid():
        os.killpg(os.getpid(), signal.SIGKILL)
    os._exit(1)


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
