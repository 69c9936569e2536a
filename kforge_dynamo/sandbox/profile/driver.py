"""A program that runs one candidate, for tools that start what they watch: `python -m kforge_dynamo.sandbox.profile.driver`.

It builds or finds the candidate of a request in a file, warms it up, and then calls it a given number of times between
cudaProfilerStart and Stop (GPUs) or between "enable" and "disable" on the control pipe of `perf stat` (CPUs).
"""

from __future__ import annotations

import argparse
import importlib
import os
from collections.abc import Callable, Sequence
from pathlib import Path

import torch

from kforge_dynamo.languages.base import canonical_dims
from kforge_dynamo.records.codec import from_text
from kforge_dynamo.records.request import Request
from kforge_dynamo.sandbox.bench import Bench
from kforge_dynamo.sandbox.inputs import Seeds
from kforge_dynamo.sandbox.precision import set_flags
from kforge_dynamo.sandbox.profile.calls import bound_call

_WARM = 3
_ANSWER_BYTES = 64


def main(arguments: Sequence[str] | None = None) -> int:
    """Runs the candidate and returns 0; what goes wrong ends the program with a traceback, which the tool's output shows."""
    options = _options(arguments)
    torch.set_num_threads(options.threads)
    device = torch.device(options.device)
    request = from_text(Request, Path(options.request).read_text())
    set_flags(request.numerics)
    module, _, name = options.languages.partition(":")
    language = getattr(importlib.import_module(module), name)[request.candidate.language]
    artifact = language.build(request.candidate, request.task, request.target, Path(request.artifact_folder))
    launcher = language.load(artifact, request.candidate, request.task, canonical_dims(request.task))
    bench = Bench(request.task, request.numerics, device, Seeds(b"profile"))
    run(bound_call(request, launcher, bench), options.calls, device, tuple(options.control or ()))
    return 0


def run(call: Callable[[], object], calls: int, device: torch.device, control: tuple[int, ...]) -> None:
    """The watched calls; `control` holds the descriptors to write to and to read perf's answer from, or nothing."""
    for _ in range(_WARM):
        call()
    _drain(device)
    _switch(True, device, control)
    for _ in range(calls):
        call()
    _drain(device)
    _switch(False, device, control)


def _switch(on: bool, device: torch.device, control: tuple[int, ...]) -> None:
    if control:
        os.write(control[0], b"enable\n" if on else b"disable\n")
        os.read(control[1], _ANSWER_BYTES)
    elif device.type == "cuda":
        if on:
            torch.cuda.profiler.start()  # type: ignore[no-untyped-call]
        else:
            torch.cuda.profiler.stop()  # type: ignore[no-untyped-call]


def _drain(device: torch.device) -> None:
    if device.type == "cuda":
        torch.cuda.synchronize(device)


def _options(arguments: Sequence[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="kforge_dynamo.sandbox.profile.driver")
    parser.add_argument("--request", required=True, help="file with the text of a request")
    parser.add_argument("--languages", required=True, help="MODULE:NAME of the mapping from names to languages")
    parser.add_argument("--device", required=True)
    parser.add_argument("--threads", type=int, required=True)
    parser.add_argument("--calls", type=int, required=True)
    parser.add_argument("--control", type=int, nargs=2, help="descriptors of perf's control pipe: to it, from it")
    return parser.parse_args(arguments)


if __name__ == "__main__":
    raise SystemExit(main())
