"""The dispatcher trap: inside a launch no torch operation may run, beside those that hand memory out.

A kernel that calls torch has its work done by the baseline's own library. The launchers of device languages run none, so
whatever is caught comes from the candidate: from host code, or from compiled code that reached into torch's libraries.

Private API, read in torch 2.11.0, 2.12, 2.13.0 and 2.14.1: `torch.utils._python_dispatch.TorchDispatchMode`
(`__torch_dispatch__(func, types, args, kwargs)` sees every operation of this thread that reaches the dispatcher).
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from typing import Any

from torch.utils._python_dispatch import TorchDispatchMode

_MEMORY = (
    "empty",
    "empty_strided",
    "empty_like",
    "new_empty",
    "view",
    "as_strided",
    "slice",
    "select",
    "alias",
    "detach",
    "zero_",
)
"""Operations that allocate, look at, or zero memory: what a launcher does for a plan's buffers."""


class Trapped(RuntimeError):
    """A torch operation ran inside a launch."""


class _Trap(TorchDispatchMode):  # type: ignore[no-untyped-call]
    def __torch_dispatch__(self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: dict[str, Any] | None = None) -> Any:
        name = func._schema.name.removeprefix("aten::")
        if name not in _MEMORY:
            raise Trapped(f"a launch called torch's {name}: a candidate computes in its own kernel")
        return func(*args, **(kwargs or {}))


@contextlib.contextmanager
def trap(on: bool) -> Iterator[None]:
    """Raises Trapped from the first torch operation inside, beside those of memory; nothing where `on` is false."""
    with _Trap() if on else contextlib.nullcontext():  # type: ignore[no-untyped-call]
        yield
