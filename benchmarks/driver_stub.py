"""Triton's CUDA launcher without a GPU: its own C code over a driver that starts nothing.

So the host's share of a launch can be measured, and what a launch passes can be looked at, on any Linux machine with a C
compiler. Kernels are compiled for Hopper by Triton as ever; "device" memory is the host's.

Private API of Triton, read in 3.6.0 and 3.7.1: `backends.nvidia.driver.CudaDriver` and its parts, `TRITON_LIBCUDA_PATH`.
"""

from __future__ import annotations

import ctypes
import os
import shutil
import subprocess
from pathlib import Path
from typing import Any

import torch

_SIZES = {"i1": 1, "i8": 1, "i16": 2, "i32": 4, "i64": 8, "u64": 8}
STREAM = 4660
"""The stream that the stub's driver names."""


def compiler() -> str | None:
    """A C compiler, None where there is none: then nothing here works."""
    return next((found for name in ("gcc", "clang", "cc") if (found := shutil.which(name))), None)


def build(folder: Path) -> Path:
    """`libcuda.so.1` in `folder`. Raises: subprocess.CalledProcessError."""
    import triton

    found = compiler()
    assert found is not None, "no C compiler: install gcc"
    include = Path(triton.__file__).parent / "backends" / "nvidia" / "include"
    library = folder / "libcuda.so.1"
    source = Path(__file__).with_suffix(".c")
    command = [
        found,
        "-O2",
        "-shared",
        "-fPIC",
        "-w",
        f"-I{include}",
        "-Wl,-soname,libcuda.so.1",
        "-o",
        str(library),
        str(source),
    ]
    subprocess.run(command, check=True, capture_output=True)
    return library


class Stub:
    """The stub driver, loaded into this process and active in Triton; for a process of its own, since it cannot be undone."""

    def __init__(self, folder: Path) -> None:
        os.environ["TRITON_LIBCUDA_PATH"] = str(folder)
        os.environ["TRITON_CACHE_DIR"] = str(folder / "triton")
        self._library = ctypes.CDLL(str(build(folder)), mode=ctypes.RTLD_GLOBAL)
        for name in ("kept", "shape", "stream", "function"):
            getattr(self._library, f"stub_{name}").restype = ctypes.c_void_p
        self._library.stub_calls.restype = ctypes.c_long
        import triton
        from triton.backends.compiler import GPUTarget
        from triton.backends.nvidia import driver

        class Driver(driver.CudaDriver):
            def __init__(self) -> None:
                self.utils, self.launcher_cls = driver.CudaUtils(), driver.CudaLauncher

            def get_current_device(self) -> int:
                return 0

            def get_current_stream(self, device: int) -> int:
                return STREAM

            def get_current_target(self) -> Any:
                return GPUTarget("cuda", 90, 32)

        self.driver = Driver()
        triton.runtime.driver.set_active(self.driver)

    @property
    def launches(self) -> int:
        """How many kernels were started."""
        return int(self._library.stub_calls())

    def expect(self, sizes: list[int]) -> None:
        """From now on the bytes of so many kernel parameters, of these sizes, are kept."""
        self._library.stub_expect((ctypes.c_int * len(sizes))(*sizes), len(sizes))
        self._bytes = sum(sizes)

    def last(self) -> tuple[bytes, bytes, int | None, int | None]:
        """Of the last launch: parameters, grid with block and shared memory, stream, function."""
        kept = ctypes.string_at(self._library.stub_kept(), self._bytes)
        shape = ctypes.string_at(self._library.stub_shape(), 28)
        return kept, shape, self._library.stub_stream(), self._library.stub_function()


def parameter_sizes(kernel: Any) -> list[int]:
    """Bytes of each parameter of a compiled kernel, the two scratch pointers included."""
    sizes = []
    for kind in kernel.src.signature.values():
        if kind.startswith("tensordesc"):
            sizes += [128, 4, 4, 8, 8]
        elif kind != "constexpr":
            sizes.append(8 if kind.startswith("*") else _SIZES[kind])
    return [*sizes, 8, 8]


def aligned(*shape: int, dtype: torch.dtype = torch.float32) -> torch.Tensor:
    """A tensor on a 16-byte address, as the CUDA allocator would give."""
    tensor = torch.zeros(*shape, dtype=dtype)
    assert tensor.data_ptr() % 16 == 0
    return tensor
