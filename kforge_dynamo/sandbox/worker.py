"""The parent's side of the sandbox: starts the worker program, asks it, and turns its death or silence into a verdict."""

from __future__ import annotations

import contextlib
import logging
import os
import selectors
import signal
import subprocess
import sys
import threading
import time
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import BinaryIO

from kforge_dynamo.errors import RecordError, ToolchainError
from kforge_dynamo.records.codec import from_text, to_text
from kforge_dynamo.records.outcome import Status, Trial, Verdict
from kforge_dynamo.records.request import Request
from kforge_dynamo.sandbox.pipes import KEPT_LINES, drain, ended, last_words, line, message

Environment = Callable[[], Mapping[str, str]]
"""The whole environment of the child. Must switch kforge off in it; what would change Triton's mode is removed here."""

_NEVER_INHERITED = ("TRITON_INTERPRET", "PYTHONSTARTUP", "PYTHONINSPECT")
_log = logging.getLogger("kforge")
_READY_S = 180.0
_LOOK_S = 0.5  # how long a death without a closed pipe may go unnoticed
_LAST_WORDS_S = 0.2
_TOLD = 300


@dataclass(slots=True)
class _Running:
    """A started worker: the process, its two pipes, and what it printed last."""

    process: subprocess.Popen[bytes]
    requests: BinaryIO
    answers: int
    printed: deque[str]
    drain: threading.Thread
    owner: int
    asked: int = 0
    stage: str = "start"
    ready: bool = False
    buffer: bytearray = field(default_factory=bytearray)


@dataclass(frozen=True, slots=True)
class _End:
    """Why no answer came. With `replaced` the program has another judge in place already."""

    status: Status
    words: str
    replaced: bool = False


class Worker:
    """One worker process for one device; started at once by `start`, else by the first request, and again after a death.

    `languages` is "module:name" of the mapping of languages in the child; `device` torch's name of the device there
    ("cuda:0" where `environment` narrows the visible devices); `threads` torch's number of threads. One thread at a time
    may call it; others wait.
    """

    def __init__(
        self, environment: Environment, device: str, threads: int, languages: str = "kforge_dynamo.languages.table:LANGUAGES"
    ) -> None:
        self._environment, self._device, self._threads, self._languages = environment, device, threads, languages
        self._running: _Running | None = None
        self._lock = threading.RLock()

    def start(self) -> None:
        """Starts the process and returns at once; it imports torch while the caller goes on."""
        with self._lock:
            if self._running is not None and self._running.owner != os.getpid():
                self._running = None  # this process was forked: the worker is its parent's
            if self._running is not None and self._running.process.poll() is not None:
                self._stop()
            if self._running is None:
                self._running = self._launch()

    def wait(self) -> None:
        """Returns when the process is ready for requests. Raises: ToolchainError when it cannot be started."""
        with self._lock:
            self._ready()

    def evaluate(self, request: Request, timeout_s: float) -> Trial:
        """The worker's trial. After `timeout_s` (not counting the worker's own start) the process group is killed.

        Raises: ToolchainError when the worker cannot be started at all.
        """
        with self._lock:
            running = self._ready()
            running.asked += 1
            try:
                running.requests.write(line({"kind": "request", "number": running.asked, "text": to_text(request)}))
                running.requests.flush()
            except OSError:
                return self._over(request, self._death(running))
            end = self._await(running, "trial", timeout_s)
            if isinstance(end, _End):
                return self._over(request, end)
            try:
                trial = from_text(Trial, str(end["text"]))
            except (RecordError, KeyError) as error:
                return self._over(request, _End(Status.RUNTIME_ERROR, f"the worker's answer is not a trial: {error}"))
            if end.get("last"):
                self._stop()
            _log.debug("worker: %s (%s): %s", trial.verdict.status.value, _name(trial), trial.verdict.evidence[:_TOLD])
            return trial

    def expect(self, requests: Sequence[Request]) -> None:
        """Says what will probably be asked next: a worker for a GPU compiles it meanwhile. Never waits for an answer."""
        with self._lock, contextlib.suppress(OSError):  # its death is found out by the next request
            running = self._running
            if running is None or not running.ready or self._device == "cpu":
                return
            for request in requests:
                running.requests.write(line({"kind": "expected", "number": 0, "text": to_text(request)}))
            running.requests.flush()

    def close(self) -> None:
        """Ends the process and everything it started. The worker can be used again afterwards."""
        with self._lock:
            self._stop()

    def __enter__(self) -> Worker:
        self.start()
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def _ready(self) -> _Running:
        self.start()
        running = self._running
        assert running is not None
        if running.ready:
            return running
        end = self._await(running, "ready", _READY_S)
        if isinstance(end, _End):
            self._stop()
            raise ToolchainError(f"the sandbox's worker did not start: {end.words}")
        running.ready = True
        return running

    def _over(self, request: Request, end: _End) -> Trial:
        if end.replaced and self._running is not None:
            self._running.ready = False
        else:
            self._stop()
        return Trial(request.candidate, Verdict(end.status, None, None, "worker", end.words), ())

    def _launch(self) -> _Running:
        request_read, request_write = os.pipe()
        answer_read, answer_write = os.pipe()
        command = [sys.executable, "-m", "kforge_dynamo.sandbox.jobs", "--languages", self._languages]
        command += ["--device", self._device, "--threads", str(self._threads), "--parent", str(os.getpid())]
        command += ["--read", str(request_read), "--write", str(answer_write)]
        environment = {name: value for name, value in self._environment().items() if name not in _NEVER_INHERITED}
        if self._device == "cpu":
            environment["TORCHINDUCTOR_COMPILE_THREADS"] = "1"  # a pool of compilers would be a stranger among the forks
        environment["OMP_NUM_THREADS"] = str(self._threads)
        environment["PYTHONPATH"] = os.pathsep.join(path for path in sys.path if path)
        process = subprocess.Popen(
            command,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            env=environment,
            pass_fds=(request_read, answer_write),
            start_new_session=True,  # its own process group, so that compilers it started die with it
        )
        os.close(request_read)
        os.close(answer_write)
        printed: deque[str] = deque(maxlen=KEPT_LINES)
        reader = threading.Thread(target=drain, args=(process.stdout, printed), daemon=True)
        reader.start()
        return _Running(process, os.fdopen(request_write, "wb"), answer_read, printed, reader, os.getpid())

    def _await(self, running: _Running, kind: str, timeout_s: float) -> dict[str, object] | _End:
        deadline = time.monotonic() + timeout_s
        with selectors.DefaultSelector() as selector:
            selector.register(running.answers, selectors.EVENT_READ)
            while True:
                found = message(running.buffer)
                if found is None:
                    return _End(Status.RUNTIME_ERROR, "the worker wrote something on its answer pipe that is no message")
                if found.get("kind") == kind and (kind == "ready" or found.get("number") == running.asked):
                    return found  # another number answers a request whose caller was interrupted
                if found.get("kind") == "stage":
                    running.stage = str(found.get("text"))
                    _log.debug("worker %d at %.2f s: %s", running.process.pid, time.monotonic(), running.stage)
                if found.get("kind") == "died":
                    return self._replaced(running, str(found.get("text")))
                if found:
                    continue
                left_s = deadline - time.monotonic()
                over = running.process.poll() is not None
                if not selector.select(0 if over else max(0.0, min(left_s, _LOOK_S))):
                    if over:  # a process that it forked may hold the pipe open
                        return self._death(running)
                    if left_s <= 0:
                        return _End(Status.TIMEOUT, f"no answer within {timeout_s:.1f} s; it was at: {running.stage}")
                    continue
                chunk = os.read(running.answers, 1 << 16)
                if not chunk:
                    return self._death(running)
                running.buffer += chunk

    def _death(self, running: _Running) -> _End:
        try:
            code = running.process.wait(timeout=5.0)
        except subprocess.TimeoutExpired:
            return _End(Status.RUNTIME_ERROR, f"the worker closed its answer pipe without an answer, at: {running.stage}")
        running.drain.join(timeout=1.0)
        return _End(Status.RUNTIME_ERROR, self._obituary(running, f"the worker {ended(code)}"))

    def _replaced(self, running: _Running, how: str) -> _End:
        """The judge died; the program has forked another, which will say that it is ready."""
        running.drain.join(timeout=_LAST_WORDS_S)
        return _End(Status.RUNTIME_ERROR, self._obituary(running, how), replaced=True)

    def _obituary(self, running: _Running, how: str) -> str:
        return f"{how}, at: {running.stage}. Its last words:\n{last_words(running.printed)}"

    def _stop(self) -> None:
        running, self._running = self._running, None
        if running is None:
            return
        with contextlib.suppress(ProcessLookupError):  # every process of the group may have ended already
            os.killpg(running.process.pid, signal.SIGKILL)
        running.process.wait()
        with contextlib.suppress(OSError):  # unsent bytes have no reader any more
            running.requests.close()
        os.close(running.answers)
        running.drain.join(timeout=1.0)
        if running.process.stdout is not None and not running.drain.is_alive():
            running.process.stdout.close()


def _name(trial: Trial) -> str:
    """A candidate and its time, for a log."""
    timed = "".join(f", {timing.candidate.median_us:.1f} us of {timing.region.median_us:.1f}" for timing in trial.timings[:1])
    return f"{trial.candidate.schedule or trial.candidate.scheme}{timed}"
