"""`Candidate`: device source and a launch plan as data. Nothing in it is host code."""

from __future__ import annotations

from dataclasses import dataclass, field

from kforge_dynamo.records.codec import LATER


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

    `weights_only` marks the preparation of weights (packing, splitting): the launch reads inputs, writes buffers that only
    such launches write, and needs no axis size. What it leaves stays valid for as long as the inputs that it is passed hold
    the same values, so the runtime may keep its buffers between calls and leave it out.
    """

    kernel: str
    grid: tuple[str, ...]
    args: tuple[str, ...]
    constants: tuple[tuple[str, bool | int | float | str], ...] = ()
    num_warps: int = 4
    num_stages: int = 2
    weights_only: bool = field(default=False, metadata=LATER)


@dataclass(frozen=True, slots=True)
class LaunchPlan:
    """What a call does: allocate `buffers`, then start `launches` in order, those of `weights_only` ahead of all others.

    `atomics` declares that two runs may differ by the order of atomic additions. `library` declares that the kernel
    calls the GEMM that ships in torch.

    `proof` names a buffer of one int32, zeroed: launches of `weights_only` do nothing where it is not 0. So whoever has kept
    what they wrote, and has found that the weights still have the same bits, may set it (see `languages.triton_proof`). That
    it is right to set it is no claim of the plan's: it rests on those who set it, and on what `weights_only` promises.
    """

    buffers: tuple[Buffer, ...]
    launches: tuple[Launch, ...]
    atomics: bool = False
    library: bool = False
    proof: str = field(default="", metadata=LATER)

    def __post_init__(self) -> None:
        packing = [launch.weights_only for launch in self.launches]
        if packing != sorted(packing, reverse=True):
            raise ValueError("launches that prepare weights come ahead of all others")
        if any(argument.startswith(("out:", "desc:out:")) for launch in self.prepack for argument in launch.args):
            raise ValueError("a launch that prepares weights writes buffers, not outputs")
        if self.proof and Buffer(self.proof, "int32", "1", zeroed=True) not in self.buffers:
            raise ValueError(f"the proof {self.proof} is a buffer of one int32, zeroed")
        if self.proof and any(_buffer_of(a) == self.proof for x in self.launches if not x.weights_only for a in x.args):
            raise ValueError("only launches that prepare weights look at the proof")

    @property
    def prepack(self) -> tuple[Launch, ...]:
        """The launches that prepare weights."""
        return tuple(launch for launch in self.launches if launch.weights_only)

    @property
    def kept(self) -> tuple[str, ...]:
        """Names of the buffers that `prepack` fills, in the order of `buffers`."""
        used = {_buffer_of(argument) for launch in self.prepack for argument in launch.args}
        return tuple(buffer.name for buffer in self.buffers if buffer.name in used)

    @property
    def packed_inputs(self) -> tuple[int, ...]:
        """Numbers of the inputs that `prepack` reads."""
        words = [argument.removeprefix("desc:").split(":") for launch in self.prepack for argument in launch.args]
        return tuple(sorted({int(rest[0]) for kind, *rest in words if kind == "in"}))


def _buffer_of(argument: str) -> str | None:
    kind, *rest = argument.removeprefix("desc:").split(":")
    return rest[0] if kind == "buf" else None


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
