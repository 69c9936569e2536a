"""Triton's launcher called directly passes a kernel what Triton's own entry passes: on a driver that starts nothing."""

from __future__ import annotations

import json
import pathlib
import subprocess
import sys

import pytest

from benchmarks import driver_stub

ROOT = pathlib.Path(__file__).resolve().parents[2]
CHILD = """
import json, pathlib, sys
sys.path.insert(0, sys.argv[1])
import torch
from benchmarks.driver_stub import STREAM, Stub, aligned, parameter_sizes
folder = pathlib.Path(sys.argv[2])
stub = Stub(folder)

from kforge_dynamo.languages import triton_calls, triton_direct
from kforge_dynamo.languages.base import canonical_dims
from kforge_dynamo.languages.triton import LANGUAGE
from kforge_dynamo.records.candidate import Buffer, Candidate, Launch, LaunchPlan
from kforge_dynamo.records.target import Target
from kforge_dynamo.records.task import InputRole, InputSpec, Node, Task, ValueSpec

# the memory is the host's: no CUDA device is there to be current
triton_direct.Host.of = classmethod(lambda cls, device, stream: cls(
    device, lambda: CURRENT[0], stream, lambda shape, strides, dtype: torch.empty_strided(shape, strides, dtype=dtype)))
CURRENT = [0]
SOURCE = '''import triton
import triton.language as tl


@triton.jit
def first(in0, part, count, n_m, pitch, one, N: tl.constexpr, BLOCK: tl.constexpr):
    row = tl.program_id(0).to(tl.int64)
    column = tl.arange(0, BLOCK)
    x = tl.load(in0 + row * pitch + column * one, mask=(row < n_m) & (column < N), other=0.0)
    tl.store(part + row * N + column, x, mask=(row < n_m) & (column < N))
    tl.atomic_add(count, 1)


@triton.jit
def second(in1, part, out0, n_m, N: tl.constexpr, ROWS: tl.constexpr, BLOCK: tl.constexpr):
    w = in1.load([tl.program_id(0) * ROWS, 0])
    row = tl.program_id(0) * ROWS + tl.arange(0, ROWS)[:, None]
    column = tl.arange(0, BLOCK)[None, :]
    mask = (row < n_m) & (column < N)
    x = tl.load(part + row * N + column, mask=mask, other=0.0)
    tl.store(out0 + row * N + column, x + w, mask=mask)
'''
row, weight = ValueSpec("float32", ("m",), (64,)), ValueSpec("float32", (1,), (64, 64))
task = Task(("m",), (), (InputSpec(row, ("pitch", 1), InputRole.LHS), InputSpec(weight, (0, "dense", 1), InputRole.RHS)),
            (Node("gemm", (0, 1), (("alpha", 1.0), ("beta", 1.0)), row),), (2,))
buffers = (Buffer("part", "float32", "m*64"), Buffer("count", "int32", "1", zeroed=True))
launches = (
    Launch("first", ("m",), ("in:0", "buf:part", "buf:count", "size:m", "stride:0:0", "stride:0:1"), (("N", 64), ("BLOCK", 64))),
    Launch("second", ("cdiv(m, 16)",), ("desc:in:1:64:64:64:16:64", "buf:part", "out:0", "size:m"),
           (("N", 64), ("ROWS", 16), ("BLOCK", 64)), num_warps=8),
)
candidate = Candidate("triton", SOURCE, LaunchPlan(buffers, launches), "", "ieee", "test")
hopper = Target("cuda", "nvidia", "NVIDIA H200", "sm_90", 132, 232448, None, ("tma",), ())
launcher = LANGUAGE.load(LANGUAGE.build(candidate, task, hopper, folder), candidate, task, canonical_dims(task))

memory = aligned(4096, dtype=torch.uint8)  # the same scratch in every call, so that parameters can be compared
torch.empty_strided = lambda shape, strides, dtype: memory[: shape[0]]

x, w, out = aligned(20, 96)[:, :64], aligned(1, 64, 64), aligned(20, 64)
frame = launcher._remembered((0, 20, *[(x, w)[n].stride(d) for n, d in launcher._strides]), (20,),
                             [(x, w)[n].stride(d) for n, d in launcher._strides])

def run(number, way):
    # one launch alone, by either way, and what it passed
    step = frame.steps[number]
    views = [launcher._view(memory, item) for item in frame.places]
    stub.expect(parameter_sizes(step.compiled))
    if way == "triton":
        triton_calls._launch_first(step, [x, w, out, *views], False)
    else:
        started = [triton_direct.Started(step.compiled, step.grid, tuple(step.arguments), tuple(step.tail))]
        host = triton_direct.Host.of(0, stub.driver.get_current_stream)
        assert triton_direct.unsupported(step.compiled) is None, triton_direct.unsupported(step.compiled)
        assert triton_direct.bind(started, frame.slab, 3, host)(x, w, out) is True
    return [item.hex() if isinstance(item, bytes) else item for item in stub.last()]

for step in frame.steps:
    views = [launcher._view(memory, item) for item in frame.places]
    step.compiled = triton_calls._compile(step, triton_calls._arguments(step, [x, w, out, *views]))
memory.fill_(7)
own = [run(number, "triton") for number in range(2)]
direct = [run(number, "direct") for number in range(2)]
zeroed = bool((memory[:4] == 0).all())

stub.expect([])  # two kernels in turn
start = stub.launches
frame.bound = None
launcher._settle(frame, 0)
whole = [frame.bound(x, w, out) for _ in range(3)]
after_whole = stub.launches - start
CURRENT[0] = 1
elsewhere = frame.bound(x, w, out)
CURRENT[0] = 0
shifted = aligned(20 * 96 + 1)[1:].view(20, 96)[:, :64]
misaligned = frame.bound(shifted, w, out)
refused = stub.launches - start - after_whole
print("RESULT " + json.dumps({"own": own, "direct": direct, "zeroed": zeroed, "whole": whole, "launches": after_whole,
    "elsewhere": elsewhere, "misaligned": misaligned, "refused": refused, "stream": STREAM, "pointer": x.data_ptr(),
    "weight": w.data_ptr()}))
"""


@pytest.fixture(scope="module")
def launched(tmp_path_factory):
    if driver_stub.compiler() is None or sys.platform != "linux":
        pytest.skip("the stub of the driver needs Linux and a C compiler")
    pytest.importorskip("triton")
    folder = tmp_path_factory.mktemp("stub")
    command = [sys.executable, "-c", CHILD, str(ROOT), str(folder)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=240, check=False)
    lines = [line for line in done.stdout.splitlines() if line.startswith("RESULT ")]
    assert done.returncode == 0 and lines, done.stdout[-1000:] + done.stderr[-4000:]
    return json.loads(lines[-1].removeprefix("RESULT "))


def test_direct_launches_pass_what_tritons_own_entry_passes(launched):
    assert launched["direct"] == launched["own"]
    kept, _, stream, function = launched["direct"][0]
    assert stream == launched["stream"] and function
    assert kept.startswith(launched["pointer"].to_bytes(8, "little").hex()), "parameters were recorded"
    assert launched["direct"][1][0].startswith(launched["weight"].to_bytes(8, "little").hex()), "so was the descriptor"


def test_direct_call_starts_every_launch_and_zeroes_what_the_plan_asks_for(launched):
    assert launched["whole"] == [True, True, True] and launched["launches"] == 6
    assert launched["zeroed"]


def test_direct_call_with_another_device_or_a_misaligned_tensor_starts_nothing(launched):
    assert launched["elsewhere"] is False and launched["misaligned"] is False
    assert launched["refused"] == 0
