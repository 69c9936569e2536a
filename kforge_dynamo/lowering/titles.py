"""A task in a few words: the familiar names of its epilogue, its sizes, its dtype."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from kforge_dynamo.records.task import Const, Node, Operand, Task

_SILENT = ("reshape", "slice", "expand", "convert")
_SWAPS = ("add", "mul", "maximum", "minimum")
_PLAIN = ("add", "sub", "mul", "div", "neg")
_WORDS = 8
_SHORT = {"float32": "f32", "float16": "f16", "bfloat16": "bf16"}

Pattern = Any
"""An op with its operands' patterns as a tuple; "#" for a constant; another text for a value, the same wherever it recurs."""

_SHIFTED = ("exp", ("sub", "x", ("amax", "x")))
_SOFTPLUS = ("where", ("gt", "x", "#"), "x", ("log1p", ("exp", "x")))
_PEAK = ("where", ("eq", ("abs", ("amax", "x")), "#"), "#", ("amax", "x"))
_RSTD = ("rsqrt", ("add", ("var", "x"), "#"))
_IDIOMS: tuple[tuple[str, Pattern], ...] = (
    ("gelu(erf)", ("mul", ("mul", "x", "#"), ("add", ("erf", ("mul", "x", "#")), "#"))),
    (
        "gelu(tanh)",
        ("mul", ("mul", "x", "#"), ("add", ("tanh", ("mul", ("add", "x", ("mul", ("pow", "x", "#"), "#")), "#")), "#")),
    ),
    (
        "gelu(tanh)",
        (
            "mul",
            ("mul", "x", "#"),
            ("add", ("tanh", ("mul", ("add", "x", ("mul", ("mul", ("mul", "x", "x"), "x"), "#")), "#")), "#"),
        ),
    ),
    ("silu", ("mul", "x", ("sigmoid", "x"))),
    ("silu", ("div", "x", ("add", ("exp", ("neg", "x")), "#"))),
    ("mish", ("mul", "x", ("tanh", _SOFTPLUS))),
    ("softplus", _SOFTPLUS),
    ("logsumexp", ("add", ("log", ("sum", ("exp", ("sub", "x", _PEAK)))), _PEAK)),
    ("softmax", ("div", _SHIFTED, ("sum", _SHIFTED))),
    ("log_softmax", ("sub", ("sub", "x", ("amax", "x")), ("log", ("sum", _SHIFTED)))),
    ("leaky_relu", ("where", ("gt", "x", "#"), "x", ("mul", "x", "#"))),
    ("clamp", ("minimum", ("maximum", "x", "#"), "#")),
    ("norm", ("mul", ("sub", "x", ("mean", "x")), _RSTD)),
    ("norm", ("add", ("mul", "x", ("mul", _RSTD, "w")), ("add", ("mul", ("neg", ("mean", "x")), ("mul", _RSTD, "w")), "b"))),
    ("norm", ("add", ("mul", "x", _RSTD), ("mul", ("neg", ("mean", "x")), _RSTD))),
    ("rms_norm", ("mul", "x", ("rsqrt", ("add", ("mean", ("pow", "x", "#")), "#")))),
    ("rms_norm", ("mul", "x", ("rsqrt", ("add", ("mean", ("mul", "x", "x")), "#")))),
    ("batch_norm", ("mul", ("sub", "x", "mean"), ("reciprocal", ("sqrt", ("add", "variance", "#"))))),
)
"""Names people know, for the shapes their decompositions have."""


def title(task: Task) -> str:
    """E.g. "gemm + bias + gelu(erf), m x 1024 x 4096, f32": rows, N, K, dtype."""
    anchor = task.anchor
    words = _words(task)
    if anchor is None:
        return " + ".join(words)
    lhs = task.value(anchor.args[0]) if isinstance(anchor.args[0], int) else anchor.out
    rows = " x ".join(task.row_axes)
    return f"{' + '.join(words)}, {rows} x {anchor.out.cols[0]} x {lhs.cols[0]}, {_SHORT.get(lhs.dtype, lhs.dtype)}"


def _words(task: Task) -> list[str]:
    reader = _Reader(task)
    names: dict[int, str] = {}
    covered: set[int] = set()
    first = len(task.inputs)
    for number in reversed(range(first, first + len(task.nodes))):
        if number in covered or task.nodes[number - first].op in _SILENT:
            continue
        for name, pattern in _IDIOMS:
            inner = reader.match(number, pattern)
            if inner is not None:
                over_rows = any(dict(task.nodes[item - first].attrs).get("axes") == "rows" for item in inner)
                names[number] = "batch_norm" if over_rows else name
                covered |= inner - {number}
                break
    words = [
        names.get(number) or _word(node)
        for number, node in enumerate(task.nodes, start=first)
        if number not in covered and node.op not in _SILENT
    ]
    return words if len(words) <= _WORDS else _shortened(words)


def _shortened(words: list[str]) -> list[str]:
    """The words that say most, in their order, and how many were left out."""
    telling = [word for word in words if word not in _PLAIN][: _WORDS - 1]
    return [*telling, f"{len(words) - len(telling)} more"]


def _word(node: Node) -> str:
    if node.op == "gemm":
        return "gemm" if len(node.args) == 2 else "gemm + bias"
    return f"{node.op} over rows" if dict(node.attrs).get("axes") == "rows" else node.op


class _Reader:
    """Finds patterns in a task, looking through views and conversions."""

    def __init__(self, task: Task) -> None:
        self._first = len(task.inputs)
        self._nodes = task.nodes

    def match(self, number: int, pattern: Pattern) -> set[int] | None:
        """The numbers of the nodes that the pattern covers, None where it does not hold."""
        found = self._match(number, pattern, {})
        return None if found is None else found[1]

    def _match(self, operand: Operand, pattern: Pattern, known: Mapping[str, int]) -> tuple[Mapping[str, int], set[int]] | None:
        if pattern == "#" or isinstance(operand, Const):
            return (known, set()) if pattern == "#" and isinstance(operand, Const) else None
        number = self._behind_views(operand)
        if isinstance(pattern, str):
            fits = known.get(pattern, number) == number
            return ({**known, pattern: number}, set()) if fits else None
        op, *operands = pattern
        node = self._nodes[number - self._first] if number >= self._first else None
        if node is None or node.op != op or len(node.args) != len(operands):
            return None
        orders = [node.args, node.args[::-1]] if op in _SWAPS else [node.args]
        for order in orders:
            found = self._match_all(order, operands, known)
            if found is not None:
                return found[0], found[1] | {number}
        return None

    def _match_all(
        self, args: tuple[Operand, ...], patterns: list[Pattern], known: Mapping[str, int]
    ) -> tuple[Mapping[str, int], set[int]] | None:
        covered: set[int] = set()
        for arg, pattern in zip(args, patterns, strict=True):
            found = self._match(arg, pattern, known)
            if found is None:
                return None
            known, inner = found
            covered |= inner
        return known, covered

    def _behind_views(self, number: int) -> int:
        while number >= self._first:
            node = self._nodes[number - self._first]
            if node.op not in ("reshape", "expand", "convert") or not isinstance(node.args[0], int):
                break
            number = node.args[0]
        return number
