"""Nsight Systems: the command, and its SQLite export as a `Capture`: kernels, the gaps between them, what a launch costs.

Tables are made only when they have rows and columns differ between versions, so each is looked for before it is asked.
Source: Nsight Systems, SQLite Export Schema Reference, and "Correlate CUDA kernel launches with CUDA API kernel launches".
"""

from __future__ import annotations

import sqlite3
from collections.abc import Sequence
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path
from statistics import median

from kforge_dynamo.records.profile import MOST_SPANS, Capture, Metric, Span

_KERNELS, _RUNTIME, _NAMES = "CUPTI_ACTIVITY_KIND_KERNEL", "CUPTI_ACTIVITY_KIND_RUNTIME", "StringIds"
_NS = 1e-3


@dataclass(frozen=True, slots=True)
class _Kernel:
    name: str
    stream: int
    start_us: float
    end_us: float
    correlation: int | None


def command(nsys: str, report: Path) -> list[str]:
    """The words before the program: CUDA calls and kernels between cudaProfilerStart and Stop, exported beside `report`."""
    words = [nsys, "profile", "--trace", "cuda", "--sample", "none", "--cpuctxsw", "none", "--capture-range", "cudaProfilerApi"]
    return [*words, "--capture-range-end", "stop", "--export", "sqlite", "--force-overwrite", "true", "--output", str(report)]


def parse(path: Path, method: str, calls: int | None = None) -> Capture:
    """The capture in an export. With `calls`, how often the candidate ran, times are also given a call."""
    if not path.is_file():
        return Capture("nsys", method, notes=(f"nsys left no export at {path.name}",))
    try:
        with closing(sqlite3.connect(f"file:{path}?mode=ro", uri=True)) as database:
            kernels, launches = _read(database)
    except sqlite3.Error as error:
        return Capture("nsys", method, notes=(f"the export of nsys is not readable: {error}",))
    if not kernels:
        return Capture("nsys", method, notes=("nsys saw no kernel",))
    return summary("nsys", method, [(item.name, f"stream {item.stream}", item.start_us, item.end_us) for item in kernels], calls,
                   _launch_metrics(kernels, launches))  # fmt: skip


def summary(
    instrument: str,
    method: str,
    kernels: Sequence[tuple[str, str, float, float]],
    calls: int | None,
    more: Sequence[Metric] = (),
) -> Capture:
    """A capture of (name, lane, start, end) in us: median duration of each kernel, gaps, busy share, and the first spans."""
    ordered = sorted(kernels, key=lambda item: item[2])
    metrics = []
    for name in dict.fromkeys(item[0] for item in ordered):
        durations = [end - start for other, _, start, end in ordered if other == name]
        metrics.append(Metric("duration", median(durations), "us", name))
        metrics.append(Metric("launches", float(len(durations)), "launches", name))
    busy, reach, gaps = 0.0, ordered[0][2], []
    for _, _, start, end in ordered:
        if start > reach:
            gaps.append(start - reach)
        busy += max(0.0, end - max(start, reach))
        reach = max(reach, end)
    whole = reach - ordered[0][2]
    if calls:
        metrics.append(Metric("device time a call", busy / calls, "us"))
        metrics.append(Metric("launches a call", len(ordered) / calls, "launches"))
    if gaps:
        metrics.append(Metric("gap between kernels, median", median(gaps), "us"))
    if whole > 0:
        metrics.append(Metric("device busy", 100.0 * busy / whole, "%"))
    first = ordered[0][2]
    spans = tuple(Span(name, lane, start - first, end - start) for name, lane, start, end in ordered[:MOST_SPANS])
    notes = (f"the first {MOST_SPANS} of {len(ordered)} spans",) if len(ordered) > MOST_SPANS else ()
    return Capture(instrument, method, (*metrics, *more), spans=spans, notes=notes)


def _launch_metrics(kernels: Sequence[_Kernel], launches: dict[int, tuple[float, float]]) -> list[Metric]:
    """What the host pays for a launch, and how long a kernel waits after the call began."""
    paired = [(launches[item.correlation], item) for item in kernels if item.correlation in launches]
    if not paired:
        return []
    return [
        Metric("launch call on the host, median", median(end - start for (start, end), _ in paired), "us"),
        Metric("launch to start, median", median(item.start_us - start for (start, _), item in paired), "us"),
    ]


def _read(database: sqlite3.Connection) -> tuple[list[_Kernel], dict[int, tuple[float, float]]]:
    """Kernels, and the runtime call behind each correlation number."""
    columns = _columns(database, _KERNELS)
    if not {"start", "end"} <= columns:
        return [], {}
    name = next((column for column in ("shortName", "demangledName") if column in columns), None)
    names = dict(database.execute(f"SELECT id, value FROM {_NAMES}")) if _columns(database, _NAMES) else {}
    asked = [
        "start",
        "end",
        *(column if column in columns else "NULL" for column in (name or "NULL", "streamId", "correlationId")),
    ]
    rows = database.execute(f'SELECT "start", "end", {", ".join(asked[2:])} FROM {_KERNELS}')
    kernels = [
        _Kernel(str(names.get(label, label if label is not None else "kernel")), int(stream or 0), start * _NS, end * _NS, link)
        for start, end, label, stream, link in rows
    ]
    launches: dict[int, tuple[float, float]] = {}
    if {"start", "end", "correlationId"} <= _columns(database, _RUNTIME):
        for start, end, link in database.execute(f'SELECT "start", "end", correlationId FROM {_RUNTIME}'):
            launches[link] = (start * _NS, end * _NS)
    return kernels, launches


def _columns(database: sqlite3.Connection, table: str) -> set[str]:
    """The columns of a table, none where there is no such table."""
    return {str(row[1]) for row in database.execute(f"PRAGMA table_info({table})")}
