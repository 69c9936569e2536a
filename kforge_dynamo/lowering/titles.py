"""A task in a few words: the familiar names of its epilogue, its sizes, its dtype."""

from __future__ import annotations

from kforge_dynamo.records.task import Task

_IDIOMS: tuple[tuple[str, tuple[str, ...]], ...] = (
    ("gelu(erf)", ("mul", "mul", "erf", "add", "mul")),
    ("gelu(tanh)", ("mul", "mul", "mul", "mul", "add", "mul", "tanh", "add", "mul")),
    ("gelu(tanh)", ("mul", "pow", "mul", "add", "mul", "tanh", "add", "mul")),
    ("mish", ("gt", "exp", "log1p", "where", "tanh", "mul")),
    ("softplus", ("gt", "exp", "log1p", "where")),
    ("logsumexp", ("amax", "abs", "eq", "where", "sub", "exp", "sum", "log", "add")),
    ("softmax", ("amax", "sub", "exp", "sum", "div")),
    ("leaky_relu", ("gt", "mul", "where")),
    ("silu", ("sigmoid", "mul")),
    ("silu", ("neg", "exp", "add", "div")),
    ("clamp", ("maximum", "minimum")),
    ("norm", ("mean", "sub", "var", "add", "rsqrt", "mul")),
    ("norm", ("var", "mean", "sub", "add", "rsqrt", "mul")),
    ("norm", ("var", "add", "rsqrt", "mul", "mul", "mean", "neg", "mul", "add", "add")),
    ("norm", ("var", "add", "rsqrt", "mul", "mean", "neg", "mul", "mul")),
    ("batch_norm", ("sub", "add", "sqrt", "reciprocal", "mul", "mul", "add")),
    ("log_softmax", ("amax", "sub", "exp", "sum", "log", "sub")),
    ("rms_norm", ("pow", "mean", "add", "rsqrt", "mul")),
    ("rms_norm", ("mul", "mean", "add", "rsqrt", "mul")),
)
"""Names people know, by the ops of their decomposition in the order of a task."""

_SILENT = ("reshape", "slice", "expand", "convert")
_WORDS = 8
_SHORT = {"float32": "f32", "float16": "f16", "bfloat16": "bf16"}


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
    words: list[str] = []
    ops: list[str] = []
    for node in task.nodes:
        if node.op == "gemm":
            words.append("gemm" if len(node.args) == 2 else "gemm + bias")
        elif node.op not in _SILENT:
            columns = dict(node.attrs).get("axes") != "rows"
            ops.append(node.op if columns else f"{node.op} over rows")
    words += _with_idioms(ops)
    return words if len(words) <= _WORDS else [*words[: _WORDS - 1], f"{len(words) - _WORDS + 1} more"]


def _with_idioms(ops: list[str]) -> list[str]:
    """`ops` with runs that have a name replaced by it."""
    words: list[str] = []
    position = 0
    while position < len(ops):
        for name, run in _IDIOMS:
            if tuple(ops[position : position + len(run)]) == run:
                words.append(name)
                position += len(run)
                break
        else:
            words.append(ops[position])
            position += 1
    return words
