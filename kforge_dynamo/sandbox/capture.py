"""What a failed capture of a CUDA graph leaves behind, put right.

Seen in torch 2.11: `CUDAGraph.capture_end` raises before it tells the device's default generator that the capture is over, and
from then on every draw from it raises "Offset increment outside graph capture". The end of a later capture tells it.
"""

from __future__ import annotations

import contextlib

import torch


def leave_capture(device: torch.device | str) -> None:
    """After a capture on `device` has failed: its default generator can be drawn from again."""
    torch.cuda.synchronize(device)
    with contextlib.suppress(RuntimeError), torch.cuda.device(device), torch.cuda.graph(torch.cuda.CUDAGraph()):
        torch.zeros(1, device=device)
