"""A task as text for people: one line a node, with shapes; goldens compare with it."""

from __future__ import annotations

from kforge_dynamo.records.task import Const, Node, Operand, Task, ValueSpec


def show(task: Task) -> str:
    """The task in the form `%3 = mul(%2, 0.5) : f32[m, 1024]`, inputs first, outputs last."""
    lines = []
    for number, item in enumerate(task.inputs):
        strides = ", ".join(str(stride) for stride in item.strides)
        lines.append(f"%{number} = input {item.role.value} : {_value(item.value)} strides ({strides})")
    for offset, node in enumerate(task.nodes):
        lines.append(f"%{len(task.inputs) + offset} = {_node(node)} : {_value(node.out)}")
    lines.append("return " + ", ".join(f"%{number}" for number in task.outputs))
    return "\n".join(lines)


def _value(spec: ValueSpec) -> str:
    short = {"float32": "f32", "float16": "f16", "bfloat16": "bf16", "float64": "f64", "int64": "i64", "bool": "b1"}
    rows = ", ".join(str(extent) for extent in spec.rows)
    cols = ", ".join(str(extent) for extent in spec.cols)
    return f"{short.get(spec.dtype, spec.dtype)}[{rows} | {cols}]"


def _node(node: Node) -> str:
    words = [_operand(arg) for arg in node.args]
    words += [f"{name}={value}" for name, value in node.attrs if (name, value) not in (("alpha", 1.0), ("beta", 1.0))]
    return f"{node.op}({', '.join(words)})"


def _operand(arg: Operand) -> str:
    return repr(arg.value) if isinstance(arg, Const) else f"%{arg}"
