"""Which number formats a candidate may round to: those of its task, and those that its precision scheme names."""

from __future__ import annotations

import re

from kforge_dynamo.records.target import Numerics
from kforge_dynamo.records.task import Task

_BASE = {"tf32": "tf32", "fp16": "float16", "bf16": "bfloat16", "fp8": "float8"}
_SCHEME = re.compile(r"(tf32|bf16|fp16|fp8)(?:x(\d)|(_rows))?")
_SINGLE = {
    "strict": (), "highest": (), "high": ("tf32", "fp16_rows"), "medium": ("tf32", "fp16_rows", "bf16"),
    "mixed": ("tf32", "fp16_rows", "fp16"),
}  # fmt: skip
_PRODUCTS = {"strict": {"tf32": 3, "bf16": 6}, "highest": {"tf32": 3, "bf16": 6, "fp16": 3}}
"""How many products of parts keep fp32's digits: of every component under "strict", by norms under "highest"."""


def allowed_formats(task: Task, scheme: str) -> frozenset[str]:
    """Names of the floating formats below fp32 that may stand in a source for `task` under `scheme`."""
    specs = [task.value(number) for number in range(len(task.inputs) + len(task.nodes))]
    found = {spec.dtype for spec in specs if spec.dtype in ("float16", "bfloat16")}
    match = _SCHEME.match(scheme)
    if match is not None:
        found.add(_BASE[match.group(1)])
    return frozenset(found)


def scheme_refusal(task: Task, scheme: str, numerics: Numerics) -> str | None:
    """Why the setting of `numerics` does not allow `scheme` for `task`; None when it does, or when no fp32 product is there."""
    anchor = task.anchor
    match = _SCHEME.fullmatch(scheme)
    if anchor is None or anchor.out.dtype != "float32" or match is None:
        return None
    base, parts = match.group(1), match.group(2)
    name = base + (match.group(3) or "")
    setting = f"under the precision setting {numerics.fp32!r}"
    if parts is None:
        fits = name in _SINGLE[numerics.fp32]
        return None if fits else f"the scheme {scheme!r} rounds operands to {_BASE[base]} once, which is a downcast {setting}"
    if numerics.fp32 not in _PRODUCTS or int(parts) >= _PRODUCTS[numerics.fp32].get(base, 10):
        return None
    return f"the scheme {scheme!r} keeps fewer digits than fp32 has, which is a downcast {setting}"
