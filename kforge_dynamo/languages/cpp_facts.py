"""What g++ and the machine code say of a C++ kernel: the hottest loops always, the loops left scalar when asked."""

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
_METHOD = "g++ -fopt-info-vec-missed"
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
    lines = source.splitlines()
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
    notes = []
    for number, reason in sorted(found.items())[:_MOST_LOOPS]:
        code = lines[number - 1].strip() if 0 < number <= len(lines) else ""
        notes.append(f"line {number} stays scalar ({reason[:_MOST_WORDS]}): {code[:_MOST_WORDS]}")
    if len(found) > _MOST_LOOPS:
        notes.append(f"{len(found) - _MOST_LOOPS} further loops stay scalar")
    return tuple(notes)


def remarks(compiler: str, flags: tuple[str, ...], source: str, folder: Path) -> Capture:
    """Compiles `source` once more and asks g++ which loops it left scalar."""
    folder.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=folder) as name:
        text = Path(name) / "kernel.cpp"
        text.write_text(source)
        command = [compiler, str(text), "-c", "-o", os.devnull, *(flag for flag in flags if flag != "-shared")]
        command.append("-fopt-info-vec-missed")
        try:
            done = subprocess.run(command, capture_output=True, text=True, timeout=6 * _TIMEOUT_S, check=False)
        except subprocess.TimeoutExpired:
            return Capture("compiler", _METHOD, notes=("the compiler took too long",))
    if done.returncode != 0:
        words = done.stderr.strip()[:200]
        return Capture("compiler", _METHOD, notes=(f"the compiler refused the question: {words}",))
    notes = scalar_loops(done.stderr, source, "kernel.cpp") or ("every innermost loop is vectorised",)
    return Capture("compiler", _METHOD, notes=notes)
