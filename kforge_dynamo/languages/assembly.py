"""What the machine code of a C++ kernel says of its hottest loop: x86-64 text of `objdump -d` in, `KernelFacts` out.

The hottest loop is taken to be the innermost loop with the most fused multiply-adds by lanes, then the most floating-point
arithmetic.
"""

from __future__ import annotations

import re
from dataclasses import dataclass

from kforge_dynamo.records.profile import KernelFacts

INSTRUMENT = "objdump"
_FUNCTION = re.compile(r"^[0-9a-f]+ <(.+)>:$")
_INSTRUCTION = re.compile(r"^\s*([0-9a-f]+):\s+(?:(?:lock|rep|repz|repnz|bnd|notrack|data16)\s+)*(\S+)\s*(.*)$")
_TARGET = re.compile(r"^\*?([0-9a-f]+)\b")
_FUSED = re.compile(r"^v(fn?m(add|sub)|fmaddsub|fmsubadd|dpbf16|dpph)")
_ARITHMETIC = re.compile(
    r"^v?(fn?m|add|sub|mul|div|sqrt|max|min|dp|rcp|rsqrt|scalef|reduce|rndscale|range)\w*?(ps|pd|ph|pbf16|ss|sd|sh)$"
)
_SCALAR_BITS = {"ss": 32, "sd": 64, "sh": 16}
_REGISTERS = (("%zmm", 512), ("%ymm", 256), ("%xmm", 128))
_FRAME = re.compile(r"^%rsp,%rbp$")
_NO_WAY_ON = ("jmp", "ret", "retq", "ud2", "hlt")
_MOST = 3


@dataclass(frozen=True, slots=True)
class Instruction:
    """One line of the listing."""

    address: int
    name: str
    operands: str


def hottest_loops(listing: str) -> tuple[KernelFacts, ...]:
    """The hottest loop of each function that has one with floating-point arithmetic, at most three, most work first."""
    found = [facts for name, body in functions(listing).items() if (facts := _hottest(name, body)) is not None]
    return tuple(sorted(found, key=lambda facts: -(facts.fma or 0))[:_MOST])


def functions(listing: str) -> dict[str, list[Instruction]]:
    """The instructions of each function of the listing, in order."""
    found: dict[str, list[Instruction]] = {}
    body: list[Instruction] = []
    for line in listing.splitlines():
        header = _FUNCTION.match(line)
        if header is not None:
            body = found.setdefault(header[1], [])
            continue
        match = _INSTRUCTION.match(line)
        if match is not None:
            body.append(Instruction(int(match[1], 16), match[2], match[3].partition("#")[0].strip()))
    return found


def innermost_loops(body: list[Instruction]) -> list[list[Instruction]]:
    """The natural loops of a function that hold no other loop, each in the order of its addresses.

    A jump back is a loop only where its target lies on every way to it: compilers also move unlikely blocks to the end of a
    function, from where they jump back without a loop.
    """
    place = {item.address: number for number, item in enumerate(body)}
    before: list[list[int]] = [[] for _ in body]
    back: dict[int, list[int]] = {}
    for number, item in enumerate(body):
        target = _TARGET.match(item.operands) if item.name.startswith("j") else None
        aim = place.get(int(target[1], 16)) if target is not None else None
        if aim is not None:
            before[aim].append(number)
            if aim <= number:
                back.setdefault(aim, []).append(number)
        if item.name not in _NO_WAY_ON and number + 1 < len(body):
            before[number + 1].append(number)
    loops = [found for head, tails in back.items() if (found := _natural(head, tails, before))]
    inner = [loop for loop in loops if not any(other < loop for other in loops)]
    return [[body[number] for number in sorted(loop)] for loop in inner]


def _natural(head: int, tails: list[int], before: list[list[int]]) -> frozenset[int]:
    """What can reach a tail without passing the head; nothing where the function's entry can, for then it is no loop."""
    found, waiting = {head}, list(tails)
    while waiting:
        number = waiting.pop()
        if number in found:
            continue
        found.add(number)
        waiting += before[number]
    return frozenset() if 0 in found and head != 0 else frozenset(found)


def _hottest(name: str, body: list[Instruction]) -> KernelFacts | None:
    framed = any(item.name == "mov" and _FRAME.match(item.operands) for item in body)
    best = (0, 0)
    facts: KernelFacts | None = None
    for loop in innermost_loops(body):
        fused = [item for item in loop if _FUSED.match(item.name)]
        arithmetic = [item for item in loop if _FUSED.match(item.name) or _ARITHMETIC.match(item.name)]
        work = (sum(map(_bits, fused)), sum(map(_bits, arithmetic)))
        if work <= best:
            continue
        best = work
        facts = KernelFacts(
            name=name.partition("(")[0].removeprefix("void "),
            instrument=INSTRUMENT,
            vector_bits=max(map(_bits, arithmetic)),
            fma=len(fused),
            instructions=len(loop),
            stack_moves=sum(1 for item in loop if _touches_stack(item, framed)),
        )
    return facts


def _bits(item: Instruction) -> int:
    scalar = _SCALAR_BITS.get(item.name[-2:])
    if scalar is not None:
        return scalar
    return next((bits for register, bits in _REGISTERS if register in item.operands), 0)


def _touches_stack(item: Instruction, framed: bool) -> bool:
    """Whether a vector instruction reads or writes the stack; %rbp counts where it is the frame's pointer."""
    vector = any(register in item.operands for register, _ in _REGISTERS)
    return vector and ("(%rsp" in item.operands or (framed and "(%rbp" in item.operands))
