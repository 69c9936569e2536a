"""What the text of a C++ or CUDA candidate may not say: a table of guardrails, and the check of a source against it.

A kernel computes: it reads its inputs, writes its outputs and its plan's buffers, and keeps nothing between calls. Rules about
text are the first line and give the best words; names from elsewhere are refused again in what was compiled (`object_file`), and
what a launch does is watched (`sandbox`). A `Dialect` says what differs between C++ for a CPU and CUDA C++.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

from kforge_dynamo.languages import c_names as names
from kforge_dynamo.languages.c_tokens import Token, Unreadable, tokens
from kforge_dynamo.languages.formats import allowed_formats
from kforge_dynamo.records.guardrail import Guardrail, Violation
from kforge_dynamo.records.task import Task

GUARDRAILS: tuple[Guardrail, ...] = (
    Guardrail(
        "text", "the compiler must see the text that the rules see: printable ASCII, no trigraph, digraph, splice, raw string"
    ),
    Guardrail("include", "headers of mathematics, integers and vector instructions are enough; others bring the system in"),
    Guardrail("macro", "a macro may not join tokens, make text of them, or give a name of the language or of a rule a meaning"),
    Guardrail("pragma", "unrolling and OpenMP work on the loops of the kernel; other pragmas change what is compiled"),
    Guardrail("assembly", "instructions written as text can do anything; the dialect lists the few that are needed"),
    Guardrail("attribute", "attributes for inlining, vectors and alignment; others run code at load time or move symbols"),
    Guardrail("linkage", "only the entry and OpenMP's queries have C linkage: nothing else is looked up in other libraries"),
    Guardrail("static", "what is static and not const survives a call: a kernel keeps nothing between calls"),
    Guardrail("storage", "thread-local memory survives a call"),
    Guardrail("process", "no system calls, processes, signals or environment"),
    Guardrail("file", "no files"),
    Guardrail("output", "no printing"),
    Guardrail("network", "no network"),
    Guardrail("thread", "threads come from OpenMP and end with the call"),
    Guardrail("clock", "a kernel that knows the time or a random number can tell a test from a measurement"),
    Guardrail("loader", "no looking up of other libraries' functions"),
    Guardrail("memory", "scratch memory is declared in the plan's buffers"),
    Guardrail("control", "no exceptions and no run-time types: they need a runtime library"),
    Guardrail("reserved", "names that belong to the compiler, beside those that a kernel needs"),
    Guardrail("downcast", "a number format narrower than the task's, which the candidate's precision scheme does not name"),
)
"""By name, with the reason. A violation adds the place."""

_RESERVED = re.compile(r"__\w*|_[A-Z]\w*|\w*__\w*")
_RESERVED_FINE = re.compile(r"__AVX\w*__|__ARM_FEATURE_\w+|__FLT_\w+__|__DBL_\w+__|__INT\w+__|_MM_\w+|_CMP_\w+|__mmask\d+")
_CASTS = frozenset({"const", "constexpr", "constinit"})


@dataclass(frozen=True, slots=True)
class Dialect:
    """What a language of the C family allows. `assembly` matches the texts of inline assembly."""

    name: str
    includes: frozenset[str]
    reserved: frozenset[str]
    attributes: frozenset[str]
    assembly: re.Pattern[str]


CPP = Dialect("cpp", names.INCLUDES, names.RESERVED, names.ATTRIBUTES, re.compile(r""))
"""C++ for CPUs. Its only inline assembly is empty: a fence for the compiler's optimiser."""
CUDA = Dialect(
    "cuda",
    names.CUDA_INCLUDES,
    names.CUDA_RESERVED,
    names.CUDA_ATTRIBUTES,
    re.compile(
        r"""(?:(?:\{|\}|\.reg\s+\.\w+\s+\w+;|@!?%?\w+)?\s*
        (?:mma\.|wgmma\.|ldmatrix\.|stmatrix\.|movmatrix\.|cp\.async\.|cp\.reduce\.async\.|mbarrier\.|fence\.|barrier\.|bar\.|ld\.|
        st\.|red\.|fma\.|cvt\.|ex2\.|lg2\.|tanh\.|rcp\.|rsqrt\.|sqrt\.|mul\.|add\.|sub\.|max\.|min\.|mov\.|selp\.|setp\.|prmt\.|
        lop3\.|shfl\.|mapa\.|griddepcontrol\.|setmaxnreg\.|tcgen05\.|elect\.|bfe\.|bfi\.|cvta\.|prefetch\.)[^;]*;?\s*(?:\\[nt])*\s*
        |\{|\}|\s|\\[nt])*""",
        re.VERBOSE,
    ),
)
"""CUDA C++: instructions for matrices, copies, barriers and mathematics; no clocks, no traps, no calls."""


def violations(source: str, dialect: Dialect, task: Task | None = None, scheme: str = "ieee") -> tuple[Violation, ...]:
    """Every place where `source` breaks a guardrail, in order. With `task` also formats narrower than it and `scheme` name."""
    found = tokens(source)
    if isinstance(found, Unreadable):
        return (Violation("text", found.line, found.column, found.words),)
    rules: list[Callable[[Sequence[Token], Dialect], Iterator[Violation]]] = [
        _directives, _assembly, _attributes, _linkage, _statics, _names
    ]  # fmt: skip
    broken = [violation for rule in rules for violation in rule(found, dialect)]
    if task is not None:
        broken += _downcasts(found, allowed_formats(task, scheme), scheme)
    return tuple(sorted(broken, key=lambda item: (item.line, item.column)))


def _at(token: Token, guardrail: str, words: str) -> Violation:
    return Violation(guardrail, token.line, token.column, words)


def _directives(found: Sequence[Token], dialect: Dialect) -> Iterator[Violation]:
    lines: dict[int, list[Token]] = {}
    for token in found:
        if token.directive is not None:
            lines.setdefault(token.line, []).append(token)
        elif token.text in ("#", "##"):
            yield _at(token, "macro", "a # that begins no line")
    for line in lines.values():
        word = line[0].directive
        if word not in names.DIRECTIVES:
            yield _at(line[0], "macro", f"the directive #{word}")
        elif word == "include":
            yield from _include(line, dialect)
        elif word == "define":
            yield from _define(line)
        elif word == "pragma":
            yield from _pragma(line)


def _include(line: Sequence[Token], dialect: Dialect) -> Iterator[Violation]:
    header = "".join(token.text for token in line[1:])
    if not (header.startswith("<") and header.endswith(">") and header[1:-1] in dialect.includes):
        yield _at(line[0], "include", f"{header or 'nothing'}: allowed are {', '.join(sorted(dialect.includes))}")


def _define(line: Sequence[Token]) -> Iterator[Violation]:
    if len(line) < 2 or line[1].kind != "name":
        yield _at(line[0], "macro", "a #define without a name")
        return
    name = line[1].text
    if name in names.KEYWORDS or name in names.RESERVED or name in names.EXTERNS or _RESERVED.fullmatch(name) or _refusal(name):
        yield _at(line[1], "macro", f"{name} has a meaning already")
    for token in line[2:]:
        if token.text in ("#", "##", "%:"):
            yield _at(token, "macro", f"{token.text} in the body of {name}")


def _pragma(line: Sequence[Token]) -> Iterator[Violation]:
    said = tuple(token.text for token in line[1:])
    if not any(said[: len(known)] == known for known in names.PRAGMAS):
        yield _at(line[0], "pragma", f"#pragma {' '.join(said)}")
    for token in line[1:]:
        if said[:1] == ("omp",) and token.text in names.OMP_CLAUSES_REFUSED:
            yield _at(token, "pragma", f"#pragma omp with {token.text}")


def _assembly(found: Sequence[Token], dialect: Dialect) -> Iterator[Violation]:
    for place, token in enumerate(found):
        if token.text not in ("asm", "__asm__", "__asm"):
            continue
        rest = place + 1
        while rest < len(found) and found[rest].text in ("volatile", "__volatile__"):
            rest += 1
        texts = []
        if rest < len(found) and found[rest].text == "(":
            rest += 1
            while rest < len(found) and found[rest].kind == "string":
                texts.append(found[rest].text[1:-1])
                rest += 1
        closed = rest < len(found) and found[rest].text in (":", "::", ")") and bool(texts)
        label = rest < len(found) and found[rest].text == ")" and (place == 0 or found[place - 1].text == ")")
        if not closed or label or dialect.assembly.fullmatch("".join(texts)) is None:
            yield _at(token, "assembly", f"inline assembly {''.join(texts)!r}")


def _attributes(found: Sequence[Token], dialect: Dialect) -> Iterator[Violation]:
    for place, token in enumerate(found):
        opened = token.text == "__attribute__" or (token.text == "[" and place + 1 < len(found) and found[place + 1].text == "[")
        if not opened:
            continue
        depth, rest = 0, place + 1 if token.text == "__attribute__" else place
        while rest < len(found):
            text = found[rest].text
            depth += (text in "([") - (text in ")]")
            if depth == 0:
                break
            listed = depth == 2 and found[rest].kind == "name"
            if listed and text.strip("_") not in dialect.attributes:
                yield _at(found[rest], "attribute", text)
            rest += 1


def _linkage(found: Sequence[Token], dialect: Dialect) -> Iterator[Violation]:
    for place, token in enumerate(found):
        if token.text != "extern":
            continue
        after = found[place + 1].text if place + 1 < len(found) else ""
        if after == "template":
            continue
        if after != '"C"':
            yield _at(token, "linkage", f'extern {after}: only extern "C"')
            continue
        for name in _declared(found, place + 2):
            if name.text not in names.EXTERNS:
                yield _at(name, "linkage", f"{name.text} with C linkage")


def _declared(found: Sequence[Token], start: int) -> Iterator[Token]:
    """Names in declarator position behind extern "C": of one declaration, or of all in its braces."""
    block = start < len(found) and found[start].text == "{"
    place, depth, last = start + block, 0, None
    while place < len(found):
        text = found[place].text
        if text == "__attribute__":
            place = _closing(found, place + 1) + 1
            continue
        if depth == 0 and text in ("(", ";", "=", "[", "{") and last is not None:
            yield last
            last = None
            if text == "(":
                place = _closing(found, place) + 1
                continue
            while text == "=" and place < len(found) and found[place].text != ";":
                place += 1
            continue
        if text in "{}":
            depth += 1 if text == "{" else -1
            if depth < 0 or (depth == 0 and not block):
                return
        elif depth == 0 and text == ";" and not block:
            return
        if depth == 0:
            last = found[place] if found[place].kind == "name" else None if text == ";" else last
        place += 1


def _closing(found: Sequence[Token], place: int) -> int:
    """The place of the bracket that closes the one at `place`."""
    depth = 0
    for rest in range(place, len(found)):
        depth += (found[rest].text == "(") - (found[rest].text == ")")
        if depth == 0:
            return rest
    return len(found)


def _statics(found: Sequence[Token], dialect: Dialect) -> Iterator[Violation]:
    """`static` variables that are not constant; the compiled object tells of all others."""
    for place, token in enumerate(found):
        if token.text != "static" or token.directive is not None:
            continue
        said: list[Token] = []
        for other in found[place + 1 :]:
            if other.text in ("(", ";", "=", "{", "["):
                break
            said.append(other)
        ends = found[place + 1 + len(said)].text if place + 1 + len(said) < len(found) else ";"
        words = {other.text for other in said}
        pointer_moves = "*" in words and said[-2:] and said[-2].text not in _CASTS and "constexpr" not in words
        if ends != "(" and "__attribute__" not in words and (not words & _CASTS or pointer_moves):
            name = said[-1].text if said else "?"
            yield _at(token, "static", f"{name} is static and not const")


def _names(found: Sequence[Token], dialect: Dialect) -> Iterator[Violation]:
    for place, token in enumerate(found):
        if token.kind != "name" or token.directive in ("include", "pragma"):
            continue
        name = token.text
        guardrail = _refusal(name)
        if guardrail is not None and (name not in names.LOCAL or _is_foreign(found, place)):
            yield _at(token, guardrail, name)
        elif _is_reserved(name, dialect):
            yield _at(token, "reserved", name)


def _refusal(name: str) -> str | None:
    if name.startswith("__builtin_"):
        return None if name.removeprefix("__builtin_") in names.BUILTINS else "reserved"
    if name in names.STATE_INTRINSICS or name.startswith("_MM_SET_"):
        return "process"
    return next((guardrail for guardrail, words in names.REFUSED.items() if name in words), None)


def _is_reserved(name: str, dialect: Dialect) -> bool:
    if name.startswith("__builtin_") or not _RESERVED.fullmatch(name):
        return False
    return (
        name not in dialect.reserved and not _RESERVED_FINE.fullmatch(name) and name not in ("__asm__", "__asm", "__volatile__")
    )


def _is_foreign(found: Sequence[Token], place: int) -> bool:
    """Whether a name that a kernel could have made itself is taken from elsewhere: behind std:: or ::, or called undefined."""
    before = found[place - 1].text if place else ""
    if before in (".", "->"):
        return False
    if before == "::":
        return place < 2 or found[place - 2].kind != "name" or found[place - 2].text == "std"
    after = found[place + 1].text if place + 1 < len(found) else ""
    if after != "(":
        return before == "&"
    return not _is_defined(found, found[place].text)


def _is_defined(found: Sequence[Token], name: str) -> bool:
    """Whether the source has a body for a function of this name, or declares a variable so called."""
    for place, token in enumerate(found):
        if token.text != name or place + 1 >= len(found):
            continue
        if found[place + 1].text == "=":
            return True
        if found[place + 1].text == "(":
            end = _closing(found, place + 1) + 1
            if end < len(found) and found[end].text == "{":
                return True
    return False


def _downcasts(found: Sequence[Token], allowed: frozenset[str], scheme: str) -> Iterator[Violation]:
    for token in found:
        for narrow, words in names.DOWNCASTS.items():
            if token.text in words and narrow not in allowed:
                yield _at(token, "downcast", f"{token.text} rounds to {narrow}, which the scheme {scheme!r} does not name")
