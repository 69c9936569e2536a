"""Draws programs: every line is run as it is drawn, and one that eager refuses is not taken."""

from __future__ import annotations

import random
import warnings
from collections.abc import Callable, Sequence

import torch

from benchmarks.random_graphs import templates
from benchmarks.random_graphs.judging import backward
from benchmarks.random_graphs.programs import FILLS, FORMS, ROWS, Input, Program

STATIC_ROWS = (1, 2, 3, 6, 7, 12, 16, 33)
DYNAMIC_ROWS = ((6, 12), (12, 6), (6, 18))
WIDTHS = (1, 2, 6, 8, 12, 16, 24, 33)
INNER = (1, 4, 8, 17, 32)
MOST_ELEMENTS = 20_000


class Drawer:
    """One program in the making."""

    def __init__(self, draw: random.Random, seed: int, rows: tuple[int, ...], train: bool) -> None:
        self.draw = draw
        self.rows = rows
        self.train = train
        self.seed = seed
        self.dtype = draw.choice(("float32",) * 5 + ("bfloat16", "bfloat16", "float16"))
        self.inputs: list[Input] = []
        self.lines: list[tuple[str, str]] = []
        self.values: dict[str, torch.Tensor] = {}
        self.arguments: list[str] = []

    def program(self, steps: int) -> Program:
        """The drawn program."""
        for _ in range(self.draw.choice((1, 1, 1, 2, 2, 3))):
            self._product()
        while len(self.lines) < steps:
            self._step()
            if self.draw.random() < 0.06:
                self._product()
        return Program(tuple(self.inputs), tuple(self.lines), self._outputs(), self.rows, self.train, self.seed)

    def _outputs(self) -> tuple[str, ...]:
        computed = [name for name in self.values if name not in self.arguments]
        unread = [name for name in computed if not any(name in _words(line) for _, line in self.lines)]
        chosen = [*unread[-4:], *self.draw.sample(computed, min(len(computed), self.draw.randint(0, 1)))]
        return tuple(dict.fromkeys(chosen or computed[-1:]))

    def _input(self, shape: Sequence[int | str], dtype: str | None = None, plain: bool = False) -> str:
        name = f"a{len(self.inputs)}"
        form = "dense" if plain else self.draw.choice(FORMS)
        item = Input(name, tuple(shape), dtype or self.dtype, form, self.draw.choice(FILLS))
        self.inputs.append(item)
        self.arguments.append(name)
        tensor = item.build(self.rows[0], self.seed)
        self.values[name] = tensor.requires_grad_() if self.train and tensor.is_floating_point() else tensor
        return name

    def _product(self) -> None:
        subjects = [name for name, value in self.values.items() if value.dim() in (2, 3) and str(value.dtype)[6:] == self.dtype]
        if subjects and self.draw.random() < 0.6:
            x = self.draw.choice(subjects)
        else:
            k = self.draw.choice(INNER)
            x = self._input((ROWS, k) if self.draw.random() < 0.7 else (self.draw.choice((1, 2, 3)), ROWS, k))
        tensor = self.values[x]
        n = self.draw.choice(WIDTHS)
        k = tensor.shape[-1]
        choices = templates.PRODUCTS_2D if tensor.dim() == 2 else templates.PRODUCTS_3D
        template = self.draw.choice(choices)
        shapes: dict[str, tuple[int | str, ...]] = {
            "w": (k, n), "wt": (n, k), "bias": (n,), "full": (*self._leading(tensor), n), "column": (*self._leading(tensor), 1),
            "batch": (*tensor.shape[:1], k, n),
        }  # fmt: skip
        names = {"x": x}
        for slot, shape in shapes.items():
            if "{" + slot + "}" in template:
                names[slot] = self._same_shape(shape) or self._input(shape)
        self._take(f"v{len(self.lines)}", template.format(**names))

    def _leading(self, tensor: torch.Tensor) -> tuple[int | str, ...]:
        return tuple(ROWS if len(self.rows) > 1 and size == self.rows[0] else size for size in tensor.shape[:-1])

    def _same_shape(self, shape: Sequence[int | str]) -> str | None:
        """An input that is there already: shared operands."""
        fitting = [item.name for item in self.inputs if item.shape == tuple(shape) and item.dtype == self.dtype]
        return self.draw.choice(fitting) if fitting and self.draw.random() < 0.5 else None

    def _step(self) -> None:
        computed = [name for name in self.values if name not in self.arguments]
        y = self.draw.choice(computed[-5:])
        kinds: tuple[tuple[int, Callable[[str], None]], ...] = (
            (8, self._unary), (7, self._binary), (5, self._reduction), (3, self._norm), (4, self._view), (1, self._write),
            (1, self._pool), (1, self._pair), (2, self._cast),
        )  # fmt: skip
        self.draw.choices([kind for _, kind in kinds], [weight for weight, _ in kinds])[0](y)

    def _unary(self, y: str) -> None:
        self._take(f"v{len(self.lines)}", self.draw.choice(templates.UNARY).format(y=y))

    def _binary(self, y: str) -> None:
        value = self.values[y]
        other = self._operand(value) if self.draw.random() < 0.5 else self.draw.choice(list(self.values))
        a, b = (y, other) if self.draw.random() < 0.8 else (other, y)
        self._take(f"v{len(self.lines)}", self.draw.choice(templates.BINARY).format(a=a, b=b))

    def _operand(self, value: torch.Tensor) -> str:
        """A new input that broadcasts with `value`."""
        start = self.draw.randint(0, value.dim())
        shape = [ROWS if len(self.rows) > 1 and size == self.rows[0] else size for size in value.shape[start:]]
        shape = [1 if self.draw.random() < 0.3 else size for size in shape]
        return self._same_shape(shape) or self._input(shape, self.draw.choice((self.dtype, self.dtype, "float32")))

    def _dims(self, y: str) -> dict[str, object]:
        rank = max(self.values[y].dim(), 1)
        some = self.draw.sample(range(rank), min(rank, 2))
        dims: object = tuple(some) if self.draw.random() < 0.15 else self.draw.choice((-1, -1, self.draw.randrange(rank)))
        return {"y": y, "d": dims, "e": self.draw.randrange(rank), "k": self.draw.random() < 0.6, "c": self.draw.choice((0, 1))}

    def _reduction(self, y: str) -> None:
        template = self.draw.choice(templates.REDUCTIONS) if self.draw.random() < 0.93 else self.draw.choice(templates.WHOLE)
        self._take(f"v{len(self.lines)}", template.format(**self._dims(y)))

    def _norm(self, y: str) -> None:
        self._take(f"v{len(self.lines)}", self.draw.choice(templates.NORMS).format(**self._dims(y)))

    def _view(self, y: str) -> None:
        self._take(f"v{len(self.lines)}", self.draw.choice(templates.VIEWS).format(**self._dims(y)))

    def _pool(self, y: str) -> None:
        self._take(f"v{len(self.lines)}", self.draw.choice(templates.POOLS).format(**self._dims(y)))

    def _pair(self, y: str) -> None:
        count = len(self.lines)
        self._take(f"v{count}, v{count}b", self.draw.choice(templates.PAIRS).format(**self._dims(y)))

    def _cast(self, y: str) -> None:
        self._take(f"v{len(self.lines)}", self.draw.choice(templates.CASTS).format(y=y))

    def _write(self, y: str) -> None:
        subject = y if self.draw.random() < 0.6 else self.draw.choice(list(self.values))
        self._take("", self.draw.choice(templates.WRITES).format(y=subject, b=self.draw.choice(list(self.values))))

    def _take(self, name: str, expression: str) -> None:
        """Runs the whole program with the line, for every number of rows; keeps it if eager does."""
        lines = (*self.lines, (name, expression))
        names = tuple(part for target, _ in lines for part in target.split(", ") if part)
        program = Program(tuple(self.inputs), lines, names, self.rows, self.train, self.seed)
        found = runs(program)
        if found is None or any(value.numel() > MOST_ELEMENTS or value.numel() == 0 for value in found.values()):
            return
        self.lines.append((name, expression))
        self.values |= found


def runs(program: Program) -> dict[str, torch.Tensor] | None:
    """The values of the outputs by name; None where eager refuses the program for one of its numbers of rows."""
    found: dict[str, torch.Tensor] = {}
    for rows in reversed(program.rows):
        try:
            with warnings.catch_warnings(), torch.set_grad_enabled(program.train):
                warnings.simplefilter("ignore")
                results = program.function()(*program.build(rows))
                if program.train:
                    backward(results)
        except Exception:  # noqa: BLE001 - eager says in many ways that a line does not fit
            return None
        if not all(isinstance(item, torch.Tensor) for item in results):
            return None
        found = dict(zip(program.outputs, results, strict=True))
    return found


def draw_module(draw: random.Random, seed: int, count: int) -> list[Program]:
    """Programs of four to fourteen lines that can be called together, fewer of them where sizes are symbolic or gradients are
    asked for, which is slow to trace. Equal draws give equal programs."""
    dynamic, train = draw.random() < 0.25, draw.random() < 0.3
    several = draw.choice(DYNAMIC_ROWS)
    programs = []
    for index in range(max(1, count // (1 + dynamic + train))):
        rows = several if dynamic else (draw.choice(STATIC_ROWS),)
        programs.append(Drawer(draw, seed * 1000 + index, rows, train).program(draw.randint(4, 14)))
    return programs


def _words(text: str) -> set[str]:
    return set("".join(char if char.isalnum() or char == "_" else " " for char in text).split())
