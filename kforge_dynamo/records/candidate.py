"""`Candidate`: device source and a launch plan as data. Nothing in it is host code."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Buffer:
    """Scratch memory of one call: `elements` is a size expression; `zeroed` where the kernels expect zeros in it."""

    name: str
    dtype: str
    elements: str
    zeroed: bool = False


@dataclass(frozen=True, slots=True)
class Launch:
    """One kernel start.

    `args` name what is passed, in order: `in:I`, `out:I`, `buf:NAME` (pointers), `size:EXPR` (an integer), `stride:I:D`
    (elements between neighbours along dimension D of input I's `rows + cols`), and `desc:in:I:ROWS:COLS:PITCH:B0:B1`
    (a tensor descriptor of a two-dimensional view of an input, output or buffer, with its block).
    `constants` are compile-time values by name. `grid` holds size expressions (Triton); C++ has the grid `("1",)`.
    """

    kernel: str
    grid: tuple[str, ...]
    args: tuple[str, ...]
    constants: tuple[tuple[str, bool | int | float | str], ...] = ()
    num_warps: int = 4
    num_stages: int = 2


@dataclass(frozen=True, slots=True)
class LaunchPlan:
    """What a call does: allocate `buffers`, then start `launches` in order.

    `atomics` declares that two runs may differ by the order of atomic additions. `library` declares that the kernel
    calls the GEMM that ships in torch.
    """

    buffers: tuple[Buffer, ...]
    launches: tuple[Launch, ...]
    atomics: bool = False
    library: bool = False


@dataclass(frozen=True, slots=True)
class Candidate:
    """A proposed kernel for a task.

    `schedule` is the text of the generator's schedule (empty where there is none), `scheme` the name of the precision
    scheme its product uses, `parent` the digest of the candidate it was derived from.
    """

    language: str
    source: str
    plan: LaunchPlan
    schedule: str
    scheme: str
    author: str
    parent: str | None = None
