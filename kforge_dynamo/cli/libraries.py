"""Whether timm and transformers import here, also beside a torchvision that was built for another torch."""

from __future__ import annotations

import importlib
import importlib.util
import sys
from typing import Any

import torch

_OPERATORS = ("nms", "qnms")
_SCHEMA = "(Tensor dets, Tensor scores, float iou_threshold) -> Tensor"
_IMPORT_ERRORS = (ImportError, RuntimeError, OSError, AttributeError, ValueError)
_kept: list[torch.library.Library] = []  # the operators go when their library object does


def why_missing(library: str) -> str | None:
    """None if the library imports, else one sentence."""
    if importlib.util.find_spec(library) is None:
        return f"{library} is not installed"
    reason = _import(library)
    if reason and "torchvision::" in reason and _declare_torchvision_operators():
        _forget("torchvision", library)
        reason = _import(library)
    return f"{library} does not import ({reason})" if reason else None


def _import(library: str) -> str | None:
    try:
        importlib.import_module(library)
    except _IMPORT_ERRORS as error:
        return " ".join(str(error).split())[:160]
    return None


def _declare_torchvision_operators() -> bool:
    """Give torchvision's Python part the operators that it declares shapes for, and its binary, built for another torch,
    failed to register. They have no kernels: a model that calls them fails with torch's own message."""
    if _kept:
        return False
    library: Any = torch.library.Library("torchvision", "FRAGMENT")  # type: ignore[no-untyped-call]
    _kept.append(library)
    for name in _OPERATORS:
        library.define(f"{name}{_SCHEMA}")
    return True


def _forget(*libraries: str) -> None:
    """Drop half-imported modules, so that the next import starts afresh."""
    for name in [name for name in sys.modules if name.partition(".")[0] in libraries]:
        del sys.modules[name]
