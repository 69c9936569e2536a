"""The reference evaluator: a task in PyTorch, as eager runs it or in fp64 as the oracle."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from enum import Enum
from typing import cast

import torch

from kforge_dynamo.records.task import Const, Extent, Node, Operand, Task
from kforge_dynamo.semantics.table import OPS, Kind

Size = int | torch.SymInt


class Mode(Enum):
    """EAGER runs every node in its own dtype. ORACLE runs floating nodes in fp64; a `convert` that narrows stays a rounding."""

    EAGER = "eager"
    ORACLE = "oracle"


@dataclass(frozen=True, slots=True)
class Policy:
    """How to evaluate: the mode, and what is done to the operands of the product first (rounding to a setting's format).

    With `wide_gemm` the product alone is computed in fp64 and rounded once to its dtype: the e0 of the settings
    `high`, `medium` and `mixed`.
    """

    mode: Mode = Mode.EAGER
    round_operand: Callable[[torch.Tensor], torch.Tensor] | None = None
    wide_gemm: bool = False


def evaluate(
    task: Task, inputs: Sequence[torch.Tensor], sizes: Mapping[str, Size], policy: Policy = Policy()
) -> tuple[torch.Tensor, ...]:
    """The outputs of `task` for `inputs`, each of its spec's `rows + cols` shape.

    Inputs may come in any shape that views as their spec's. Traceable by `make_fx`: nothing reads a value.
    """
    values: list[torch.Tensor] = []
    for spec, tensor in zip(task.inputs, inputs, strict=True):
        shaped = tensor.view(shape_of(spec.value.shape, sizes))
        wide = policy.mode is Mode.ORACLE and shaped.is_floating_point()
        values.append(shaped.double() if wide else shaped)
    for node in task.nodes:
        values.append(_node(task, node, values, sizes, policy))
    return tuple(values[number] for number in task.outputs)


def shape_of(extents: Sequence[Extent], sizes: Mapping[str, Size]) -> tuple[Size, ...]:
    """`extents` with the axes replaced by their sizes."""
    return tuple(sizes[extent] if isinstance(extent, str) else extent for extent in extents)


def dtype_of(name: str) -> torch.dtype:
    """torch's dtype of that name, e.g. "bfloat16"."""
    return cast(torch.dtype, getattr(torch, name))


def _node(task: Task, node: Node, values: Sequence[torch.Tensor], sizes: Mapping[str, Size], policy: Policy) -> torch.Tensor:
    kind = OPS[node.op].kind
    if kind is Kind.GEMM:
        return _gemm(task, node, values, policy)
    if kind is Kind.VIEW:
        return _view(node, values, sizes)
    args = [_operand(arg, values) for arg in node.args]
    if node.op == "convert":
        return _convert(cast(torch.Tensor, args[0]), dtype_of(node.out.dtype), policy)
    if kind is Kind.REDUCTION:
        return _reduce(node, cast(torch.Tensor, args[0]), len(task.row_axes), policy)
    result = OPS[node.op].meaning(*_tensors(args, node.op))
    return _as_declared(result, node, policy)


def _operand(arg: Operand, values: Sequence[torch.Tensor]) -> torch.Tensor | bool | int | float:
    return arg.value if isinstance(arg, Const) else values[arg]


def _tensors(args: list[torch.Tensor | bool | int | float], op: str) -> list[torch.Tensor | bool | int | float]:
    """Scalars become 0-d tensors of the other operands' dtype where torch's function takes no scalar."""
    takes_scalar = op in ("add", "sub", "mul", "div", "pow", "eq", "ne", "lt", "le", "gt", "ge")
    tensors = [arg for arg in args if isinstance(arg, torch.Tensor)]
    if len(tensors) == len(args) or (takes_scalar and isinstance(args[0], torch.Tensor)):
        return args
    like = tensors[-1]
    device = like.device
    return [arg if isinstance(arg, torch.Tensor) else torch.full((), arg, dtype=like.dtype, device=device) for arg in args]


def _as_declared(result: torch.Tensor, node: Node, policy: Policy) -> torch.Tensor:
    declared = dtype_of(node.out.dtype)
    if policy.mode is Mode.ORACLE and declared.is_floating_point:
        return result.double()
    return result if result.dtype == declared else result.to(declared)


def _convert(x: torch.Tensor, dtype: torch.dtype, policy: Policy) -> torch.Tensor:
    if policy.mode is Mode.EAGER:
        return x.to(dtype)
    if not dtype.is_floating_point:
        return x.to(dtype)
    rounded = x.to(dtype) if dtype in (torch.float16, torch.bfloat16) else x
    return rounded.double()


def _reduce(node: Node, x: torch.Tensor, row_count: int, policy: Policy) -> torch.Tensor:
    axes = node.attr("axes")
    dims = tuple(range(row_count)) if axes == "rows" else tuple(row_count + axis for axis in cast(tuple[int, ...], axes))
    extra = {"correction": node.attr("correction")} if node.op == "var" else {}
    return _as_declared(OPS[node.op].meaning(x, dims=dims, **extra), node, policy)


def _view(node: Node, values: Sequence[torch.Tensor], sizes: Mapping[str, Size]) -> torch.Tensor:
    x = values[cast(int, node.args[0])]
    rows = x.shape[: len(node.out.rows)]
    if node.op == "slice":
        axis = len(rows) + cast(int, node.attr("axis"))
        start, stop, step = (cast(int, node.attr(name)) for name in ("start", "stop", "step"))
        return x[(slice(None),) * axis + (slice(start, stop, step),)]
    cols = shape_of(node.out.cols, sizes)
    return x.expand(*rows, *cols) if node.op == "expand" else x.reshape(*rows, *cols)


def _gemm(task: Task, node: Node, values: Sequence[torch.Tensor], policy: Policy) -> torch.Tensor:
    """Flattens the rows that are no batch, and multiplies with the function eager would use."""
    lhs, rhs = (values[cast(int, arg)] for arg in node.args[:2])
    declared = torch.float64 if policy.mode is Mode.ORACLE else dtype_of(node.out.dtype)
    if policy.round_operand is not None:
        lhs, rhs = policy.round_operand(lhs), policy.round_operand(rhs)
    if policy.wide_gemm:
        lhs, rhs = lhs.double(), rhs.double()
    batch = sum(extent != 1 for extent in task.value(cast(int, node.args[1])).rows)
    row_shape = lhs.shape[:-1]
    product = _product(lhs, rhs, batch, _bias(node, values, lhs), node)
    return product.reshape(*row_shape, product.shape[-1]).to(declared)


def _bias(node: Node, values: Sequence[torch.Tensor], like: torch.Tensor) -> torch.Tensor | None:
    if len(node.args) == 2:
        return None
    return values[cast(int, node.args[2])].to(like.dtype)


def _product(lhs: torch.Tensor, rhs: torch.Tensor, batch: int, bias: torch.Tensor | None, node: Node) -> torch.Tensor:
    alpha, beta = cast(float, node.attr("alpha")), cast(float, node.attr("beta"))
    k, n = rhs.shape[-2:]
    rows = lhs.shape[:-1]
    if batch:
        lhs, rhs = lhs.reshape(-1, _count(rows[batch:]), k), rhs.reshape(-1, k, n)
    else:
        lhs, rhs = lhs.reshape(-1, k), rhs.reshape(k, n)
    if bias is None:
        product = torch.bmm(lhs, rhs) if batch else torch.mm(lhs, rhs)
        return product if alpha == 1.0 else product * alpha
    if bias.shape[:-1].numel() == 1:
        bias = bias.reshape(bias.shape[-1])
    else:
        bias = bias.expand(*rows, bias.shape[-1]).reshape(*lhs.shape[:-1], bias.shape[-1])
    function = torch.baddbmm if batch else torch.addmm
    return function(bias, lhs, rhs, beta=beta, alpha=alpha)


def _count(shape: Sequence[Size]) -> Size:
    total: Size = 1
    for size in shape:
        total = total * size
    return total
