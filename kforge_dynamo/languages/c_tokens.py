"""The tokens of a C++ or CUDA source, with their places: what rules about its text are checked on.

Whatever could make the compiler see another text than these tokens do (line splices, trigraphs, raw strings, bytes that are no
printable ASCII) is no token at all: `Unreadable` says where.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass

_TOKEN = re.compile(
    r"""(?P<space>[ \t\n]+)
    |(?P<comment>//[^\n]*|/\*.*?\*/)
    |(?P<string>(?:u8|[uUL])?"(?:[^"\\\n]|\\.)*")
    |(?P<char>(?:u8|[uUL])?'(?:[^'\\\n]|\\.)+')
    |(?P<number>\.?[0-9](?:[eEpP][+-]|'[0-9a-zA-Z_]|[0-9a-zA-Z_.])*)
    |(?P<name>[A-Za-z_][A-Za-z0-9_]*)
    |(?P<mark>::|->|\#\#|[^\s\w"'])""",
    re.VERBOSE | re.DOTALL,
)
_RAW_STRING = re.compile(r'(?:u8|[uUL])?R"')
_SPLICE = re.compile(r"\\[ \t]*(?:\n|$)")
_TRIGRAPH = re.compile(r"\?\?[=/'()!<>-]")
_DIGRAPH = re.compile(r"%:|<:|:>|<%|%>")


@dataclass(frozen=True, slots=True)
class Token:
    """`kind` is "name", "number", "string", "char" or "mark"; `directive` is the word behind # of the line it stands in."""

    kind: str
    text: str
    line: int
    column: int
    directive: str | None


@dataclass(frozen=True, slots=True)
class Unreadable:
    """A place where the text is not what it seems."""

    line: int
    column: int
    words: str


def tokens(source: str) -> list[Token] | Unreadable:
    """All tokens in order without comments, or the first place that hides what the compiler would read."""
    hidden = _hidden(source)
    if hidden is not None:
        return hidden
    found: list[Token] = []
    directive: str | None = None
    pending = fresh = False
    line, start = 1, 0
    for match in _matches(source):
        if isinstance(match, Unreadable):
            return match
        kind, text, at = match
        column = at - start + 1
        if kind in ("space", "comment"):
            if "\n" in text:
                line, start = line + text.count("\n"), at + text.rindex("\n") + 1
            if kind == "space" and "\n" in text:
                directive, pending, fresh = None, False, True
            continue
        first = fresh or not found
        fresh = False
        if text == "#" and first:
            directive, pending = "", True
            continue
        if pending:
            directive, pending = text, False
        found.append(Token(kind, text, line, column, directive))
    return found


def _matches(source: str) -> Iterator[tuple[str, str, int] | Unreadable]:
    at = 0
    while at < len(source):
        match = _TOKEN.match(source, at)
        if match is None or match.lastgroup is None:
            yield Unreadable(*_place(source, at), "a string, a character or a comment that does not end")
            return
        yield match.lastgroup, match.group(), at
        at = match.end()


def _hidden(source: str) -> Unreadable | None:
    rules = (
        (re.compile(r"[^\t\n\x20-\x7e]"), "a character that is no printable ASCII"),
        (_SPLICE, "a line that ends in a backslash, which joins it with the next"),
        (_TRIGRAPH, "a trigraph"),
    )
    for pattern, words in rules:
        match = pattern.search(source)
        if match is not None:
            return Unreadable(*_place(source, match.start()), words)
    plain = _without_text(source)
    for pattern, words in ((_RAW_STRING, "a raw string"), (_DIGRAPH, "a digraph")):
        match = pattern.search(plain)
        if match is not None and not (words == "a digraph" and plain[match.start() : match.start() + 3] == "<::"):
            return Unreadable(*_place(source, match.start()), words)
    return None


def _without_text(source: str) -> str:
    """The source with comments and strings blanked, at the same places."""
    pattern = re.compile(r"//[^\n]*|/\*.*?\*/|\"(?:[^\"\\\n]|\\.)*\"", re.DOTALL)
    return pattern.sub(lambda match: _blanked(match.group()), source)


def _blanked(text: str) -> str:
    return '"' * len(text) if text[0] == '"' else re.sub(r"[^\n]", " ", text)


def _place(source: str, at: int) -> tuple[int, int]:
    start = source.rfind("\n", 0, at) + 1
    return source.count("\n", 0, at) + 1, at - start + 1
