"""The Triton language: what a source may say, building, loading, and how launches are made."""

from __future__ import annotations

import contextlib
import importlib.util
import itertools
import os
import pathlib
import subprocess
import sys
import threading

import pytest
import torch

from kforge_dynamo.errors import BuildError
from kforge_dynamo.languages import triton_calls
from kforge_dynamo.languages.base import canonical_dims
from kforge_dynamo.languages.triton import EXAMPLE, LANGUAGE
from kforge_dynamo.languages.triton_syntax import check
from kforge_dynamo.records.candidate import Buffer, Candidate, Launch, LaunchPlan
from kforge_dynamo.records.target import Target
from kforge_dynamo.records.task import Const, InputRole, InputSpec, Node, Task, ValueSpec

HOPPER = Target("cuda", "nvidia", "NVIDIA H200", "sm_90", 132, 232448, None, ("tma",), ())
SPEC = ValueSpec("float32", ("m",), (256,))
TASK = Task(("m",), (), (InputSpec(SPEC, ("dense", 1), InputRole.EXTRA),), (Node("mul", (0, Const(2.0)), (), SPEC),), (1,))
LAUNCH = Launch("scaled", ("m", "cdiv(256, 128)"), ("in:0", "out:0", "size:m"), (("BLOCK", 128), ("N", 256)))


def candidate(source: str = EXAMPLE, *launches: Launch, buffers: tuple[Buffer, ...] = ()) -> Candidate:
    return Candidate("triton", source, LaunchPlan(buffers, launches or (LAUNCH,)), "", "ieee", "test")


HEAD = "import triton\nimport triton.language as tl\n"
KERNEL = HEAD + "@triton.jit\ndef f(x, N: tl.constexpr):\n    "
REFUSED = {
    "no syntax": ("def (", "does not parse"),
    "another import": ("import os\n", "os"),
    "an alias of another kind": ("import triton as os\n", "triton"),
    "an import from": ("from triton import language as tl\n", "import triton.language"),
    "a statement at module level": (HEAD + "x = 1\n", "module level"),
    "a class": (HEAD + "class A: pass\n", "module level"),
    "a function without the decorator": (HEAD + "def f(x):\n    pass\n", "decorated"),
    "a second decorator": (HEAD + "@triton.jit\n@triton.heuristics\ndef f(x):\n    pass\n", "decorated"),
    "a decorator with arguments": (HEAD + "@triton.jit(repr=print)\ndef f(x):\n    pass\n", "decorated"),
    "a default that runs": (HEAD + "@triton.jit\ndef f(x=tl.cdiv(1, 1)):\n    pass\n", "default"),
    "an annotation that runs": (HEAD + "@triton.jit\ndef f(x: print('now')):\n    pass\n", "annotation"),
    "star arguments": (HEAD + "@triton.jit\ndef f(*x):\n    pass\n", "arguments"),
    "an import inside": (KERNEL + "import os\n", "Import"),
    "a lambda": (KERNEL + "y = lambda: 1\n", "Lambda"),
    "a comprehension": (KERNEL + "y = [i for i in range(3)]\n", "ListComp"),
    "a with": (KERNEL + "with x:\n        pass\n", "With"),
    "a try": (KERNEL + "try:\n        pass\n    finally:\n        pass\n", "Try"),
    "a global": (KERNEL + "global y\n", "Global"),
    "a builtin": (KERNEL + "y = open(x)\n", "open"),
    "an eval": (KERNEL + "eval(x)\n", "eval"),
    "a dunder": (KERNEL + "y = x.__class__\n", "__class__"),
    "a module behind tl": (KERNEL + "tl.core.os.system('true')\n", "tl.core"),
    "a module behind triton": (KERNEL + "triton.runtime.cache.os.system('true')\n", "triton.runtime"),
    "the module itself": (KERNEL + "y = tl\n    y.core\n", "core"),
    "a host call of the compiler": (KERNEL + "tl.static_print(x)\n", "static_print"),
    "a device print": (KERNEL + "tl.device_print('x', x)\n", "device_print"),
    "tl assigned": (KERNEL + "tl = x\n", "assigns to tl"),
    "a function assigned": (KERNEL + "f = x\n", "assigns to f"),
    "an f-string": (KERNEL + "y = f'{x}'\n", "JoinedStr"),
    "a walrus": (KERNEL + "y = (z := x)\n", "NamedExpr"),
    "an unknown name": (KERNEL + "y = x + z\n", "z"),
}


@pytest.mark.parametrize("what", REFUSED)
def test_source_with_something_else_is_refused_with_the_reason(what):
    source, words = REFUSED[what]
    with pytest.raises(BuildError, match=words):
        check(source)


def test_source_of_an_ordinary_kernel_is_accepted():
    check(EXAMPLE)
    check('"""A docstring."""\n' + EXAMPLE)
    body = (
        "acc = tl.zeros((16, N), dtype=tl.float32)\n    for k in tl.range(0, N, 16, flatten=True):\n"
        "        acc = tl.dot(x.load([0, k]), x.load([0, k]).T, acc, input_precision='ieee')\n"
        "    y: tl.constexpr = 2 if N > 4 else 3\n    while y < N:\n        y += 1\n    acc = helper(tl.math.exp(acc))\n"
        "    acc = tl.maximum(acc, 0.0, propagate_nan=tl.PropagateNan.ALL)\n"
        "    tl.store(x + tl.arange(0, N)[None, :], acc.to(x.dtype.element_ty))\n"
    )
    check(KERNEL + body + "@triton.jit\ndef helper(a):\n    return a * float('inf')\n")


def test_build_writes_the_source_once_under_its_digest(tmp_path):
    first = LANGUAGE.build(candidate(), TASK, HOPPER, tmp_path)
    stamp = first.stat().st_mtime_ns
    assert LANGUAGE.build(candidate(), TASK, HOPPER, tmp_path) == first and first.stat().st_mtime_ns == stamp
    assert first.read_text() == EXAMPLE
    other = LANGUAGE.build(candidate(EXAMPLE.replace("2.0", "3.0")), TASK, HOPPER, tmp_path)
    assert other != first and sorted(tmp_path.iterdir()) == sorted([first, other])


def test_builds_at_once_leave_one_whole_file(tmp_path):
    threads = [threading.Thread(target=LANGUAGE.build, args=(candidate(), TASK, HOPPER, tmp_path)) for _ in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    (only,) = tmp_path.iterdir()
    assert only.read_text() == EXAMPLE


def test_plan_that_launches_what_the_source_lacks_is_refused(tmp_path):
    with pytest.raises(BuildError, match="other"):
        LANGUAGE.build(candidate(EXAMPLE, Launch("other", ("1",), ())), TASK, HOPPER, tmp_path)


def test_file_that_changed_since_the_build_is_not_loaded(tmp_path):
    path = LANGUAGE.build(candidate(), TASK, HOPPER, tmp_path)
    path.write_text(EXAMPLE.replace("2.0", "3.0"))
    with pytest.raises(BuildError, match="build it again"):
        LANGUAGE.load(path, candidate(), TASK, canonical_dims(TASK))


def test_missing_says_what_stands_in_the_way(monkeypatch):
    assert "cpu" in (LANGUAGE.missing(Target("cpu", "x", "x", "avx2", 2, None, None, (), ())) or "")
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    assert "driver" in (LANGUAGE.missing(HOPPER) or "")
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    assert LANGUAGE.missing(HOPPER) is None
    assert "sm_60" in (LANGUAGE.missing(Target("cuda", "nvidia", "P100", "sm_60", 56, None, None, (), ())) or "")
    assert LANGUAGE.missing(Target("cuda", "amd", "MI300X", "gfx942", 304, None, None, (), ())) is None
    assert "gfx803" in (LANGUAGE.missing(Target("cuda", "amd", "old", "gfx803", 64, None, None, (), ())) or "")


def test_missing_without_triton_names_the_package(monkeypatch):
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None)
    assert "pip install triton" in (LANGUAGE.missing(HOPPER) or "")


def test_toolchain_names_the_version():
    assert LANGUAGE.toolchain().startswith("triton ")


# launches, with a driver and kernels that only record


class Driver:
    """Stands for Triton's driver; the device of CPU tensors is -1."""

    def get_current_device(self) -> int:
        return -1

    def get_current_stream(self, device: int) -> int:
        return 77


class Compiled:
    """Stands for a compiled kernel."""

    function, packed_metadata = "function", "packed"

    def __init__(self) -> None:
        self.calls: list[tuple] = []

    def run(self, *arguments: object) -> None:
        self.calls.append(arguments)


class Kernel:
    """Stands for a `@triton.jit` function."""

    __name__ = "kernel"

    def __init__(self, names: list[str]) -> None:
        self.arg_names, self.compiled = names, Compiled()
        self.first: list[tuple] = []
        self.warm = 0

    def warmup(self, *arguments: object, grid: object, **options: object) -> None:
        self.warm += 1

    def __getitem__(self, grid: tuple[int, ...]):
        def launch(*arguments: object, **options: object) -> Compiled:
            self.first.append((grid, arguments, options))
            return self.compiled

        return launch


@pytest.fixture
def recorded(monkeypatch):
    """A launcher over a recording kernel, for plans with one launch."""
    monkeypatch.setattr(triton_calls, "is_interpreted", lambda: False)
    monkeypatch.setattr(triton_calls, "active_driver", lambda: Driver())
    monkeypatch.setattr(torch.cuda, "device", lambda device: contextlib.nullcontext())

    def make(launch: Launch, buffers: tuple[Buffer, ...] = (), task: Task = TASK) -> tuple[triton_calls.TritonLauncher, Kernel]:
        kernel = Kernel([f"a{number}" for number in range(len(launch.args))] + [name for name, _ in launch.constants])
        module = type("Module", (), {launch.kernel: kernel})
        return triton_calls.TritonLauncher(module, LaunchPlan(buffers, (launch,)), task, canonical_dims(task)), kernel  # type: ignore[arg-type]

    return make


def test_first_call_compiles_and_later_ones_pass_addresses(recorded):
    launcher, kernel = recorded(LAUNCH)
    x, y = torch.zeros(4, 256), torch.zeros(4, 256)
    launcher([x], [y], (4,))
    (grid, arguments, options) = kernel.first[0]
    assert grid == (4, 2, 1) and arguments[0] is x and arguments[1] is y and arguments[2] == 4
    assert options == {"BLOCK": 128, "N": 256, "num_warps": 4, "num_stages": 2} and kernel.warm == 1
    launcher([x], [y], (4,))
    assert len(kernel.first) == 1
    (call,) = kernel.compiled.calls
    assert call == (4, 2, 1, 77, "function", "packed", None, None, None, x.data_ptr(), y.data_ptr(), 4, 128, 256)


def test_other_sizes_and_strides_are_specialised_anew(recorded):
    launcher, kernel = recorded(Launch("k", ("m",), ("in:0", "out:0", "size:m*2", "stride:0:0")))
    wide = torch.zeros(4, 300)
    for x, rows in ((torch.zeros(4, 256), 4), (torch.zeros(5, 256), 5), (wide[:, :256], 4), (torch.zeros(4, 256), 4)):
        launcher([x], [torch.zeros(rows, 256)], (rows,))
    assert [arguments[2:] for _, arguments, _ in kernel.first] == [(8, 256), (10, 256), (8, 300)]
    assert kernel.compiled.calls[0][-2:] == (8, 256)


def test_misaligned_pointers_never_reach_the_compiled_kernel(recorded):
    launcher, kernel = recorded(LAUNCH)
    x = torch.zeros(4 * 256 + 1)[1:].view(4, 256)
    for _ in range(3):
        launcher([x], [torch.zeros(4, 256)], (4,))
    assert len(kernel.first) == 3 and not kernel.compiled.calls
    launcher([torch.zeros(4, 256)], [torch.zeros(4, 256)], (4,))
    launcher([torch.zeros(4, 256)], [torch.zeros(4, 256)], (4,))
    assert len(kernel.first) == 4 and len(kernel.compiled.calls) == 1


def test_buffers_are_separate_aligned_and_zeroed_where_asked(recorded):
    buffers = (Buffer("part", "float16", "m*3"), Buffer("count", "int32", "m", zeroed=True), Buffer("wide", "float32", "7"))
    launcher, kernel = recorded(Launch("k", ("m",), ("buf:wide", "buf:count", "buf:part", "out:0")), buffers)
    for _ in range(2):
        launcher([torch.zeros(4, 256)], [torch.zeros(4, 256)], (4,))
    wide, count, part, _ = kernel.first[0][1]
    assert (wide.dtype, count.dtype, part.dtype) == (torch.float32, torch.int32, torch.float16)
    assert (wide.numel(), count.numel(), part.numel()) == (7, 4, 12) and not count.any()
    spans = sorted((t.data_ptr(), t.data_ptr() + t.numel() * t.element_size()) for t in (wide, count, part))
    assert all(end <= start for (_, end), (start, _) in itertools.pairwise(spans))
    assert all(address % 16 == 0 for address in kernel.compiled.calls[0][9:12])


def test_descriptor_is_checked_against_the_matrix_it_describes(recorded):
    launch = Launch("k", ("m",), ("desc:in:0:m:256:256:16:64", "out:0"))
    launcher, kernel = recorded(launch)
    x = torch.zeros(8, 256)
    for _ in range(2):
        launcher([x], [torch.zeros(8, 256)], (8,))
    first = kernel.first[0][1][0]
    assert (first.shape, first.strides, first.block_shape) == ([8, 256], [256, 1], [16, 64])
    later = kernel.compiled.calls[0][9]
    assert later.base.data_ptr() == x.data_ptr() and (later.shape, later.strides) == ([8, 256], [256, 1])
    assert later.padding == "zero" and later.round_f32_to_tf32 is False
    with pytest.raises(BuildError, match="pitch"):
        launcher([torch.zeros(8, 300)[:, :256]], [torch.zeros(8, 256)], (8,))
    with pytest.raises(BuildError, match="16-byte"):
        launcher([torch.zeros(8 * 256 + 1)[1:].view(8, 256)], [torch.zeros(8, 256)], (8,))


def test_compile_error_at_the_first_call_is_a_build_error(recorded, monkeypatch):
    launcher, _ = recorded(LAUNCH)

    def fail(self, *arguments, **options):
        raise RuntimeError("PassManager::run failed")

    monkeypatch.setattr(Kernel, "warmup", fail)
    with pytest.raises(BuildError, match="PassManager"):
        launcher([torch.zeros(4, 256)], [torch.zeros(4, 256)], (4,))


def test_prepare_compiles_and_runs_nothing(recorded):
    launcher, kernel = recorded(Launch("k", ("m",), ("in:0", "out:0", "stride:0:0")))
    launcher.prepare((4,), [(300, 1)], torch.device("cpu"))
    assert kernel.warm == 1 and not kernel.first


def test_example_runs_in_the_interpreter(tmp_path):
    script = pathlib.Path(tmp_path / "run.py")
    script.write_text(
        "import pathlib, torch\nfrom kforge_dynamo.languages.base import canonical_dims\n"
        "from kforge_dynamo.languages.triton import LANGUAGE\n"
        "import sys; sys.path.insert(0, sys.argv[1])\nfrom test_triton import HOPPER, TASK, candidate\n"
        "path = LANGUAGE.build(candidate(), TASK, HOPPER, pathlib.Path(sys.argv[2]))\n"
        "x, y = torch.randn(3, 256), torch.empty(3, 256)\n"
        "LANGUAGE.load(path, candidate(), TASK, canonical_dims(TASK))([x], [y], (3,))\nassert torch.equal(y, x * 2)\n"
    )
    root = pathlib.Path(__file__).resolve().parents[2]
    environment = os.environ | {"TRITON_INTERPRET": "1", "PYTHONPATH": str(root)}
    command = [sys.executable, str(script), str(pathlib.Path(__file__).parent), str(tmp_path)]
    run = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=120)
    assert run.returncode == 0, run.stderr[-2000:]
