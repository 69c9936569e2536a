"""The fenced blocks of a reply, as models send them: back-ticks inside the code, a fence that is never closed, named files."""

from __future__ import annotations

import ast
import re
from collections.abc import Sequence
from dataclasses import dataclass

_FENCE = re.compile(r"^ {0,3}(`{3,}|~{3,})[ \t]*([^`\n]*)$")
_NAMED = re.compile(r"([\w./-]+\.(?:py|cpp|cc|cxx|cu|hip|h|json|diff|patch))\b")
_BY_ENDING = {"py": "python", "cc": "cpp", "cxx": "cpp", "h": "cpp", "hip": "cpp", "cu": "cuda"}


@dataclass(frozen=True, slots=True)
class Block:
    """The text between two fences. `word` is the fence's language in lower case, `file` the name given there or just before."""

    word: str
    file: str
    text: str
    closed: bool


def blocks(reply: str) -> list[Block]:
    """The blocks in order. Where a fence could be closed by several lines, the first is taken at which the text is whole."""
    lines = reply.splitlines()
    found: list[Block] = []
    at = 0
    while at < len(lines):
        match = _FENCE.match(lines[at])
        if match is None:
            at += 1
            continue
        word, file = _labels(match[2], lines[at - 1] if at else "")
        end = _end(lines, at, match[1], word)
        text = "\n".join(lines[at + 1 : end]) + "\n"
        found.append(Block(word, file, text, end < len(lines)))
        at = end + 1
    return found


def _labels(info: str, before: str) -> tuple[str, str]:
    """The language and the file of a fence: `cpp`, `python title=kernel.py`, or a line `**plan.json**` above it."""
    named = _NAMED.search(info) or (_NAMED.search(before) if len(before) < 80 else None)
    file = named[1] if named else ""
    words = [word for word in re.split(r"[\s,:{}=]+", info.lower()) if word]
    word = words[0].removeprefix(".") if words and not _NAMED.fullmatch(words[0]) else ""
    ending = file.rpartition(".")[2]
    return word or _BY_ENDING.get(ending, ending), file


def _end(lines: Sequence[str], start: int, fence: str, word: str) -> int:
    """The number of the closing line; that of the line after the last where there is none."""
    closers: list[int] = []
    for number in range(start + 1, len(lines)):
        match = _FENCE.match(lines[number])
        if match is None or match[1][0] != fence[0] or len(match[1]) < len(fence):
            continue
        if match[2].strip():
            if closers and _whole("\n".join(lines[start + 1 : closers[-1]]), word):
                break  # the next block begins
            continue
        closers.append(number)
    for number in closers:
        if _whole("\n".join(lines[start + 1 : number]), word):
            return number
    return closers[0] if closers else len(lines)


def _whole(text: str, word: str) -> bool:
    """Whether `text` could be a whole file of its language."""
    if word in ("python", "py", "triton"):
        try:
            ast.parse(text)
        except (SyntaxError, ValueError):
            return False
        return True
    if word in ("cpp", "c++", "c", "cuda", "cu", "json"):
        bare = re.sub(r'//[^\n]*|/\*.*?\*/|"(?:\\.|[^"\\\n])*"|\'(?:\\.|[^\'\\\n])*\'', "", text, flags=re.DOTALL)
        return "/*" not in bare and bare.count("{") == bare.count("}")
    return True
