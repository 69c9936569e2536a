"""Triton's compiler in a process without a device: it compiles for one that a record describes.

Private API of Triton, read in 3.6.0 and 3.7.1: `runtime.driver.set_active`, and the three methods of a driver that
`JITFunction.warmup` asks; `backends.nvidia.driver.CudaLauncher(source, metadata)` builds the C function of a launch.
"""

from __future__ import annotations

import contextlib
import importlib
import re
from typing import Any

from kforge_dynamo.records.target import Target


class OfflineDriver:
    """A driver that knows what it compiles for, and nothing else."""

    def __init__(self, target: Any) -> None:
        self._target = target

    def get_current_device(self) -> int:
        """Triton's name; there is one."""
        return 0

    def get_current_stream(self, device: int) -> int:
        """Triton's name; nothing is ever launched on it."""
        del device
        return 0

    def get_current_target(self) -> Any:
        """Triton's name."""
        return self._target


def go_offline(target: Target) -> bool:
    """From here on this process compiles for `target` and can launch nothing. False where its architecture is not known."""
    nvidia, amd = re.fullmatch(r"sm_(\d+)", target.arch), re.fullmatch(r"gfx(\w+)", target.arch)
    if nvidia is None and amd is None:
        return False
    described = importlib.import_module("triton.backends.compiler").GPUTarget
    warp = 64 if amd is not None and amd.group(1).startswith("9") else 32
    found = described("cuda", int(nvidia.group(1)), 32) if nvidia is not None else described("hip", target.arch, warp)
    importlib.import_module("triton").runtime.driver.set_active(OfflineDriver(found))
    return True


def build_launch(kernel: Any) -> None:
    """Builds the C function that launches a compiled kernel into Triton's cache, where that can be done without a device."""
    with contextlib.suppress(Exception):  # the first launch builds it again, and says what is wrong
        importlib.import_module("triton.backends.nvidia.driver").CudaLauncher(kernel.src, kernel.metadata)
