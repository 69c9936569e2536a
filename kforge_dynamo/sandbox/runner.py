"""The process of one candidate on a CPU: builds it, loads it, launches it on memory that the judge hands over.

It is forked for this candidate alone, gives up its rights step by step (`confine`), and knows neither the truth nor the seeds.
What it answers is believed only as far as the judge can check it: outputs are compared there, and times with the judge's clock.
"""

from __future__ import annotations

import os
import time
import traceback
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, cast

import torch

from kforge_dynamo.errors import BuildError, GuardrailError, RecordError, ToolchainError
from kforge_dynamo.languages.base import Language, Launcher, canonical_dims
from kforge_dynamo.records.codec import from_text, to_text
from kforge_dynamo.records.guardrail import ALL
from kforge_dynamo.records.request import Request
from kforge_dynamo.sandbox.arena import Arena, Where, private_copy, tensor_at
from kforge_dynamo.sandbox.bench import Bench
from kforge_dynamo.sandbox.candidate_call import CandidateCall, candidate_call
from kforge_dynamo.sandbox.confine import Bounds, Fact, confine_builder, confine_runner
from kforge_dynamo.sandbox.inputs import Seeds
from kforge_dynamo.sandbox.lasting import form_of
from kforge_dynamo.sandbox.pipes import line, message
from kforge_dynamo.sandbox.precision import set_flags
from kforge_dynamo.sandbox.profile.calls import bound_call
from kforge_dynamo.sandbox.profile.torch_profiler import profile_calls
from kforge_dynamo.sandbox.race import Rivals, calls_of, overwrite
from kforge_dynamo.sandbox.timing import Sampler, sampler
from kforge_dynamo.sandbox.watch import Form, LaunchFault, observed, written_memory
from kforge_dynamo.settings import sandbox_without, use_temporary_folder

_EVIDENCE_LINES = 6
_KINDS = (
    (GuardrailError, "guardrail"),
    (LaunchFault, "launch"),
    (BuildError, "build"),
    (ToolchainError, "toolchain"),
    (RecordError, "record"),
)
_CPU = torch.device("cpu")

Message = dict[str, Any]


def serve(languages: Mapping[str, Language], rivals: Rivals | None, fds: Sequence[int]) -> None:
    """Answers the judge until it hangs up. `fds`: the channel, where to print, and the arena."""
    channel, words, memory = fds
    os.dup2(words, 1)
    os.dup2(words, 2)
    os.close(words)
    runner = _Runner(languages, rivals, Arena(memory))
    buffer = bytearray()
    while True:
        request = message(buffer)
        if request is None:
            return
        if not request:
            chunk = os.read(channel, 1 << 16)
            if not chunk:
                return
            buffer += chunk
            continue
        reply = _answered(runner, request)
        view = memoryview(line(reply | {"number": request["number"]}))
        while view:
            view = view[os.write(channel, view) :]


def _answered(runner: _Runner, request: Message) -> Message:
    try:
        return cast(Message, getattr(runner, f"do_{request['do']}")(request))
    except Exception as error:  # noqa: BLE001 (the border: what a candidate or a compiler raises is data for the judge)
        kind = next((name for known, name in _KINDS if isinstance(error, known)), "other")
        words = str(error) if kind != "other" else "".join(traceback.format_exception(error)[-_EVIDENCE_LINES:])
        return {"error": kind, "words": words[-4000:]}


class _Runner:
    def __init__(self, languages: Mapping[str, Language], rivals: Rivals | None, arena: Arena) -> None:
        self._languages, self._rivals, self._arena = languages, rivals, arena
        self._launch: Launcher | None = None
        self._call: CandidateCall | None = None
        self._before = ""
        self._form: Form | None = None
        self._request: Request | None = None
        self._stands: dict[int, list[torch.Tensor]] = {}
        self._sample: Sampler | None = None

    def do_open(self, asked: Message) -> Message:
        """Builds and loads the candidate of a request; with rivals also their first calls, before it is there."""
        request = self._request = from_text(Request, asked["request"])
        torch.set_num_threads(asked["threads"])
        set_flags(request.numerics)
        without = sandbox_without()
        bounds = Bounds(asked["bytes"], asked["threads"], request.deadline_s, request.artifact_folder)
        candidate = request.candidate
        language = self._languages[candidate.language]
        folder = Path(request.artifact_folder)
        folder.mkdir(parents=True, exist_ok=True)
        os.chdir(folder)
        use_temporary_folder(str(folder))
        start = time.monotonic()
        facts: list[Fact] = confine_builder(bounds, without)
        artifact = language.build(candidate, request.task, request.target, folder)
        built_s = time.monotonic() - start
        write = []
        if asked["traced"]:  # a profiler writes what it saw
            write.append(str(folder / "traces"))
            Path(write[0]).mkdir(exist_ok=True)
            use_temporary_folder(write[0])
        facts += confine_runner(bounds, without, write)
        self._launch = language.load(artifact, candidate, request.task, canonical_dims(request.task))
        self._form = form_of(self._launch, request.numerics, request.sizes, candidate.plan.atomics)
        self._before = written_memory(request.artifact_folder)
        self._call = candidate_call(request.task, request.sizes, self._launch, _CPU, request.numerics)
        return {"facts": facts, "built_s": built_s}

    def do_launch(self, asked: Message) -> Message:
        """One launch on tensors in the arena."""
        assert self._launch is not None
        whole = self._arena.bytes(asked["bytes"])
        torch.set_num_threads(asked["threads"])
        inputs, outputs = ([tensor_at(whole, where) for where in asked[name]] for name in ("inputs", "outputs"))
        watched = {
            "threads": asked["threads"],
            "trapped": asked["trapped"],
            "known": frozenset[int](),
            "guards": ALL,
            "form": self._form,
            "in_form": asked["in_form"],
        }
        observed(self._launch, inputs, outputs, asked["sizes"], **watched)
        return {}

    def do_wrote(self, asked: Message) -> Message:
        """Whether launches wrote to memory of the library."""
        assert self._request is not None
        return {"wrote": written_memory(self._request.artifact_folder) != self._before}

    def do_again(self, asked: Message) -> Message:
        """One call on other values at the addresses of the first set."""
        assert self._call is not None
        whole = self._arena.bytes(asked["bytes"])
        overwrite(self._stands[0], [tensor_at(whole, where) for where in asked["inputs"]])
        if self._call.wrote():
            raise LaunchFault("a timed call wrote to what weights_only launches prepared, which outlives it [rule state]")
        self._call.forget()
        for where, value in zip(asked["outputs"], self._call(self._stands[0]), strict=True):
            tensor_at(whole, cast(Where, where)).copy_(value)
        return {}

    def do_profile(self, asked: Message) -> Message:
        """What torch's profiler sees of the kernel."""
        assert self._launch is not None and self._request is not None
        bench = Bench(self._request.task, self._request.numerics, _CPU, Seeds(os.urandom(16)))
        return {"text": to_text(profile_calls(bound_call(self._request, self._launch, bench), "cpu"))}

    def do_stand(self, asked: Message) -> Message:
        """Keeps one set of inputs for timed calls, in memory of this process."""
        whole = self._arena.bytes(asked["bytes"])
        self._stands[asked["stand"]] = [private_copy(whole, where) for where in asked["inputs"]]
        self._sample = None
        return {}

    def do_sample(self, asked: Message) -> Message:
        """Timed calls of a contestant; the last outputs of the candidate go to the arena."""
        torch.set_num_threads(asked["threads"])
        if self._sample is None:
            assert self._call is not None
            stands = [self._stands[number] for number in sorted(self._stands)]
            calls = calls_of(self._call, self._rivals, stands)
            self._sample = sampler(calls, len(stands), _CPU)
        taken = self._sample(asked["name"], asked["count"], asked["turn"])
        whole = self._arena.bytes(asked["bytes"])
        if asked["name"] == "candidate":
            for where, value in zip(asked["outputs"], taken.outputs, strict=True):
                tensor_at(whole, cast(Where, where)).copy_(value)
        return {"seconds": taken.seconds, "waited_s": taken.waited_s, "last": taken.last}
