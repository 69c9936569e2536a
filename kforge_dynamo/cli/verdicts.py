"""What the judge found, as a table for people and as JSON for programs, and the status with which a command ends."""

from __future__ import annotations

from typing import Any

from rich.console import Console
from rich.markup import escape
from rich.table import Table

from kforge_dynamo.records.assignment import Assignment
from kforge_dynamo.records.codec import digest
from kforge_dynamo.records.outcome import Measurement, Status, Timings, Trial, compare
from kforge_dynamo.records.profile import Profile
from kforge_dynamo.semantics.show_profile import profile_data, show_profile

EXIT_CODES = {
    Status.PASSED: 0,
    Status.COMPILE_ERROR: 10,
    Status.RUNTIME_ERROR: 11,
    Status.WRONG_SHAPE: 12,
    Status.WRONG_DTYPE: 13,
    Status.WRONG_STRIDE: 14,
    Status.INACCURATE: 15,
    Status.NON_DETERMINISTIC: 16,
    Status.INPUT_CHANGED: 17,
    Status.STRAY_WRITE: 18,
    Status.TOO_FAST: 19,
    Status.UNSTABLE_TIMING: 20,
    Status.TIMEOUT: 21,
    Status.REJECTED: 22,
    Status.NOT_TESTABLE: 23,
}
"""The exit status of `kforge verify` by verdict. Beside these: 1 for a file or device that cannot be used, 2 for a wrong
command line, 9 of `kforge evaluate` where some candidate did not pass."""

SOME_FAILED = 9
NOT_STORED = 3
"""The status of `kforge task submit` for a kernel that passed and is not faster than what there is."""


def exit_table() -> str:
    """The statuses as one line of help."""
    words = ", ".join(f"{code} {status.value}" for status, code in EXIT_CODES.items())
    return f"Exit status: {words}; 1 for files or devices that cannot be used, 2 for a wrong command line."


def as_data(assignment: Assignment, trial: Trial) -> dict[str, Any]:
    """A trial as JSON data: plain numbers, with the unit in each name."""
    verdict = trial.verdict
    return {
        "task": digest(assignment.task),
        "title": assignment.title,
        "candidate": digest(trial.candidate),
        "language": trial.candidate.language,
        "scheme": trial.candidate.scheme,
        "status": verdict.status.value,
        "passed": verdict.passed,
        "error_ratio": verdict.error_ratio,
        "e0": verdict.e0,
        "where": verdict.where,
        "evidence": verdict.evidence,
        "timings": [_timings_data(item) for item in trial.timings],
        "profile": None if trial.profile is None else profile_data(trial.profile),
    }


def _timings_data(item: Timings) -> dict[str, Any]:
    share = compare(item.candidate, item.region)
    between = {"speedup": item.speedup, "speedup_95": [1.0 / share.high, 1.0 / share.low if share.low > 0.0 else None]}
    found: dict[str, Any] = {"regime": item.regime, "mode": item.mode, **between, "rounds_compared": share.pairs}
    for name, measured in _measured(item):
        found[name] = {
            "median_us": measured.median_us,
            "uncertainty_us": measured.uncertainty_us,
            "spread_us": measured.spread_us,
            "samples_us": list(measured.samples_us),
            "method": measured.method,
        }
    return found


def _measured(item: Timings) -> list[tuple[str, Measurement]]:
    found = [("candidate", item.candidate), ("region", item.region)]
    return found + ([("anchor", item.anchor)] if item.anchor is not None else [])


def show(console: Console, assignment: Assignment, trial: Trial) -> None:
    """Prints the verdict, then one table of the timings."""
    verdict = trial.verdict
    color = "green" if verdict.passed else "red"
    console.print(f"[bold {color}]{verdict.status.value.upper()}[/bold {color}] {escape(assignment.title)}", highlight=False)
    facts = [
        ("sizes", ", ".join(f"{axis} = {size}" for axis, size in zip(assignment.task.axes, assignment.sizes, strict=True))),
        ("precision", assignment.numerics.fp32),
        ("error", "-" if verdict.error_ratio is None else f"{verdict.error_ratio:.3g} of eager's own (at most 2 passes)"),
        ("e0", "-" if verdict.e0 is None else f"{verdict.e0:.3g} RMS, eager's distance from fp64"),
        ("where", verdict.where or "-"),
        ("evidence", verdict.evidence or "-"),
    ]
    for name, text in facts:
        console.print(f"  [bold]{name:<10}[/bold] {escape(text)}", highlight=False, soft_wrap=True)
    if trial.timings:
        console.print(_timing_table(trial.timings))
    if trial.profile is not None:
        console.print(_profile_table(trial.profile))


def _profile_table(profile: Profile) -> Table:
    table = Table(box=None, pad_edge=False, show_header=False)
    for name in ("what", "value", "source"):
        table.add_column(name, overflow="fold", style="dim" if name == "source" else None)
    for row in show_profile(profile):
        table.add_row(*(escape(cell) for cell in row))
    return table


def _timing_table(timings: tuple[Timings, ...]) -> Table:
    names = {"candidate": "candidate", "region": "Inductor's region", "anchor": "bare GEMM"}
    table = Table(box=None, pad_edge=False)
    for name in ("regime", "what", "median us", "95 % us", "spread us", "against", "method"):
        table.add_column(name, justify="right" if name.endswith("us") or name == "against" else "left", overflow="fold")
    for item in timings:
        for name, measured in _measured(item):
            ratio = f"{1.0 / compare(item.candidate, measured).value:.2f}x" if name != "candidate" else ""
            numbers = [f"{measured.median_us:.2f}", f"± {measured.uncertainty_us:.2f}", f"{measured.spread_us:.2f}"]
            table.add_row(item.regime, names[name], *numbers, ratio, measured.method)
    return table
