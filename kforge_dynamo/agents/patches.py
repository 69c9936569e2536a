"""Changes to a parent's source as models write them: unified diffs with wrong line numbers, and SEARCH/REPLACE pairs."""

from __future__ import annotations

import re
from collections.abc import Sequence

_PAIR = re.compile(r"^<{5,} ?SEARCH[^\n]*\n(.*?)^={5,}[^\n]*\n(.*?)^>{5,} ?REPLACE[^\n]*$", re.DOTALL | re.MULTILINE)


def is_patch(text: str) -> bool:
    """Whether `text` is a patch and no source."""
    return bool(_PAIR.search(text) or re.search(r"^@@", text, re.MULTILINE) or re.search(r"^--- .*\n\+\+\+ ", text, re.MULTILINE))


def apply(patch: str, source: str) -> str | None:
    """`source` with the patch; None where a hunk does not fit, or fits at several places. Line numbers are not believed: a hunk
    goes where its old lines stand, blanks at the ends of lines aside."""
    hunks = _pairs(patch) or _hunks(patch)
    lines = source.splitlines()
    for old, new in hunks:
        place = _place(lines, old)
        if place is None:
            return None
        lines[place : place + len(old)] = new
    return "\n".join(lines) + "\n" if hunks else None


def _pairs(patch: str) -> list[tuple[list[str], list[str]]]:
    return [(match[1].splitlines(), match[2].splitlines()) for match in _PAIR.finditer(patch)]


def _hunks(patch: str) -> list[tuple[list[str], list[str]]]:
    bare = re.search(r"^@@", patch, re.MULTILINE) is None  # only lines with - and +: one hunk
    hunks: list[tuple[list[str], list[str]]] = [([], [])] if bare else []
    for line in patch.strip("\n").splitlines():
        if line.startswith("@@"):
            hunks.append(([], []))
        elif line.startswith(("--- ", "+++ ", "diff ", "index ", "\\ ")) or not hunks:
            continue
        elif line.startswith("+"):
            hunks[-1][1].append(line[1:])
        elif line.startswith("-"):
            hunks[-1][0].append(line[1:])
        else:  # context; some models drop the leading blank of an empty line
            for side in hunks[-1]:
                side.append(line[1:] if line.startswith(" ") else line)
    return [(old, new) for old, new in hunks if old != new]


def _place(lines: Sequence[str], old: Sequence[str]) -> int | None:
    """Where `old` stands in `lines`, if at exactly one place: as it is, else without regard to blanks around a line."""
    if not old:
        return None
    for form in (str.rstrip, str.strip):
        wanted = [form(line) for line in old]
        have = [form(line) for line in lines]
        places = [at for at in range(len(have) - len(wanted) + 1) if have[at : at + len(wanted)] == wanted]
        if places:
            return places[0] if len(places) == 1 else None
    return None
