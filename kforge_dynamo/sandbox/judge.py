"""The process that judges: answers requests one after the other, keeps truths and baselines, and asks runners to run candidates.

Requests come and answers go as lines of JSON over two file descriptors of their own, so what a compiler or a candidate
prints cannot be taken for an answer.
"""

from __future__ import annotations

import json
import os
import queue
import socket
import threading
import traceback
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, BinaryIO

import torch

from kforge_dynamo.errors import BuildError, RecordError
from kforge_dynamo.languages.base import Language
from kforge_dynamo.records.codec import from_text, to_text
from kforge_dynamo.records.outcome import Status, Trial, Verdict
from kforge_dynamo.records.request import Request
from kforge_dynamo.sandbox.ahead import Compilers
from kforge_dynamo.sandbox.baseline import warm_up
from kforge_dynamo.sandbox.confine import confine_judge, describe
from kforge_dynamo.sandbox.evaluation import Evaluator
from kforge_dynamo.sandbox.forks import Forks
from kforge_dynamo.sandbox.pipes import line
from kforge_dynamo.sandbox.remote import Ended
from kforge_dynamo.settings import sandbox_without

DEVICE_LOST = 3
"""The status with which a judge ends whose device's context is lost; another takes its place."""
OVER = 4
"""The status with which it ends when nobody asks any more."""
_EVIDENCE_LINES = 6


@dataclass(frozen=True, slots=True)
class Job:
    """What a judge is given: descriptors for requests, answers and forks, its device, threads, and the secret of its seeds.
    Without `control` there are no runners: the candidate runs here."""

    read: int
    write: int
    control: int | None
    device: torch.device
    threads: int
    secret: bytes


def run(job: Job, languages: Mapping[str, Language], over: Callable[[], None], ahead: Compilers | None = None) -> None:
    """Serves requests; calls `over` when the pipe closes. What is only expected goes to `ahead`."""
    torch.set_num_threads(job.threads)
    without = sandbox_without()
    facts = confine_judge(job.device.type, without)
    if job.device.type == "cuda":
        torch.cuda.set_device(job.device)
    answers = os.fdopen(job.write, "wb")
    lock = threading.Lock()

    def tell(kind: str, text: str, number: int = 0, last: bool = False) -> None:
        with lock:
            answers.write(line({"kind": kind, "text": text, "number": number, "last": last}))
            answers.flush()

    incoming: queue.SimpleQueue[Any] = queue.SimpleQueue()
    _start(_read, os.fdopen(job.read, "rb"), incoming, ahead, over)
    tell("stage", f"layers of the judge: {describe(facts)}")
    if job.device.type != "cpu":
        tell("stage", "Inductor's first compile")
        warm_up(job.device)
    forks = None if job.control is None else Forks(socket.socket(fileno=job.control))
    evaluator = Evaluator(languages, job.device, job.secret, lambda text: tell("stage", text), forks=forks, ahead=ahead)
    tell("ready", str(torch.__version__))
    while True:
        message = incoming.get()
        trial, lost = answer(evaluator, message["text"])
        tell("trial", to_text(trial), message["number"], lost)
        if lost:
            os._exit(DEVICE_LOST)


def answer(evaluator: Evaluator, text: str) -> tuple[Trial, bool]:
    """The trial for a request's text, and whether this process is of no more use (the device's context is lost)."""
    request = from_text(Request, text)
    try:
        return evaluator.evaluate(request), False
    except Ended as error:
        return Trial(request.candidate, error.verdict, ()), False
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


def _start(function: Callable[..., None], *arguments: object) -> None:
    threading.Thread(target=function, args=arguments, daemon=True).start()


def _read(source: BinaryIO, incoming: queue.SimpleQueue[Any], ahead: Compilers | None, over: Callable[[], None]) -> None:
    """Passes requests on; the end of the pipe is the end of the parent's interest."""
    for text in source:
        message = json.loads(text)
        if message["kind"] == "request":
            incoming.put(message)
        elif ahead is not None:
            ahead.expect([from_text(Request, message["text"])])
    over()
