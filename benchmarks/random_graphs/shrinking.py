"""A failing program made small: lines, outputs and inputs are taken away as long as it fails."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from dataclasses import replace

from benchmarks.random_graphs.drawing import runs
from benchmarks.random_graphs.programs import Program

Fails = Callable[[Program], bool]


def shrink(program: Program, fails: Fails, attempts: int = 300) -> Program:
    """The smallest program found within so many attempts that still fails."""
    progress = True
    while progress and attempts > 0:
        progress = False
        for smaller in _smaller(program):
            if attempts <= 0:
                break
            if runs(smaller) is None:
                continue
            attempts -= 1
            if fails(smaller):
                program, progress = smaller, True
                break
    return program


def _smaller(program: Program) -> Iterator[Program]:
    """Programs with less in them, the boldest first."""
    if len(program.outputs) > 1:
        for output in program.outputs:
            yield _tidy(replace(program, outputs=(output,)))
            yield _tidy(replace(program, outputs=tuple(item for item in program.outputs if item != output)))
    if program.train:
        yield replace(program, train=False)
    if len(program.rows) > 1:
        yield replace(program, rows=program.rows[:1])
    for index in reversed(range(len(program.lines))):
        name, _ = program.lines[index]
        yield _tidy(program.without(index))
        for other in [item.name for item in program.inputs] + [target for target, _ in program.lines[:index]]:
            if name and other and "," not in name + other:
                yield _tidy(_renamed(program.without(index), name, other))
    for index, item in enumerate(program.inputs):
        for plain in (replace(item, form="dense"), replace(item, fill="normal"), replace(item, dtype="float32")):
            if plain != item:
                yield replace(program, inputs=(*program.inputs[:index], plain, *program.inputs[index + 1 :]))


def _renamed(program: Program, name: str, other: str) -> Program:
    """`other` in the place of `name`."""
    word = re.compile(rf"\b{name}\b")
    lines = tuple((target, word.sub(other, expression)) for target, expression in program.lines)
    outputs = tuple(dict.fromkeys(other if item == name else item for item in program.outputs))
    return replace(program, lines=lines, outputs=outputs)


def _tidy(program: Program) -> Program:
    """Without lines and inputs that nothing reads. Writes stay."""
    needed = set(program.outputs)
    lines: list[tuple[str, str]] = []
    for name, expression in reversed(program.lines):
        if not name or needed & set(name.split(", ")):
            lines.append((name, expression))
            needed |= set(re.findall(r"\w+", expression))
    inputs = tuple(item for item in program.inputs if item.name in needed)
    return replace(program, inputs=inputs, lines=tuple(reversed(lines)))
