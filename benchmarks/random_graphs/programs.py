"""A random program as text: inputs, lines of Python, outputs. Text runs, shrinks and can be handed to somebody else."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import torch
import torch.nn.functional as F

ROWS = "M"
"""Stands for the number of rows in the shape of an input."""
DTYPES = {
    "float32": torch.float32,
    "bfloat16": torch.bfloat16,
    "float16": torch.float16,
    "bool": torch.bool,
    "int64": torch.int64,
}

Note = Callable[[str, torch.Tensor], torch.Tensor]
"""Called with the name and the value of every line; what it returns stands in the value's place."""


@dataclass(frozen=True, slots=True)
class Input:
    """A tensor argument. `form` says how it lies in memory, `fill` what is in it."""

    name: str
    shape: tuple[int | str, ...]
    dtype: str = "float32"
    form: str = "dense"
    fill: str = "normal"

    def sizes(self, rows: int) -> tuple[int, ...]:
        """The shape for this many rows."""
        return tuple(rows if isinstance(size, str) else size for size in self.shape)

    def build(self, rows: int, seed: int) -> torch.Tensor:
        """The tensor, the same one each time."""
        generator = torch.Generator().manual_seed(seed * 1009 + sum(map(ord, self.name)))
        sizes = self.sizes(rows)
        return _formed(sizes, self.form, lambda shape: _filled(shape, self.dtype, self.fill, generator))


def _filled(shape: Sequence[int], dtype: str, fill: str, generator: torch.Generator) -> torch.Tensor:
    if dtype == "bool":
        return torch.rand(tuple(shape), generator=generator) < 0.5
    if dtype == "int64":
        return torch.randint(0, 2, tuple(shape), generator=generator)
    value = torch.randn(tuple(shape), generator=generator)
    if fill == "integers":
        value = torch.randint(-2, 3, tuple(shape), generator=generator).float()
    elif fill == "special":
        holes = torch.rand(tuple(shape), generator=generator)
        marks = ((0.02, math.nan), (0.05, math.inf), (0.08, -math.inf), (0.2, 0.0), (0.3, -0.0))
        for limit, mark in reversed(marks):
            value = torch.where(holes < limit, torch.full_like(value, mark), value)
    else:
        value = {"normal": value, "large": value * 1e3, "small": value * 1e-3, "shifted": value + 50.0, "zero": value * 0.0}[fill]
    return value.to(DTYPES[dtype])


def _formed(sizes: tuple[int, ...], form: str, fill: Callable[[Sequence[int]], torch.Tensor]) -> torch.Tensor:
    if not sizes or form == "dense":
        return fill(sizes)
    if form == "transposed":
        return fill(sizes[::-1]).permute(*range(len(sizes) - 1, -1, -1))
    if form == "shifted":
        return fill((sizes[0] + 1, *sizes[1:]))[1:]
    if form == "stepped":
        return fill((*sizes[:-1], 2 * sizes[-1]))[..., ::2]
    if form == "padded":
        return fill((*sizes[:-1], sizes[-1] + 3))[..., : sizes[-1]]
    return fill((1, *sizes[1:])).expand(sizes)


FORMS = ("dense", "dense", "dense", "transposed", "shifted", "stepped", "padded", "expanded")
FILLS = ("normal",) * 9 + ("integers", "integers", "large", "small", "shifted", "special", "zero")


@dataclass(frozen=True, slots=True)
class Program:
    """`lines` are `(name, expression)`; a line without a name is a statement, a write in place.

    `rows` are the numbers of rows to call it with; with more than one, rows are marked dynamic. `train` asks for gradients of
    all floating inputs.
    """

    inputs: tuple[Input, ...]
    lines: tuple[tuple[str, str], ...]
    outputs: tuple[str, ...]
    rows: tuple[int, ...]
    train: bool
    seed: int

    def source(self, name: str, noted: bool = False) -> str:
        """The function as text; with `noted` every value passes through a global `note`."""
        lines = [f"def {name}({', '.join(item.name for item in self.inputs)}):"]
        for target, expression in self.lines:
            if not target:
                lines.append(f"    {expression}")
            elif noted and "," not in target:
                lines.append(f"    {target} = note({target!r}, {expression})")
            else:
                lines.append(f"    {target} = {expression}")
        return "\n".join([*lines, f"    return ({''.join(f'{item}, ' for item in self.outputs)})", ""])

    def build(self, rows: int) -> list[torch.Tensor]:
        """Fresh arguments."""
        tensors = [item.build(rows, self.seed) for item in self.inputs]
        return [item.requires_grad_() if self.train and item.is_floating_point() else item for item in tensors]

    def function(self, note: Note | None = None, widen: bool = False) -> Callable[..., tuple[torch.Tensor, ...]]:
        """The function. With `widen`, conversions between floating dtypes round but stay in fp64."""
        names = environment(widen)
        if note is not None:
            names["note"] = note
        exec(self.source("program", note is not None), names)
        found: Callable[..., tuple[torch.Tensor, ...]] = names["program"]
        return found

    def without(self, index: int) -> Program:
        """The program less one line."""
        return replace(self, lines=self.lines[:index] + self.lines[index + 1 :])

    def script(self) -> str:
        """A file that compares the program with eager, for a report of a bug."""
        return SCRIPT.format(
            inputs="".join(f"    {item.name} = Input{_arguments(item)}.build(rows, {self.seed})\n" for item in self.inputs),
            names=", ".join(item.name for item in self.inputs),
            body=self.source("program"),
            rows=self.rows,
            train=self.train,
        )


def _arguments(item: Input) -> str:
    return f"({item.name!r}, {item.shape!r}, {item.dtype!r}, {item.form!r}, {item.fill!r})"


def cast(value: torch.Tensor, dtype: torch.dtype) -> torch.Tensor:
    """A conversion as programs write it."""
    return value.to(dtype)


def _rounding(value: torch.Tensor, dtype: torch.dtype) -> torch.Tensor:
    if not dtype.is_floating_point:
        return value.to(dtype)
    return value.to(dtype).double() if torch.finfo(dtype).bits < 32 else value.double()


def environment(widen: bool = False) -> dict[str, Any]:
    """The names that lines may use."""
    return {"torch": torch, "F": F, "math": math, "cast": _rounding if widen else cast}


def exec_module(sources: Mapping[str, str]) -> Callable[..., Any]:
    """One function that calls all of `sources` (text by name), each with its own tuple of arguments."""
    names = environment()
    for text in sources.values():
        exec(text, names)
    calls = ", ".join(f"{name}(*args[{index}])" for index, name in enumerate(sources))
    exec(f"def module(args):\n    return ({calls},)\n", names)
    found: Callable[..., Any] = names["module"]
    return found


SCRIPT = """import math

import torch
import torch.nn.functional as F

from benchmarks.planted import planted
from benchmarks.random_graphs.programs import Input, cast

{body}

def arguments(rows):
{inputs}    tensors = [{names}]
    return [item.requires_grad_() if {train} and item.is_floating_point() else item for item in tensors]


with planted("evaluator"), torch.set_grad_enabled({train}):
    compiled = torch.compile(program, backend="kforge", dynamic={rows} != tuple({rows}[:1]) or None)
    for rows in {rows}:
        for result, expected in zip(compiled(*arguments(rows)), program(*arguments(rows)), strict=True):
            torch.testing.assert_close(result, expected, equal_nan=True)
"""
