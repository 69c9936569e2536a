"""Building, loading and calling C++: errors in words, odd folders, threads, forks, one OpenMP runtime."""

from __future__ import annotations

import ctypes
import os
import shutil
import subprocess
import sys
import threading
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
import torch

from kforge_dynamo.errors import BuildError, ToolchainError
from kforge_dynamo.languages.base import canonical_dims
from kforge_dynamo.languages.cpp import LANGUAGE, CppLanguage, library_symbols
from kforge_dynamo.records.candidate import Buffer, Candidate, Launch, LaunchPlan
from kforge_dynamo.records.target import Target
from kforge_dynamo.records.task import InputRole, InputSpec, Node, Task, ValueSpec
from kforge_dynamo.targets import detect

SOURCE = """
#include <cstdint>
extern "C" __attribute__((visibility("default"))) void kforge_entry(void* const* in, void* const* out, void* const* buffers,
                                                                    const int64_t* sizes, const int64_t* strides, int threads) {
  float* const spare = (float*)buffers[0];
  spare[sizes[0] - 1] += (float)threads;
#pragma omp parallel for num_threads(threads)
  for (long r = 0; r < sizes[0]; ++r)
    for (long c = 0; c < 3; ++c)
      ((float*)out[0])[r * 3 + c] = 2 * ((const float*)in[0])[r * strides[0] + c * strides[1]] + spare[sizes[0] - 1];
}
"""


CLANG = next((found for name in ("clang++", "clang++-19", "clang++-18") if (found := shutil.which(name))), None)


def cpu() -> Target:
    found = detect(torch.device("cpu"))
    assert found is not None
    return found


def task() -> Task:
    spec = ValueSpec("float32", ("m",), (3,))
    item = InputSpec(spec, ("pitch", "pitch"), InputRole.EXTRA)
    return Task(("m",), (), (item,), (Node("add", (0, 0), (), spec),), (1,))


def candidate(source: str = SOURCE) -> Candidate:
    plan = LaunchPlan((Buffer("spare", "float32", "m", zeroed=True),), (Launch("kforge_entry", ("1",), ("in:0", "out:0")),))
    return Candidate("cpp", source, plan, "", "ieee", "test")


def built(folder: Path, source: str = SOURCE):
    artifact = LANGUAGE.build(candidate(source), task(), cpu(), folder)
    return LANGUAGE.load(artifact, candidate(source), task(), canonical_dims(task()))


@pytest.fixture(scope="module")
def launch(tmp_path_factory):
    return built(tmp_path_factory.mktemp("a folder with spaces"))


def test_a_launcher_passes_strides_sizes_threads_and_zeroed_buffers(launch):
    threads = torch.get_num_threads()
    for m, layout in ((5, (3, 1)), (7, (1, 7)), (1, (9, 2))):
        x = torch.randn(100).as_strided((m, 3), layout)
        out = torch.empty(m, 3)
        for _ in range(2):
            launch([x], [out], (m,))
            assert torch.equal(out, 2 * x + threads)


def test_an_artifact_is_kept_and_sources_do_not_share_one(tmp_path):
    first = LANGUAGE.build(candidate(), task(), cpu(), tmp_path)
    stamp = first.stat().st_mtime_ns
    assert LANGUAGE.build(candidate(), task(), cpu(), tmp_path) == first and first.stat().st_mtime_ns == stamp
    assert LANGUAGE.build(candidate(SOURCE + "// other"), task(), cpu(), tmp_path) != first


def test_two_builders_of_one_source_leave_one_whole_artifact(tmp_path):
    with ThreadPoolExecutor(4) as pool:
        paths = set(pool.map(lambda _: LANGUAGE.build(candidate(), task(), cpu(), tmp_path), range(4)))
    assert len(paths) == 1 and list(tmp_path.iterdir()) == list(paths)


def test_source_that_does_not_compile_gives_the_compilers_words(tmp_path):
    with pytest.raises(BuildError, match="not_a_name"):
        LANGUAGE.build(candidate("int f() { return not_a_name; }"), task(), cpu(), tmp_path)
    assert list(tmp_path.iterdir()) == []


def test_a_library_without_the_entry_is_a_build_error(tmp_path):
    with pytest.raises(BuildError, match="kforge_entry"):
        built(tmp_path, "int nothing() { return 0; }")


def test_a_missing_compiler_is_a_sentence_with_the_next_step(tmp_path):
    language = CppLanguage(compiler="no-such-compiler")
    sentence = language.missing(cpu())
    assert sentence is not None and "no-such-compiler" in sentence and "install g++" in sentence
    with pytest.raises(ToolchainError, match="install g\\+\\+"):
        language.build(candidate(), task(), cpu(), tmp_path)


def named(folder: Path, name: str, words: str) -> Path:
    """A program that says `words` for its version and otherwise is the compiler of this machine."""
    path = folder / name
    path.write_text(f'#!/bin/sh\nif [ "$1" = --version ]; then echo "{words}"; exit 0; fi\nexec "{LANGUAGE.compiler}" "$@"\n')
    path.chmod(0o755)
    return path


def test_compiler_of_kforge_s_own_name_is_used_whatever_it_is(tmp_path, monkeypatch):
    chosen = named(tmp_path, "their compiler", LANGUAGE.toolchain() + " of one's own")
    monkeypatch.setenv("CXX", "g++")
    monkeypatch.setenv("KFORGE_CXX", str(chosen))
    language = CppLanguage()
    assert language.compiler == str(chosen) and language.toolchain().endswith(" of one's own")
    launch = language.load(
        language.build(candidate(), task(), cpu(), tmp_path / "out"), candidate(), task(), canonical_dims(task())
    )
    x, out = torch.randn(4, 3), torch.empty(4, 3)
    launch([x], [out], (4,))
    assert torch.equal(out, 2 * x + torch.get_num_threads())


def test_missing_compiler_of_kforge_s_own_name_is_said_and_not_replaced(tmp_path, monkeypatch):
    monkeypatch.setenv("KFORGE_CXX", str(tmp_path / "absent"))
    sentence = CppLanguage().missing(cpu())
    assert sentence is not None and "absent" in sentence and "KFORGE_CXX" in sentence


@pytest.mark.parametrize(
    ("words", "used"), [("Ubuntu clang version 18.1.3", True), ("Free Software Foundation, Inc.", True), ("nvc++ 24.5", False)]
)
def test_compiler_of_the_common_name_is_used_where_its_flags_are_known(tmp_path, monkeypatch, words, used):
    monkeypatch.delenv("KFORGE_CXX", raising=False)
    monkeypatch.delenv("CXX", raising=False)
    usual = CppLanguage().compiler
    chosen = named(tmp_path, "theirs", words)
    monkeypatch.setenv("CXX", str(chosen))
    assert (CppLanguage().compiler == str(chosen)) is used
    monkeypatch.setenv("CXX", f"ccache {chosen}")
    assert CppLanguage().compiler == usual, "several words are no program"
    monkeypatch.setenv("CXX", str(tmp_path / "absent"))
    assert CppLanguage().missing(cpu()) is None, "an unusable CXX leaves the usual ones"


@pytest.mark.skipif(not CLANG, reason="needs clang++")
def test_clang_shares_torch_s_openmp_runtime_and_gives_remarks(tmp_path):
    language = CppLanguage(CLANG)
    assert "clang" in language.toolchain()
    made = language.build(candidate(), task(), cpu(), tmp_path)
    x, out = torch.randn(4, 3), torch.empty(4, 3)
    language.load(made, candidate(), task(), canonical_dims(task()))([x], [out], (4,))
    assert torch.equal(out, 2 * x + torch.get_num_threads())
    found = language.remarks(candidate(), cpu(), None, tmp_path)
    assert "-Rpass-missed" in found.method and "refused" not in found.notes[0]


def test_another_device_is_a_sentence():
    target = Target("cuda", "nvidia", "x", "sm_90", 1, None, None, (), ())
    assert "cuda" in (LANGUAGE.missing(target) or "")
    assert LANGUAGE.missing(cpu()) is None


def test_the_toolchain_names_the_compiler_and_its_version():
    assert any(character.isdigit() for character in LANGUAGE.toolchain())


def test_the_library_symbols_are_those_of_torch():
    if not (Path(torch.__file__).parent / "lib" / "libtorch_cpu.so").exists():
        pytest.skip("torch is not a Linux build")
    handle = ctypes.CDLL(str(Path(torch.__file__).parent / "lib" / "libtorch_cpu.so"))
    for name, address in library_symbols().items():
        assert ctypes.cast(getattr(handle, name), ctypes.c_void_p).value == address


def test_many_threads_may_call_one_launcher_at_once(launch):
    failures = []

    def work(seed: int) -> None:
        generator = torch.Generator().manual_seed(seed)
        for m in range(1, 60):
            x, out = torch.randn(m, 3, generator=generator), torch.empty(m, 3)
            launch([x], [out], (m,))
            if not torch.equal(out, 2 * x + torch.get_num_threads()):
                failures.append((seed, m))

    workers = [threading.Thread(target=work, args=(seed,)) for seed in range(4)]
    for worker in workers:
        worker.start()
    for worker in workers:
        worker.join()
    assert not failures


def test_only_torchs_openmp_runtime_is_in_the_process(launch):
    x, out = torch.randn(4, 3), torch.empty(4, 3)
    launch([x], [out], (4,))
    if sys.platform != "linux":
        pytest.skip("the map of a process is read on Linux")
    names = {os.path.basename(line.split()[-1]) for line in Path("/proc/self/maps").read_text().splitlines() if "/" in line}
    assert len([name for name in names if name.startswith(("libgomp", "libomp", "libiomp"))]) <= 1


FORKED = """
import os, sys, torch
from pathlib import Path
sys.path.insert(0, {root!r})
from tests.languages import test_cpp as cpp
torch.set_num_threads(2)
launch = cpp.built(Path({folder!r}))
x = torch.randn(64, 3)
def call():
    out = torch.empty(64, 3)
    launch([x], [out], (64,))
    return torch.equal(out, 2 * x + torch.get_num_threads())
assert call()
pid = os.fork()
if pid == 0:
    torch.set_num_threads(1)  # as torch's own data loader does in its workers
    os._exit(0 if call() else 1)
assert os.waitpid(pid, 0)[1] == 0
"""


def test_a_forked_child_with_one_thread_does_not_hang(launch, tmp_path):
    root = str(Path(__file__).resolve().parents[2])
    done = subprocess.run([sys.executable, "-c", FORKED.format(root=root, folder=str(tmp_path))], timeout=120, check=False)
    assert done.returncode == 0
