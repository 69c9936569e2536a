"""What a compiled C++ object needs and holds, read from its ELF tables before it is linked: the rule behind the rules about text.

A name that a macro, an attribute or a compiler's extension hid from the text rules is a symbol here. Allowed are the functions of
mathematics and memory that compilers call by themselves, and OpenMP's regions and loops; the object may hold code and constants,
and nothing that can be written, runs at load time or belongs to a thread.

Source of the layout: System V ABI, chapter 4 (object files); the tables are those of 64-bit little-endian objects.
"""

from __future__ import annotations

import re
import struct
from dataclasses import dataclass
from pathlib import Path

from kforge_dynamo.records.guardrail import Guardrail, Violation

GUARDRAILS: tuple[Guardrail, ...] = (
    Guardrail("symbol", "a function or variable from another library that a kernel has no use for"),
    Guardrail("state", "memory of the library's own that can be written: it survives a call"),
    Guardrail("load", "code that runs when the library is loaded or unloaded, or chooses its functions then"),
)
"""By name, with the reason."""

_MATHS = """acos acosh asin asinh atan atan2 atanh cbrt ceil copysign cos cosh erf erfc exp exp10 exp2 expm1 fabs fdim floor fma
fmax fmin fmod frexp hypot ldexp lgamma log log10 log1p log2 logb lrint lround llrint llround modf nearbyint nextafter pow
remainder rint round roundeven scalbn sin sincos sinh sqrt tan tanh tgamma trunc"""
_ALLOWED = re.compile(
    r"(?:" + "|".join(_MATHS.split()) + r")[fl]?"
    r"|_ZGV[bcdeNns]\w+|__(?:exp|exp2|log|log2|pow|sin|cos)f?_finite"
    r"|mem(?:cpy|move|set|cmp)|__mem(?:cpy|move|set)_chk|bcmp"
    r"|GOMP_(?:parallel|barrier|loop|critical|atomic|single|sections|ordered)\w*"
    r"|omp_get_(?:thread_num|num_threads|max_threads|num_procs|level|in_parallel)"
    r"|__(?:trunc|extend|float|fix|mul|div|udiv|mod|umod|add|sub|cmp|eq|ne|lt|le|gt|ge|unord)\w*[sdtxhb]f?[0-9]?\w{0,2}"
    r"|_GLOBAL_OFFSET_TABLE_|__stack_chk_fail|__gxx_personality_v0|_Unwind_Resume|_ZSt9terminatev|__clang_call_terminate"
    r"|__cxa_begin_catch|__cpu_model"
)
_POINTERS = frozenset({"kforge_sgemm", "kforge_bgemm"})
"""Written by the loader where the plan declares the library's GEMM."""

_UNWINDER = "DW.ref.__gxx_personality_v0"
"""An address that compilers emit for themselves; no C++ name has dots."""

_WRITE, _ALLOC, _TLS = 0x1, 0x2, 0x400
_OBJECT, _FUNCTION, _THREAD, _INDIRECT = 1, 2, 6, 10
_UNDEFINED, _COMMON, _RESERVED = 0, 0xFFF2, 0xFF00
_AT_LOAD = re.compile(r"\.(?:init_array|fini_array|preinit_array|ctors|dtors|init|fini)(?:\.|$)")
_FIXED_LATER = re.compile(r"\.data\.rel\.ro(?:\.|$)")  # addresses that the loader writes and then protects


@dataclass(frozen=True, slots=True)
class _Section:
    name: str
    kind: int
    flags: int
    offset: int
    size: int
    link: int


@dataclass(frozen=True, slots=True)
class _Symbol:
    name: str
    kind: int
    section: int
    size: int


def violations(path: Path, source: str, library: bool) -> tuple[Violation, ...]:
    """Every guardrail that the object at `path` breaks, with the place in `source` where a symbol's name first stands.

    `library` says that the plan declares torch's GEMM. An object of another format is not judged (no rule is known for it).
    """
    data = path.read_bytes()
    if data[:6] != b"\x7fELF\x02\x01":
        return ()
    sections = _sections(data)
    pointers = _POINTERS if library else frozenset()
    found: list[Violation] = []
    for symbol in _symbols(data, sections):
        words = _of_symbol(symbol, sections, pointers)
        if words is not None:
            found.append(_placed(words, symbol.name, source))
    found += [
        Violation("load", 0, 0, f"the section {section.name}")
        for section in sections
        if section.size and section.flags & _ALLOC and _AT_LOAD.match(section.name)
    ]
    return tuple(found)


def _of_symbol(symbol: _Symbol, sections: list[_Section], pointers: frozenset[str]) -> tuple[str, str] | None:
    """The guardrail that a symbol breaks and the words for it."""
    if symbol.section == _UNDEFINED:
        return None if not symbol.name or _ALLOWED.fullmatch(symbol.name) else ("symbol", f"it needs {symbol.name}")
    if symbol.kind == _INDIRECT:
        return "load", f"{symbol.name} is chosen when the library is loaded"
    if symbol.section == _COMMON:
        return "state", f"{symbol.name} can be written"
    if symbol.section >= _RESERVED or symbol.section >= len(sections):
        return None
    section = sections[symbol.section]
    if symbol.kind == _THREAD or section.flags & _TLS:
        return "state", f"{symbol.name} belongs to a thread"
    written = section.flags & _WRITE and section.flags & _ALLOC and not _FIXED_LATER.match(section.name)
    if not written or symbol.kind not in (0, _OBJECT) or not symbol.name:
        return None
    if (symbol.name in pointers and symbol.size <= 8) or symbol.name == _UNWINDER:
        return None
    return "state", f"{symbol.name} can be written"


def _placed(words: tuple[str, str], name: str, source: str) -> Violation:
    plain = re.sub(r"^_Z\w*?\d+(?=[A-Za-z_])|(?:E?v|\.\d+)$", "", name)
    match = re.search(rf"\b{re.escape(plain)}\b", source)
    if match is None:
        return Violation(words[0], 0, 0, words[1])
    start = source.rfind("\n", 0, match.start()) + 1
    return Violation(words[0], source.count("\n", 0, match.start()) + 1, match.start() - start + 1, words[1])


def _sections(data: bytes) -> list[_Section]:
    (table,) = struct.unpack_from("<Q", data, 40)
    size, count, names = struct.unpack_from("<HHH", data, 58)
    raw = [struct.unpack_from("<IIQQQQII", data, table + size * index) for index in range(count)]
    return [_Section(_text(data, raw[names][4] + item[0]), item[1], item[2], item[4], item[5], item[6]) for item in raw]


def _symbols(data: bytes, sections: list[_Section]) -> list[_Symbol]:
    found = []
    for section in sections:
        if section.kind != 2:  # SHT_SYMTAB
            continue
        strings = sections[section.link].offset
        for at in range(section.offset + 24, section.offset + section.size, 24):  # the first entry is empty
            name, info, _, index, _, size = struct.unpack_from("<IBBHQQ", data, at)
            if info & 15 in (0, _OBJECT, _FUNCTION, _THREAD, _INDIRECT):
                found.append(_Symbol(_text(data, strings + name), info & 15, index, size))
    return found


def _text(data: bytes, at: int) -> str:
    return data[at : data.index(b"\0", at)].decode(errors="replace")
