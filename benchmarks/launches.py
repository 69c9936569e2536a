"""The host's share of a winner's call in Triton, without a GPU: `python -m benchmarks.launches`.

Runs plans of one and of three launches (scratch, a tensor descriptor) over `driver_stub`: Triton's own launcher, on a driver
that starts nothing. What is left out is the driver's own time for a launch, which no way of calling it changes.
"""

from __future__ import annotations

import argparse
import json
import os
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch

from benchmarks.driver_stub import Stub, aligned, compiler
from benchmarks.place import place
from kforge_dynamo.languages import triton_direct
from kforge_dynamo.languages.base import canonical_dims
from kforge_dynamo.languages.triton import LANGUAGE
from kforge_dynamo.languages.triton_calls import TritonLauncher
from kforge_dynamo.records.candidate import Buffer, Candidate, Launch, LaunchPlan
from kforge_dynamo.records.target import Target
from kforge_dynamo.records.task import InputRole, InputSpec, Node, Task, ValueSpec

_SOURCE = """import triton
import triton.language as tl


@triton.jit
def pointers(in0, in1, in2, out0, n_m, pitch, N: tl.constexpr, BLOCK: tl.constexpr):
    row = tl.program_id(0).to(tl.int64)
    column = tl.arange(0, BLOCK)
    mask = (row < n_m) & (column < N)
    x = tl.load(in0 + row * pitch + column, mask=mask, other=0.0) + tl.load(in2 + column, mask=column < N, other=0.0)
    tl.store(out0 + row * N + column, x + tl.load(in1 + column), mask=mask)


@triton.jit
def described(in1, part, n_m, N: tl.constexpr, ROWS: tl.constexpr, BLOCK: tl.constexpr):
    x = in1.load([tl.program_id(0) * ROWS, 0])
    row = tl.program_id(0) * ROWS + tl.arange(0, ROWS)[:, None]
    column = tl.arange(0, BLOCK)[None, :]
    tl.store(part + row * N + column, x, mask=(row < n_m) & (column < N))


@triton.jit
def reduced(part, out0, n_m, N: tl.constexpr, BLOCK: tl.constexpr):
    row = tl.program_id(0).to(tl.int64)
    column = tl.arange(0, BLOCK)
    mask = (row < n_m) & (column < N)
    tl.store(out0 + row * N + column, tl.load(part + row * N + column, mask=mask, other=0.0), mask=mask)
"""
_HOPPER = Target("cuda", "nvidia", "NVIDIA H200", "sm_90", 132, 232448, None, ("tma",), ())
_WIDE = (("N", 64), ("BLOCK", 64))


def task() -> Task:
    """A linear layer with a bias, `(M, 64)` to `(M, 64)`."""
    row, bias = ValueSpec("float32", ("m",), (64,)), ValueSpec("float32", (1,), (64,))
    inputs = (
        InputSpec(row, ("pitch", 1), InputRole.LHS),
        InputSpec(ValueSpec("float32", (1,), (64, 64)), (0, "dense", 1), InputRole.RHS),
        InputSpec(bias, (0, 1), InputRole.EXTRA),
    )
    node = Node("gemm", (0, 1, 2), (("alpha", 1.0), ("beta", 1.0)), row)
    return Task(("m",), (), inputs, (node,), (3,))


def plans() -> dict[str, LaunchPlan]:
    """What is timed."""
    one = Launch("pointers", ("m",), ("in:0", "in:1", "in:2", "out:0", "size:m", "stride:0:0"), _WIDE)
    described = Launch(
        "described",
        ("cdiv(m, 16)",),
        ("desc:in:1:64:64:64:16:64", "buf:part", "size:m"),
        (("N", 64), ("ROWS", 16), ("BLOCK", 64)),
    )
    reduced = Launch("reduced", ("m",), ("buf:part", "out:0", "size:m"), _WIDE)
    return {
        "one launch": LaunchPlan((), (one,)),
        "three launches, scratch, a descriptor": LaunchPlan((Buffer("part", "float32", "m*64"),), (described, one, reduced)),
    }


def timed_us(call: Callable[[], Any], rounds: int, repeats: int) -> float:
    """The fastest tenth of rounds: what the code costs where nothing else runs."""
    samples = []
    for _ in range(rounds):
        start = time.perf_counter_ns()
        for _ in range(repeats):
            call()
        samples.append((time.perf_counter_ns() - start) / 1e3 / repeats)
    return round(float(np.percentile(samples, 10)), 2)


def measured(rounds: int, repeats: int) -> dict[str, Any]:
    """The row."""
    with tempfile.TemporaryDirectory() as name:
        stub = Stub(Path(name))
        found: dict[str, dict[str, float]] = {}
        for title, plan in plans().items():
            candidate = Candidate("triton", _SOURCE, plan, "", "ieee", "benchmark")
            artifact = LANGUAGE.build(candidate, task(), _HOPPER, Path(name))
            launcher = LANGUAGE.load(artifact, candidate, task(), canonical_dims(task()))
            assert isinstance(launcher, TritonLauncher)
            found[title] = _of(launcher, stub, rounds, repeats)
        return {**place("cpu"), "load": round(os.getloadavg()[0], 2), "call_us": found}


def _of(launcher: TritonLauncher, stub: Stub, rounds: int, repeats: int) -> dict[str, float]:
    x, w, b, out = aligned(20, 64), aligned(1, 64, 64), aligned(64).view(1, 64), aligned(20, 64)
    strides = [(x, w, b)[number].stride(dimension) for number, dimension in launcher._strides]
    frame = launcher._frame((20,), strides)
    launcher._frames[(0, 20, *strides)] = frame
    for step in frame.steps:
        pointers = [x, w, b, out, *[torch.empty(4096) for _ in frame.places]]
        step.compiled = step.function.warmup(*_passed(step, pointers), grid=step.grid, **step.names, **step.options)
    allocate = torch._C._dynamo.guards._empty_strided_cpu
    host = triton_direct.Host(0, lambda: 0, stub.driver.get_current_stream, allocate)
    started = [triton_direct.Started(step.compiled, step.grid, tuple(step.arguments), tuple(step.tail)) for step in frame.steps]
    bound = triton_direct.bind(started, frame.slab, 4, host)
    addresses = [tensor.data_ptr() for tensor in (x, w, b, out)] + [x.data_ptr() for _ in frame.places]

    def by_run() -> None:  # what is left when only the kernels are compiled: Triton's own Python at each launch
        for step in frame.steps:
            kernel = step.compiled
            arguments = [_address(argument, addresses) for argument in step.arguments]
            kernel.run(*step.grid, 0, kernel.function, kernel.packed_metadata, None, None, None, *arguments, *step.tail)

    assert bound(x, w, b, out)
    return {
        "direct": timed_us(lambda: bound(x, w, b, out), rounds, repeats),
        "CompiledKernel.run alone": timed_us(by_run, rounds, repeats),
    }


def _passed(step: Any, tensors: list[torch.Tensor]) -> list[Any]:
    from triton.tools.tensor_descriptor import TensorDescriptor

    found: list[Any] = []
    for argument in step.arguments:
        if isinstance(argument, triton_direct.Described):
            base = tensors[argument.number]
            shape, strides = [argument.rows, argument.columns], [argument.pitch, 1]
            found.append(TensorDescriptor(base, shape, strides, list(argument.block)))
        else:
            found.append(tensors[argument.number] if isinstance(argument, triton_direct.Pointer) else argument)
    return found


def _address(argument: Any, addresses: list[int]) -> Any:
    if isinstance(argument, triton_direct.Described):
        return triton_direct.Descriptor.at(addresses[argument.number], argument)
    return addresses[argument.number] if isinstance(argument, triton_direct.Pointer) else argument


def main(argv: Sequence[str] | None = None) -> int:
    """Print the row as JSON."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.launches", description=__doc__)
    parser.add_argument("--rounds", type=int, default=60)
    parser.add_argument("--repeats", type=int, default=500)
    args = parser.parse_args(argv)
    if compiler() is None:
        print("no C compiler: install gcc", file=sys.stderr)
        return 1
    print(json.dumps(measured(args.rounds, args.repeats), indent=1))
    return 0


if __name__ == "__main__":
    sys.exit(main())
