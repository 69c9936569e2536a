"""Size expressions of launch plans: arithmetic over axis names, checked, then compiled once.

The language: integers, names of axes, `+ - * // %`, and the functions `cdiv`, `min`, `max`. Nothing else parses, so a
plan cannot reach anything of Python's.
"""

from __future__ import annotations

import ast
from collections.abc import Callable, Sequence

from kforge_dynamo.errors import RecordError

_BINARY = (ast.Add, ast.Sub, ast.Mult, ast.FloorDiv, ast.Mod)
_FUNCTIONS = {"cdiv": lambda a, b: -(-a // b), "min": min, "max": max}


def compile_sizes(expressions: Sequence[str], axes: Sequence[str]) -> Callable[..., tuple[int, ...]]:
    """A function of the sizes (one positional argument an axis) that returns the values of `expressions`.

    Raises: RecordError for an expression outside the language or a name that is no axis.
    """
    for expression in expressions:
        _check(expression, frozenset(axes))
    body = ", ".join(f"({expression})" for expression in expressions)
    source = f"lambda {', '.join(axes)}: ({body}{',' if expressions else ''})"
    function: Callable[..., tuple[int, ...]] = eval(source, {"__builtins__": {}, **_FUNCTIONS})  # every node was checked above
    return function


def _check(expression: str, names: frozenset[str]) -> None:
    try:
        tree = ast.parse(expression, mode="eval")
    except SyntaxError as error:
        raise RecordError(f"size expression {expression!r} does not parse") from error
    if not _allowed(tree.body, names):
        raise RecordError(f"size expression {expression!r}: only integers, {sorted(names)}, + - * // %, cdiv, min and max")


def _allowed(node: ast.expr, names: frozenset[str]) -> bool:
    if isinstance(node, ast.Constant):
        return type(node.value) is int
    if isinstance(node, ast.Name):
        return node.id in names
    if isinstance(node, ast.BinOp):
        return isinstance(node.op, _BINARY) and _allowed(node.left, names) and _allowed(node.right, names)
    if isinstance(node, ast.Call):
        known = isinstance(node.func, ast.Name) and node.func.id in _FUNCTIONS and not node.keywords
        return known and all(_allowed(argument, names) for argument in node.args)
    return False
