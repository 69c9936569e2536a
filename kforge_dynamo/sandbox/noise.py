"""How large the rounding error of a product is, element by element, without the luck of one particular rounding.

Eager's error in one row or column may happen to be tiny. What is steady is its ratio to what the sum has to carry. Summing K
terms one after the other makes an error whose variance is the sum of the squared partial sums; for terms of random sign
that end in p these are on average K ((|a_i| |b_j|)^2 / K + 2 p^2) / 6. So element (i, j) is given the scale
sqrt((|a_i| |b_j|)^2 / K + 2 p^2), times one factor for all elements: eager's RMS error over that scale. No single row,
column or element sets its own measure. Of p with and without its bias the larger counts: a bias may cancel the sum.

On data on which eager's product happens to be exact (integers), the factor is that of a sum of as many terms as are not
zero, at most 32: a kernel that scales the weight first is as right as fp32 is, and rounds where eager need not. Results that
eager has bit for bit are demanded by a rule of their own. Nor is it less, unless `strict`, than what keeping 22 bits of each
fp32 operand leaves: the split schemes of "highest" do, and where a row has a single term eager's sum is exact.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import cast

import torch

from kforge_dynamo.records.task import InputRole, InputSpec, Node, Task
from kforge_dynamo.sandbox.dissect import numbers, prune
from kforge_dynamo.sandbox.rows import evaluate_in_blocks
from kforge_dynamo.semantics.evaluate import Mode, Policy

_MOST_TERMS = 32.0
_SPLIT_OPERANDS = 2.0**-22 / 6.0**0.5  # of two operands rounded to 22 bits, each with the variance (2^-22)^2 / 12


def noise_scales(
    task: Task,
    cut: Sequence[int],
    inputs: Sequence[torch.Tensor],
    sizes: Sequence[int],
    exact: Sequence[torch.Tensor],
    plain: Sequence[torch.Tensor],
    strict: bool,
) -> list[torch.Tensor]:
    """The standard deviation of the error of each value of the cut: the product's as eager computes it, and at least what
    rounding to its dtype leaves, a quarter ulp. Values that are no products (inputs of a pure epilogue) have the latter.

    With `strict` the scale of an element comes from its own terms instead of its row's and its column's norms.
    """
    scales = []
    for number, wide, narrow in zip(cut, exact, plain, strict=True):
        size = wide.abs().nan_to_num_(0.0, 0.0, 0.0)
        least = size * (torch.finfo(narrow.dtype).eps / 4)
        if number < len(task.inputs):
            scales.append(least)
            continue
        norms, added, least_factor = _norms(task, number, inputs, sizes, strict)
        reached = torch.maximum(size, (wide - added).abs_().nan_to_num_(0.0, 0.0, 0.0))
        carried = (norms.square() + 2.0 * reached.square()).sqrt_()
        found = _factor((narrow.double() - wide).abs_(), carried)
        scales.append(torch.maximum(carried * max(found, least_factor), least))
    return scales


def noise_shape(task: Task, number: int, shape: Sequence[int], alike: bool) -> tuple[int, ...]:
    """The shape of the noise for a value of the cut: where rows of the left operand are equal, so are their errors."""
    if not alike or number < len(task.inputs):
        return tuple(shape)
    node = task.nodes[number - len(task.inputs)]
    batch = task.value(cast(int, node.args[1])).rows
    return tuple(1 if extent == 1 else size for extent, size in zip(batch, shape, strict=False)) + tuple(shape[len(batch) :])


def _norms(
    task: Task, number: int, inputs: Sequence[torch.Tensor], sizes: Sequence[int], strict: bool
) -> tuple[torch.Tensor, torch.Tensor | float, float]:
    """Norm of each row of the left operand times norm of each column of the right one over the root of K, broadcast to the
    product (with `strict` the norm of the terms themselves); what is added to the product; and the least factor,
    eps sqrt(terms / 72)."""
    node = task.nodes[number - len(task.inputs)]
    lhs, rhs, *bias = evaluate_in_blocks(prune(task, numbers(node.args)), inputs, sizes, Policy(Mode.ORACLE))
    left = lhs.nan_to_num(0.0, 0.0, 0.0).square_().mean(dim=-1, keepdim=True).sqrt_()
    right = rhs.nan_to_num(0.0, 0.0, 0.0).square_().sum(dim=-2).sqrt_()
    norms = left * right
    if strict:
        norms = _norm_of_terms(task, node, lhs, rhs, sizes)
    norms = norms * abs(cast(float, node.attr("alpha")))
    terms = min(float((lhs != 0).double().mean()) * lhs.shape[-1], _MOST_TERMS)
    least = torch.finfo(torch.float32).eps * (terms / 72.0) ** 0.5  # a rounding has the variance eps^2 / 12, see above
    if not strict and task.value(numbers(node.args)[0]).dtype == "float32":
        least = max(least, _SPLIT_OPERANDS)
    return norms, bias[0] * cast(float, node.attr("beta")) if bias else 0.0, least


def _norm_of_terms(task: Task, node: Node, lhs: torch.Tensor, rhs: torch.Tensor, sizes: Sequence[int]) -> torch.Tensor:
    """sqrt(sum of (a_ik b_kj)^2) of every element of the product."""
    specs = [task.value(number) for number in numbers(node.args)[:2]]
    dense = [InputSpec(spec, ("dense",) * len(spec.shape), role) for spec, role in zip(specs, InputRole, strict=False)]
    gemm = replace(node, args=(0, 1), attrs=(("alpha", 1.0), ("beta", 1.0)))
    squares = Task(task.row_axes, task.col_axes, tuple(dense), (gemm,), (2,))
    operands = [operand.nan_to_num(0.0, 0.0, 0.0).square_() for operand in (lhs, rhs)]
    return evaluate_in_blocks(squares, operands, sizes, Policy(Mode.ORACLE))[0].sqrt_()


def _factor(error: torch.Tensor, carried: torch.Tensor) -> float:
    """RMS of the errors, each over its scale."""
    some = (carried > 0) & torch.isfinite(error)
    ratios = error[some] / carried[some]
    return float(ratios.square_().mean().sqrt()) if ratios.numel() else 0.0
