"""What Triton's compilers say of a kernel that was compiled for a call.

Private API of Triton, read in 3.6.0 and 3.7.1: `CompiledKernel.asm` holds "ptx" and "cubin" or "amdgcn" as text and bytes,
`metadata` has `shared`, `num_warps` and `target.warp_size`; `n_regs` and `n_spills` (4-byte words of local memory) are known
once a driver has loaded the kernel.
"""

from __future__ import annotations

import importlib.util
import re
import subprocess
import tempfile
from collections.abc import Iterable
from dataclasses import replace
from pathlib import Path
from typing import Any

from kforge_dynamo.languages.gpu_facts import amdgcn_facts, cuobjdump_facts, ptxas_facts, ptxas_losses
from kforge_dynamo.records.profile import Capture, KernelFacts, Profile

_TIMEOUT_S = 60
_THREADS = re.compile(r"\.(?:req|max)ntid\s+(\d+)")
_MACHINE = re.compile(r"^\.target\s+(sm_(\d+)\w*)", re.MULTILINE)
_FIRST_BLACKWELL = 100
_SPILL_BYTES = 4


def facts(compiled: Iterable[tuple[str, Any]]) -> Profile:
    """The kernels of a plan by name, each form once; what the driver and `cuobjdump` or the assembly say of them."""
    kernels: dict[KernelFacts, None] = {}
    notes: dict[str, None] = {}
    for name, kernel in compiled:
        found, note = _facts(name, kernel)
        kernels[found] = None
        if note:
            notes[note] = None
    return Profile(kernels=tuple(kernels), notes=tuple(notes))


def remarks(compiled: Iterable[tuple[str, Any]]) -> Capture:
    """What `ptxas -v` adds: spills in bytes, and what it warns of as a loss of performance. AMD's needs no second question."""
    method, notes = "ptxas -v", []
    for name, kernel in compiled:
        text = kernel.asm.get("ptx")
        if text is None:
            notes.append(f"{name}: there is no PTX to ask ptxas about; its assembly was read already")
            continue
        words = assemble(text)
        notes += [f"{name}: {loss}" for loss in ptxas_losses(words)]
        for item in ptxas_facts(words):
            spills = f"{item.spilled_bytes} bytes of spill stores, a stack frame of {item.local_bytes} bytes"
            notes.append(f"{name}: {item.registers} registers, {spills}")
        if not words:
            notes.append(f"{name}: Triton's ptxas was not found or gave no answer")
    return Capture("compiler", method, notes=tuple(dict.fromkeys(notes)))


def assemble(ptx: str) -> str:
    """The words of `ptxas -v` on a kernel's PTX, for the machine that the PTX names; empty where ptxas is not there."""
    machine = _MACHINE.search(ptx)
    if machine is None:
        return ""
    names = ("ptxas-blackwell", "ptxas") if int(machine[2]) >= _FIRST_BLACKWELL else ("ptxas",)
    tool = next((path for name in names if (path := _tool(name)) is not None), None)
    if tool is None:
        return ""
    with tempfile.TemporaryDirectory(prefix="kforge-ptxas-") as folder:
        source = Path(folder) / "kernel.ptx"
        source.write_text(ptx)
        done = _run([str(tool), "-v", "--gpu-name", machine[1], str(source), "-o", str(Path(folder) / "kernel.cubin")])
    return done.stderr + done.stdout if done is not None and done.returncode == 0 else ""


def _facts(name: str, kernel: Any) -> tuple[KernelFacts, str]:
    metadata = kernel.metadata
    threads = int(metadata.num_warps) * int(metadata.target.warp_size)
    shared = int(metadata.shared)
    note = ""
    if "amdgcn" in kernel.asm:
        found = next(iter(amdgcn_facts(kernel.asm["amdgcn"])), None)
        if found is None:
            return KernelFacts(name, "amdgcn metadata", threads, shared_bytes=shared), f"{name}: no metadata in its assembly"
        # Triton asks for its shared memory at the launch; the assembly declares none of it
        return replace(found, name=name, threads=threads, shared_bytes=shared), note
    asked = _THREADS.search(kernel.asm.get("ptx", ""))
    threads = int(asked[1]) if asked is not None else threads
    found = next(iter(cuobjdump_facts(_usage(kernel.asm.get("cubin", b"")))), None)
    if found is not None:
        return replace(found, name=name, threads=threads, shared_bytes=shared), note
    registers, spilled = (getattr(kernel, attribute, None) for attribute in ("n_regs", "n_spills"))
    local = None if spilled is None else _SPILL_BYTES * int(spilled)
    return KernelFacts(name, "driver", threads, registers=registers, local_bytes=local, shared_bytes=shared), note


def _usage(cubin: bytes) -> str:
    tool = _tool("cuobjdump")
    if tool is None or not cubin:
        return ""
    with tempfile.NamedTemporaryFile(suffix=".cubin") as file:
        file.write(cubin)
        file.flush()
        done = _run([str(tool), "-res-usage", file.name])
    return done.stdout if done is not None and done.returncode == 0 else ""


def _run(command: list[str]) -> subprocess.CompletedProcess[str] | None:
    try:
        return subprocess.run(command, capture_output=True, text=True, timeout=_TIMEOUT_S, check=False)
    except (OSError, subprocess.TimeoutExpired):
        return None


def _tool(name: str) -> Path | None:
    """A program of NVIDIA's that ships in Triton's package."""
    spec = importlib.util.find_spec("triton")
    if spec is None or spec.origin is None:
        return None
    path = Path(spec.origin).parent / "backends" / "nvidia" / "bin" / name
    return path if path.exists() else None
