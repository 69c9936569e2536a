"""How many blocks of a kernel fit on a multiprocessor at once, from registers, shared memory and threads of a block."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass

from kforge_dynamo.records.profile import KernelFacts, Limit, Occupancy

_NVIDIA_SOURCE = "CUDA C++ Programming Guide, Technical Specifications per Compute Capability; CUDA Occupancy Calculator"
_AMD_SOURCE = "LLVM, lib/Target/AMDGPU/Utils/AMDGPUBaseInfo.cpp; LLVM User Guide for AMDGPU, GRANULATED_LDS_SIZE"
_WARP = 32
_WAVE = 64


@dataclass(frozen=True, slots=True)
class _Multiprocessor:
    """Limits of one NVIDIA multiprocessor: warps, blocks, shared memory in bytes."""

    warps: int
    blocks: int
    shared_bytes: int


_NVIDIA: Mapping[str, _Multiprocessor] = {
    "sm_75": _Multiprocessor(32, 16, 64 << 10),
    "sm_80": _Multiprocessor(64, 32, 164 << 10),
    "sm_86": _Multiprocessor(48, 16, 100 << 10),
    "sm_89": _Multiprocessor(48, 24, 100 << 10),
    "sm_90": _Multiprocessor(64, 32, 228 << 10),
    "sm_100": _Multiprocessor(64, 32, 228 << 10),
}
"""Source: CUDA C++ Programming Guide, Technical Specifications per Compute Capability."""

_REGISTERS, _SUBPARTITIONS, _REGISTER_UNIT = 64 << 10, 4, 256
_SHARED_UNIT = 128
_RESERVED_BYTES = {"sm_75": 0}
_RESERVED = 1 << 10
"""Of every multiprocessor: 65536 registers in four parts, given to a warp by 256; shared memory by 128 bytes, of which the
system takes 1024 a block from sm_80 on. Source: CUDA Occupancy Calculator, GPU data."""


@dataclass(frozen=True, slots=True)
class _ComputeUnit:
    """Limits of one AMD compute unit: waves of a SIMD, local memory and its granule in bytes."""

    waves: int
    shared_bytes: int
    shared_unit: int


_AMD: Mapping[str, _ComputeUnit] = {
    "gfx90a": _ComputeUnit(8, 64 << 10, 512),
    "gfx942": _ComputeUnit(8, 64 << 10, 512),
    "gfx950": _ComputeUnit(8, 160 << 10, 1280),
}
_SIMDS, _VGPRS, _VGPR_UNIT, _BARRIERS = 4, 512, 8, 16
"""Of a CDNA 2 to 4 compute unit: 4 SIMDs of 512 vector registers (accumulators included), given by 8; 16 barriers, so at most
16 blocks of more than one wave."""


def occupancy(facts: KernelFacts, arch: str) -> Occupancy | None:
    """The occupancy of a kernel on `arch` ("sm_90", "gfx942", ...); None where a number or the device is unknown."""
    if facts.threads is None or facts.registers is None or facts.shared_bytes is None:
        return None
    match = re.fullmatch(r"(sm_\d+)[af]?", arch)
    if match is not None and match[1] in _NVIDIA:
        return _nvidia(facts.threads, facts.registers, facts.shared_bytes, match[1])
    if arch in _AMD:
        return _amd(facts.threads, facts.registers, facts.shared_bytes, _AMD[arch])
    return None


def _nvidia(threads: int, registers: int, shared_bytes: int, arch: str) -> Occupancy:
    """Warps are given out whole to one of four parts, so registers are counted a part.

    Source: CUDA Occupancy Calculator; for Hopper: Hopper Tuning Guide, Occupancy (64 warps, 32 blocks, 228 KB, 64 K registers).
    """
    limit = _NVIDIA[arch]
    warps = -(-threads // _WARP)
    per_warp = _up(registers * _WARP, _REGISTER_UNIT)
    by_registers = _REGISTERS // _SUBPARTITIONS // per_warp * _SUBPARTITIONS // warps if registers else limit.blocks
    used = _up(shared_bytes + _RESERVED_BYTES.get(arch, _RESERVED), _SHARED_UNIT)
    by_shared = limit.shared_bytes // used if used else limit.blocks
    limits = {"warps": limit.warps // warps, "registers": by_registers, "shared memory": by_shared, "blocks": limit.blocks}
    words = (
        f"warps a block {warps}; registers: floor({_REGISTERS // _SUBPARTITIONS} / {per_warp} a warp) x {_SUBPARTITIONS} warps; "
        f"shared memory: {limit.shared_bytes} / {used} bytes; {limit.warps} warps and {limit.blocks} blocks at most"
    )
    return _tightest(limits, warps, limit.warps, words, _NVIDIA_SOURCE)


def _amd(threads: int, registers: int, shared_bytes: int, unit: _ComputeUnit) -> Occupancy:
    """Waves a SIMD: 512 over the registers of a wave, rounded up to 8, at most 8; four SIMDs share the local memory."""
    waves = -(-threads // _WAVE)
    granted = _up(max(1, registers), _VGPR_UNIT)
    by_registers = min(unit.waves, _VGPRS // granted) * _SIMDS // waves
    used = _up(shared_bytes, unit.shared_unit)
    most = unit.waves * _SIMDS
    blocks = most if waves == 1 else _BARRIERS
    by_shared = unit.shared_bytes // used if used else blocks
    limits = {"waves": most // waves, "registers": by_registers, "shared memory": by_shared, "blocks": blocks}
    words = (
        f"waves a block {waves}; registers: min({unit.waves}, floor({_VGPRS} / {granted})) waves x {_SIMDS} SIMDs; "
        f"local memory: {unit.shared_bytes} / {used} bytes; {most} waves and {blocks} blocks at most"
    )
    return _tightest(limits, waves, most, words, _AMD_SOURCE)


def _tightest(limits: Mapping[str, int], warps: int, most: int, formula: str, source: str) -> Occupancy:
    ordered = tuple(Limit(name, blocks) for name, blocks in sorted(limits.items(), key=lambda item: item[1]))
    blocks = ordered[0].blocks
    return Occupancy(blocks, blocks * warps, most, ordered, formula, source)


def _up(value: int, unit: int) -> int:
    return -(-value // unit) * unit
