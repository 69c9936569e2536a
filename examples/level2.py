"""Some of the 37 workloads of `benchmarks/workloads.json` at their CPU sizes, as factories for `kforge warm`.

From the repository's folder: `kforge warm examples.level2:w99 --shapes 128x1024`.
"""

from __future__ import annotations

import functools

import torch

from benchmarks.workloads import build, facts


def _module(number: int) -> torch.nn.Module:
    """The workload of that number, its weights drawn anew from a fixed seed."""
    (fact,) = [item for item in facts("cpu") if item.id == number]
    return build(fact, "cpu").module


w22 = functools.partial(_module, 22)  # matmul, scale, residual add, clamp, logsumexp, mish
w30 = functools.partial(_module, 30)  # gemm, group norm, hardtanh
w63 = functools.partial(_module, 63)  # gemm, relu, divide
w70 = functools.partial(_module, 70)  # gemm, sigmoid, scaling, residual add
w81 = functools.partial(_module, 81)  # gemm, swish, divide, clamp, tanh, clamp
w99 = functools.partial(_module, 99)  # matmul, gelu, softmax
