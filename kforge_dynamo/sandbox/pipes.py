"""Lines of JSON and last words: how the processes of the sandbox talk, and how nobody can flood the other."""

from __future__ import annotations

import json
import signal
from collections import deque
from typing import BinaryIO

LONGEST_LINE = 16 << 20
KEPT_LINES = 40
_SHOWN_LINES = 8
_LONGEST_PRINTED = 4096


def message(buffer: bytearray) -> dict[str, object] | None:
    """Takes the next whole line out of `buffer`: {} where there is none yet, None where it is no message."""
    end = buffer.find(b"\n")
    if end < 0:
        return {} if len(buffer) <= LONGEST_LINE else None
    line = bytes(buffer[:end])
    del buffer[: end + 1]
    try:
        found = json.loads(line)
    except (ValueError, RecursionError):
        return None
    return found if isinstance(found, dict) and found else None


def line(data: dict[str, object]) -> bytes:
    """`data` as one line."""
    return json.dumps(data).encode() + b"\n"


def drain(source: BinaryIO | None, printed: deque[str]) -> None:
    """Reads all that a process prints, so that it never blocks on a full pipe, and keeps the last lines."""
    if source is None:
        return
    rest = b""
    while chunk := source.read1(1 << 16):  # type: ignore[attr-defined]
        *lines, rest = (rest + chunk).split(b"\n")
        rest = rest[-_LONGEST_PRINTED:]
        printed.extend(text[-_LONGEST_PRINTED:].decode(errors="replace") for text in lines[-KEPT_LINES:])
    if rest:
        printed.append(rest.decode(errors="replace"))


def ended(code: int) -> str:
    """How a process with this return code (negative: a signal's number) ended."""
    if code >= 0:
        return f"ended with status {code}"
    try:
        return f"was killed by {signal.Signals(-code).name}"
    except ValueError:
        return f"was killed by signal {-code}"


def last_words(printed: deque[str]) -> str:
    """The last lines that a process printed."""
    return "\n".join(list(printed)[-_SHOWN_LINES:])
