"""What a compiler and its machine code say of a C++ kernel: the hottest loops always, the loops left scalar when asked."""

from __future__ import annotations

import os
import platform
import re
import shutil
import subprocess
import tempfile
from pathlib import Path

from kforge_dynamo.languages.assembly import hottest_loops
from kforge_dynamo.records.profile import Capture, Profile

_TIMEOUT_S = 20
_MISSED = re.compile(r"^(?P<file>[^:]+):(?P<line>\d+):\d+: missed: +(?P<words>.*)$")
_LOOP = "couldn't vectorize loop"
_ALREADY = re.compile(
    r"__m(128|256|512)|__builtin_ia32|loop nest containing|__builtin_prefetch|Bad inner loop|multiple nested loops"
)
_MOST_LOOPS = 8
_GCC = ("-fopt-info-vec-missed",)
_CLANG = ("-Rpass-missed=loop-vectorize", "-Rpass-analysis=loop-vectorize")
_REMARK = re.compile(r"^(?P<file>[^:]+):(?P<line>\d+):\d+: remark: loop not vectorized(?:: (?P<words>[^\[]*))?")
_NO_CHANCE = re.compile(r"instruction return type cannot be vectorized|loop control flow is not understood")
"""What clang says of loops over vectors and of loops over loops."""
_MOST_WORDS = 120


def facts(artifact: Path) -> Profile:
    """The hottest loops of a library's machine code. A machine without objdump, or not x86-64, is said in the notes."""
    if platform.machine().lower() not in ("x86_64", "amd64"):
        return Profile(notes=(f"the machine code of {platform.machine()} is not read; only that of x86-64 is",))
    tool = shutil.which("objdump")
    if tool is None:
        return Profile(notes=("objdump is not in PATH (it comes with binutils): the machine code was not read",))
    command = [tool, "-d", "-C", "--no-show-raw-insn", str(artifact)]
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=_TIMEOUT_S, check=False)
    except subprocess.TimeoutExpired:
        return Profile(notes=(f"objdump took longer than {_TIMEOUT_S} s: the machine code was not read",))
    if done.returncode != 0:
        return Profile(notes=(f"objdump ended with status {done.returncode}: {done.stderr.strip()[:200]}",))
    return Profile(kernels=hottest_loops(done.stdout))


def scalar_loops(text: str, source: str, file: str) -> tuple[str, ...]:
    """From the words of `g++ -fopt-info-vec-missed` on `file`: the loops that stayed scalar, each with its line and reason.

    Left out are loops over loops, and loops that intrinsics have vectorised already.
    """
    found: dict[int, str] = {}
    pending: int | None = None
    for line in text.splitlines():
        match = _MISSED.match(line)
        if match is None:
            continue
        if match["words"].startswith(_LOOP):
            pending = int(match["line"]) if Path(match["file"]).name == file else None
        elif pending is not None:
            if not _ALREADY.search(match["words"]):
                found.setdefault(pending, match["words"].removeprefix("not vectorized: ").strip())
            pending = None
    return _notes(found, source)


def scalar_loops_of_clang(text: str, source: str, file: str) -> tuple[str, ...]:
    """The same from clang's remarks: the reasons for a loop come ahead of the line that names it."""
    found: dict[int, str] = {}
    reason: str | None = None
    for line in text.splitlines():
        match = _REMARK.match(line)
        if match is None:
            continue
        if match["words"]:
            reason = match["words"].partition(". Use #pragma")[0].strip()
            continue
        if reason is not None and Path(match["file"]).name == file and not _NO_CHANCE.search(reason):
            found.setdefault(int(match["line"]), reason)
        reason = None
    return _notes(found, source)


def _notes(found: dict[int, str], source: str) -> tuple[str, ...]:
    lines = source.splitlines()
    notes = []
    for number, reason in sorted(found.items())[:_MOST_LOOPS]:
        code = lines[number - 1].strip() if 0 < number <= len(lines) else ""
        notes.append(f"line {number} stays scalar ({reason[:_MOST_WORDS]}): {code[:_MOST_WORDS]}")
    if len(found) > _MOST_LOOPS:
        notes.append(f"{len(found) - _MOST_LOOPS} further loops stay scalar")
    return tuple(notes)


def remarks(compiler: str, flags: tuple[str, ...], source: str, folder: Path, *, clang: bool) -> Capture:
    """Compiles `source` once more and asks which loops were left scalar; `clang` says how the compiler is asked."""
    asked = _CLANG if clang else _GCC
    method = f"{Path(compiler).name} {' '.join(asked)}"
    folder.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=folder) as name:
        text = Path(name) / "kernel.cpp"
        text.write_text(source)
        command = [compiler, str(text), "-c", "-o", os.devnull, *(flag for flag in flags if flag != "-shared"), *asked]
        try:
            done = subprocess.run(command, capture_output=True, text=True, timeout=6 * _TIMEOUT_S, check=False)
        except subprocess.TimeoutExpired:
            return Capture("compiler", method, notes=("the compiler took too long",))
    if done.returncode != 0:
        words = done.stderr.strip()[:200]
        return Capture("compiler", method, notes=(f"the compiler refused the question: {words}",))
    found = (scalar_loops_of_clang if clang else scalar_loops)(done.stderr, source, "kernel.cpp")
    return Capture("compiler", method, notes=found or ("every innermost loop is vectorised",))
