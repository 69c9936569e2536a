"""Where rows were measured: device, versions, date. A row without these says nothing."""

from __future__ import annotations

import datetime
import importlib.metadata
import platform
from pathlib import Path
from typing import Any

import torch


def device_name(device: str) -> str:
    """The device as people call it."""
    if device == "cuda":
        return torch.cuda.get_device_name()
    return _cpu_name()


def _cpu_name() -> str:
    info = Path("/proc/cpuinfo")
    lines = info.read_text(encoding="utf-8").splitlines() if info.exists() else []
    names = [line.partition(":")[2].strip() for line in lines if line.startswith("model name")]
    return names[0] if names else platform.processor() or platform.machine()


def _version(distribution: str) -> str | None:
    try:
        return importlib.metadata.version(distribution)
    except importlib.metadata.PackageNotFoundError:
        return None


def versions() -> dict[str, str | None]:
    """Of everything that shapes the numbers."""
    return {
        "kforge": _version("kforge-dynamo"),
        "torch": torch.__version__,
        "triton": _version("triton"),
        "cuda": torch.version.cuda,
        "python": platform.python_version(),
    }


def place(device: str) -> dict[str, Any]:
    """What a row records beside its numbers."""
    now = datetime.datetime.now(datetime.timezone.utc)
    return {
        "device": device_name(device),
        "threads": torch.get_num_threads(),
        "versions": versions(),
        "date": now.strftime("%Y-%m-%d %H:%M"),
    }
