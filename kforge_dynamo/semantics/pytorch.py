"""A task as a PyTorch function in text, for people who write a kernel by hand: what `evaluate` computes, one line a node."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import cast

from kforge_dynamo.records.task import Const, Extent, Node, Operand, Task
from kforge_dynamo.semantics.table import OPS, Kind

_INFIX = {"add": "+", "sub": "-", "mul": "*", "div": "/", "pow": "**", "eq": "==", "ne": "!=", "lt": "<", "le": "<=",
          "gt": ">", "ge": ">="}  # fmt: skip
_BOOL = ("eq", "ne", "lt", "le", "gt", "ge", "isnan", "isinf", "isfinite", "any", "all")


def source(task: Task, name: str = "reference") -> str:
    """`def reference(x0, x1, ..., *, m)`: inputs in the shapes of their specs, sizes by the names of their axes."""
    words = [f"x{number}" for number in range(len(task.inputs))]
    sizes = ["*", *task.axes] if task.axes else []
    lines = [f"def {name}({', '.join(words + sizes)}):"]
    for number, item in enumerate(task.inputs):
        lines.append(f"    # x{number}: {item.value.dtype} {_shape(item.value.shape)}, the {item.role.value} operand")
    for offset, node in enumerate(task.nodes):
        number = len(task.inputs) + offset
        lines.append(f"    {_name(task, number)} = {_cast(task, node)}  # {_shape(node.out.shape)}")
    lines.append(f"    return {', '.join(_name(task, number) for number in task.outputs)},")
    return "\n".join(lines) + "\n"


def _shape(extents: Sequence[Extent]) -> str:
    return f"({', '.join(str(extent) for extent in extents)}{',' if len(extents) == 1 else ''})"


def _name(task: Task, number: int) -> str:
    return f"x{number}" if number < len(task.inputs) else f"v{number}"


def _cast(task: Task, node: Node) -> str:
    """The node's expression, brought to the node's dtype where PyTorch's own result has another or may have."""
    text = _expression(task, node)
    if OPS[node.op].kind is Kind.VIEW or node.op == "convert":
        return text
    dtypes = [task.value(arg).dtype for arg in node.args if isinstance(arg, int)]
    usual = "bool" if node.op in _BOOL else "int64" if node.op in ("argmax", "argmin") else dtypes[-1]
    integral = not usual.startswith(("float", "bfloat")) and node.op in ("sum", "mean", "div")
    return text if usual == node.out.dtype and not integral else f"({text}).to(torch.{node.out.dtype})"


def _expression(task: Task, node: Node) -> str:
    kind = OPS[node.op].kind
    if kind is Kind.GEMM:
        return _gemm(task, node)
    if kind is Kind.VIEW:
        return _view(task, node)
    if kind is Kind.REDUCTION:
        return _reduction(task, node)
    if node.op == "convert":
        return f"{_word(task, node.args[0])}.to(torch.{node.out.dtype})"
    if node.op in _INFIX and not isinstance(node.args[0], Const):
        left, right = (_word(task, arg) for arg in node.args)
        return f"{left} {_INFIX[node.op]} {right}"
    like = next(arg for arg in reversed(node.args) if isinstance(arg, int))
    words = [_tensor(task, arg, like) if isinstance(arg, Const) else _word(task, arg) for arg in node.args]
    return f"torch.{node.op}({', '.join(words)})"


def _word(task: Task, arg: Operand) -> str:
    return _number(arg.value) if isinstance(arg, Const) else _name(task, arg)


def _number(value: bool | int | float) -> str:
    return f'float("{value}")' if isinstance(value, float) and not math.isfinite(value) else repr(value)


def _tensor(task: Task, arg: Const, like: int) -> str:
    """A scalar where PyTorch's function takes none."""
    return f"torch.full((), {_number(arg.value)}, dtype=torch.{task.value(like).dtype}, device={_name(task, like)}.device)"


def _reduction(task: Task, node: Node) -> str:
    axes, rows = node.attr("axes"), len(task.row_axes)
    dims = tuple(range(rows)) if axes == "rows" else tuple(rows + axis for axis in cast("tuple[int, ...]", axes))
    dim = str(dims[0]) if node.op in ("argmax", "argmin") else str(dims)
    extra = f", correction={_number(cast(float, node.attr('correction')))}" if node.op == "var" else ""
    return f"torch.{node.op}({_word(task, node.args[0])}, dim={dim}, keepdim=True{extra})"


def _view(task: Task, node: Node) -> str:
    word, rows = _word(task, node.args[0]), len(node.out.rows)
    if node.op == "slice":
        axis = rows + cast(int, node.attr("axis"))
        return f"{word}[{':, ' * axis}{node.attr('start')}:{node.attr('stop')}:{node.attr('step')}]"
    cols = ", ".join(str(extent) for extent in node.out.cols)
    return f"{word}.{node.op}(*{word}.shape[:{rows}], {cols})"


def _gemm(task: Task, node: Node) -> str:
    left, right = (_word(task, arg) for arg in node.args[:2])
    lhs, rhs = (task.value(cast(int, arg)) for arg in node.args[:2])
    alpha, beta = (cast(float, node.attr(name)) for name in ("alpha", "beta"))
    batch = sum(extent != 1 for extent in rhs.rows)
    k, n = rhs.cols
    inner = "".join(f", {left}.shape[:-1][{batch}:].numel()" for _ in range(batch > 0))
    operands = f"{left}.reshape(-1{inner}, {k}), {right}.reshape({'-1, ' if batch else ''}{k}, {n})"
    if len(node.args) == 2:
        text = f"torch.{'bmm' if batch else 'mm'}({operands})"
        text = text if alpha == 1.0 else f"({text} * {_number(alpha)})"
    else:
        bias = task.value(cast(int, node.args[2]))
        word = f"{_word(task, node.args[2])}" + (f".to(torch.{lhs.dtype})" if bias.dtype != lhs.dtype else "")
        if bias.varies_by_row:
            word += f".expand(*{left}.shape[:-1], {bias.cols[-1]}).reshape(-1{inner}, {bias.cols[-1]})"
        else:
            word += f".reshape({bias.cols[-1]})"
        scale = "" if (alpha, beta) == (1.0, 1.0) else f", beta={_number(beta)}, alpha={_number(alpha)}"
        text = f"torch.{'baddbmm' if batch else 'addmm'}({word}, {operands}{scale})"
    return f"{text}.reshape(*{left}.shape[:-1], {n})"
