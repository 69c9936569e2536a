"""e0, said once: how eager computes a product at a precision setting, and torch's flags for it."""

from __future__ import annotations

from collections.abc import Callable

import torch

from kforge_dynamo.records.guardrail import ALL, Guards
from kforge_dynamo.records.target import Numerics
from kforge_dynamo.records.task import Task
from kforge_dynamo.semantics.evaluate import Mode, Policy

_EAGER = {"highest": "highest", "strict": "highest", "high": "high", "medium": "medium", "mixed": "highest"}
"""`mixed` is compared with fp32 "highest", as its users compare it; its e0 is computed all the same."""


def round_to_tf32(x: torch.Tensor) -> torch.Tensor:
    """fp32 values rounded to the nearest with 10 bits behind the leading one, ties to even."""
    bits = x.contiguous().view(torch.int32)
    rounded = (bits + 0x0FFF + ((bits >> 13) & 1)) & ~0x1FFF
    return torch.where(torch.isfinite(x), rounded.view(torch.float32), x)


_ROUNDING: dict[str, Callable[[torch.Tensor], torch.Tensor]] = {
    "high": round_to_tf32,
    "medium": lambda x: x.to(torch.bfloat16).to(x.dtype),
    "mixed": lambda x: x.to(torch.float16).to(x.dtype),
}


def baseline_policy(task: Task, numerics: Numerics, guards: Guards = ALL) -> Policy:
    """How the output that e0 is measured on is computed: eager, or with operands rounded to the setting's format."""
    anchor = task.anchor
    setting = numerics.fp32 if guards.e0 else "medium"
    if anchor is None or anchor.out.dtype != "float32" or setting not in _ROUNDING:
        return Policy(Mode.EAGER)
    return Policy(Mode.EAGER, _ROUNDING[setting], wide_gemm=True)


def set_flags(numerics: Numerics) -> None:
    """torch's global flags as they stood where the graph was compiled. Changes the process."""
    torch.set_float32_matmul_precision(_EAGER[numerics.fp32])
    torch.backends.cuda.matmul.allow_fp16_reduced_precision_reduction = numerics.fp16_reduced
    torch.backends.cuda.matmul.allow_bf16_reduced_precision_reduction = numerics.bf16_reduced
    torch.use_deterministic_algorithms(numerics.deterministic, warn_only=True)
