"""What compilers say of kernels: recorded words of ptxas, cuobjdump, LLVM for AMD and g++; and Triton's own kernels, compiled
here for GPUs that are not here."""

from __future__ import annotations

import json
import os
import platform
import shutil
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch

from kforge_dynamo.languages import cpp_facts, triton_facts
from kforge_dynamo.languages.base import Describing, canonical_dims
from kforge_dynamo.languages.cpp import LANGUAGE as CPP
from kforge_dynamo.languages.gpu_facts import amd_waves, amdgcn_facts, cuobjdump_facts, ptxas_facts, ptxas_losses
from kforge_dynamo.languages.triton import EXAMPLE
from kforge_dynamo.languages.triton import LANGUAGE as TRITON

FIXTURES = Path(__file__).parent / "fixtures"


def recorded(name: str) -> str:
    return (FIXTURES / name).read_text()


def test_ptxas_names_registers_and_spills():
    (small,) = ptxas_facts(recorded("ptxas_sm90_128.txt"))
    assert (small.name, small.registers, small.spilled_bytes, small.local_bytes) == ("product", 200, 0, 0)
    (large,) = ptxas_facts(recorded("ptxas_sm90_256.txt"))
    assert (large.registers, large.spilled_bytes, large.local_bytes) == (255, 1272, 512)
    assert large.shared_bytes is None, "shared memory that a launch adds is not in ptxas's words"


def test_ptxas_s_warnings_of_lost_performance_are_kept():
    assert ptxas_losses(recorded("ptxas_sm90_128.txt")) == ()
    (loss,) = ptxas_losses(recorded("ptxas_sm90_256.txt"))
    assert "wgmma" in loss and "serialized" in loss


def test_ptxas_keeps_two_kernels_and_their_device_functions_apart():
    text = recorded("ptxas_sm90_128.txt") + recorded("ptxas_sm90_256.txt").replace("product", "other")
    text += (
        "ptxas info    : Function properties for helper\n    64 bytes stack frame, 8 bytes spill stores, 8 bytes spill loads\n"
    )
    text += "ptxas info    : Compiling entry function 'third' for 'sm_90a'\nptxas info    : Used 32 registers, 48 bytes smem\n"
    found = {facts.name: facts for facts in ptxas_facts(text)}
    assert (found["product"].registers, found["other"].spilled_bytes) == (200, 1272)
    assert (found["third"].registers, found["third"].shared_bytes, found["third"].spilled_bytes) == (32, 48, None)


def test_cuobjdump_names_registers_and_private_memory():
    (facts,) = cuobjdump_facts(recorded("cuobjdump_sm90_256.txt"))
    assert (facts.name, facts.registers, facts.local_bytes, facts.spilled_bytes) == ("product", 255, 512, None)
    assert cuobjdump_facts("") == ()


def test_amd_s_metadata_names_registers_and_spills():
    (facts,) = amdgcn_facts(recorded("amdgcn_gfx942.txt"))
    assert (facts.name, facts.registers, facts.spilled_bytes, facts.local_bytes) == ("product", 214, 0, 0)
    (spilled,) = amdgcn_facts(recorded("amdgcn_gfx1100.txt"))
    assert (spilled.registers, spilled.spilled_bytes) == (256, 4 * 178) and spilled.local_bytes == 628
    assert amd_waves(recorded("amdgcn_gfx942.txt")) == 2
    assert amdgcn_facts("no metadata") == () and amd_waves("") is None


def test_scalar_loops_are_named_with_line_reason_and_code():
    source = recorded("missed_loops.cpp")
    notes = cpp_facts.scalar_loops(recorded("missed_loops.txt"), source, "missed_loops.cpp")
    assert [note.split(" (")[0] for note in notes] == ["line 2 stays scalar", "line 3 stays scalar"]
    assert "no vectype" in notes[0] and "erf(a[idx" in notes[0]
    assert cpp_facts.scalar_loops(recorded("missed_loops.txt"), source, "other.cpp") == ()


def test_loops_over_loops_and_intrinsics_are_no_missed_chance():
    text = "".join(
        f"k.cpp:{line}:1: missed: couldn't vectorize loop\nk.cpp:{line}:2: missed: not vectorized: {reason}\n"
        for line, reason in enumerate(
            ["loop nest containing two or more consecutive inner loops", "no vectype for stmt: _1 = MEM[(__m512_u *)_2];",
             "multiple nested loops.", "control flow in loop."], 1)
    )  # fmt: skip
    assert cpp_facts.scalar_loops(text, "a\nb\nc\nif (x) break;\n", "k.cpp") == (
        "line 4 stays scalar (control flow in loop.): if (x) break;",
    )


def test_scalar_loops_are_named_by_clang_as_well():
    notes = cpp_facts.scalar_loops_of_clang(recorded("missed_loops_clang.txt"), recorded("missed_loops.cpp"), "missed_loops.cpp")
    assert [note.split(" (")[0] for note in notes] == ["line 2 stays scalar", "line 3 stays scalar"]
    assert "instruction cannot be vectorized" in notes[0]
    assert "unsafe dependent memory operations in loop)" in notes[1] and "o[i-1]" in notes[1]
    words = (
        "k.cpp:1:1: remark: loop not vectorized: instruction return type cannot be vectorized [-Rpass-analysis=loop-vectorize]\n"
    )
    words += "k.cpp:1:1: remark: loop not vectorized [-Rpass-missed=loop-vectorize]\n" * 2
    assert cpp_facts.scalar_loops_of_clang(words, "", "k.cpp") == (), "vectors already, and a loop without a reason"


def test_long_lists_of_scalar_loops_are_cut():
    text = "".join(
        f"k.cpp:{line}:1: missed: couldn't vectorize loop\nk.cpp:{line}:2: missed: not vectorized: control flow in loop.\n"
        for line in range(1, 31)
    )
    notes = cpp_facts.scalar_loops(text, "", "k.cpp")
    assert len(notes) == 9 and notes[-1] == "22 further loops stay scalar"


@pytest.mark.skipif(shutil.which("g++") is None, reason="needs g++")
def test_compiler_is_asked_about_a_real_source(tmp_path):
    found = cpp_facts.remarks(
        shutil.which("g++"), ("-O3", "-shared", "-fPIC"), recorded("missed_loops.cpp"), tmp_path, clang=False
    )
    assert any("line 3 stays scalar" in note for note in found.notes), found
    broken = cpp_facts.remarks(shutil.which("g++"), ("-O3",), "not C++", tmp_path, clang=False)
    assert "refused" in broken.notes[0]
    assert list(tmp_path.iterdir()) == []


@pytest.mark.skipif(shutil.which("g++") is None or shutil.which("objdump") is None, reason="needs g++ and objdump")
@pytest.mark.skipif(platform.machine().lower() not in ("x86_64", "amd64"), reason="reads machine code of x86-64")
def test_machine_code_of_a_real_library_is_read(tmp_path):
    library = tmp_path / "k.so"
    command = ["g++", "-O3", "-mavx2", "-mfma", "-shared", "-fPIC", str(FIXTURES / "missed_loops.cpp"), "-o", str(library)]
    subprocess.run(command, check=True)
    found = {facts.name: facts for facts in cpp_facts.facts(library).kernels}
    assert found["h"].vector_bits == 256 and found["h"].fma >= 1
    assert "status" in cpp_facts.facts(tmp_path / "absent.so").notes[0]


def test_missing_objdump_is_a_note(tmp_path, monkeypatch):
    monkeypatch.setattr(cpp_facts.shutil, "which", lambda name: None)
    monkeypatch.setattr(cpp_facts.platform, "machine", lambda: "x86_64")
    assert "objdump" in cpp_facts.facts(tmp_path / "k.so").notes[0]
    monkeypatch.setattr(cpp_facts.platform, "machine", lambda: "aarch64")
    assert "aarch64" in cpp_facts.facts(tmp_path / "k.so").notes[0]


def kernel(**asm):
    target = SimpleNamespace(warp_size=64 if "amdgcn" in asm else 32)
    metadata = SimpleNamespace(num_warps=4, shared=98304, target=target)
    return SimpleNamespace(metadata=metadata, asm=asm, n_regs=200, n_spills=3)


def test_triton_kernel_s_facts_come_from_what_is_there():
    (amd,) = triton_facts.facts([("product", kernel(amdgcn=recorded("amdgcn_gfx942.txt")))]).kernels
    assert (amd.threads, amd.registers, amd.shared_bytes, amd.instrument) == (256, 214, 98304, "amdgcn metadata")
    (driver,) = triton_facts.facts([("product", kernel(ptx=".reqntid 384\n"))] * 2).kernels
    assert (driver.threads, driver.registers, driver.local_bytes, driver.instrument) == (384, 200, 12, "driver")
    assert triton_facts.facts([("product", kernel(amdgcn=""))]).notes


def test_interpreted_kernels_have_no_facts(monkeypatch, tmp_path):
    monkeypatch.setattr("kforge_dynamo.languages.triton_calls.is_interpreted", lambda: True)
    assert "interpreter" in TRITON.facts(tmp_path, None).notes[0]
    assert "interpreter" in TRITON.remarks(None, None, None, tmp_path).notes[0]
    assert isinstance(TRITON, Describing) and isinstance(CPP, Describing)


CHILD = """
import importlib.util, json, sys
import triton
from triton.backends.compiler import GPUTarget
from triton.compiler import ASTSource
from kforge_dynamo.languages import triton_facts
from kforge_dynamo.records.codec import to_text
spec = importlib.util.spec_from_file_location("kernels", sys.argv[1])
module = importlib.util.module_from_spec(spec)
sys.modules["kernels"] = module
spec.loader.exec_module(module)
for target in (GPUTarget("cuda", 90, 32), GPUTarget("hip", "gfx942", 64)):
    signature = {"in0": "*fp32", "out0": "*fp32", "n_m": "i32", "N": "constexpr", "BLOCK": "constexpr"}
    source = ASTSource(module.scaled, signature=signature, constexprs={"N": 256, "BLOCK": 128})
    made = triton.compile(source, target=target, options={"num_warps": 2})
    print(to_text(triton_facts.facts([("scaled", made)])))
    print(to_text(triton_facts.remarks([("scaled", made)])))
"""


@pytest.mark.skipif(sys.platform != "linux", reason="Triton's compilers are there on Linux")
def test_triton_kernels_for_absent_gpus_are_described(tmp_path):
    pytest.importorskip("triton")
    (tmp_path / "kernels.py").write_text(EXAMPLE)
    environment = {name: value for name, value in os.environ.items() if name != "TRITON_INTERPRET"}
    environment |= {"TRITON_CACHE_DIR": str(tmp_path / "cache"), "PYTHONPATH": os.pathsep.join(filter(None, sys.path))}
    command = [sys.executable, "-c", CHILD, str(tmp_path / "kernels.py")]
    done = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=120, check=False)
    assert done.returncode == 0, done.stderr
    nvidia, asked, amd, unasked = (json.loads(line) for line in done.stdout.splitlines())
    (facts,) = nvidia["kernels"]
    assert facts["instrument"] == "cuobjdump -res-usage" and facts["threads"] == 64
    assert 8 <= facts["registers"] <= 64 and facts["local_bytes"] == 0 and facts["shared_bytes"] == 0
    assert any("0 bytes of spill stores" in note for note in asked["notes"])
    (facts,) = amd["kernels"]
    assert facts["instrument"] == "amdgcn metadata" and facts["threads"] == 128 and facts["spilled_bytes"] == 0
    assert "no PTX" in unasked["notes"][0]


@pytest.mark.gpu
def test_triton_kernel_that_ran_is_described(tmp_path):
    from test_triton import TASK, candidate

    made = candidate()
    launch = TRITON.load(TRITON.build(made, TASK, None, tmp_path), made, TASK, canonical_dims(TASK))
    x = torch.randn(8, 256, device="cuda")
    launch([x], [torch.empty_like(x)], (8,))
    (facts,) = TRITON.facts(tmp_path, launch).kernels
    assert facts.name == "scaled" and facts.registers > 0 and facts.threads == 128
