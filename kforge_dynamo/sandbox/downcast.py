"""Was a wrong result computed in a narrower number format? Asked once a candidate has failed, so that the verdict can name it.

The region is computed once more in fp64 with the product's operands rounded to each format below the one that is promised. An
output that lies much nearer to one of these than to the truth was made in that format.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import torch

from kforge_dynamo.records.task import Task
from kforge_dynamo.sandbox.bench import Bench
from kforge_dynamo.sandbox.precision import round_to_tf32
from kforge_dynamo.sandbox.rows import evaluate_in_blocks, flop
from kforge_dynamo.semantics.evaluate import Mode, Policy

_NEARER = 0.3  # truncation instead of rounding, or one operand of two, leaves half of the error
_MOST_FLOP = 1 << 31
"""Of a region that is computed again for each format."""


def _eight_bits(x: torch.Tensor) -> torch.Tensor:
    step = x.abs().amax(dim=-1, keepdim=True).clamp(min=1e-30) / 127
    return (x / step).round() * step


def _truncated(x: torch.Tensor) -> torch.Tensor:
    return (x.contiguous().view(torch.int32) & ~0x1FFF).view(torch.float32)


_FORMATS: tuple[tuple[str, Callable[[torch.Tensor], torch.Tensor]], ...] = (
    ("tf32", round_to_tf32),
    ("tf32 (truncated)", _truncated),
    ("float16", lambda x: x.half().float()),
    ("bfloat16", lambda x: x.bfloat16().float()),
    ("float8_e4m3", lambda x: x.clamp(-448, 448).to(torch.float8_e4m3fn).float()),
    ("int8", _eight_bits),
)


def named_downcast(
    bench: Bench, sizes: Sequence[int], drawn: Sequence[torch.Tensor], outputs: Sequence[torch.Tensor]
) -> str | None:
    """The format that the product's operands were rounded to, in one sentence; None where none explains `outputs`."""
    task = bench.task
    anchor = task.anchor
    if anchor is None or not outputs[0].dtype.is_floating_point or flop(task, sizes) > _MOST_FLOP:
        return None
    inputs = bench.expanded(sizes, drawn)
    truth = _first(task, inputs, sizes, Policy(Mode.ORACLE))
    off = _distance(outputs[0], truth)
    for name, rounded in _FORMATS:
        if anchor.out.dtype == name:
            continue
        made = _first(task, inputs, sizes, Policy(Mode.ORACLE, lambda x, to=rounded: to(x.float()).double()))  # type: ignore[misc]
        if _distance(made, truth) > 0 and _distance(outputs[0], made) < _NEARER * off:
            return f"this is the error of a downcast: operands of the product in {name}"
    return None


def _first(task: Task, inputs: Sequence[torch.Tensor], sizes: Sequence[int], policy: Policy) -> torch.Tensor:
    return evaluate_in_blocks(task, inputs, sizes, policy)[0]


def _distance(left: torch.Tensor, right: torch.Tensor) -> float:
    return float((left.double() - right.double()).square().mean().sqrt())
