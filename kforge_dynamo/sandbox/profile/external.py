"""Instruments that start what they watch: `ncu`, `nsys` and `perf` around `driver`, asked by the parent of the worker.

The driver runs a candidate that passed, on request only. It is a process group of its own and ends with its time limit; it
stands outside the worker's other layers of protection, which tools that read counters do not survive.
"""

from __future__ import annotations

import contextlib
import os
import shutil
import signal
import subprocess
import sys
import tempfile
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from pathlib import Path

from kforge_dynamo.records.codec import to_text
from kforge_dynamo.records.outcome import Trial
from kforge_dynamo.records.profile import Capture
from kforge_dynamo.records.request import Request
from kforge_dynamo.sandbox.profile import ncu, nsys, perf
from kforge_dynamo.sandbox.profile.instruments import BY_NAME

_CALLS = {"ncu": 1, "nsys": 20, "perf": 200}
_WATCHED_S, _FEWEST = 2.0, 3
_SHOWN_LINES = 4


@dataclass(frozen=True, slots=True)
class Place:
    """Where a driver runs: `environment` gives all its variables, the others are as for `sandbox.worker.Worker`."""

    environment: Callable[[], Mapping[str, str]]
    device: str
    threads: int
    languages: str


def complete(trial: Trial, request: Request, place: Place, timeout_s: float) -> Trial:
    """`trial` with the captures of the external instruments that `request.profile` names; each may take `timeout_s`."""
    wanted = [name for name in request.profile if name in BY_NAME and not BY_NAME[name].inside]
    if trial.profile is None or not wanted:
        return trial
    taken = tuple(capture(name, request, place, timeout_s, calls=_calls(name, trial)) for name in wanted)
    return replace(trial, profile=replace(trial.profile, captures=trial.profile.captures + taken))


def _calls(name: str, trial: Trial) -> int:
    """How often the candidate runs: as the instrument likes it, but at most about two seconds of a slow one."""
    slowest_us = max((item.candidate.median_us for item in trial.timings), default=1.0)
    return min(_CALLS[name], max(_FEWEST, int(_WATCHED_S * 1e6 / slowest_us)))


def capture(
    name: str, request: Request, place: Place, timeout_s: float, keep: Path | None = None, calls: int | None = None
) -> Capture:
    """What one instrument sees of the candidate; why it saw nothing is in the notes. What the tool left is copied into the
    folder `keep`, as `NAME.txt` and, of nsys, `nsys.sqlite`."""
    calls = calls or _CALLS[name]
    instrument = BY_NAME[name]
    missing = instrument.missing(request.target)
    program = shutil.which(instrument.program or "")
    if missing is not None or program is None:
        return Capture(name, "not run", notes=(missing or f"{instrument.program} is not in PATH",))
    with tempfile.TemporaryDirectory(prefix=f"kforge-{name}-", ignore_cleanup_errors=True) as folder:
        home = Path(folder)
        (home / "request.json").write_text(to_text(request))
        driver = [sys.executable, "-m", "kforge_dynamo.sandbox.profile.driver", "--request", str(home / "request.json")]
        driver += ["--languages", place.languages, "--device", place.device, "--threads", str(place.threads)]
        driver += ["--calls", str(calls)]
        if name == "ncu":
            method = f"ncu, sections {', '.join(ncu.SECTIONS)}, {calls} call, caches flushed before each pass (ncu's default)"
            code, printed = _run([*ncu.command(program), *driver], place, timeout_s)
            _keep(keep, name, printed)
            return _explained(ncu.parse(printed, method), code, printed)
        if name == "nsys":
            code, printed = _run([*nsys.command(program, home / "report"), *driver], place, timeout_s)
            _keep(keep, name, printed, home / "report.sqlite")
            found = nsys.parse(home / "report.sqlite", f"nsys profile, {calls} calls", calls)
            return _explained(found, code, printed)
        return _perf([program, *driver], calls, home, place, timeout_s, keep)


def _perf(words: list[str], calls: int, home: Path, place: Place, timeout_s: float, keep: Path | None) -> Capture:
    """`words` are perf's path and the driver's command."""
    to_perf, to_driver = os.pipe(), os.pipe()  # each (read, write): the driver writes to the first and reads the second
    ends = (*to_perf, *to_driver)
    try:
        watched = [*words[1:], "--control", str(to_perf[1]), str(to_driver[0])]
        command = perf.command(words[0], home / "perf.txt", (to_perf[0], to_driver[1]))
        code, printed = _run([*command, *watched], place, timeout_s, ends)
    finally:
        for end in ends:
            os.close(end)
    text = (home / "perf.txt").read_text(errors="replace") if (home / "perf.txt").exists() else printed
    _keep(keep, "perf", text)
    return _explained(perf.parse(text, f"perf stat, {calls} calls", calls), code, printed)


def _keep(folder: Path | None, name: str, text: str, database: Path | None = None) -> None:
    if folder is None:
        return
    folder.mkdir(parents=True, exist_ok=True)
    (folder / f"{name}.txt").write_text(text)
    if database is not None and database.exists():
        shutil.copyfile(database, folder / f"{name}.sqlite")


def _run(command: list[str], place: Place, timeout_s: float, passed: tuple[int, ...] = ()) -> tuple[int | None, str]:
    """Status (None after the time limit, with the whole process group killed) and all that was printed."""
    environment = {**place.environment(), "OMP_NUM_THREADS": str(place.threads)}
    environment["PYTHONPATH"] = os.pathsep.join(path for path in sys.path if path)
    process = subprocess.Popen(
        command,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        env=environment,
        pass_fds=passed,
        start_new_session=True,
    )
    try:
        printed, _ = process.communicate(timeout=timeout_s)
    except subprocess.TimeoutExpired:
        with contextlib.suppress(ProcessLookupError):  # it may have ended just now
            os.killpg(process.pid, signal.SIGKILL)
        printed, _ = process.communicate()
        return None, printed.decode(errors="replace")
    return process.returncode, printed.decode(errors="replace")


def _explained(found: Capture, code: int | None, printed: str) -> Capture:
    """The capture, with the end of the tool where it did not end well and left nothing."""
    if code == 0 or found.metrics:
        return found
    ended = "was stopped at its time limit" if code is None else f"ended with status {code}"
    last = " | ".join(line.strip() for line in printed.splitlines()[-_SHOWN_LINES:] if line.strip())
    return replace(found, notes=(*found.notes, f"{found.instrument} {ended}: {last[:400]}"))
