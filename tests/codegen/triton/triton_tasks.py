"""Tasks for tests, written node by node; strides are those of a linear layer unless said otherwise."""

from __future__ import annotations

import random
from collections.abc import Callable

from kforge_dynamo.records.task import Const, Extent, InputRole, InputSpec, Node, Operand, Stride, Task, ValueSpec
from kforge_dynamo.semantics.table import OPS, Kind


class Builder:
    """Collects inputs first, then nodes; every method returns the number of the value it adds."""

    def __init__(self, *row_axes: str, cols: tuple[str, ...] = ()) -> None:
        self.row_axes, self.col_axes = row_axes or ("m",), cols
        self.inputs: list[InputSpec] = []
        self.nodes: list[Node] = []

    def input(
        self, cols: tuple[Extent, ...], dtype: str = "float32", rows: tuple[Extent, ...] | None = None,
        strides: tuple[Stride, ...] | None = None, role: InputRole = InputRole.EXTRA,
    ) -> int:  # fmt: skip
        """An input; rows default to 1, strides to dense. Inputs come before the first node, whose number follows theirs."""
        assert not self.nodes, "inputs come before nodes"
        rows = (1,) * len(self.row_axes) if rows is None else rows
        spec = ValueSpec(dtype, rows, cols)
        self.inputs.append(InputSpec(spec, strides or dense(spec.shape), role))
        return len(self.inputs) - 1

    def operands(self, k: Extent, n: int, dtype: str = "float32", bias: bool = True) -> tuple[int, ...]:
        """Inputs of a linear layer: x, w of shape (N, K), b."""
        x = self.input((k,), dtype, self.row_axes, role=InputRole.LHS)
        ones = (0,) * len(self.row_axes)
        w = self.input((k, n), dtype, None, (*ones, 1, "dense"), InputRole.RHS)
        b = [self.input((n,), dtype)] if bias else []
        return (x, w, *b)

    def linear(self, k: Extent, n: int, dtype: str = "float32", bias: bool = True) -> int:
        """`x @ w.T + b`, inputs 0 to 2."""
        return self.gemm(*self.operands(k, n, dtype, bias))

    def gemm(self, x: int, w: int, *bias: int, alpha: float = 1.0, beta: float = 1.0) -> int:
        """The product node."""
        spec = self.inputs[w].value
        out = ValueSpec(spec.dtype, self.row_axes, (spec.cols[1],))
        return self.node(Node("gemm", (x, w, *bias), (("alpha", alpha), ("beta", beta)), out))

    def node(self, node: Node) -> int:
        """Any node."""
        self.nodes.append(node)
        return len(self.inputs) + len(self.nodes) - 1

    def spec(self, number: int) -> ValueSpec:
        """The spec of a value."""
        return self.inputs[number].value if number < len(self.inputs) else self.nodes[number - len(self.inputs)].out

    def op(self, name: str, *args: int | float | bool | Const, dtype: str | None = None) -> int:
        """A pointwise node; floats are constants (pass an int as Const)."""
        operands: list[Operand] = [Const(arg) if isinstance(arg, float | bool) else arg for arg in args]
        specs = [self.spec(arg) for arg in operands if isinstance(arg, int)]
        rows = tuple(_joined([spec.rows[i] for spec in specs]) for i in range(len(self.row_axes)))
        cols = tuple(_joined([spec.cols[i] for spec in specs]) for i in range(len(specs[0].cols)))
        assert OPS[name].kind is Kind.POINTWISE
        return self.node(Node(name, tuple(operands), (), ValueSpec(dtype or specs[-1].dtype, rows, cols)))

    def reduce(self, name: str, arg: int, axes: tuple[int, ...] | str, correction: float = 1.0) -> int:
        """A reduction that keeps its dimensions."""
        spec = self.spec(arg)
        attrs = (("axes", axes), *((("correction", correction),) if name == "var" else ()))
        dtype = "int64" if name in ("argmax", "argmin") else "bool" if name in ("any", "all") else spec.dtype
        rows = (1,) * len(spec.rows) if axes == "rows" else spec.rows
        cols = spec.cols if axes == "rows" else tuple(1 if i in axes else e for i, e in enumerate(spec.cols))
        return self.node(Node(name, (arg,), attrs, ValueSpec(dtype, rows, cols)))

    def reshape(self, arg: int, *cols: int) -> int:
        """Other columns of as many elements."""
        spec = self.spec(arg)
        return self.node(Node("reshape", (arg,), (), ValueSpec(spec.dtype, spec.rows, cols)))

    def slice(self, arg: int, start: int, stop: int, step: int = 1, axis: int = 0) -> int:
        """Some of the columns."""
        spec = self.spec(arg)
        cols = tuple(-(-(stop - start) // step) if i == axis else e for i, e in enumerate(spec.cols))
        attrs = (("axis", axis), ("start", start), ("step", step), ("stop", stop))
        return self.node(Node("slice", (arg,), attrs, ValueSpec(spec.dtype, spec.rows, cols)))

    def expand(self, arg: int, *cols: int) -> int:
        """Columns repeated where they were one."""
        spec = self.spec(arg)
        return self.node(Node("expand", (arg,), (), ValueSpec(spec.dtype, spec.rows, cols)))

    def gelu(self, x: int) -> int:
        """gelu by erf."""
        return self.op("mul", self.op("mul", x, 0.5), self.op("add", self.op("erf", self.op("mul", x, 0.7071067811865476)), 1.0))

    def silu(self, x: int) -> int:
        """x * sigmoid(x)."""
        return self.op("mul", x, self.op("sigmoid", x))

    def mish(self, x: int) -> int:
        """x * tanh(softplus(x)) with the threshold that torch uses."""
        soft = self.op("where", self.op("gt", x, 20.0, dtype="bool"), x, self.op("log1p", self.op("exp", x)))
        return self.op("mul", x, self.op("tanh", soft))

    def softmax(self, x: int) -> int:
        """Over the last column axis."""
        axis = (len(self.spec(x).cols) - 1,)
        e = self.op("exp", self.op("sub", x, self.reduce("amax", x, axis)))
        return self.op("div", e, self.reduce("sum", e, axis))

    def logsumexp(self, x: int) -> int:
        """With the guard for an infinite maximum."""
        axis = (len(self.spec(x).cols) - 1,)
        top = self.reduce("amax", x, axis)
        top = self.op("where", self.op("eq", self.op("abs", top), float("inf"), dtype="bool"), 0.0, top)
        return self.op("add", self.op("log", self.reduce("sum", self.op("exp", self.op("sub", x, top)), axis)), top)

    def normalised(self, x: int, axes: tuple[int, ...] | str, eps: float = 1e-5) -> int:
        """(x - mean) / sqrt(var + eps), without scale."""
        mean, var = self.reduce("mean", x, axes), self.reduce("var", x, axes, 0.0)
        return self.op("mul", self.op("sub", x, mean), self.op("rsqrt", self.op("add", var, eps)))

    def group_norm(self, x: int, groups: int) -> int:
        """Over groups of neighbouring columns, without scale."""
        (n,) = self.spec(x).cols
        assert isinstance(n, int)
        return self.reshape(self.normalised(self.reshape(x, groups, n // groups), (1,)), n)

    def task(self, *outputs: int) -> Task:
        """The task that returns these values."""
        return Task(self.row_axes, self.col_axes, tuple(self.inputs), tuple(self.nodes), outputs)


def dense(shape: tuple[Extent, ...]) -> tuple[Stride, ...]:
    """Stride classes of a dense row-major value."""
    varying = [position for position, extent in enumerate(shape) if extent != 1]
    return tuple(0 if p not in varying else 1 if p == varying[-1] else "dense" for p in range(len(shape)))


def _joined(extents: list[Extent]) -> Extent:
    return next((extent for extent in extents if extent != 1), 1)


def named_tasks() -> dict[str, tuple[Task, tuple[int, ...]]]:
    """Small tasks with the forms of real epilogues, and sizes that cut the last tile short."""
    found: dict[str, tuple[Task, tuple[int, ...]]] = {}

    def add(name: str, builder: Builder, *outputs: int) -> None:
        found[name] = (builder.task(*outputs), (37,))

    for name, n in (("gelu", 72), ("mish", 40), ("softmax", 96), ("logsumexp", 72)):
        builder = Builder()
        add(name, builder, getattr(builder, name)(builder.linear(40, n)))
    builder = Builder()
    add("bare", builder, builder.linear(40, 72, bias=False))
    builder = Builder()
    add("groups", builder, builder.op("minimum", builder.group_norm(builder.linear(40, 96), 12), 1.0))
    for name, groups in (("two groups", 2), ("odd groups", 3)):
        builder = Builder()
        add(name, builder, builder.group_norm(builder.linear(40, 96 if groups == 2 else 90), groups))
    builder = Builder()
    operands = builder.operands(40, 64)
    residual, mask = builder.input((64,), rows=("m",)), builder.input((64,), "bool", rows=("m",))
    total = builder.op("add", builder.gemm(*operands), residual)
    add("residual", builder, builder.op("where", mask, builder.silu(total), 0.0), total)
    builder = Builder()
    x = builder.linear(40, 64)
    add("normalised", builder, builder.normalised(x, (0,)), x)
    builder = Builder()
    add("statistics", builder, builder.op("tanh", builder.normalised(builder.linear(40, 64), "rows")))
    builder = Builder()
    add("statistics then softmax", builder, builder.softmax(builder.normalised(builder.linear(40, 64), "rows")))
    builder = Builder()
    x = builder.linear(40, 96)
    add("gated", builder, builder.op("mul", builder.slice(x, 0, 48), builder.op("sigmoid", builder.slice(x, 48, 96))))
    builder = Builder()
    pooled = builder.reduce("amax", builder.reshape(builder.linear(40, 64), 32, 2), (1,))
    add("pooled", builder, builder.op("mul", builder.reduce("sum", builder.reshape(pooled, 32), (0,)), 0.5))
    builder = Builder()
    pooled = builder.reshape(builder.reduce("mean", builder.reshape(builder.linear(40, 64), 16, 4), (1,)), 16)
    add("pooled twice", builder, builder.reduce("amax", builder.reshape(pooled, 8, 2), (1,)))
    builder = Builder()
    operands = builder.operands(40, 64)
    mean = builder.reduce("mean", builder.gemm(*operands), (0,))
    add("mean back to the input", builder, builder.op("add", operands[0], builder.gelu(builder.logsumexp(mean))))
    builder = Builder()
    x = builder.linear(40, 64)
    add("maximum and index", builder, builder.reduce("amax", x, (0,)), builder.reduce("argmax", x, (0,)))
    builder = Builder()
    x = builder.linear(40, 1)
    add("one column", builder, builder.op("sigmoid", x), builder.reduce("sum", x, (0,)))
    return found


def random_task(seed: int, n: int, k: int, dtype: str = "float32") -> Task:
    """A linear layer with a random chain of steps behind it, and one to three of its values as outputs."""
    draw = random.Random(seed)
    builder = Builder()
    operands = builder.operands(k, n, dtype, bias=draw.random() < 0.7)
    residual, scale = builder.input((n,), dtype, rows=("m",)), builder.input((n,), dtype)
    x = builder.gemm(*operands, alpha=draw.choice((1.0, 1.0, 0.5)))
    if dtype != "float32":
        x = builder.op("convert", x, dtype="float32")
        residual, scale = (builder.op("convert", value, dtype="float32") for value in (residual, scale))
    groups = draw.choice([count for count in (2, 4, 8, 16, 3, 5) if n % count == 0] or [1])
    steps: dict[str, Callable[[int], int]] = {
        "gelu": builder.gelu, "silu": builder.silu, "mish": builder.mish, "tanh": lambda v: builder.op("tanh", v),
        "scale": lambda v: builder.op("mul", v, scale), "residual": lambda v: builder.op("add", v, residual),
        "clamp": lambda v: builder.op("maximum", builder.op("minimum", v, 1.5), -1.5),
        "groups": lambda v: builder.group_norm(v, groups), "row": lambda v: builder.normalised(v, (0,)),
        "columns": lambda v: builder.normalised(v, "rows"), "softmax": builder.softmax,
        "centred": lambda v: builder.op("sub", v, builder.reduce("amax", v, (0,))),
        "leaky": lambda v: builder.op("where", builder.op("gt", v, 0.0, dtype="bool"), v, builder.op("mul", v, 0.1)),
    }  # fmt: skip
    chain, whole = [x], True
    for name in draw.sample(sorted(steps), draw.randint(1, 4)):
        if name == "columns" and not whole:
            continue  # a statistic over the rows of what needs whole rows has no kernel
        whole = whole and name not in ("row", "softmax", "centred", "groups", "columns")
        chain.append(steps[name](chain[-1]))
    last = chain[-1]
    ends = [last, builder.logsumexp(last), builder.reduce("argmax", last, (0,)), builder.reduce("mean", last, (0,))]
    outputs = draw.sample(ends, draw.randint(1, 2)) + ([draw.choice(chain[1:])] if draw.random() < 0.3 else [])
    rounded = [
        v if dtype == "float32" or builder.spec(v).dtype != "float32" else builder.op("convert", v, dtype=dtype) for v in outputs
    ]
    return builder.task(*dict.fromkeys(rounded))


def gate(result: dict, slack: float = 1.0) -> None:
    """Errors at most three times eager's (a maximum over few elements), or a few units in the last place of the RMS."""
    assert not result["changed"], "an input changed"
    for number, output in enumerate(result["outputs"]):
        assert output["shape"] and output["classes"], (number, output)
        assert output["error"] <= slack * max(3 * output["eager"], 4 * output["ulp"]), (number, output)
