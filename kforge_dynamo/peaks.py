"""Ceilings of devices: GPUs by their vendors' datasheets, CPUs by what their cores could issue at most.

A ceiling serves twice: a time below it cannot be true, and a kernel's share of it says how much is left. So it must never lie
below what the device can do; where no such number is known there is none.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from pathlib import Path

from kforge_dynamo.records.target import Peak

_TERA, _GIGA = 1e12, 1e9
COLUMNS = ("fp32_flops", "tf32_flops", "fp16_flops", "memory_bytes_per_s")

GPU_PEAKS: tuple[tuple[str, tuple[float | None, ...], str], ...] = (
    (r"H200 NVL", (60, 417.5, 835.5, 4800), "NVIDIA H200 Tensor Core GPU datasheet, column H200 NVL"),
    (r"H200|GH200.*144", (67, 494.5, 989.5, 4800), "NVIDIA H200 Tensor Core GPU datasheet, column H200 SXM"),
    (r"H100 NVL", (60, 417.5, 835.5, 3900), "NVIDIA H100 Tensor Core GPU datasheet, column H100 NVL"),
    (r"H100 PCIe", (51, 378, 756, 2000), "NVIDIA H100 Tensor Core GPU datasheet of 2023, column H100 PCIe"),
    (r"H100 80GB HBM3", (67, 494.5, 989.5, 3350), "NVIDIA H100 Tensor Core GPU datasheet, column H100 SXM"),
    (r"\bGB200\b", (90, 1250, 2500, 8000), "NVIDIA Blackwell Architecture Technical Brief, one GPU of GB200"),
    (
        r"\bB200\b",
        (80, 1125, 2250, 8000),
        "NVIDIA Blackwell Architecture Technical Brief and HGX B200 datasheet, one of eight GPUs",
    ),
    (r"A100.*SXM.*80GB", (19.5, 156, 312, 2039), "NVIDIA A100 Tensor Core GPU datasheet, column A100 80GB SXM"),
    (r"A100.*80GB", (19.5, 156, 312, 1935), "NVIDIA A100 Tensor Core GPU datasheet, column A100 80GB PCIe"),
    (r"A100.*40GB", (19.5, 156, 312, 1555), "NVIDIA A100 Tensor Core GPU datasheet of 2020, column A100 40GB"),
    (r"\bL40S\b", (91.6, 183, 362, 864), "NVIDIA L40S datasheet"),
    (r"\bL4\b", (30.3, 60, 121, 300), "NVIDIA L4 datasheet"),
    (r"\bA10\b", (31.2, 62.5, 125, 600), "NVIDIA A10 datasheet"),
    (r"V100-SXM2", (15.7, None, 125, 900), "NVIDIA V100 datasheet, column V100 SXM2"),
    (r"\bT4\b", (8.1, None, 65, 320), "NVIDIA T4 datasheet"),
    (
        r"RTX 5090$",
        (104.8, 104.8, 209.5, 1792),
        "NVIDIA RTX Blackwell GPU Architecture whitepaper, appendix A, fp32 accumulation",
    ),
    (r"RTX 4090$", (82.6, 82.6, 165.2, 1008), "NVIDIA Ada GPU Architecture whitepaper, appendix A, fp32 accumulation"),
    (r"MI355X", (157.3, None, 2516.6, 8000), "AMD Instinct MI355X data sheet; CDNA 4 has no tf32"),
    (r"MI350X", (144.2, None, 2306.9, 8000), "AMD Instinct MI350X data sheet; CDNA 4 has no tf32"),
    (r"MI325X", (163.4, 653.7, 1307.4, 6000), "AMD Instinct MI325X data sheet"),
    (r"MI300X", (163.4, 653.7, 1307.4, 5300), "AMD Instinct MI300X data sheet"),
    (r"MI300A", (122.6, 490.3, 980.6, 5300), "AMD Instinct MI300A data sheet"),
    (r"MI250X", (47.9, None, 191.5, 1638.4), "AMD Instinct MI250X data sheet, one of its two dies, fp32 by matrix cores"),
    (r"MI250\b", (45.3, None, 181.1, 1638.4), "AMD Instinct MI250 data sheet, one of its two dies, fp32 by matrix cores"),
    (r"MI210", (45.3, None, 181, 1638.4), "AMD Instinct MI210 data sheet, fp32 by matrix cores"),
    (r"Arc.* B580", (14.6, None, 116.7, 456), "Intel Arc B580 specifications at 2.85 GHz, half of its 233 int8 TOPS for fp16"),
    (r"Max 1550", (52.4, 419, 839, 3276.8), "Intel Data Center GPU Max Series product brief, both tiles of Max 1550"),
)
"""Pattern of torch's device name; dense peaks in TFLOP/s and GB/s; where they stand. fp32 is of the fastest unit with fp32
operands and products, tf32, fp16 and bf16 accumulate in fp32. Figures with sparsity are halved. The clock is the vendor's
boost clock, which cards may exceed by some percent."""


def gpu_peaks(name: str) -> tuple[Peak, ...]:
    """The datasheet's ceilings of the GPU that torch calls `name`; none where it is not in the table or a slice of a GPU."""
    for pattern, values, source in GPU_PEAKS:
        if re.search(pattern, name) and "MIG" not in name:
            units = (("flop/s", _TERA),) * 3 + (("byte/s", _GIGA),)
            return tuple(
                Peak(column, value * scale, unit, source)
                for column, value, (unit, scale) in zip(COLUMNS, values, units, strict=True)
                if value is not None
            )
    return ()


HIGHEST_HZ = 6.5e9
"""Above the highest clock that a CPU is sold with. Source: Intel, specifications of Core i9-14900KS (6.2 GHz)."""

_CPUFREQ = Path("/sys/devices/system/cpu/cpufreq")
_TRUE_DRIVERS = ("intel_pstate", "intel_cpufreq")
_KNOWN_CORES: tuple[tuple[str, int, range, int, str], ...] = (
    ("AuthenticAMD", 0x17, range(0x100), 256, "AMD, Software Optimization Guides 55723 and 56305 (Zen, Zen 2)"),
    ("AuthenticAMD", 0x19, range(0x100), 256, "AMD, Software Optimization Guides 56665 and 57647 (Zen 3, Zen 4)"),
    ("AuthenticAMD", 0x1A, range(0x30), 512, "AMD, Software Optimization Guide 58455 (Zen 5)"),
    ("AuthenticAMD", 0x1A, range(0x40, 0x50), 512, "AMD, Software Optimization Guide 58455 (Zen 5)"),
    ("AuthenticAMD", 0x1A, range(0x60, 0x80), 512, "AMD, Software Optimization Guide 58455 (Zen 5)"),
    ("GenuineIntel", 6, range(0x1000), 512, "Intel 64 and IA-32 Architectures Optimization Reference Manual (248966)"),
)
"""Vendor, family and models of cores that start at most two vector multiplications a cycle, and how wide at most. Zen 5's
models: arch/x86/kernel/cpu/amd.c of the Linux kernel."""
_PIPES, _UNKNOWN_PIPES = 2, 4
_ARM_BITS = 1024  # 6 x 128 on Cortex-X925, 4 x 128 on Neoverse V2, 2 x 512 on A64FX
_AMX_FLOPS = 1024  # bf16 or fp16: 16 x 16 x 32 multiply-adds in 16 cycles


def cpu_peaks(info: Mapping[str, str], threads: int, family: str) -> tuple[Peak, ...]:
    """What `threads` cores could compute at most; `info` is the first processor of /proc/cpuinfo, `family` "x86" or "arm".

    An upper bound, never a measurement: a measured rate is what one kernel reached, and a better one may exceed it. A product
    of 2 M N K operations needs M N K multiplications, and a core starts no more of them a cycle than it has multiplying vector
    pipes times lanes: two pipes on every core in `_KNOWN_CORES`, four assumed on others; lanes by the widest registers that
    the CPU (not torch) has, since a library may use them. Additions may go elsewhere and bound nothing. The clock is the
    highest turbo clock where the driver is known to state it, else `HIGHEST_HZ`. Threads that share a core only do less.
    bf16 and fp16 peaks stand beside where the CPU has such products.

    Empty where /proc/cpuinfo says too little, or a matrix unit of unknown rate is there (Arm SME, Apple AMX). The bandwidth
    of memory is left out: no bound on DRAM bounds a kernel whose operands lie in a cache.
    Source: in each peak; AMX: Intel, 4th Gen Intel Xeon Scalable Processors, AMX overview (1024 bf16 operations a cycle).
    """
    flags = set((info.get("flags") or info.get("Features") or "").split())
    clock_hz, clock = _clock()
    if family == "x86" and flags & {"sse2", "avx", "avx2", "avx512f"}:
        bits, cores = _x86_bits(info, flags)
        halves = {
            "bf16_flops": _half(flags, bits, "avx512_bf16", "amx_bf16"),
            "fp16_flops": _half(flags, bits, "avx512_fp16", "amx_fp16"),
        }
    elif family == "arm" and "asimd" in flags and not any(flag.startswith("sme") for flag in flags):
        bits, cores = (
            _ARM_BITS,
            "Arm, Cortex-X925 and Neoverse V2 Software Optimization Guides; Fujitsu, A64FX Microarchitecture Manual",
        )
        halves = {
            "bf16_flops": 4 * bits // 16 if "bf16" in flags else 0,
            "fp16_flops": 2 * bits // 16 if "asimdhp" in flags else 0,
        }
    else:
        return ()
    rates = {"fp32_flops": bits // 16, **halves}
    words = f"upper bound: {threads} threads x {{}} operations a cycle x {clock}; {cores}"
    return tuple(Peak(name, threads * rate * clock_hz, "flop/s", words.format(rate)) for name, rate in rates.items() if rate)


def _x86_bits(info: Mapping[str, str], flags: set[str]) -> tuple[int, str]:
    """Bits of vectors that a core can multiply a cycle (an fp32 lane is 32 of them, a multiply-add two operations)."""
    widest = 512 if "avx512f" in flags else 256 if flags & {"avx", "avx2"} else 128
    family, model = (_integer(info.get(name)) for name in ("cpu family", "model"))
    for vendor, known, models, bits, source in _KNOWN_CORES:
        if info.get("vendor_id") == vendor and family == known and model in models:
            return _PIPES * min(bits, widest), f"{_PIPES} pipes of {min(bits, widest)} bits: {source}"
    return _UNKNOWN_PIPES * widest, f"{_UNKNOWN_PIPES} pipes of {widest} bits assumed for a core that is not known"


def _half(flags: set[str], bits: int, vector: str, matrix: str) -> int:
    """Operations a cycle with half-precision operands, 0 where the CPU has no such product."""
    known = bits <= _PIPES * 512
    if matrix in flags:
        return _AMX_FLOPS if known else 2 * _AMX_FLOPS
    return 2 * bits // 16 if vector in flags else 0


def _clock() -> tuple[float, str]:
    """The highest clock of any core in Hz, and the words for it.

    Only Intel's drivers are believed: they read the turbo ratios; acpi-cpufreq may leave turbo out, and amd-pstate has named
    too low a clock for preferred cores. Source: Documentation/admin-guide/pm/intel_pstate.rst of the Linux kernel.
    """
    found = []
    for policy in _CPUFREQ.glob("policy*"):
        try:
            driver = (policy / "scaling_driver").read_text().strip()
            kilohertz = int((policy / "cpuinfo_max_freq").read_text())
        except (OSError, ValueError):
            return HIGHEST_HZ, f"{HIGHEST_HZ / _GIGA:g} GHz, the highest there is"
        if driver not in _TRUE_DRIVERS:
            return HIGHEST_HZ, f"{HIGHEST_HZ / _GIGA:g} GHz, the highest there is"
        found.append(kilohertz * 1e3)
    if not found:
        return HIGHEST_HZ, f"{HIGHEST_HZ / _GIGA:g} GHz, the highest there is"
    return max(found), f"{max(found) / _GIGA:g} GHz, the highest turbo clock"


def _integer(text: str | None) -> int | None:
    try:
        return int(text) if text is not None else None
    except ValueError:
        return None
