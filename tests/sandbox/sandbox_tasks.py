"""Tasks for the sandbox's tests, built by hand."""

from __future__ import annotations

from kforge_dynamo.records.target import Numerics, Target
from kforge_dynamo.records.task import Const, InputRole, InputSpec, Node, Task, ValueSpec

HIGHEST = Numerics("highest", False, False, False)
CPU = Target("cpu", "test", "test cpu", "avx2", 2, None, None, (), ())


class Builder:
    """Collects inputs first, then nodes; every method returns the number of a value."""

    def __init__(self, row_axes=("m",), col_axes=()):
        self.row_axes, self.col_axes = row_axes, col_axes
        self.inputs: list[InputSpec] = []
        self.nodes: list[Node] = []

    def spec(self, number) -> ValueSpec:
        count = len(self.inputs)
        return self.inputs[number].value if number < count else self.nodes[number - count].out

    def input(self, rows, cols, role=InputRole.EXTRA, dtype="float32", strides=None) -> int:
        value = ValueSpec(dtype, rows, cols)
        shape = value.shape
        default = tuple(0 if extent == 1 else 1 if dim == len(shape) - 1 else "dense" for dim, extent in enumerate(shape))
        self.inputs.append(InputSpec(value, strides or default, role))
        return len(self.inputs) - 1

    def node(self, op, *args, attrs=(), out=None) -> int:
        self.nodes.append(Node(op, args, tuple(sorted(attrs)), out))
        return len(self.inputs) + len(self.nodes) - 1

    def gemm(self, lhs, rhs, bias=None, n=None, dtype=None, alpha=1.0, beta=1.0) -> int:
        cols = self.spec(rhs).cols
        out = ValueSpec(dtype or self.spec(lhs).dtype, self.spec(lhs).rows, (cols[-1],))
        args = (lhs, rhs) if bias is None else (lhs, rhs, bias)
        return self.node("gemm", *args, attrs=(("alpha", alpha), ("beta", beta)), out=out)

    def op(self, name, *args, dtype=None) -> int:
        specs = [self.spec(arg) for arg in args if not isinstance(arg, Const)]
        rows = tuple(next((s.rows[d] for s in specs if s.rows[d] != 1), 1) for d in range(len(specs[0].rows)))
        cols = tuple(next((s.cols[d] for s in specs if s.cols[d] != 1), 1) for d in range(len(specs[0].cols)))
        return self.node(name, *args, out=ValueSpec(dtype or specs[-1].dtype, rows, cols))

    def reduce(self, name, arg, axes=(0,), dtype=None, **attrs) -> int:
        spec = self.spec(arg)
        if axes == "rows":
            rows, cols = (1,) * len(spec.rows), spec.cols
        else:
            rows, cols = spec.rows, tuple(1 if d in axes else e for d, e in enumerate(spec.cols))
        items = (("axes", axes), *attrs.items())
        return self.node(name, arg, attrs=items, out=ValueSpec(dtype or spec.dtype, rows, cols))

    def convert(self, arg, dtype) -> int:
        spec = self.spec(arg)
        return self.node("convert", arg, out=ValueSpec(dtype, spec.rows, spec.cols))

    def done(self, *outputs) -> Task:
        return Task(self.row_axes, self.col_axes, tuple(self.inputs), tuple(self.nodes), outputs)


def linear(k=48, n=64, dtype="float32", bias=True, transposed=True, extras=()) -> tuple[Builder, int]:
    """A builder that holds a linear layer, and the number of its product. `extras` are (rows, cols) of further inputs: the
    numbers from 3 on (from 2 without a bias)."""
    b = Builder()
    x = b.input(("m",), (k,), InputRole.LHS, dtype)
    w = b.input((1,), (k, n), InputRole.RHS, dtype, (0, 1, "dense") if transposed else (0, "dense", 1))
    c = b.input((1,), (n,), InputRole.EXTRA, dtype) if bias else None
    for rows, cols in extras:
        b.input(rows, cols)
    return b, b.gemm(x, w, c)


def gelu(k=48, n=64, dtype="float32") -> Task:
    b, p = linear(k, n, dtype)
    half = b.op("mul", p, Const(0.5))
    erf = b.op("erf", b.op("mul", p, Const(0.7071067811865476)))
    return b.done(b.op("mul", half, b.op("add", erf, Const(1.0))))


def softmax(k=48, n=64, mask=False) -> Task:
    b = Builder()
    x = b.input(("m",), (k,), InputRole.LHS)
    w = b.input((1,), (k, n), InputRole.RHS)
    extra = b.input(("m",), (n,)) if mask else None
    p = b.op("mul", b.gemm(x, w), Const(0.125))
    p = b.op("add", p, extra) if mask else p
    e = b.op("exp", b.op("sub", p, b.reduce("amax", p)))
    return b.done(b.op("div", e, b.reduce("sum", e)))


def layer_norm(k=48, n=64, eps=1e-5) -> Task:
    b = Builder()
    x = b.input(("m",), (k,), InputRole.LHS)
    w = b.input((1,), (k, n), InputRole.RHS)
    r = b.input(("m",), (n,))
    g, s = b.input((1,), (n,)), b.input((1,), (n,))
    p = b.op("add", b.gemm(x, w), r)
    centred = b.op("sub", p, b.reduce("mean", p))
    scale = b.op("rsqrt", b.op("add", b.reduce("var", p, correction=0.0), Const(eps)))
    return b.done(b.op("add", b.op("mul", b.op("mul", centred, scale), g), s))


def relu_mask(k=48, n=64) -> Task:
    """Two outputs: relu of a linear layer, and where it is not positive."""
    b, p = linear(k, n)
    r = b.op("relu", p)
    return b.done(r, b.op("le", r, Const(0.0), dtype="bool"))


def row_max(k=48, n=64) -> Task:
    """Values and indices of the maximum of a row."""
    b, p = linear(k, n)
    return b.done(b.reduce("amax", p), b.reduce("argmax", p, dtype="int64"))


def minus_own_mean(k=48, n=64) -> Task:
    """The maximum of a row minus its own mean over one column: zero for every input."""
    b, p = linear(k, n)
    top = b.reduce("amax", p)
    return b.done(b.op("sub", top, b.reduce("mean", top)))


def batch_norm(k=48, n=64) -> Task:
    """Statistics over the rows."""
    b, p = linear(k, n)
    centred = b.op("sub", p, b.reduce("mean", p, "rows"))
    scale = b.op("rsqrt", b.op("add", b.reduce("var", p, "rows", correction=0.0), Const(1e-5)))
    return b.done(b.op("relu", b.op("mul", centred, scale)))


def attention_scores(k=32, n=40) -> Task:
    """A batched product with a scale and a softmax."""
    b = Builder(("b", "m"))
    q = b.input(("b", "m"), (k,), InputRole.LHS)
    t = b.input(("b", 1), (k, n), InputRole.RHS, strides=("dense", 0, 1, "dense"))
    p = b.op("mul", b.gemm(q, t), Const(0.2))
    e = b.op("exp", b.op("sub", p, b.reduce("amax", p)))
    return b.done(b.op("div", e, b.reduce("sum", e)))
