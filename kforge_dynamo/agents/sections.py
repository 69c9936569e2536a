"""Prompts with a budget: each section has its own, all together have one, and what must never go is never cut for others.

Models lose the thread in long prompts (NoLiMa), so a prompt is short by construction and does not grow with a run.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

_LETTERS_PER_TOKEN = 3  # of code; prose has more, so this counts too many tokens rather than too few
_LEAST = 40


@dataclass(frozen=True, slots=True)
class Section:
    """A titled part. `limit` is its most tokens; `weight` 0 is never shortened for the sake of others, a larger one sooner."""

    title: str
    text: str
    limit: int
    weight: int


def tokens(text: str) -> int:
    """An upper estimate of the tokens of `text`, without a tokenizer of any vendor."""
    return -(-len(text.encode()) // _LETTERS_PER_TOKEN)


def shortened(text: str, limit: int) -> str:
    """`text` in at most `limit` tokens: whole lines from its middle go, and a line says how many."""
    if tokens(text) <= limit:
        return text
    lines = text.splitlines()
    room = max(0, limit - 20) * _LETTERS_PER_TOKEN
    head, tail = _fill(lines, room // 3), _fill(list(reversed(lines)), room - room // 3)
    kept = head + tail if head + tail < len(lines) else 0
    middle = f"... {len(lines) - kept} lines left out ..."
    if not kept:
        return text.encode()[:room].decode(errors="ignore") + f"\n{middle}" if room else middle
    return "\n".join([*lines[:head], middle, *(lines[-tail:] if tail else [])])


def _fill(lines: Sequence[str], room: int) -> int:
    """How many lines fit into `room` bytes."""
    for number, line in enumerate(lines):
        room -= len(line.encode()) + 1
        if room < 0:
            return number
    return len(lines)


def assemble(sections: Sequence[Section], total: int) -> str:
    """The sections as one text of at most `total` tokens: each within its limit, then the weightiest shortened, then left out.

    Sections of weight 0 stay as their own limits allow; `total` must hold them all.
    """
    kept = [replace(item, text=shortened(item.text, item.limit)) for item in sections if item.text.strip()]
    order = sorted((index for index, item in enumerate(kept) if item.weight > 0), key=lambda index: -kept[index].weight)
    for index in order:
        over = tokens(_text(kept)) - total
        if over <= 0:
            break
        left = tokens(kept[index].text) - over - 2
        kept[index] = replace(kept[index], text=shortened(kept[index].text, left) if left >= _LEAST else "")
    return _text(kept)


def _text(sections: Sequence[Section]) -> str:
    return "\n\n".join(f"## {item.title}\n{item.text.rstrip()}" for item in sections if item.text)


def fenced(word: str, text: str) -> str:
    """`text` between fences that are longer than any inside it."""
    longest = max((len(run) for run in _runs(text)), default=0)
    fence = "`" * max(3, longest + 1)
    return f"{fence}{word}\n{text.rstrip()}\n{fence}"


def _runs(text: str) -> list[str]:
    runs, current = [], ""
    for letter in [*text, " "]:
        if letter == "`":
            current += letter
        elif current:
            runs.append(current)
            current = ""
    return runs
