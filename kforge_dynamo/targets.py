"""Devices: what a kernel is written for, what it may promise there, and with what it was made.

`detect` describes a device, `unknown_reason` says why one has no description, `numerics` reads the flags of torch that
change results there, `provenance` names the software that an entry of the store was made with.
"""

from __future__ import annotations

import contextlib
import importlib.metadata
import os
import platform
import re
from collections.abc import Mapping
from datetime import datetime, timezone
from functools import lru_cache
from pathlib import Path
from typing import Any

import torch

from kforge_dynamo.peaks import cpu_peaks, gpu_peaks
from kforge_dynamo.records.outcome import Provenance
from kforge_dynamo.records.target import Numerics, Peak, Target

_CPUINFO = Path("/proc/cpuinfo")
_CACHES = Path("/sys/devices/system/cpu/cpu0/cache")
_DRIVER = Path("/proc/driver/nvidia/version")

_ARCH_BY_CAPABILITY = {
    ("x86", "AVX512"): "avx512",
    ("x86", "AVX512_VNNI"): "avx512",
    ("x86", "AVX2"): "avx2",
    ("x86", "DEFAULT"): "sse2",
    ("x86", "NO AVX"): "sse2",
    ("arm", "SVE256"): "sve256",
    ("arm", "DEFAULT"): "neon",
}
"""(family of machine, torch.backends.cpu.get_cpu_capability()) to arch. ATEN_CPU_CAPABILITY lowers it, as for torch's kernels."""

_AVX2_FLAGS = {"avx2": "avx2", "fma": "fma", "f16c": "f16c"}
_AVX512_FLAGS = {
    "avx512f": "avx512",
    "avx512_bf16": "avx512_bf16",
    "avx512_vnni": "avx512_vnni",
    "avx512_fp16": "avx512_fp16",
    "amx_tile": "amx_tile",
    "amx_bf16": "amx_bf16",
    "amx_fp16": "amx_fp16",
}
_ARM_FLAGS = {"asimd": "neon", "asimdhp": "fp16_dot", "bf16": "arm_bf16", "sve": "sve"}
"""Flags of /proc/cpuinfo to the names of `Target.features`."""

_MODE_FROM_CUBLAS = {"tf32": "high", "ieee": "highest", "none": "highest"}


@lru_cache(maxsize=64)
def _detect_cpu(threads: int, capability: str) -> Target | None:
    info = _cpuinfo()
    family = _machine_family()
    arch = _ARCH_BY_CAPABILITY.get((family, capability))
    if arch is None:
        return None
    vendor = info.get("vendor_id") or info.get("CPU implementer") or platform.machine()
    model = " ".join((info.get("model name") or platform.processor() or platform.machine()).split())
    numbers = ".".join(info[name] for name in ("cpu family", "model", "CPU part") if name in info)
    name = f"{model}{f' ({numbers})' if numbers else ''} {arch} {threads} thread{'s' if threads != 1 else ''}"
    return Target(
        kind="cpu",
        vendor=vendor,
        name=name,
        arch=arch,
        units=threads,
        shared_bytes=None,
        memory_bytes=_physical_bytes(),
        features=_cpu_features(arch, set((info.get("flags") or info.get("Features") or "").split())),
        peaks=_cpu_caches() + cpu_peaks(info, threads, family),
    )


def detect(device: torch.device) -> Target | None:
    """The description of `device`; None where kforge does not know its kind, and `unknown_reason` says why.

    A CPU's name holds its instruction set and the number of threads that torch uses now.
    """
    if device.type == "cpu":
        return _detect_cpu(torch.get_num_threads(), torch.backends.cpu.get_cpu_capability())
    if device.type == "cuda" and torch.cuda.is_available():
        index = torch.cuda.current_device() if device.index is None else device.index
        if index < torch.cuda.device_count():
            return _detect_gpu(index)
    return None


_GENERATIONS = (
    (r"\b(GB?|B)[23]00\b", "nvidia 10"),
    (r"\b(G?H[12]00|GH200|H20)\b", "nvidia 9"),
    (r"\b(A100|A800|A30|A40|A10G?|A2|RTX A\d000|RTX 30\d\d|L4|L40S?|RTX 40\d\d)\b", "nvidia 8"),
    (r"\b(V100|T4|RTX 20\d\d)\b", "nvidia 7"),
)
"""Pattern of torch's device name to the first digit of its compute capability.
Source: CUDA C++ Programming Guide, list of CUDA-enabled GPUs."""


def generation(name: str, arch: str = "") -> str | None:
    """A word that devices share whose kernels are worth a try on each other, from a name as keys hold it; None if unknown.

    CPUs share their instruction set, AMD's GPUs the first digits of gfx, NVIDIA's the first digit of the compute capability.
    """
    cpu = re.search(r" (avx512|avx2|sse2|neon|sve256) \d+ threads?$", name)
    if cpu is not None:
        return f"cpu {cpu[1]}"
    gfx = re.search(r"\bgfx(\d{2,})", name)
    if gfx is not None:
        return f"amd gfx{gfx[1][:-2]}"
    if arch.startswith("sm_"):
        return f"nvidia {arch.removeprefix('sm_')[:-1]}"
    return next((word for pattern, word in _GENERATIONS if re.search(pattern, name)), None)


def indexed(device: torch.device) -> str:
    """The device as text, with the index that it has now."""
    if device.type == "cpu":
        return "cpu"
    return f"{device.type}:{torch.cuda.current_device() if device.index is None else device.index}"


def unknown_reason(device: torch.device) -> str | None:
    """Why `detect` returns None for `device`, in one sentence with the next step; None where it does not."""
    if detect(device) is not None:
        return None
    if device.type == "cpu":
        capability = torch.backends.cpu.get_cpu_capability()
        return f"kforge has no generator for the CPU {platform.machine()} with capability {capability}; it is left to Inductor."
    if device.type == "cuda":
        return f"torch sees no device {device}; check the driver and CUDA_VISIBLE_DEVICES, or use the CPU."
    return f"kforge knows CPUs and GPUs of NVIDIA and AMD, not {device.type!r}; graphs on it are left to Inductor."


def numerics(precision: str, target: Target) -> Numerics:
    """What results are promised on `target` under the option `precision` and torch's flags as they stand now.

    On a GPU `fp32` follows `torch.set_float32_matmul_precision` and its newer form `torch.backends.cuda.matmul.fp32_precision`.

    On a CPU only oneDNN ever leaves fp32, so `torch.backends.mkldnn.matmul.fp32_precision` decides, which the older setting
    also writes. "bf16" is "medium" where the CPU multiplies bf16 in hardware; "tf32" is "high" where it has AMX-FP16. On every
    other CPU eager computes these settings in fp32 and no kernel gains from less, so the promise is "highest".
    Source: measured with torch 2.13 on a CPU with AVX512_BF16 (1 part in 10^5 under "high" as under "highest");
    aten/src/ATen/native/mkldnn/Matmul.cpp, use_mkldnn_bf32_matmul and use_mkldnn_tf32_matmul.
    """
    deterministic = torch.are_deterministic_algorithms_enabled()
    if target.kind == "cpu":
        return Numerics(_fp32(precision, _cpu_mode(target)), fp16_reduced=False, bf16_reduced=False, deterministic=deterministic)
    matmul = torch.backends.cuda.matmul
    return Numerics(
        fp32=_fp32(precision, _gpu_mode(target)),
        fp16_reduced=bool(matmul.allow_fp16_reduced_precision_reduction),
        bf16_reduced=bool(matmul.allow_bf16_reduced_precision_reduction),
        deterministic=deterministic,
    )


def provenance(language: str, compiler: str, target: Target) -> Provenance:
    """What an entry made now is made with. `compiler` is the language's `toolchain()` text."""
    return Provenance(
        torch=str(torch.__version__),
        language=language,
        compiler=compiler,
        driver=_driver(target.kind),
        kforge=kforge_version(),
        created=datetime.now(timezone.utc).isoformat(timespec="seconds"),
    )


@lru_cache(maxsize=1)
def kforge_version() -> str:
    """The version of the installed distribution, "0+source" where the package runs from a source tree."""
    try:
        return importlib.metadata.version("kforge-dynamo")
    except importlib.metadata.PackageNotFoundError:
        return "0+source"


def _fp32(precision: str, mode: str) -> str:
    return mode if precision == "auto" else precision


def _cpu_mode(target: Target) -> str:
    mkldnn: Any = torch.backends.mkldnn  # a module that replaces itself by an object when it is imported
    granted = mkldnn.matmul.fp32_precision
    if granted == "bf16" and "bf16_dot" in target.features:
        return "medium"
    if granted == "tf32" and "amx_fp16" in target.features:
        return "high"
    return "highest"


def _gpu_mode(target: Target) -> str:
    granted = torch.backends.cuda.matmul.fp32_precision
    mode = _MODE_FROM_CUBLAS.get(granted, "highest")
    if mode == "high" and "tf32" not in target.features:
        return "highest"
    if mode == "high" and _older_setting() == "medium":
        return "medium"
    return mode


def _older_setting() -> str | None:
    """`torch.get_float32_matmul_precision()`, None where the program used the newer names and torch refuses to answer."""
    try:
        return torch.get_float32_matmul_precision()
    except RuntimeError:
        return None


@lru_cache(maxsize=1)
def _cpuinfo() -> Mapping[str, str]:
    """The first processor of /proc/cpuinfo, empty where there is none."""
    try:
        text = _CPUINFO.read_text(errors="replace")
    except OSError:
        return {}
    lines = (line.partition(":") for line in text.split("\n\n", 1)[0].splitlines() if ":" in line)
    return {name.strip(): value.strip() for name, _, value in lines}


def _machine_family() -> str:
    machine = platform.machine().lower()
    if machine in ("x86_64", "amd64", "i386", "i686"):
        return "x86"
    return "arm" if machine in ("aarch64", "arm64") else machine


def _cpu_features(arch: str, flags: set[str]) -> tuple[str, ...]:
    if arch in ("neon", "sve256"):
        table = _ARM_FLAGS
    else:
        table = {"sse2": {}, "avx2": _AVX2_FLAGS, "avx512": _AVX2_FLAGS | _AVX512_FLAGS}[arch]
        flags = flags or _torch_flags()
    found = {feature for flag, feature in table.items() if flag in flags}
    if found & {"avx512_bf16", "amx_bf16", "arm_bf16"}:
        found.add("bf16_dot")
    return tuple(sorted(found | {arch}))


def _torch_flags() -> set[str]:
    """Where there is no /proc/cpuinfo: what torch's own check of the CPU found, in the words of /proc/cpuinfo."""
    known = {"avx2": "avx2", "fma3": "fma", "f16c": "f16c", "avx512_f": "avx512f", "avx512_bf16": "avx512_bf16"}
    known |= {name: name for name in ("avx512_vnni", "avx512_fp16", "amx_tile", "amx_bf16", "amx_fp16")}
    with contextlib.suppress(AttributeError, RuntimeError):
        found = torch.cpu.get_capabilities()
        return {flag for name, flag in known.items() if found.get(name)}
    return set()


def _cpu_caches() -> tuple[Peak, ...]:
    """Sizes of the caches of one core as Linux states them: "l1d_bytes", "l2_bytes", "l3_bytes" (shared by several cores)."""
    peaks = []
    for folder in sorted(_CACHES.glob("index*")):
        try:
            kind, level, size = ((folder / name).read_text().strip() for name in ("type", "level", "size"))
        except OSError:
            continue
        match = re.fullmatch(r"(\d+)([KM]?)", size)
        if kind == "Instruction" or match is None:
            continue
        value = int(match[1]) * {"": 1, "K": 1 << 10, "M": 1 << 20}[match[2]]
        peaks.append(Peak(f"l{level}{'d' if kind == 'Data' else ''}_bytes", float(value), "bytes", str(folder)))
    return tuple(peaks)


def _physical_bytes() -> int | None:
    try:
        return os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    except (AttributeError, ValueError, OSError):
        return None


def _detect_gpu(index: int) -> Target:
    properties = torch.cuda.get_device_properties(index)
    amd = torch.version.hip is not None
    if amd:
        arch = str(properties.gcnArchName).partition(":")[0]
        features = _amd_features(arch)
    else:
        arch = f"sm_{properties.major}{properties.minor}"
        features = _nvidia_features(10 * properties.major + properties.minor)
    name = str(properties.name)
    return Target(
        kind="cuda",
        vendor="amd" if amd else "nvidia",
        name=f"{name} {arch}" if amd else name,
        arch=arch,
        units=int(properties.multi_processor_count),
        shared_bytes=getattr(properties, "shared_memory_per_block_optin", None),
        memory_bytes=int(properties.total_memory),
        features=features,
        peaks=gpu_peaks(name),
    )


def _nvidia_features(capability: int) -> tuple[str, ...]:
    """Source: CUDA C++ Programming Guide, "Compute Capabilities"; PTX ISA, wgmma (sm_90a only) and tcgen05 (sm_100 to sm_103)."""
    since = {"fp16_dot": 70, "tf32": 80, "bf16_dot": 80, "cp_async": 80, "fp8_dot": 89, "tma": 90}
    found = {name for name, first in since.items() if capability >= first}
    if capability == 90:
        found.add("wgmma")
    if 100 <= capability < 110:
        found.add("tcgen05")
    return tuple(sorted(found))


def _amd_features(arch: str) -> tuple[str, ...]:
    """Source: AMD Instinct MI200 and MI300 ISA references; tf32 matrix instructions exist on gfx940 to gfx942 alone."""
    if arch.startswith(("gfx90a", "gfx94", "gfx95")):
        return ("bf16_dot", "fp16_dot", "mfma") + (("tf32",) if arch.startswith("gfx94") else ())
    return ("bf16_dot", "fp16_dot", "wmma") if arch.startswith(("gfx11", "gfx12")) else ()


def _driver(kind: str) -> str:
    """Version of the kernel driver, or of the newest CUDA that it serves; "none" on a CPU."""
    if kind == "cpu":
        return "none"
    if torch.version.hip is not None:
        return f"hip {torch.version.hip}"
    with contextlib.suppress(OSError):
        match = re.search(r"\b(\d{3,}\.\d+(?:\.\d+)?)\b", _DRIVER.read_text())
        if match is not None:
            return match[1]
    private: Any = torch._C  # read in torch 2.11 to 2.13; the number is cuDriverGetVersion's
    return f"cuda {private._cuda_getDriverVersion()}"
