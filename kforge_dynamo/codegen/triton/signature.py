"""What a kernel is passed, collected while its body is written; and the indices of the rows a program works on."""

from __future__ import annotations

from collections.abc import Sequence

from kforge_dynamo.records.task import Task

_ORDER = ("desc", "in", "out", "buf", "size", "stride")


class Signature:
    """Maps the argument texts of `records.candidate.Launch` to parameter names."""

    def __init__(self) -> None:
        self._names: dict[str, str] = {}

    def input(self, number: int) -> str:
        """The pointer of an input."""
        return self._names.setdefault(f"in:{number}", f"in{number}")

    def output(self, number: int) -> str:
        """The pointer of an output."""
        return self._names.setdefault(f"out:{number}", f"out{number}")

    def buffer(self, name: str) -> str:
        """The pointer of a buffer of the plan."""
        return self._names.setdefault(f"buf:{name}", name)

    def pointer(self, argument: str) -> str:
        """The pointer that `in:I`, `out:I` or `buf:NAME` names."""
        kind, which = argument.split(":")
        return self.buffer(which) if kind == "buf" else self.input(int(which)) if kind == "in" else self.output(int(which))

    def size(self, expression: str) -> str:
        """The integer that a size expression gives."""
        if expression == "1":
            return "1"
        plain = expression.replace("*", "_")
        name = f"n_{plain}" if plain.isidentifier() else f"n_{len(self._names)}"
        return self._names.setdefault(f"size:{expression}", name)

    def stride(self, number: int, dimension: int) -> str:
        """The stride of an input along a dimension of its `rows + cols`."""
        return self._names.setdefault(f"stride:{number}:{dimension}", f"in{number}_s{dimension}")

    def descriptor(self, argument: str) -> str:
        """The tensor descriptor that `argument` describes (with its `desc:`)."""
        _, kind, which = argument.split(":")[:3]
        return self._names.setdefault(argument, f"{kind}{which}_tiles" if kind != "buf" else f"{which}_tiles")

    def _sorted(self) -> list[tuple[str, str]]:
        return sorted(self._names.items(), key=lambda item: _ORDER.index(item[0].split(":", 1)[0]))

    @property
    def arguments(self) -> tuple[str, ...]:
        """Argument texts, in the order of the parameters."""
        return tuple(argument for argument, _ in self._sorted())

    @property
    def parameters(self) -> tuple[str, ...]:
        """Parameter names in order."""
        return tuple(name for _, name in self._sorted())


def times(axes: Sequence[str]) -> str:
    """The size expression of a product of axes."""
    return "*".join(axes) if axes else "1"


class RowIndex:
    """Names for the row indices of a program, written into `head` when first asked for.

    The first `batch` row axes are fixed for a program: its scalar `batch`. The others vary along the block called `vector`.
    """

    def __init__(self, task: Task, signature: Signature, head: list[str], batch: int, vector: str = "row") -> None:
        self._signature, self._head, self._vector = signature, head, vector
        self._fixed, self._varying = task.row_axes[:batch], task.row_axes[batch:]
        self._known: dict[str, str] = {}

    @property
    def count(self) -> str:
        """Name of the number of rows along the vector."""
        return self._signature.size(times(self._varying))

    def is_fixed(self, axis: str) -> bool:
        """Whether the axis is part of the batch, the same for all rows of a program."""
        return axis in self._fixed

    def of(self, axis: str) -> str:
        """The index along a row axis."""
        if axis not in self._known:
            axes, source = (self._fixed, "batch") if axis in self._fixed else (self._varying, self._vector)
            self._known[axis] = self._decomposed(axis, axes, source)
        return self._known[axis]

    def flat(self) -> str:
        """The row-major index over all row axes, 64 bits wide."""
        if "flat" not in self._known:
            rows = f"{self._vector}.to(tl.int64)"
            start = f"batch.to(tl.int64) * {self.count} + {rows}" if self._fixed else rows
            self._head.append(f"flat = {start}")
            self._known["flat"] = "flat"
        return self._known["flat"]

    def offset(self, number: int, terms: Sequence[tuple[str, str]]) -> str:
        """The row part of an input's offset: `terms` are (axis, stride text)."""
        name = f"in{number}_{self._vector}"
        if name not in self._known:
            parts = [f"{self.of(axis)}.to(tl.int64) * {stride}" for axis, stride in terms]
            self._head.append(f"{name} = {' + '.join(parts)}")
            self._known[name] = name
        return name

    def _decomposed(self, axis: str, axes: Sequence[str], source: str) -> str:
        if len(axes) == 1:
            return source
        position = axes.index(axis)
        inner = axes[position + 1 :]
        text = f"{source} // {self._signature.size(times(inner))}" if inner else source
        if position > 0:
            text = f"({text}) % {self._signature.size(axis)}"
        self._head.append(f"{source}_{axis} = {text}")
        return f"{source}_{axis}"
