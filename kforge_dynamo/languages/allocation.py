"""How generated code allocates: Inductor's own short way to the caching allocator.

Private API, read in torch 2.11.0, 2.12, 2.13.0 and 2.14.1: `torch._C._dynamo.guards._empty_strided_<device type>`, which
Inductor's wrappers call.
"""

from __future__ import annotations

from collections.abc import Callable

import torch

Allocate = Callable[[tuple[int, ...], tuple[int, ...], torch.dtype], torch.Tensor]


def allocator(device: torch.device) -> Allocate:
    """A function of `(shape, strides, dtype)` to a tensor on `device`; of a device with an index, the current one."""
    fast = getattr(torch._C._dynamo.guards, f"_empty_strided_{device.type}", None)
    if fast is not None:
        return fast  # type: ignore[no-any-return]
    return lambda shape, strides, dtype: torch.empty_strided(shape, strides, dtype=dtype, device=device)
