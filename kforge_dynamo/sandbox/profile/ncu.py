"""Nsight Compute: the command that profiles one candidate, and its CSV as a `Capture`.

Two layouts are read: `--page raw` (a line a kernel, a column a metric, the units in the second line) and `--page details` (a
line a metric). Source: Nsight Compute CLI, "Command Line Options" (`--csv`, `--page`, `--print-units`) and Kernel Profiling
Guide, "Metrics Structure" and "Warp States".
"""

from __future__ import annotations

import csv
import re
from collections.abc import Iterator, Sequence
from statistics import median

from kforge_dynamo.records.profile import Capture, Metric

SECTIONS = ("SpeedOfLight", "LaunchStats", "Occupancy", "WarpStateStats", "MemoryWorkloadAnalysis", "ComputeWorkloadAnalysis")
_NO_PERMISSION = "ERR_NVGPUCTRPERM"
_IDENTITY = frozenset(
    {
        "ID",
        "Process ID",
        "Process Name",
        "Host Name",
        "Kernel Name",
        "Context",
        "Stream",
        "Block Size",
        "Grid Size",
        "Device",
        "CC",
    }
)
_STALL = re.compile(r"(?:warps?_|latency_)?issue_stalled_(?P<why>\w+?)(?:_not_issued)?(?:_per_\w+)?\.(?P<form>ratio|pct)$")
_TO_US = {"ns": 1e-3, "nsecond": 1e-3, "us": 1.0, "usecond": 1.0, "ms": 1e3, "msecond": 1e3, "s": 1e6, "second": 1e6}

PLAIN: dict[str, str] = {
    "gpu__time_duration.sum": "duration",
    "sm__throughput.avg.pct_of_peak_sustained_elapsed": "compute throughput",
    "gpu__compute_memory_throughput.avg.pct_of_peak_sustained_elapsed": "memory throughput",
    "dram__throughput.avg.pct_of_peak_sustained_elapsed": "DRAM throughput",
    "gpu__dram_throughput.avg.pct_of_peak_sustained_elapsed": "DRAM throughput",
    "l1tex__throughput.avg.pct_of_peak_sustained_active": "L1 throughput",
    "lts__throughput.avg.pct_of_peak_sustained_elapsed": "L2 throughput",
    "dram__bytes_read.sum": "DRAM read",
    "dram__bytes_write.sum": "DRAM written",
    "lts__t_sector_hit_rate.pct": "L2 hit rate",
    "l1tex__t_sector_hit_rate.pct": "L1 hit rate",
    "sm__warps_active.avg.pct_of_peak_sustained_active": "achieved occupancy",
    "sm__maximum_warps_per_active_cycle_pct": "theoretical occupancy",
    "sm__inst_executed_pipe_tensor.avg.pct_of_peak_sustained_active": "tensor pipe",
    "sm__pipe_tensor_cycles_active.avg.pct_of_peak_sustained_active": "tensor pipe",
    "sm__inst_issued.avg.pct_of_peak_sustained_active": "issue slots busy",
    "launch__registers_per_thread": "registers a thread",
    "launch__shared_mem_per_block_dynamic": "dynamic shared memory a block",
    "launch__grid_size": "blocks",
    "launch__block_size": "threads a block",
    "launch__waves_per_multiprocessor": "waves",
    "launch__occupancy_limit_registers": "blocks by registers",
    "launch__occupancy_limit_shared_mem": "blocks by shared memory",
    "launch__occupancy_limit_warps": "blocks by warps",
}
"""The metrics that are kept, with plain words for them."""

_DETAILS = {
    "Duration": "duration",
    "Compute (SM) Throughput": "compute throughput",
    "Memory Throughput": "memory throughput",
    "DRAM Throughput": "DRAM throughput",
    "Achieved Occupancy": "achieved occupancy",
    "Theoretical Occupancy": "theoretical occupancy",
    "L2 Hit Rate": "L2 hit rate",
    "Registers Per Thread": "registers a thread",
}
_MOST_STALLS = 6
_NOT_MANY = 5


def command(ncu: str) -> list[str]:
    """The words before the program: only what runs between cudaProfilerStart and Stop, clocks as they are (they are locked to
    the base clock otherwise), units unscaled, the report as CSV on stdout."""
    words = [ncu, "--csv", "--page", "raw", "--print-units", "base", "--target-processes", "all", "--profile-from-start", "off"]
    words += ["--clock-control", "none"]
    for section in SECTIONS:
        words += ["--section", section]
    return words


def parse(text: str, method: str) -> Capture:
    """The capture in the output of ncu, whatever the profiled program printed around it. Several launches of one kernel
    become the median."""
    values: dict[tuple[str, str, str], list[float]] = {}
    for kernel, name, unit, number in _cells(text):
        values.setdefault((kernel, name, unit), []).append(number)
    metrics, stalls = [], []
    for (kernel, name, unit), numbers in values.items():
        number = median(numbers)
        stall = _STALL.search(name)
        if stall is not None:
            words = "%" if stall["form"] == "pct" else "cycles an instruction"
            stalls.append(Metric(stall["why"].replace("_", " "), number, words, kernel))
            continue
        plain = PLAIN.get(name) or _DETAILS.get(name)
        if plain is None or (name in _DETAILS and plain.endswith("throughput") and unit != "%"):
            continue
        if unit in _TO_US:
            number, unit = number * _TO_US[unit], "us"
        metrics.append(Metric(plain, number, unit, kernel))
    return Capture("ncu", method, tuple(dict.fromkeys(metrics)), _largest(stalls), notes=_notes(text, bool(values)))


def _largest(stalls: Sequence[Metric]) -> tuple[Metric, ...]:
    """The largest reasons of each kernel, "selected" (which is no stall) left out, each once."""
    found: list[Metric] = []
    for kernel in dict.fromkeys(item.kernel for item in stalls):
        own = [item for item in stalls if item.kernel == kernel and item.name != "selected" and item.value > 0]
        form = "cycles an instruction" if any(item.unit != "%" for item in own) else "%"
        once = {item.name: item for item in own if item.unit == form}
        found += sorted(once.values(), key=lambda item: -item.value)[:_MOST_STALLS]
    return tuple(found)


def _notes(text: str, found: bool) -> tuple[str, ...]:
    if _NO_PERMISSION in text:
        return (
            f"ncu may not read the GPU's counters ({_NO_PERMISSION}): the driver keeps them for root; run as root, in a "
            "container with CAP_SYS_ADMIN, or load the driver with NVreg_RestrictProfilingToAdminUsers=0",
        )
    problems = [line.strip() for line in text.splitlines() if line.startswith(("==ERROR==", "==WARNING=="))]
    if not found and not problems:
        problems = ["ncu profiled no kernel"]
    return tuple(dict.fromkeys(problems))[:_NOT_MANY]


def _cells(text: str) -> Iterator[tuple[str, str, str, float]]:
    """(kernel, metric, unit, number) of every number of every table in the text."""
    header: list[str] = []
    units: list[str] = []
    for row in csv.reader(line for line in text.splitlines() if line.startswith('"')):
        if row and row[0] == "ID":
            header, units = row, []
        elif len(row) != len(header) or "Kernel Name" not in header:
            continue
        elif "Metric Name" in header:
            cells = dict(zip(header, row, strict=True))
            number = _number(cells["Metric Value"])
            if number is not None:
                yield _short(cells["Kernel Name"]), cells["Metric Name"], cells["Metric Unit"], number
        elif not row[0]:
            units = row  # the line of units has no number of a kernel
        else:
            yield from _raw(header, units or [""] * len(header), row)


def _raw(header: Sequence[str], units: Sequence[str], row: Sequence[str]) -> Iterator[tuple[str, str, str, float]]:
    kernel = _short(row[header.index("Kernel Name")])
    for name, unit, cell in zip(header, units, row, strict=True):
        number = None if name in _IDENTITY else _number(cell)
        if number is not None:
            yield kernel, name, unit, number


def _number(cell: str) -> float | None:
    """A number with thousands separators, None for anything else ("n/a", text)."""
    try:
        return float(cell.replace(",", ""))
    except ValueError:
        return None


def _short(name: str) -> str:
    """A kernel's name without its arguments."""
    return name.partition("(")[0].removeprefix("void ").strip() or name
