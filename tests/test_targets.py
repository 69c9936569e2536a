"""Devices as they are described, and what torch's flags promise on them."""

from __future__ import annotations

import dataclasses
import re
import types
import warnings

import pytest
import torch

from kforge_dynamo import targets
from kforge_dynamo.records.codec import digest
from kforge_dynamo.records.target import Target
from kforge_dynamo.targets import detect, kforge_version, numerics, provenance, unknown_reason

CPU = torch.device("cpu")
GPU = Target("cuda", "nvidia", "NVIDIA H200", "sm_90", 132, 232448, 150_000_000_000, ("bf16_dot", "tf32", "tma", "wgmma"), ())
PLAIN_CPU = Target("cpu", "GenuineIntel", "A CPU avx2 2 threads", "avx2", 2, None, None, ("avx2", "fma"), ())


@pytest.fixture(autouse=True)
def flags_as_they_were():
    """Every flag that a test here may change."""
    torch.set_float32_matmul_precision("highest")
    kept = [(torch.backends, "fp32_precision"), (torch.backends.cuda.matmul, "fp32_precision")]
    kept += [
        (torch.backends.mkldnn.matmul, "fp32_precision"),
        (torch.backends.cuda.matmul, "allow_bf16_reduced_precision_reduction"),
    ]
    kept += [(torch.backends.cuda.matmul, "allow_fp16_reduced_precision_reduction")]
    before = [(owner, name, getattr(owner, name)) for owner, name in kept]
    yield
    for owner, name, value in before:
        setattr(owner, name, value)
    torch.use_deterministic_algorithms(False)
    torch.set_float32_matmul_precision("highest")


def fake_cpu(monkeypatch, cpuinfo: str, capability: str, machine: str = "x86_64", threads: int = 4) -> Target | None:
    fields = dict(line.split(": ", 1) for line in cpuinfo.strip().splitlines())
    monkeypatch.setattr(targets, "_cpuinfo", lambda: fields)
    monkeypatch.setattr(targets.platform, "machine", lambda: machine)
    monkeypatch.setattr(torch.backends.cpu, "get_cpu_capability", lambda: capability)
    monkeypatch.setattr(torch, "get_num_threads", lambda: threads)
    targets._detect_cpu.cache_clear()
    return detect(CPU)


@pytest.fixture(autouse=True)
def forget_the_cpu():
    targets._detect_cpu.cache_clear()
    yield
    targets._detect_cpu.cache_clear()


def test_cpu_of_this_machine_is_described():
    found = detect(CPU)
    assert found.kind == "cpu" and found.units == torch.get_num_threads()
    assert found.arch in found.name and f"{found.units} thread" in found.name
    assert found.arch in found.features and found.memory_bytes > 1 << 28
    assert unknown_reason(CPU) is None
    assert digest(found) == digest(detect(torch.device("cpu", 0)))


def test_cpu_s_name_follows_the_number_of_threads():
    before = torch.get_num_threads()
    try:
        torch.set_num_threads(1)
        one = detect(CPU)
        torch.set_num_threads(2)
        two = detect(CPU)
    finally:
        torch.set_num_threads(before)
    assert one.name.endswith(" 1 thread") and two.name.endswith(" 2 threads")
    assert dataclasses.replace(one, name="", units=0, peaks=()) == dataclasses.replace(two, name="", units=0, peaks=())
    rates = {peak.name: peak.value for peak in one.peaks if peak.unit == "flop/s"}
    assert rates == {peak.name: peak.value / 2 for peak in two.peaks if peak.unit == "flop/s"}
    assert [peak for peak in one.peaks if peak.unit == "bytes"] == [peak for peak in two.peaks if peak.unit == "bytes"]


SAPPHIRE_RAPIDS = """
vendor_id: GenuineIntel
model name: Intel(R) Xeon(R)   Platinum 8480+
cpu family: 6
model: 143
flags: fpu sse2 avx avx2 fma f16c avx512f avx512dq avx512bw avx512vl avx512_bf16 avx512_vnni avx512_fp16 amx_tile amx_bf16
"""


def test_cpu_with_amx_has_its_features(monkeypatch):
    found = fake_cpu(monkeypatch, SAPPHIRE_RAPIDS, "AVX512")
    assert found.name == "Intel(R) Xeon(R) Platinum 8480+ (6.143) avx512 4 threads"
    assert set(found.features) >= {
        "avx512",
        "avx512_bf16",
        "avx512_vnni",
        "avx512_fp16",
        "amx_bf16",
        "amx_tile",
        "bf16_dot",
        "f16c",
    }


def test_cpu_whose_capability_is_lowered_keeps_no_feature_above_it(monkeypatch):
    found = fake_cpu(monkeypatch, SAPPHIRE_RAPIDS, "AVX2")
    assert found.arch == "avx2" and "avx2" in found.name
    assert set(found.features) == {"avx2", "f16c", "fma"}
    assert fake_cpu(monkeypatch, SAPPHIRE_RAPIDS, "DEFAULT").features == ("sse2",)


def test_arm_cpu_is_described(monkeypatch):
    text = "CPU implementer: 0x41\nCPU part: 0xd40\nFeatures: fp asimd asimdhp bf16 sve"
    found = fake_cpu(monkeypatch, text, "DEFAULT", "aarch64")
    assert found.arch == "neon" and "0xd40" in found.name and "bf16_dot" in found.features


@pytest.mark.parametrize(("machine", "capability"), [("ppc64le", "VSX"), ("s390x", "ZVECTOR"), ("x86_64", "AVX1024")])
def test_unknown_cpu_has_no_description_but_a_reason(monkeypatch, machine, capability):
    assert fake_cpu(monkeypatch, "vendor_id: x", capability, machine) is None
    reason = unknown_reason(CPU)
    assert machine in reason and capability in reason and "\n" not in reason


def test_cpu_without_cpuinfo_asks_torch(monkeypatch):
    monkeypatch.setattr(targets, "_cpuinfo", dict)
    if "x86" not in targets._machine_family() or torch.backends.cpu.get_cpu_capability() == "DEFAULT":
        pytest.skip("needs a CPU with AVX2")
    assert {"avx2", "fma"} <= set(detect(CPU).features)


@pytest.mark.parametrize("kind", ["mps", "xpu", "meta", "privateuseone"])
def test_other_devices_have_no_description_but_a_reason(kind):
    assert detect(torch.device(kind)) is None
    assert kind in unknown_reason(torch.device(kind))


def fake_gpu(monkeypatch, hip: str | None = None, **facts: object) -> Target:
    properties = types.SimpleNamespace(
        **({"name": "NVIDIA H200", "major": 9, "minor": 0, "multi_processor_count": 132, "total_memory": 150_000_000_000} | facts)
    )
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 2)
    monkeypatch.setattr(torch.cuda, "current_device", lambda: 0)
    monkeypatch.setattr(torch.cuda, "get_device_properties", lambda index: properties)
    monkeypatch.setattr(torch.version, "hip", hip)
    return detect(torch.device("cuda", 1))


def test_gpu_is_described_by_its_properties(monkeypatch):
    found = fake_gpu(monkeypatch, shared_memory_per_block_optin=232448)
    assert (found.name, found.arch, found.units, found.shared_bytes) == ("NVIDIA H200", "sm_90", 132, 232448)
    assert {"bf16_dot", "tf32", "tma", "wgmma", "fp8_dot"} <= set(found.features)
    assert found.peak("memory_bytes_per_s") == 4.8e12 and found.peak("fp16_flops") == pytest.approx(989.5e12)
    assert all(peak.source for peak in found.peaks)
    assert detect(torch.device("cuda")) == found
    assert detect(torch.device("cuda", 2)) is None


@pytest.mark.parametrize(
    ("capability", "has", "lacks"),
    [
        ((7, 5), {"fp16_dot"}, {"bf16_dot", "tf32", "tma"}),
        ((8, 0), {"bf16_dot", "tf32", "cp_async"}, {"fp8_dot", "tma", "wgmma"}),
        ((8, 9), {"fp8_dot"}, {"tma"}),
        ((10, 0), {"tma", "tcgen05"}, {"wgmma"}),
        ((12, 0), {"tma"}, {"wgmma", "tcgen05"}),
    ],
)
def test_gpu_s_features_follow_its_capability(monkeypatch, capability, has, lacks):
    features = set(fake_gpu(monkeypatch, major=capability[0], minor=capability[1]).features)
    assert has <= features and not lacks & features


@pytest.mark.parametrize("name", ["NVIDIA RTX of tomorrow", "NVIDIA H200 MIG 1g.18gb", "NVIDIA GeForce RTX 4090 Laptop GPU"])
def test_gpu_without_a_datasheet_has_no_peaks(monkeypatch, name):
    assert fake_gpu(monkeypatch, name=name).peaks == ()


def test_amd_gpu_is_described(monkeypatch):
    facts = {"name": "AMD Radeon Graphics", "gcnArchName": "gfx942:sramecc+:xnack-"}
    found = fake_gpu(monkeypatch, hip="6.2", **facts)
    assert (found.vendor, found.arch, found.name) == ("amd", "gfx942", "AMD Radeon Graphics gfx942")
    assert {"mfma", "tf32", "bf16_dot"} <= set(found.features)


@pytest.mark.parametrize(
    ("name", "column", "value"),
    [
        ("NVIDIA H100 80GB HBM3", "memory_bytes_per_s", 3.35e12),
        ("NVIDIA H100 PCIe", "memory_bytes_per_s", 2.0e12),
        ("NVIDIA H200 NVL", "fp32_flops", 60e12),
        ("NVIDIA A100-SXM4-80GB", "memory_bytes_per_s", 2.039e12),
        ("NVIDIA A100-SXM4-40GB", "memory_bytes_per_s", 1.555e12),
        ("NVIDIA A100 80GB PCIe", "memory_bytes_per_s", 1.935e12),
        ("NVIDIA L4", "fp16_flops", 121e12),
        ("NVIDIA L40S", "fp16_flops", 362e12),
        ("NVIDIA A10", "fp16_flops", 125e12),
    ],
)
def test_peaks_are_those_of_the_right_column(monkeypatch, name, column, value):
    assert fake_gpu(monkeypatch, name=name).peak(column) == pytest.approx(value)


@pytest.mark.parametrize(("setting", "expected"), [("highest", "highest"), ("high", "high"), ("medium", "medium")])
def test_older_setting_decides_on_a_gpu(setting, expected):
    torch.set_float32_matmul_precision(setting)
    assert numerics("auto", GPU).fp32 == expected
    assert numerics("strict", GPU).fp32 == "strict" and numerics("mixed", GPU).fp32 == "mixed"


def test_oldest_flag_decides_on_a_gpu():
    torch.backends.cuda.matmul.allow_tf32 = True
    assert numerics("auto", GPU).fp32 == "high"
    torch.backends.cuda.matmul.allow_tf32 = False
    assert numerics("auto", GPU).fp32 == "highest"


def test_newer_flag_decides_on_a_gpu_without_error_or_warning():
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        torch.backends.cuda.matmul.fp32_precision = "tf32"
        with pytest.raises(RuntimeError):
            torch.get_float32_matmul_precision()
        assert numerics("auto", GPU).fp32 == "high"
        torch.backends.cuda.matmul.fp32_precision = "ieee"
        assert numerics("auto", GPU).fp32 == "highest"


def test_newest_flag_for_all_backends_decides_on_a_gpu():
    torch.backends.cuda.matmul.fp32_precision = "none"
    torch.backends.fp32_precision = "tf32"
    assert numerics("auto", GPU).fp32 == "high"


def test_gpu_without_tf32_stays_at_fp32():
    torch.set_float32_matmul_precision("high")
    assert numerics("auto", dataclasses.replace(GPU, features=("fp16_dot",))).fp32 == "highest"


@pytest.mark.parametrize(
    ("features", "granted", "expected"),
    [
        (("avx2",), "ieee", "highest"),
        (("avx2",), "bf16", "highest"),
        (("avx512", "avx512_bf16", "bf16_dot"), "bf16", "medium"),
        (("avx512", "avx512_bf16", "bf16_dot"), "tf32", "highest"),
        (("amx_fp16", "amx_bf16", "bf16_dot"), "tf32", "high"),
        (("amx_fp16", "amx_bf16", "bf16_dot"), "ieee", "highest"),
    ],
)
def test_cpu_promises_less_only_where_its_hardware_would_give_less(features, granted, expected):
    torch.backends.mkldnn.matmul.fp32_precision = granted
    assert numerics("auto", dataclasses.replace(PLAIN_CPU, features=features)).fp32 == expected


def test_older_setting_reaches_a_cpu_with_bf16():
    able = dataclasses.replace(PLAIN_CPU, features=("avx512", "avx512_bf16", "bf16_dot"))
    torch.set_float32_matmul_precision("medium")
    assert numerics("auto", able).fp32 == "medium" and numerics("auto", PLAIN_CPU).fp32 == "highest"
    torch.set_float32_matmul_precision("high")
    assert numerics("auto", able).fp32 == "highest"


def test_eager_keeps_fp32_on_this_cpu_where_the_promise_is_highest():
    """The claim behind `numerics`: under each setting, eager's error is that of fp32 unless the promise says less."""
    torch.manual_seed(0)
    left, right = torch.randn(256, 512), torch.randn(512, 256)
    exact = left.double() @ right.double()
    for setting in ("highest", "high", "medium"):
        torch.set_float32_matmul_precision(setting)
        error = ((left @ right).double() - exact).abs().max().item()
        if numerics("auto", detect(CPU)).fp32 == "highest":
            assert error < 2e-4, setting


def test_flags_of_cublas_do_not_split_keys_of_a_cpu():
    before = numerics("auto", PLAIN_CPU)
    torch.backends.cuda.matmul.allow_bf16_reduced_precision_reduction = False
    assert numerics("auto", PLAIN_CPU) == before
    assert not numerics("auto", GPU).bf16_reduced
    torch.backends.cuda.matmul.allow_bf16_reduced_precision_reduction = True
    assert numerics("auto", GPU).bf16_reduced


def test_deterministic_algorithms_are_part_of_numerics():
    torch.use_deterministic_algorithms(True)
    assert numerics("auto", PLAIN_CPU).deterministic and numerics("auto", GPU).deterministic


def test_provenance_names_all_that_made_an_entry():
    made = provenance("cpp", "g++ 12.2.0", PLAIN_CPU)
    assert (made.torch, made.language, made.compiler, made.driver) == (torch.__version__, "cpp", "g++ 12.2.0", "none")
    assert made.kforge == kforge_version()
    assert re.fullmatch(r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d\+00:00", made.created)


def test_driver_of_a_gpu_is_read_from_the_kernel(monkeypatch, tmp_path):
    path = tmp_path / "version"
    path.write_text(
        "NVRM version: NVIDIA UNIX Open Kernel Module for x86_64  580.65.06  Release Build\nGCC version: gcc 12.2.0\n"
    )
    monkeypatch.setattr(targets, "_DRIVER", path)
    assert provenance("triton", "triton 3.6", GPU).driver == "580.65.06"


@pytest.mark.gpu
def test_gpu_of_this_machine_is_described():
    found = detect(torch.device("cuda"))
    assert found.units > 0 and found.memory_bytes > 1 << 30 and re.fullmatch(r"sm_\d+|gfx\w+", found.arch)
    assert provenance("triton", "triton", found).driver
