"""The original problem files of KernelBench level 2, from a checkout given by path; none of them is part of this repository."""

from __future__ import annotations

import importlib.util
from pathlib import Path
from typing import Any

import torch

from benchmarks.workloads import Case, Fact


def problem_file(checkout: Path, number: int) -> Path:
    """Raises: FileNotFoundError naming the folders that were searched."""
    folders = [checkout / "KernelBench" / "level2", checkout / "level2", checkout]
    for folder in folders:
        found = sorted(folder.glob(f"{number}_*.py"))
        if found:
            return found[0]
    raise FileNotFoundError(f"no file {number}_*.py in {', '.join(map(str, folders))}: give --kernelbench a checkout of it")


def build(checkout: Path, fact: Fact, device: str, seed: int = 0) -> Case:
    """The file's own model and inputs, in fp32 on a device. The file's code runs in this process."""
    path = problem_file(checkout, fact.id)
    spec = importlib.util.spec_from_file_location(f"kernelbench_{fact.id}", path)
    if spec is None or spec.loader is None:
        raise ImportError(f"{path} cannot be loaded as a module")
    source: Any = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(source)
    torch.manual_seed(seed)
    with torch.device(device):
        module = source.Model(*source.get_init_inputs())
        inputs = tuple(value.to(device) if isinstance(value, torch.Tensor) else value for value in source.get_inputs())
    return Case(fact, module.to(device), inputs)
