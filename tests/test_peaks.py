"""Ceilings: the shape and plausibility of the datasheets' table, and bounds of CPUs that no honest kernel can exceed."""

from __future__ import annotations

import re

import pytest

from kforge_dynamo import peaks
from kforge_dynamo.peaks import COLUMNS, GPU_PEAKS, HIGHEST_HZ, cpu_peaks, gpu_peaks

NAMES = {
    "NVIDIA H200": "H200 SXM",
    "NVIDIA H200 NVL": "H200 NVL",
    "NVIDIA H100 NVL": "H100 NVL",
    "NVIDIA H100 PCIe": "H100 PCIe",
    "NVIDIA H100 80GB HBM3": "H100 SXM",
    "NVIDIA B200": "HGX B200",
    "NVIDIA GB200": "GB200",
    "NVIDIA A100-SXM4-80GB": "80GB SXM",
    "NVIDIA A100 80GB PCIe": "80GB PCIe",
    "NVIDIA A100-PCIE-40GB": "40GB",
    "NVIDIA L40S": "L40S",
    "NVIDIA GeForce RTX 4090": "Ada",
    "NVIDIA GeForce RTX 5090": "RTX Blackwell",
    "NVIDIA L4": "L4 ",
    "NVIDIA A10": "A10 ",
    "Tesla V100-SXM2-16GB": "V100 SXM2",
    "Tesla T4": "T4",
    "AMD Instinct MI300A": "MI300A",
    "AMD Instinct MI210": "MI210",
    "AMD Instinct MI250X": "MI250X",
    "AMD Instinct MI250": "MI250 ",
    "AMD Instinct MI300X": "MI300X",
    "AMD Instinct MI300X VF": "MI300X",
    "AMD Instinct MI325X": "MI325X",
    "AMD Instinct MI350X": "MI350X",
    "AMD Instinct MI355X": "MI355X",
    "Intel(R) Arc(TM) B580 Graphics": "B580",
    "Intel(R) Data Center GPU Max 1550": "Max 1550",
}


@pytest.mark.parametrize("name", NAMES)
def test_gpu_finds_its_own_column(name):
    found = gpu_peaks(name)
    assert found and all(NAMES[name] in peak.source for peak in found), found
    assert [peak.unit for peak in found] == ["byte/s" if peak.name.startswith("memory") else "flop/s" for peak in found]


@pytest.mark.parametrize(
    "name", ["NVIDIA GeForce RTX 4090 Laptop GPU", "NVIDIA H100 80GB HBM3 MIG 1g.10gb", "AMD Radeon Graphics", ""]
)
def test_gpu_without_a_column_has_no_ceilings(name):
    assert gpu_peaks(name) == ()


def test_every_row_of_the_table_is_reached_and_in_range():
    assert {source for _, _, source in GPU_PEAKS} == {peak.source for name in NAMES for peak in gpu_peaks(name)}
    assert len({source for _, _, source in GPU_PEAKS}) == len(GPU_PEAKS), "each row says where it stands"
    for pattern, values, source in GPU_PEAKS:
        assert len(values) == len(COLUMNS) and re.compile(pattern) and len(source) > 8
        fp32, tf32, fp16, memory = values
        assert 5 <= fp32 <= 200 and 50 <= fp16 <= 3000 and 200 <= memory <= 10_000, source
        assert fp32 <= (tf32 or fp32) <= fp16, source


def test_figures_are_dense_not_sparse():
    """tf32 has half the rate of fp16 on these, and no dense figure reaches the sparse one of the next row of a datasheet."""
    for _, (_, tf32, fp16, _), source in GPU_PEAKS:
        if tf32 is not None:
            assert fp16 / tf32 == pytest.approx(2, rel=0.02), source
    dense = {"NVIDIA H200": 989.5, "NVIDIA A100-SXM4-80GB": 312, "NVIDIA L40S": 362, "NVIDIA B200": 2250}
    for name, most in dense.items():
        assert max(peak.value for peak in gpu_peaks(name)[:-1]) == pytest.approx(most * 1e12, rel=0.01)


ZEN4 = {"vendor_id": "AuthenticAMD", "cpu family": "25", "model": "17", "flags": "sse2 avx2 fma avx512f avx512_bf16"}
SAPPHIRE_RAPIDS = {
    "vendor_id": "GenuineIntel",
    "cpu family": "6",
    "model": "143",
    "flags": "avx2 avx512f avx512_bf16 avx512_fp16",
}
NEWEST = {"vendor_id": "GenuineIntel", "cpu family": "19", "model": "1", "flags": "avx2 avx512f amx_bf16 amx_fp16"}
GRAVITON = {"Features": "fp asimd asimdhp bf16 sve"}


@pytest.fixture(autouse=True)
def unknown_clock(monkeypatch, tmp_path):
    monkeypatch.setattr(peaks, "_CPUFREQ", tmp_path)


def per_cycle(info, family="x86", threads=1):
    return {peak.name: peak.value / HIGHEST_HZ / threads for peak in cpu_peaks(info, threads, family)}


def test_cpu_s_bound_is_pipes_times_lanes_times_two():
    assert per_cycle(ZEN4) == {"fp32_flops": 2 * 2 * 8, "bf16_flops": 2 * 2 * 16}
    assert per_cycle(ZEN4 | {"model": "1", "flags": "avx2 fma"}) == {"fp32_flops": 32}
    assert per_cycle(SAPPHIRE_RAPIDS) == {"fp32_flops": 64, "bf16_flops": 128, "fp16_flops": 128}
    assert per_cycle(SAPPHIRE_RAPIDS | {"flags": SAPPHIRE_RAPIDS["flags"] + " amx_bf16"})["bf16_flops"] == 1024
    assert per_cycle({"vendor_id": "GenuineIntel", "cpu family": "6", "flags": "sse2"})["fp32_flops"] == 2 * 4 * 4, "no model"


def test_cpu_that_is_not_known_gets_a_wider_bound():
    assert per_cycle(NEWEST) == {"fp32_flops": 128, "bf16_flops": 2048, "fp16_flops": 2048}
    future = ZEN4 | {"cpu family": "26", "model": "80"}
    assert per_cycle(future)["fp32_flops"] == 128 > per_cycle(future | {"model": "68"})["fp32_flops"] == 64


def test_cpu_s_bound_grows_with_threads_and_says_how_it_came():
    one, four = (cpu_peaks(ZEN4, threads, "x86")[0] for threads in (1, 4))
    assert four.value == 4 * one.value and one.unit == "flop/s"
    assert "upper bound: 4 threads x 32 operations a cycle x 6.5 GHz" in four.source and "57647" in four.source


def test_arm_cpu_has_a_bound_unless_its_matrix_unit_is_unknown():
    assert per_cycle(GRAVITON, "arm") == {"fp32_flops": 64, "bf16_flops": 256, "fp16_flops": 128}
    assert cpu_peaks({"Features": "asimd sve sme"}, 1, "arm") == ()


@pytest.mark.parametrize(("info", "family"), [({}, "x86"), ({}, "arm"), (ZEN4, "riscv64")])
def test_cpu_of_which_nothing_is_known_has_no_bound(info, family):
    assert cpu_peaks(info, 4, family) == ()


def policy(folder, number, driver, kilohertz):
    place = folder / f"policy{number}"
    place.mkdir()
    (place / "scaling_driver").write_text(driver + "\n")
    (place / "cpuinfo_max_freq").write_text(f"{kilohertz}\n")


def test_turbo_clock_is_used_where_the_driver_states_it(tmp_path):
    policy(tmp_path, 0, "intel_pstate", 3_800_000)
    policy(tmp_path, 1, "intel_pstate", 3_000_000)
    found = cpu_peaks(SAPPHIRE_RAPIDS, 1, "x86")[0]
    assert found.value == pytest.approx(64 * 3.8e9) and "3.8 GHz" in found.source


@pytest.mark.parametrize(("driver", "kilohertz"), [("acpi-cpufreq", 2_600_000), ("amd-pstate", 3_000_000), ("intel_pstate", "?")])
def test_clock_of_another_driver_is_not_believed(tmp_path, driver, kilohertz):
    policy(tmp_path, 0, driver, kilohertz)
    assert cpu_peaks(SAPPHIRE_RAPIDS, 1, "x86")[0].value == pytest.approx(64 * HIGHEST_HZ)
