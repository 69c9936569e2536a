"""What is compared: one module, compiled in several ways that live side by side in one process."""

from __future__ import annotations

import contextlib
import signal
import types
from collections.abc import Callable, Iterator, Mapping
from typing import Any

import torch
from torch import nn

from kforge_dynamo.cli.measure import own_code

VARIANTS = ("eager", "default", "max-autotune", "autocast", "kforge")
"""eager; torch.compile; its longest search (device graphs left to the timer); torch.compile under fp16 autocast; kforge."""
BASELINES = ("eager", "default", "max-autotune")
"""What kforge must beat: the fastest of these that ran, at the same precision setting."""

Call = Callable[[], Any]


class OutOfTime(RuntimeError):
    """A variant took longer to compile than it was given."""


def compiled(variant: str, module: nn.Module, device: str, options: Mapping[str, Any]) -> Callable[..., Any]:
    """The module as `variant` runs it; nothing is compiled before the first call."""
    if variant == "eager":
        return module
    twin = own_code(module, variant.replace("-", "_"))
    if variant == "kforge":
        return torch.compile(twin, backend="kforge", options=dict(options))
    if variant == "max-autotune":
        return torch.compile(twin, mode="max-autotune-no-cudagraphs")
    if variant == "autocast":
        return _autocast(torch.compile(twin), device)
    return torch.compile(twin)


def _autocast(function: Callable[..., Any], device: str) -> Callable[..., Any]:
    def call(*inputs: Any) -> Any:
        with torch.autocast(device, dtype=torch.float16):
            return function(*inputs)

    return call


@contextlib.contextmanager
def time_limit(seconds: float | None, what: str) -> Iterator[None]:
    """Raises OutOfTime in the main thread after `seconds`; None sets no limit. Between bytecodes: a long C call ends first."""
    if seconds is None:
        yield
        return

    def expire(signum: int, frame: types.FrameType | None) -> None:
        raise OutOfTime(f"{what} took more than {seconds:g} s")

    before = signal.signal(signal.SIGALRM, expire)
    signal.setitimer(signal.ITIMER_REAL, seconds)
    try:
        yield
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, before)
