"""The language of tasks, checked: what each op takes, what it returns, and which names axes have.

`check` runs on every task the lowering makes and on every task read from disk. A new op in `semantics.table` needs its
line here.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

from kforge_dynamo.errors import RecordError
from kforge_dynamo.records.task import Attribute, Const, Extent, InputSpec, Node, Task, ValueSpec
from kforge_dynamo.semantics.table import OPS, Kind

FLOATS = ("float32", "float16", "bfloat16")
DTYPES = (*FLOATS, "bool", "int64", "int32")
COMPARISONS = ("eq", "ne", "lt", "le", "gt", "ge")
PREDICATES = ("isnan", "isinf", "isfinite", "logical_not", "logical_and", "logical_or", "logical_xor")
BINARY = ("add", "sub", "mul", "div", "pow", "maximum", "minimum", "logical_and", "logical_or", "logical_xor", *COMPARISONS)
COLUMN_AXES = ("k",)
"""Names of symbolic sizes inside a row: only the inner size of the product may be one."""

_ATTRS: dict[str, dict[str, type]] = {
    "gemm": {"alpha": float, "beta": float},
    "var": {"axes": tuple, "correction": float},
    "slice": {"axis": int, "start": int, "stop": int, "step": int},
}


def row_axis_names(count: int) -> tuple[str, ...]:
    """The names of `count` row axes, outermost first: ("m",), ("b", "m"), ("b0", "b1", ..., "m")."""
    if count <= 2:
        return ("b", "m")[2 - count :]
    return (*(f"b{index}" for index in range(count - 1)), "m")


def check(task: Task) -> None:
    """Raises: RecordError naming the first value of `task` that is not what its op, its operands or its axes imply."""
    if task.row_axes != row_axis_names(len(task.row_axes)):
        raise RecordError(f"row axes: expected {row_axis_names(len(task.row_axes))}, found {task.row_axes}")
    if task.col_axes not in ((), COLUMN_AXES):
        raise RecordError(f"column axes: expected () or {COLUMN_AXES}, found {task.col_axes}")
    for number, item in enumerate(task.inputs):
        _demand(_input_error(task, item), task, number)
    values = [item.value for item in task.inputs]
    for node in task.nodes:
        _demand(_value_error(task, node.out) or _node_error(task, node, values), task, len(values))
        values.append(node.out)
    _check_outputs(task)


def _demand(error: str | None, task: Task, number: int) -> None:
    if error is not None:
        what = "input" if number < len(task.inputs) else task.nodes[number - len(task.inputs)].op
        raise RecordError(f"value %{number} ({what}) of the task: {error}")


def _check_outputs(task: Task) -> None:
    count = len(task.inputs) + len(task.nodes)
    if not task.outputs or len(set(task.outputs)) != len(task.outputs):
        raise RecordError(f"outputs: expected distinct values, at least one, found {task.outputs}")
    for number in task.outputs:
        if not len(task.inputs) <= number < count:
            raise RecordError(f"output %{number}: expected the result of a node, %{len(task.inputs)} to %{count - 1}")


def _value_error(task: Task, value: ValueSpec) -> str | None:
    if value.dtype not in DTYPES:
        return f"unknown dtype {value.dtype!r}"
    if len(value.rows) != len(task.row_axes):
        return f"{len(value.rows)} rows for the {len(task.row_axes)} row axes"
    if any(extent not in (1, axis) for extent, axis in zip(value.rows, task.row_axes, strict=True)):
        return f"rows {value.rows}: each is 1 or its own axis of {task.row_axes}"
    if not value.cols:
        return "a value has at least one column dimension"
    for extent in value.cols:
        named = isinstance(extent, str) and extent in task.col_axes
        if not named and not (type(extent) is int and extent > 0):
            return f"column extent {extent!r} is neither a positive number nor one of {task.col_axes}"
    return None


def _input_error(task: Task, item: InputSpec) -> str | None:
    error = _value_error(task, item.value)
    if error is not None:
        return error
    if len(item.strides) != len(item.value.shape):
        return f"{len(item.strides)} strides for {len(item.value.shape)} dimensions"
    if any(stride not in (0, 1, "dense", "pitch") or isinstance(stride, bool) for stride in item.strides):
        return f"strides {item.strides}: each is 0, 1, 'dense' or 'pitch'"
    if item.strides.count(1) > 1:
        return f"strides {item.strides}: two dimensions cannot both have stride 1"
    if any(extent == 1 and stride != 0 for extent, stride in zip(item.value.shape, item.strides, strict=True)):
        return f"strides {item.strides}: an extent of 1 has stride 0"
    return None


def _node_error(task: Task, node: Node, values: Sequence[ValueSpec]) -> str | None:
    if node.op not in OPS:
        return "no such op"
    for arg in node.args:
        if not isinstance(arg, Const) and not (type(arg) is int and 0 <= arg < len(values)):
            return f"operand {arg!r} is no earlier value"
    names = tuple(name for name, _ in node.attrs)
    expected = _ATTRS.get(node.op, {"axes": tuple} if OPS[node.op].kind is Kind.REDUCTION else {})
    if names != tuple(sorted(expected)):
        return f"expected the attributes {sorted(expected)}, found {names}"
    for name, value in node.attrs:
        if type(value) is not expected[name] and not (name == "axes" and value == "rows"):
            return f"attribute {name}={value!r} is no {expected[name].__name__}"
    check_kind = {
        Kind.GEMM: _gemm_error,
        Kind.POINTWISE: _pointwise_error,
        Kind.REDUCTION: _reduction_error,
        Kind.VIEW: _view_error,
    }
    return check_kind[OPS[node.op].kind](task, node, values)


def _gemm_error(task: Task, node: Node, values: Sequence[ValueSpec]) -> str | None:
    if len(node.args) not in (2, 3) or any(isinstance(arg, Const) for arg in node.args):
        return "takes two or three values"
    lhs, rhs, *bias = (values[arg] for arg in node.args if isinstance(arg, int))
    if any(item.dtype != lhs.dtype or item.dtype not in FLOATS for item in (lhs, rhs, *bias, node.out)):
        return "operands and result have one floating dtype"
    if lhs.rows != task.row_axes or node.out.rows != task.row_axes:
        return f"the left operand and the result vary along all rows {task.row_axes}"
    if len(lhs.cols) != 1 or len(rhs.cols) != 2 or rhs.cols[0] != lhs.cols[0] or node.out.cols != rhs.cols[1:]:
        return f"columns {lhs.cols} by {rhs.cols} do not give {node.out.cols}"
    batch = sum(extent != 1 for extent in rhs.rows)
    if rhs.rows != (*task.row_axes[:batch], *(1 for _ in task.row_axes[batch:])) or (batch and batch == len(task.row_axes)):
        return f"rows {rhs.rows} of the right operand: leading axes of {task.row_axes}, then 1"
    if bias and (len(bias[0].cols) != 1 or bias[0].cols[0] not in (1, node.out.cols[0])):
        return f"a bias of columns {bias[0].cols} does not broadcast to {node.out.cols}"
    return None


def _pointwise_error(task: Task, node: Node, values: Sequence[ValueSpec]) -> str | None:
    count = 3 if node.op == "where" else 2 if node.op in BINARY else 1
    operands = [values[arg] for arg in node.args if isinstance(arg, int)]
    if len(node.args) != count or not operands:
        return f"takes {count} operand{'s' if count > 1 else ''}, at least one of them a value"
    if node.out.rows != _union(operands):
        return f"rows {node.out.rows}: the operands vary along {_union(operands)}"
    if len({len(item.cols) for item in operands}) != 1:
        return "operands have different numbers of columns; a reshape is a node of its own"
    if node.out.cols != _broadcast(operands):
        return f"columns {[item.cols for item in operands]} broadcast to {_broadcast(operands)}, not {node.out.cols}"
    return _pointwise_dtype_error(node, values)


def _pointwise_dtype_error(node: Node, values: Sequence[ValueSpec]) -> str | None:
    if node.op == "convert":
        return None
    found = [values[arg].dtype if isinstance(arg, int) else None for arg in node.args]
    if node.op == "where":
        condition, *found = found
        if condition != "bool":
            return f"the condition is {condition}, not bool"
    dtypes = {dtype for dtype in found if dtype is not None}
    if len(dtypes) != 1:
        return f"operands of {sorted(dtypes)}: a conversion is a node of its own"
    (dtype,) = dtypes
    logical = node.op.startswith("logical_")
    if (logical and dtype != "bool") or (not logical and node.op != "where" and dtype not in FLOATS):
        return f"not defined on {dtype}"
    expected = "bool" if node.op in COMPARISONS or node.op in PREDICATES else dtype
    return None if node.out.dtype == expected else f"returns {expected}, not {node.out.dtype}"


def _reduction_error(task: Task, node: Node, values: Sequence[ValueSpec]) -> str | None:
    if len(node.args) != 1 or not isinstance(node.args[0], int):
        return "takes one value"
    x, axes = values[node.args[0]], node.attr("axes")
    indexed = node.op in ("argmax", "argmin")
    if x.dtype not in (("bool",) if node.op in ("any", "all") else FLOATS):
        return f"not defined on {x.dtype}"
    if node.out.dtype != ("int64" if indexed else x.dtype):
        return f"returns {'int64' if indexed else x.dtype}, not {node.out.dtype}"
    if axes == "rows" and indexed:
        return "finds an index inside a row only"
    rows: tuple[Extent, ...] = (1,) * len(task.row_axes) if axes == "rows" else x.rows
    cols = x.cols if axes == "rows" else _reduced(x.cols, axes)
    if cols is None or (indexed and isinstance(axes, tuple) and len(axes) != 1):
        return f"axes {axes} do not fit the columns {x.cols}"
    return None if (node.out.rows, node.out.cols) == (rows, cols) else f"returns {rows} x {cols}, not {node.out.shape}"


def _reduced(cols: tuple[Extent, ...], axes: Attribute) -> tuple[Extent, ...] | None:
    if not isinstance(axes, tuple) or not axes or list(axes) != sorted(set(axes)):
        return None
    if not all(type(axis) is int and 0 <= axis < len(cols) for axis in axes):
        return None
    return tuple(1 if index in axes else extent for index, extent in enumerate(cols))


def _view_error(task: Task, node: Node, values: Sequence[ValueSpec]) -> str | None:
    if len(node.args) != 1 or not isinstance(node.args[0], int):
        return "takes one value"
    x = values[node.args[0]]
    if (node.out.dtype, node.out.rows) != (x.dtype, x.rows):
        return "a view changes columns only"
    before = [extent for extent in x.cols if isinstance(extent, int)]
    after = [extent for extent in node.out.cols if isinstance(extent, int)]
    if len(before) != len(x.cols) or len(after) != len(node.out.cols):
        return "views of symbolic columns are not part of the language"
    if node.op == "reshape":
        return None if math.prod(before) == math.prod(after) else f"columns {x.cols} do not reshape to {node.out.cols}"
    if node.op == "expand":
        fits = len(before) == len(after) and all(old in (1, new) for old, new in zip(before, after, strict=True))
        return None if fits else f"columns {x.cols} do not expand to {node.out.cols}"
    axis, start, stop, step = (node.attr(name) for name in ("axis", "start", "stop", "step"))
    assert isinstance(axis, int) and isinstance(start, int) and isinstance(stop, int) and isinstance(step, int)
    if not (0 <= axis < len(before) and 0 <= start < stop <= before[axis] and step > 0):
        return f"slice {start}:{stop}:{step} of axis {axis} does not fit the columns {x.cols}"
    before[axis] = len(range(start, stop, step))
    return None if before == after else f"returns the columns {tuple(before)}, not {node.out.cols}"


def _union(operands: Sequence[ValueSpec]) -> tuple[Extent, ...]:
    columns = zip(*(item.rows for item in operands), strict=True)
    return tuple(next((extent for extent in column if extent != 1), 1) for column in columns)


def _broadcast(operands: Sequence[ValueSpec]) -> tuple[Extent, ...] | None:
    result: list[Extent] = []
    for column in zip(*(item.cols for item in operands), strict=True):
        extents = {extent for extent in column if extent != 1}
        if len(extents) > 1:
            return None
        result.append(extents.pop() if extents else 1)
    return tuple(result)
