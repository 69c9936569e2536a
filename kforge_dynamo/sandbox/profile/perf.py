"""`perf stat` of Linux: the command, and its machine-readable output as a `Capture`.

Virtual machines often have no hardware counters: perf then says "<not supported>", which becomes a note.
Source: perf-stat(1), "CSV FORMAT", `-D -1` and `--control fd:CTL,ACK`.
"""

from __future__ import annotations

from pathlib import Path

from kforge_dynamo.records.profile import Capture, Metric

EVENTS = ("task-clock", "cycles", "instructions", "cache-references", "cache-misses", "branch-misses", "page-faults",
          "context-switches")  # fmt: skip
_ABSENT = ("<not supported>", "<not counted>")


def command(perf: str, output: Path, control: tuple[int, int]) -> list[str]:
    """The words before the program: counting starts and ends when the program says so on the pipe `control`."""
    words = [perf, "stat", "-x,", "-D", "-1", "--control", f"fd:{control[0]},{control[1]}", "-e", ",".join(EVENTS)]
    return [*words, "-o", str(output), "--"]


def parse(text: str, method: str, calls: int | None = None) -> Capture:
    """The capture in the output; with `calls`, how often the candidate ran, all counts are given a call."""
    metrics: dict[str, Metric] = {}
    absent = []
    for line in text.splitlines():
        cells = line.split(",")
        if line.startswith("#") or len(cells) < 3:
            continue
        value, unit, event = cells[0].strip(), cells[1].strip(), cells[2].strip().partition(":")[0]
        if value in _ABSENT:
            absent.append(event)
            continue
        try:
            number = float(value)
        except ValueError:
            continue
        metrics[event] = Metric(event, number / (calls or 1), (unit or "events") + (" a call" if calls else ""))
    cycles, instructions = metrics.get("cycles"), metrics.get("instructions")
    if cycles is not None and instructions is not None and cycles.value > 0:
        metrics["ipc"] = Metric("instructions a cycle", instructions.value / cycles.value, "instructions")
    notes = [f"this machine does not count {', '.join(absent)} (virtual machines often lack hardware counters)"] if absent else []
    if not metrics and not absent:
        notes.append(f"perf said nothing that can be read: {text.strip()[:200]}")
    return Capture("perf", method, tuple(metrics.values()), notes=tuple(notes))
