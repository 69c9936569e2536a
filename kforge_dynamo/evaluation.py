"""The worker as the search sees it: a miss, a candidate, a stage, so many seconds; back comes a trial."""

from __future__ import annotations

import tempfile
import threading
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Protocol, TypeVar

import torch
from torch._inductor import list_mode_options

from kforge_dynamo.errors import SettingsError
from kforge_dynamo.forge import Evaluate, Miss
from kforge_dynamo.records.assignment import Assignment
from kforge_dynamo.records.candidate import Candidate
from kforge_dynamo.records.outcome import Trial
from kforge_dynamo.records.request import STAGES, Request
from kforge_dynamo.records.target import Numerics, Target
from kforge_dynamo.sandbox.profile.external import Place, complete
from kforge_dynamo.sandbox.profile.instruments import BY_NAME as INSTRUMENTS_BY_NAME
from kforge_dynamo.sandbox.worker import Worker
from kforge_dynamo.settings import worker_environment

R = TypeVar("R")
_LANGUAGES = "kforge_dynamo.languages.table:LANGUAGES"
_IDLE_S = 20.0
_DAY_S = 86400.0
GRACE_S = 5.0  # the worker keeps its own deadline; past this it is taken to hang


class Judge(Protocol):
    """What evaluates the candidates of one search."""

    def wait(self) -> None:
        """Returns when it is ready. Raises: ToolchainError when it cannot be."""

    def bound(self, mode: str, inductor: str, numerics: Numerics) -> Evaluate:
        """See `Evaluator.bound`."""


class Crew(Protocol):
    """Evaluators on several devices or machines, which do several searches at once."""

    def each(self, works: Sequence[tuple[str, Callable[[Judge], R]]]) -> list[R]:
        """Does every work with a judge on a device of the name beside it; the results in the same order."""


@dataclass(frozen=True, slots=True)
class Order:
    """How a single candidate is judged: `stage`, `mode` and `profile` as in `Request`, with timing or without, for so many
    seconds."""

    stage: str
    time: bool
    seconds: float
    mode: str
    profile: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        if self.stage not in STAGES:
            raise SettingsError(f"stage {self.stage!r}: expected one of {', '.join(STAGES)}")
        if not 0 < self.seconds <= _DAY_S:
            raise SettingsError(f"timeout {self.seconds:g}: expected more than 0 and at most {_DAY_S:.0f} seconds")
        if self.mode != "default" and self.mode not in list_mode_options():
            raise SettingsError(f"mode {self.mode!r}: expected default, {', '.join(list_mode_options())}")
        unknown = [name for name in self.profile if name not in INSTRUMENTS_BY_NAME]
        if unknown:
            raise SettingsError(f"instrument {unknown[0]!r}: expected some of {', '.join(INSTRUMENTS_BY_NAME)}")


@dataclass(frozen=True, slots=True)
class _Asking:
    """`forge.Evaluate` for one compile, which can also be told what comes next (`forge.Expecting`)."""

    worker: Worker
    request: Callable[[Miss, Candidate, str, float], Request]

    def __call__(self, miss: Miss, candidate: Candidate, stage: str, seconds: float) -> Trial:
        return self.worker.evaluate(self.request(miss, candidate, stage, seconds), seconds + GRACE_S)

    def expect(self, miss: Miss, candidates: Sequence[Candidate]) -> None:
        self.worker.expect([self.request(miss, candidate, "search", _DAY_S) for candidate in candidates])


class Evaluator:
    """One worker for one device, started when it is first needed. Calls from several threads take turns.

    `device` is torch's name with its index ("cpu", "cuda:1"); the worker sees the same devices as this process. It ends when
    nobody has needed it for a while: graphs are often compiled one after another, and its start takes seconds.
    """

    def __init__(self, target: Target, device: str) -> None:
        self._target, self._device = target, device
        self._worker = Worker(worker_environment, device, torch.get_num_threads(), _LANGUAGES)
        self._folder = tempfile.TemporaryDirectory(prefix="kforge-trials-", ignore_cleanup_errors=True)
        self._rest: threading.Timer | None = None

    def start(self) -> None:
        """Starts the worker and returns at once."""
        self._stay()
        self._worker.start()

    def wait(self) -> None:
        """Returns when the worker is ready. Raises: ToolchainError when it cannot be started."""
        self._stay()
        self._worker.wait()

    def bound(self, mode: str, inductor: str, numerics: Numerics) -> Evaluate:
        """`evaluate` for one compile: the baseline is compiled under `mode` and the options in the JSON text `inductor`."""

        def request(miss: Miss, candidate: Candidate, stage: str, seconds: float) -> Request:
            return request_of(miss, candidate, stage, seconds, self._target, numerics, mode, inductor, self._folder.name)

        return _Asking(self._worker, request)

    def judge(self, assignment: Assignment, candidate: Candidate, order: Order) -> Trial:
        """The trial of one candidate for a task that stands by itself. Raises: ToolchainError without a worker."""
        request = Request(
            task=assignment.task,
            sizes=assignment.sizes,
            domain=assignment.domain,
            candidate=candidate,
            target=self._target,
            numerics=assignment.numerics,
            mode=order.mode,
            inductor="{}",
            stage=order.stage,
            artifact_folder=self._folder.name,
            time=order.time,
            deadline_s=order.seconds,
            memory_bytes=None,
            profile=order.profile,
        )
        self.wait()
        trial = self._worker.evaluate(request, order.seconds + GRACE_S)
        return complete(
            trial, request, Place(worker_environment, self._device, torch.get_num_threads(), _LANGUAGES), order.seconds
        )

    def rest(self) -> None:
        """Ends the worker after a while, unless it is needed again before."""
        self._stay()
        self._rest = threading.Timer(_IDLE_S, self._worker.close)
        self._rest.daemon = True
        self._rest.start()

    def close(self) -> None:
        """Ends the worker now; the next evaluation starts another."""
        self._stay()
        self._worker.close()

    def _stay(self) -> None:
        if self._rest is not None:
            self._rest.cancel()


def request_of(
    miss: Miss,
    candidate: Candidate,
    stage: str,
    seconds: float,
    target: Target,
    numerics: Numerics,
    mode: str,
    inductor: str,
    folder: str,
) -> Request:
    """The request of a search for one trial of `candidate`, built below `folder`."""
    return Request(
        task=miss.task,
        sizes=miss.sizes,
        domain=miss.domain,
        candidate=candidate,
        target=target,
        numerics=numerics,
        mode=mode,
        inductor=inductor,
        stage=stage,
        artifact_folder=folder,
        time=True,
        deadline_s=seconds,
        memory_bytes=None,
    )


_EVALUATORS: dict[str, Evaluator] = {}
_lock = threading.Lock()


def evaluator_for(target: Target, device: str) -> Evaluator:
    """The evaluator of a device, one a process."""
    name = f"{device} {target.name}"
    with _lock:
        if name not in _EVALUATORS:
            _EVALUATORS[name] = Evaluator(target, device)
        return _EVALUATORS[name]


def rest() -> None:
    """Lets the workers end when they are not needed again soon."""
    with _lock:
        for evaluator in _EVALUATORS.values():
            evaluator.rest()
