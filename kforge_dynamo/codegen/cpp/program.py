"""A task in the generator's own small vocabulary: the product bare, variances spelled out, equal nodes computed once.

Values keep the numbering scheme of a task (inputs first, then nodes). `product` is the one node that multiplies matrices;
its scale and bias are pointwise nodes after it. Also says in which phase each value exists: reductions over the rows
end a phase, and what they return varies along no row.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from math import prod
from typing import cast

from kforge_dynamo.records.task import Const, Extent, Node, Operand, Task, ValueSpec
from kforge_dynamo.semantics.table import OPS, Kind

CLASSES = {"float32": "f", "float16": "f", "bfloat16": "f", "bool": "b", "int64": "i", "int32": "i"}
"""The class of a value in registers by dtype: fp32 vector, mask, 64-bit integers."""


class Inexpressible(Exception):
    """This generator cannot write the task; the text says what stands in the way."""


@dataclass(frozen=True, slots=True)
class Program:
    """`inputs` counts the task's inputs; `nodes` are live, in order of evaluation; `product` is the number of the product."""

    inputs: tuple[ValueSpec, ...]
    nodes: tuple[Node, ...]
    outputs: tuple[int, ...]
    product: int | None
    phases: tuple[int, ...]

    def node(self, number: int) -> Node | None:
        """The node that makes this value, None for an input."""
        return self.nodes[number - len(self.inputs)] if number >= len(self.inputs) else None

    def spec(self, number: int) -> ValueSpec:
        """Type and shape of a value."""
        node = self.node(number)
        return self.inputs[number] if node is None else node.out

    def cols(self, number: int) -> tuple[int, ...]:
        """The sizes inside a row."""
        return cast("tuple[int, ...]", self.spec(number).cols)

    def size(self, number: int) -> int:
        """Elements in a row."""
        return prod(self.cols(number))

    def kind(self, number: int) -> str:
        """ "f", "b" or "i"."""
        return CLASSES[self.spec(number).dtype]

    def varies(self, number: int) -> bool:
        """Whether the value differs from row to row."""
        return self.spec(number).varies_by_row

    def numbers(self) -> range:
        """All nodes' numbers."""
        return range(len(self.inputs), len(self.inputs) + len(self.nodes))

    @property
    def phase_count(self) -> int:
        """One more than the number of times the rows have to be gone over again."""
        return 1 + max((self.phases[number] for number in self.numbers()), default=0)


def over_rows(node: Node) -> bool:
    """Whether the node reduces over the rows."""
    return OPS.get(node.op) is not None and OPS[node.op].kind is Kind.REDUCTION and node.attr("axes") == "rows"


def program_of(task: Task) -> Program:
    """The program of `task`. Raises: Inexpressible."""
    _check_types(task)
    builder = _Builder(task)
    for node in task.nodes:
        builder.take(node)
    return _live(builder, tuple(builder.names[number] for number in task.outputs))


class _Builder:
    """Collects nodes; `names` maps the task's values to the program's."""

    def __init__(self, task: Task) -> None:
        self.task = task
        self.inputs = tuple(item.value for item in task.inputs)
        self.nodes: list[Node] = []
        self.names: list[int] = list(range(len(task.inputs)))
        self.product: int | None = None
        self._seen: dict[str, int] = {}

    def take(self, node: Node) -> None:
        args = tuple(arg if isinstance(arg, Const) else self.names[arg] for arg in node.args)
        node = replace(node, args=args)
        if node.op == "gemm":
            self.names.append(self._gemm(node))
        elif node.op == "var" and not over_rows(node):
            self.names.append(self._variance(node))
        else:
            self.names.append(self.add(node))

    def add(self, node: Node) -> int:
        # repr tells 0.0 from -0.0 and 1 from True, which equality does not
        key = repr(node)
        if key not in self._seen:
            self._seen[key] = len(self.inputs) + len(self.nodes)
            self.nodes.append(node)
        return self._seen[key]

    def pointwise(self, op: str, args: tuple[Operand, ...], out: ValueSpec) -> int:
        return self.add(Node(op, args, (), out))

    def _gemm(self, node: Node) -> int:
        if any(isinstance(arg, Const) or arg >= len(self.inputs) for arg in node.args[:2]):
            raise Inexpressible("an operand of the product is computed inside the region")
        wide = ValueSpec("float32", node.out.rows, node.out.cols)
        value = self.add(Node("product", node.args[:2], (), wide))
        if self.product not in (None, value):
            raise Inexpressible("the region has more than one matrix product")
        self.product = value
        alpha, beta = cast(float, node.attr("alpha")), cast(float, node.attr("beta"))
        if alpha != 1.0:
            value = self.pointwise("mul", (value, Const(alpha)), wide)
        if len(node.args) == 3 and beta != 0.0:
            bias = node.args[2]
            if beta != 1.0:
                spec = self._spec(bias)
                bias = self.pointwise("mul", (bias, Const(beta)), replace(spec, dtype="float32"))
            value = self.pointwise("add", (value, bias), wide)
        if node.out.dtype != "float32":
            value = self.pointwise("copy", (value,), node.out)
        return value

    def _variance(self, node: Node) -> int:
        """Two passes over the data: the mean, then the squared distances from it."""
        axes = cast("tuple[int, ...]", node.attr("axes"))
        (arg,) = cast("tuple[int]", node.args)
        spec = self._spec(arg)
        count = prod(cast(int, spec.cols[axis]) for axis in axes)
        mean = self.add(Node("mean", (arg,), (("axes", axes),), node.out))
        away = self.pointwise("sub", (arg, mean), spec)
        squares = self.pointwise("mul", (away, away), spec)
        total = self.add(Node("sum", (squares,), (("axes", axes),), node.out))
        free = max(count - cast(float, node.attr("correction")), 0.0)
        return self.pointwise("div", (total, Const(float(free))), node.out)

    def _spec(self, operand: Operand) -> ValueSpec:
        if isinstance(operand, Const):
            raise Inexpressible("an operand that must be a tensor is a constant")
        return self.inputs[operand] if operand < len(self.inputs) else self.nodes[operand - len(self.inputs)].out


def _live(builder: _Builder, outputs: tuple[int, ...]) -> Program:
    """Drops nodes that no output needs, renumbers, and finds the phases."""
    count = len(builder.inputs)
    needed = set(outputs)
    for offset in reversed(range(len(builder.nodes))):
        if count + offset in needed:
            needed.update(arg for arg in builder.nodes[offset].args if not isinstance(arg, Const))
    names = {number: number for number in range(count)}
    nodes: list[Node] = []
    for offset, node in enumerate(builder.nodes):
        if count + offset in needed:
            names[count + offset] = count + len(nodes)
            args = tuple(arg if isinstance(arg, Const) else names[arg] for arg in node.args)
            nodes.append(replace(node, args=args))
    product = names.get(builder.product) if builder.product is not None else None
    return Program(builder.inputs, tuple(nodes), tuple(names[n] for n in outputs), product, _phases(builder.inputs, nodes))


def _phases(inputs: tuple[ValueSpec, ...], nodes: list[Node]) -> tuple[int, ...]:
    phases = [0] * len(inputs)
    for node in nodes:
        own = max((phases[arg] for arg in node.args if not isinstance(arg, Const)), default=0)
        phases.append(own + 1 if over_rows(node) else own)
    return tuple(phases)


def _check_types(task: Task) -> None:
    for number in range(len(task.inputs) + len(task.nodes)):
        spec = task.value(number)
        if spec.dtype not in CLASSES:
            raise Inexpressible(
                f"value %{number} is {spec.dtype}; the C++ kernels compute float32, float16, bfloat16, bool and int64"
            )
    operands = {arg for node in task.nodes if node.op == "gemm" for arg in node.args[:2]}
    for number in range(len(task.inputs) + len(task.nodes)):
        if number not in operands and not all(isinstance(extent, int) for extent in task.value(number).cols):
            raise Inexpressible(f"value %{number} has a size inside its rows that is not known before the call")
    for node in task.nodes:
        _check_node(task, node)


def _check_node(task: Task, node: Node) -> None:
    if node.op == "gemm" and task.value(cast(int, node.args[0])).dtype != task.value(cast(int, node.args[1])).dtype:
        raise Inexpressible("the operands of the product differ in type")
    if node.op == "gemm" and CLASSES[node.out.dtype] != "f":
        raise Inexpressible(f"the product is {node.out.dtype}")
    if not over_rows(node):
        return
    arg = task.value(cast(int, node.args[0]))
    if arg.rows != task.row_axes:
        raise Inexpressible(f"{node.op} over the rows of a value that does not vary along all of them")
    if node.op not in ("sum", "mean", "amax", "amin", "var") or CLASSES[arg.dtype] != "f":
        raise Inexpressible(f"{node.op} over the rows of {arg.dtype} values")


def partial(rows: tuple[Extent, ...]) -> bool:
    """Whether some row axes are present and some are not."""
    return any(extent == 1 for extent in rows) and any(extent != 1 for extent in rows)
