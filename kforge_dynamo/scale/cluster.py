"""Seats on the machines of a Ray cluster: one actor a device. Ray carries texts of ours alone, and is imported here alone.

An actor is trusted as this process is: it runs kforge's own code, and starts the sandbox's worker beside it, which runs the
candidates. Who can reach a Ray cluster can run code on it; keep it on a network of your own, with Ray's token authentication.
Source: Ray, "Security" and "Fault tolerance: actors" of its documentation (2.60).
"""

from __future__ import annotations

import contextlib
import logging
from typing import TYPE_CHECKING, Any

import torch

from kforge_dynamo.errors import KforgeError, LostError, RecordError, SettingsError, ToolchainError
from kforge_dynamo.evaluation import GRACE_S
from kforge_dynamo.records.codec import from_text, to_text
from kforge_dynamo.records.outcome import Trial
from kforge_dynamo.records.request import Request
from kforge_dynamo.scale.seats import LocalSeat, Place

if TYPE_CHECKING:
    from types import ModuleType

_START_S = 240.0  # an actor imports torch, and its worker does so again
_log = logging.getLogger("kforge")


class Evaluator:
    """The actor: a seat on the device that Ray gave to this process."""

    def __init__(self, device: str, threads: int) -> None:
        torch.set_num_threads(threads)
        self._seat = LocalSeat(device if device == "cpu" else f"{device}:0")  # Ray shows an actor its own GPU alone

    def place(self) -> str:
        """The seat's place as text."""
        return to_text(self._seat.place)

    def evaluate(self, request: str) -> str:
        """From the text of a request to that of its trial."""
        return to_text(self._seat.evaluate(from_text(Request, request)))


class ClusterSeat:
    """An actor as a seat."""

    def __init__(self, ray: ModuleType, actor: Any, name: str) -> None:
        self._ray, self._actor, self.name = ray, actor, name
        self.place: Place = self._read(Place, self._ask(actor.place.remote(), _START_S))

    def evaluate(self, request: Request) -> Trial:
        """See `Seat`."""
        limit_s = _START_S + request.deadline_s + 2 * GRACE_S
        trial: Trial = self._read(Trial, self._ask(self._actor.evaluate.remote(to_text(request)), limit_s))
        return trial

    def close(self) -> None:
        """Ends the actor; its worker sees its parent gone and ends too."""
        with contextlib.suppress(self._ray.exceptions.RayError):  # it, its machine or the cluster may be gone already
            self._ray.kill(self._actor)

    def _ask(self, reference: Any, limit_s: float) -> str:
        try:
            answer = self._ray.get(reference, timeout=limit_s)
        except self._ray.exceptions.RayError as error:  # a dead actor or machine, a silence, an error of its own
            raise LostError(f"{type(error).__name__}: {' '.join(str(error).split())[-300:]}") from error
        if not isinstance(answer, str):
            raise LostError(f"it answered with a {type(answer).__name__}")
        return answer

    def _read(self, kind: Any, text: str) -> Any:
        try:
            return from_text(kind, text)
        except RecordError as error:
            raise LostError(f"its answer is none: {error}") from error


def cluster_seats(address: str, device: str, a_machine: int | None = None) -> list[ClusterSeat]:
    """A seat for every GPU of the cluster at `address` ("auto": the one this machine belongs to), or for every machine's CPU.

    `a_machine` seats a machine are taken where it is given. A seat that cannot be started is said and left out.
    Raises: SettingsError without Ray or without a cluster there; ToolchainError where no seat could be started.
    """
    ray = _connected(address)
    unit = "GPU" if device == "cuda" else "CPU"
    threads = torch.get_num_threads()
    seats: list[ClusterSeat] = []
    started = []
    for node in ray.nodes():
        has = int(node["Resources"].get(unit, 0)) if node["Alive"] else 0
        count = a_machine if a_machine is not None else has if device == "cuda" else min(has, 1)
        for index in range(min(count, has)):
            on = ray.util.scheduling_strategies.NodeAffinitySchedulingStrategy(node["NodeID"], soft=False)
            needs = {"num_gpus": 1, "num_cpus": 0} if device == "cuda" else {"num_cpus": 1}
            actor = ray.remote(Evaluator).options(max_restarts=0, scheduling_strategy=on, **needs).remote(device, threads)
            started.append((actor, f"{node['NodeManagerHostname']} {unit} {index}"))
    for actor, name in started:  # all of them start at the same time
        try:
            seats.append(ClusterSeat(ray, actor, name))
        except KforgeError as error:
            _log.warning("%s is not used: %s", name, error)
            ray.kill(actor)
    if not seats:
        raise ToolchainError(f"the cluster at {address!r} has no evaluator for {device!r}; `ray status` shows what it has")
    return seats


def _connected(address: str) -> Any:
    try:
        import ray
        import ray.util.scheduling_strategies
    except ImportError as error:
        raise SettingsError(f"--ray needs Ray ({error}); pip install 'kforge-dynamo[ray]'") from error
    if not ray.is_initialized():
        try:
            ray.init(address=address, log_to_driver=False)
        except (ConnectionError, ValueError, RuntimeError) as error:
            words = " ".join(str(error).split())[:200]
            raise SettingsError(f"no Ray cluster answers at {address!r} ({words}); `ray start --head` starts one") from error
    return ray
