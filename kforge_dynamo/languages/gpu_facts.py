"""What compilers of GPUs say of a kernel, as text: `ptxas -v`, `cuobjdump -res-usage`, LLVM's AMDGPU assembly.

None of it needs a GPU. Numbers that a tool does not print stay None.
"""

from __future__ import annotations

import re
from dataclasses import replace

from kforge_dynamo.records.profile import KernelFacts

_ENTRY = re.compile(r"Compiling entry function '([^']+)' for")
_PROPERTIES = re.compile(r"Function properties for (\S+)")
_STACK = re.compile(r"(\d+) bytes stack frame, (\d+) bytes spill stores, (\d+) bytes spill loads")
_USED = re.compile(r"Used (\d+) registers")
_STATIC = re.compile(r"\b(\d+) bytes smem")
_LOSS = re.compile(r"ptxas info\s*:\s*(?:\(\w+\)\s*)?(Potential Performance Loss: .*)")
_FUNCTION = re.compile(r"^\s*Function (\S+):\s*$")
_USAGE = re.compile(r"\b(REG|STACK|SHARED|LOCAL):(\d+)")
_DOUBLEWORD_BYTES = 4
_WAVES = re.compile(r"^; Occupancy: (\d+)", re.MULTILINE)


def ptxas_facts(text: str) -> tuple[KernelFacts, ...]:
    """Kernels in the words of `ptxas -v`; spills are stores, `local_bytes` the stack frame.

    Source: CUDA Compiler Driver NVCC, "Printing Code Generation Statistics".
    """
    found: dict[str, KernelFacts] = {}
    current: str | None = None
    for line in text.splitlines():
        if (match := _ENTRY.search(line)) is not None:
            current = match[1]
            found[current] = KernelFacts(current, "ptxas -v")
        elif (match := _PROPERTIES.search(line)) is not None:
            current = match[1] if match[1] in found else None  # a device function of its own is no kernel
        elif current is not None and (match := _STACK.search(line)) is not None:
            found[current] = replace(found[current], local_bytes=int(match[1]), spilled_bytes=int(match[2]))
        elif current is not None and (match := _USED.search(line)) is not None:
            static = _STATIC.search(line)
            shared = int(static[1]) if static is not None else None
            found[current] = replace(found[current], registers=int(match[1]), shared_bytes=shared)
    return tuple(found.values())


def ptxas_losses(text: str) -> tuple[str, ...]:
    """What ptxas warns of as a loss of performance, each once."""
    return tuple(dict.fromkeys(match[1].strip() for line in text.splitlines() if (match := _LOSS.search(line)) is not None))


def cuobjdump_facts(text: str) -> tuple[KernelFacts, ...]:
    """Kernels in the words of `cuobjdump -res-usage`. STACK is a thread's private memory, spills included; the shared memory
    there is what the code declares, without what a launch adds, so it is left unknown."""
    found: list[KernelFacts] = []
    name: str | None = None
    for line in text.splitlines():
        if (match := _FUNCTION.match(line)) is not None:
            name = match[1]
        elif name is not None and "REG:" in line:
            usage = {key: int(value) for key, value in _USAGE.findall(line)}
            private = usage.get("STACK", 0) + usage.get("LOCAL", 0)
            found.append(KernelFacts(name, "cuobjdump -res-usage", registers=usage.get("REG"), local_bytes=private))
            name = None
    return tuple(found)


def amdgcn_facts(text: str) -> tuple[KernelFacts, ...]:
    """Kernels in the metadata of AMDGPU assembly: vector registers (with accumulators where they share a file), spills,
    private memory, declared shared memory. A spill is counted in registers of 4 bytes a work-item.

    Source: LLVM, User Guide for AMDGPU Backend, "Code Object V5 Metadata", Kernel Metadata Map.
    """
    found = []
    for kernel in _amd_kernels(text):
        values = {key: int(value) for key, value in re.findall(r"\.(\w+):\s+(\d+)\s*$", kernel, re.MULTILINE)}
        name = re.search(r"\.name:\s+(\S+)\s*$", kernel, re.MULTILINE)
        spilled = values.get("vgpr_spill_count")
        found.append(
            KernelFacts(
                name=name[1] if name is not None else "kernel",
                instrument="amdgcn metadata",
                registers=values.get("vgpr_count"),
                spilled_bytes=None if spilled is None else _DOUBLEWORD_BYTES * spilled,
                local_bytes=values.get("private_segment_fixed_size"),
                shared_bytes=values.get("group_segment_fixed_size"),
            )
        )
    return tuple(found)


def amd_waves(text: str) -> int | None:
    """Waves a SIMD holds by LLVM's own count (registers and declared shared memory), None where it is not printed."""
    match = _WAVES.search(text)
    return int(match[1]) if match is not None else None


def _amd_kernels(text: str) -> list[str]:
    """The map of each kernel in the YAML of `.amdgpu_metadata`."""
    _, found, metadata = text.partition("amdhsa.kernels:")
    if not found:
        return []
    metadata = re.split(r"^amdhsa\.", metadata, maxsplit=1, flags=re.MULTILINE)[0]
    return [item for item in re.split(r"^  - ", metadata, flags=re.MULTILINE) if ".name:" in item]
