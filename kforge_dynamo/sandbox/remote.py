"""The judge's side of runners: starts one for a candidate, asks it within the deadline, and turns its end into a verdict."""

from __future__ import annotations

import contextlib
import math
import os
import selectors
import socket
import threading
import time
from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import torch

from kforge_dynamo.errors import BuildError, GuardrailError, RecordError, ToolchainError
from kforge_dynamo.records.codec import to_text
from kforge_dynamo.records.outcome import Status, Verdict
from kforge_dynamo.records.request import Request
from kforge_dynamo.sandbox.arena import Arena, lay_out, tensor_at
from kforge_dynamo.sandbox.baseline import anchor_of
from kforge_dynamo.sandbox.confine import Fact
from kforge_dynamo.sandbox.forks import Forks
from kforge_dynamo.sandbox.pipes import drain, ended, last_words, line, message
from kforge_dynamo.sandbox.timing import Check, Contest, Taken
from kforge_dynamo.sandbox.watch import LaunchFault
from kforge_dynamo.semantics.evaluate import dtype_of, shape_of

_SLACK_S = 1e-3
_CPU = torch.device("cpu")
_ERRORS = {
    "guardrail": GuardrailError,
    "launch": LaunchFault,
    "build": BuildError,
    "toolchain": ToolchainError,
    "record": RecordError,
}

Reply = dict[str, Any]


class Ended(Exception):
    """A runner gave no answer; `verdict` says why."""

    def __init__(self, verdict: Verdict) -> None:
        super().__init__(verdict.evidence)
        self.verdict = verdict


@dataclass(slots=True)
class Clock:
    """When a trial must be over, and what is being done at the moment."""

    end: float
    seconds: float
    stage: str = "start"

    @classmethod
    def of(cls, seconds: float) -> Clock:
        """From now on."""
        return cls(time.monotonic() + seconds, seconds)


class Runner:
    """One process for one candidate. Raises `Ended`, and the errors of building, from every method that asks."""

    def __init__(self, forks: Forks, clock: Clock) -> None:
        self._forks, self._clock = forks, clock
        self._channel, theirs = socket.socketpair()
        read, write = os.pipe()
        self.arena = Arena.fresh()
        self._printed: deque[str] = deque(maxlen=40)
        self._code: int | None = None
        self._asked, self._buffer = 0, bytearray()
        self._words = os.fdopen(read, "rb")
        self.facts: list[Fact] = []
        try:
            self._child = forks.fork("runner", {}, (theirs.fileno(), write, self.arena.descriptor))
        finally:
            theirs.close()
            os.close(write)
        self._alive: int | None = None
        with contextlib.suppress(OSError, AttributeError):  # a kernel before 5.3: the end of the channel is the sign
            self._alive = os.pidfd_open(self._child)
        self._drain = threading.Thread(target=drain, args=(self._words, self._printed), daemon=True)
        self._drain.start()

    def begin(self, request: Request, task_bytes: int, threads: int, traced: bool) -> None:
        """Lets it build and load the candidate, and returns at once. Where it is `traced` it may write what a profiler saw."""
        text = to_text(request)
        self._tell({"do": "open", "request": text, "bytes": task_bytes, "threads": threads, "traced": traced})

    def opened(self) -> None:
        """Returns when the candidate is built and loaded."""
        self.facts = [(str(name), reason) for name, reason in self._reply().get("facts", ())]

    def ask(self, request: Reply) -> Reply:
        """The answer to a request."""
        self._tell(request)
        return self._reply()

    def close(self) -> None:
        """Ends the process and everything that it left behind."""
        self._channel.close()
        if self._alive is not None:
            os.close(self._alive)
        with contextlib.suppress(ToolchainError):  # the forking process has ended, and its children with it
            self._end()
        self._drain.join(timeout=1.0)
        if not self._drain.is_alive():
            self._words.close()
        self.arena.close()

    def _end(self) -> int:
        if self._code is None:
            self._code = self._forks.end(self._child)
        return self._code

    def _tell(self, request: Reply) -> None:
        self._asked += 1
        view = memoryview(line(request | {"number": self._asked}))
        self._channel.setblocking(False)
        while view:
            if not self._wait(selectors.EVENT_WRITE):
                raise Ended(self._late())
            try:
                view = view[self._channel.send(view) :]
            except BlockingIOError:
                continue
            except OSError:
                raise Ended(self._death()) from None

    def _reply(self) -> Reply:
        while True:
            found = message(self._buffer)
            if found is None:
                raise Ended(self._verdict(Status.RUNTIME_ERROR, "the kernel's process wrote something that is no message"))
            if found:
                if found.get("number") != self._asked:
                    raise Ended(self._verdict(Status.RUNTIME_ERROR, "the kernel's process answered what nobody asked"))
                if "error" in found:
                    self._raise(str(found["error"]), str(found.get("words")))
                return found
            if not self._wait(selectors.EVENT_READ):
                raise Ended(self._late())
            try:
                chunk = self._channel.recv(1 << 16)
            except BlockingIOError:
                continue
            except OSError:
                chunk = b""
            if not chunk:
                raise Ended(self._death())
            self._buffer += chunk

    def _raise(self, kind: str, words: str) -> None:
        if kind in _ERRORS:
            raise _ERRORS[kind](words)
        raise Ended(Verdict(Status.RUNTIME_ERROR, None, None, "worker", words[-2000:]))

    def _wait(self, event: int) -> bool:
        """Whether the channel is ready before the deadline. Raises: Ended when the process is over and left nothing to read."""
        with selectors.DefaultSelector() as selector:
            selector.register(self._channel, event)
            if self._alive is not None:  # what it forked may hold the channel open
                selector.register(self._alive, selectors.EVENT_READ)
            ready = {key.fileobj for key, _ in selector.select(max(0.0, self._clock.end - time.monotonic()))}
        if ready and self._channel not in ready:
            raise Ended(self._death())
        return bool(ready)

    def _late(self) -> Verdict:
        words = f"no answer within {self._clock.seconds:.1f} s; it was at: {self._clock.stage}"
        return self._verdict(Status.TIMEOUT, words)

    def _death(self) -> Verdict:
        how = ended(self._end())
        self._drain.join(timeout=1.0)
        words = f"the kernel's process {how}, at: {self._clock.stage}. Its last words:\n{last_words(self._printed)}"
        return self._verdict(Status.RUNTIME_ERROR, words)

    def _verdict(self, status: Status, words: str) -> Verdict:
        return Verdict(status, None, None, "worker", words)


class RemoteLauncher:
    """A `Launcher` whose kernel runs in the runner: whole blocks of memory go there and come back, guards included."""

    def __init__(self, runner: Runner) -> None:
        self._runner = runner

    def __call__(self, inputs: Sequence[torch.Tensor], outputs: Sequence[torch.Tensor], sizes: Sequence[int]) -> None:
        """One launch. Raises: Ended."""
        self.watched(inputs, outputs, sizes, trapped=False, in_form=False)

    def watched(
        self,
        inputs: Sequence[torch.Tensor],
        outputs: Sequence[torch.Tensor],
        sizes: Sequence[int],
        *,
        trapped: bool,
        in_form: bool,
    ) -> None:
        """One launch, observed where it happens. Raises: Ended, LaunchFault."""
        places, loans, size = lay_out([*inputs, *outputs], 0)
        arena = self._runner.arena
        arena.grow(size)
        whole = arena.bytes(size)
        for loan in loans:
            whole[loan.offset : loan.offset + loan.block.numel()].copy_(loan.block)
        request = {"do": "launch", "bytes": size, "inputs": places[: len(inputs)], "outputs": places[len(inputs) :]}
        request |= {"sizes": [int(item) for item in sizes], "threads": torch.get_num_threads(), "trapped": trapped}
        request["in_form"] = in_form
        self._runner.ask(request)
        for loan in loans:
            loan.block.copy_(whole[loan.offset : loan.offset + loan.block.numel()])


@dataclass(slots=True)
class HostClock:
    """Seconds by contestant: what the runner says, and what the judge's own clock saw around it."""

    told: dict[str, list[float]] = field(default_factory=dict)
    seen: dict[str, list[float]] = field(default_factory=dict)

    def add(self, name: str, told_s: float, seen_s: float) -> None:
        """One sample."""
        self.told.setdefault(name, []).append(told_s)
        self.seen.setdefault(name, []).append(seen_s)

    def fault(self) -> str | None:
        """What cannot be true of the runner's clock, None where both agree.

        No sample takes longer than the judge waited for it. And what the judge waited beyond the samples is the way there and
        back, the same for all: a candidate for which it is longer, by half of the time it claims, has its clock turned back.
        """
        for name, told in self.told.items():
            if any(mine > theirs for mine, theirs in zip(told, self.seen[name], strict=True)):
                return f"the kernel's process claims more time for {name} than passed outside"
        others = [name for name in self.told if name != "candidate"]
        if not others or "candidate" not in self.told:
            return None
        usual = max(self._way(name) for name in others)
        own, claimed = self._way("candidate"), sorted(self.told["candidate"])[len(self.told["candidate"]) // 2]
        if own > usual + 0.5 * claimed + _SLACK_S:
            return f"a sample of {claimed * 1e6:.0f} us took {(own + claimed) * 1e6:.0f} us outside the kernel's process"
        return None

    def _way(self, name: str) -> float:
        """The median of what the judge waited beyond a sample."""
        over = sorted(seen - told for told, seen in zip(self.told[name], self.seen[name], strict=True))
        return over[len(over) // 2]


class RemoteTrack:
    """A `race.Track` over a runner: sets of inputs are handed over once, the last outputs of a sample come back."""

    def __init__(self, runner: Runner, request: Request, threads: int) -> None:
        axes = dict(zip(request.task.axes, request.sizes, strict=True))
        specs = [request.task.value(number) for number in request.task.outputs]
        outputs = [torch.empty([int(e) for e in shape_of(item.shape, axes)], dtype=dtype_of(item.dtype)) for item in specs]
        self._runner, self._threads = runner, threads
        self._names = ("candidate", "region") + (("anchor",) if anchor_of(request.task) is not None else ())
        self._places, _, self._size = lay_out(outputs, 0)
        self._count = 0
        self._clock = HostClock()

    def first(self, inputs: list[torch.Tensor]) -> Sequence[torch.Tensor]:
        """Hands over the next set of inputs, and has the candidate run on it. Raises: Ended."""
        self._runner.ask({"do": "stand", "stand": self._count} | self._lent(inputs))
        self._count += 1
        outputs = self._sample("candidate", 1, self._count - 1).outputs
        self._clock = HostClock()  # the first call of a kernel is no measure
        return outputs

    def again(self, inputs: list[torch.Tensor]) -> Sequence[torch.Tensor]:
        """The candidate's outputs for these values at the addresses of the first set. Raises: Ended."""
        self._runner.ask({"do": "again", "outputs": self._places} | self._lent(inputs))
        whole = self._runner.arena.bytes(self._size)
        return [tensor_at(whole, where) for where in self._places]

    def _lent(self, inputs: list[torch.Tensor]) -> Reply:
        """Copies tensors into the arena; where they lie."""
        places, loans, size = lay_out(inputs, self._size)
        self._runner.arena.grow(size)
        whole = self._runner.arena.bytes(size)
        for loan in loans:
            whole[loan.offset : loan.offset + loan.block.numel()].copy_(loan.block)
        return {"bytes": size, "inputs": places}

    def contest(self, rotation: int, check: Check) -> Contest:
        """The contest; its samples are taken by the runner."""
        return Contest(dict.fromkeys(self._names, _elsewhere), rotation, check, _CPU, self._sample)

    def fault(self) -> str | None:
        """What the judge's own clock says against the runner's, of the samples since the last such question."""
        clock, self._clock = self._clock, HostClock()
        return clock.fault()

    def _sample(self, name: str, count: int, turn: int) -> Taken:
        """One sample. The outputs are those of the candidate, in shared memory until the next one. Raises: Ended."""
        request = {"do": "sample", "name": name, "count": count, "turn": turn, "threads": self._threads}
        start = time.perf_counter()
        reply = self._runner.ask(request | {"bytes": self._size, "outputs": self._places})
        seen_s = time.perf_counter() - start
        try:
            seconds, waited_s = float(reply["seconds"]), float(reply["waited_s"])
        except (KeyError, TypeError, ValueError) as error:
            words = f"the kernel's process answered a sample without its numbers ({error})"
            raise Ended(Verdict(Status.RUNTIME_ERROR, None, None, "worker", words)) from error
        if not 0.0 < seconds < math.inf or not waited_s >= 0.0:
            raise Ended(Verdict(Status.TOO_FAST, None, None, "timing", f"the kernel's process claims a sample of {seconds} s"))
        self._clock.add(name, seconds, seen_s)
        whole = self._runner.arena.bytes(self._size)
        outputs = [tensor_at(whole, where) for where in self._places] if name == "candidate" else []
        return Taken(seconds, waited_s, (turn + count - 1) % self._count, outputs)


def _elsewhere(_: int) -> Sequence[torch.Tensor]:
    raise NotImplementedError("the contestants of this contest run in a runner")
