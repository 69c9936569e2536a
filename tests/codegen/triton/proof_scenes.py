"""The device's proof of kept weights in Triton's interpreter: what `test_triton_proof` asks of the interpreter's process."""

from __future__ import annotations

import copy
import gc
import pathlib
import tempfile
from collections.abc import Callable
from dataclasses import replace

import numpy as np
import torch
from torch import nn
from triton_tasks import Builder

from kforge_dynamo import keeper, ledger, runtime
from kforge_dynamo.codegen import triton as generator
from kforge_dynamo.languages.base import RawDims, canonical_dims
from kforge_dynamo.languages.triton import LANGUAGE
from kforge_dynamo.languages.triton_calls import TritonLauncher
from kforge_dynamo.languages.triton_proof import watched
from kforge_dynamo.records.candidate import Buffer, Candidate, Launch, LaunchPlan
from kforge_dynamo.records.codec import to_text
from kforge_dynamo.records.outcome import CacheKey
from kforge_dynamo.records.site import Site
from kforge_dynamo.records.target import Numerics, Target
from kforge_dynamo.records.task import AxisRange, Domain, InputSpec, Task

PROVEN = Numerics("highest", fp16_reduced=False, bf16_reduced=False, deterministic=False, proven=True)
HOPPER = Target("cuda", "nvidia", "NVIDIA H200", "sm_90", 132, 232448, None, ("fp16_dot", "tf32", "bf16_dot", "tma"), ())
SPLIT = generator.Schedule("fp16x3", 16, 32, 32, 8, 4, 2, copies="both", promote=32)
FOLDER = pathlib.Path(tempfile.mkdtemp(prefix="kforge_proof_"))
COPYING = """import triton
import triton.language as tl


@triton.jit
def take(one, two, taken, proven, ONE: tl.constexpr, TWO: tl.constexpr):
    first, second = tl.arange(0, ONE), tl.arange(0, TWO)
    if tl.load(proven) == 0:
        tl.store(taken + first, tl.load(one + first))
        tl.store(taken + ONE + second, tl.load(two + second))


@triton.jit
def give(taken, out, ONE: tl.constexpr):
    tl.store(out + tl.arange(0, ONE), tl.load(taken + tl.arange(0, ONE)))
"""


def load(candidate: Candidate, task: Task, dims: RawDims | None = None) -> TritonLauncher:
    """Built and loaded."""
    artifact = LANGUAGE.build(candidate, task, HOPPER, FOLDER)
    found = LANGUAGE.load(artifact, candidate, task, dims or canonical_dims(task))
    assert isinstance(found, TritonLauncher)
    return found


def linear(k: int, n: int, dtype: str = "float32", pitch: bool = False) -> Task:
    """gelu of a linear layer, whose weight's lines lie apart where `pitch` says so."""
    builder = Builder()
    task = builder.task(builder.gelu(builder.linear(k, n, dtype)))
    weight = task.inputs[1]
    strides = tuple("pitch" if stride == "dense" and pitch else stride for stride in weight.strides)
    return replace(task, inputs=(task.inputs[0], InputSpec(weight.value, strides, weight.role), *task.inputs[2:]))


class Eye:
    """Only the launches that look at weights: whether they see a change since they last looked."""

    def __init__(self, task: Task, candidate: Candidate) -> None:
        found = watched(candidate.plan, task)
        assert found is not None
        looks = tuple(launch for launch in found.plan.launches if launch.kernel == "kf_changes")
        dtypes = [task.value(number).dtype for number in task.outputs]
        dtypes += [buffer.dtype for buffer in (*found.copies, *found.notes)]
        self.launches, module = len(looks), load(candidate, task)._module
        self.run = TritonLauncher(module, replace(found.plan, launches=looks), task, canonical_dims(task), dtypes)
        both = load(candidate, task).proven()
        assert both is not None
        self.memory, self.copies = both.memory(torch.device("cpu")), len(both.copies)
        self.notes = self.memory[self.copies :]

    def sees(self, inputs: list[torch.Tensor]) -> bool:
        """Looks."""
        self.run(inputs, [torch.empty(1), *self.memory], [1])
        proven, state = int(self.notes[0]), int(self.notes[1])
        assert state == 0 and proven in (0, 1), (state, proven)
        return proven == 0


def _bits(x: torch.Tensor) -> torch.Tensor:
    return x.view(torch.int32 if x.element_size() == 4 else torch.int16)


def _flip(*places: int, mask: int = 1) -> Callable[[torch.Tensor], None]:
    def change(flat: torch.Tensor) -> None:
        for place in places:
            _bits(flat)[place] ^= mask

    return change


def _rows(order: Callable[[int], list[int]]) -> Callable[[torch.Tensor], None]:
    def change(flat: torch.Tensor) -> None:
        rows = flat.view(24, -1)
        rows.copy_(rows[order(24)].clone())

    return change


def _blocks(flat: torch.Tensor) -> None:
    first = flat[:2048].clone()
    flat[:2048] = flat[2048:4096]
    flat[2048:4096] = first


def _exchanged(one: int, two: int) -> Callable[[torch.Tensor], None]:
    def change(flat: torch.Tensor) -> None:
        flat[[one, two]] = flat[[two, one]]

    return change


def _opposite(flat: torch.Tensor) -> None:
    """What a sum of all bits does not see."""
    _bits(flat)[100] += 7
    _bits(flat)[900] -= 7


def _payload(flat: torch.Tensor) -> None:
    flat[7] = float("nan")
    _bits(flat)[7] ^= 5


def _shifted(flat: torch.Tensor) -> None:
    flat.copy_(flat.roll(1))


CHANGES: dict[str, Callable[[torch.Tensor], None]] = {
    "first element": _flip(0),
    "last element": _flip(-1),
    "sign": _flip(5000, mask=-(2**31)),
    "two signs in one line": _flip(10, 11, mask=-(2**31)),
    "the same bits of two elements": _flip(200, 1400, mask=0x5A5A5A),
    "opposite changes": _opposite,
    "two elements exchanged": _exchanged(3, 2000),
    "elements of two lines exchanged": _exchanged(3, 2051),
    "two blocks exchanged": _blocks,
    "rows turned round": _rows(lambda n: list(range(n))[::-1]),
    "two rows exchanged": _rows(lambda n: [1, 0, *range(2, n)]),
    "all signs": lambda flat: flat.neg_(),
    "doubled": lambda flat: flat.mul_(2.0),
    "one step of an ulp": lambda flat: flat.copy_(torch.nextafter(flat, flat.new_full((), float("inf")))),
    "shifted by one": _shifted,
    "payload of a NaN": _payload,
    "infinity": lambda flat: flat.__setitem__(123, float("inf")),
    "all zero": lambda flat: flat.zero_(),
    "sign of a zero": lambda flat: flat.__setitem__(9000, -0.0),
    "sign of that zero back": lambda flat: flat.__setitem__(9000, 0.0),
    "ones": lambda flat: flat.fill_(1.0),
}


def changes(request: dict) -> dict:
    """Which changes of a weight of (700, 24), stored by columns, are seen, in turn; each time followed by none."""
    task = linear(700, 24)
    eye = Eye(task, generator.emit(task, SPLIT, (1,), HOPPER, PROVEN))
    noise = torch.Generator().manual_seed(request["seed"])
    flat = torch.randn(24 * 700, generator=noise)
    inputs = [torch.zeros(1, 700), flat.view(24, 700).t()[None], torch.zeros(1, 24)]
    found = {"first use": eye.sees(inputs), "no change": eye.sees(inputs)}
    for name, change in CHANGES.items():
        change(flat)
        found |= {name: eye.sees(inputs), f"after {name}": eye.sees(inputs)}
    lines = []
    for line in range(-(-flat.numel() // 2048)):
        _flip(min(2048 * line + 77 * line, flat.numel() - 1))(flat)
        lines += [eye.sees(inputs), eye.sees(inputs)]
    moved = [inputs[0], inputs[1].clone(memory_format=torch.preserve_format), inputs[2]]
    found |= {"each line": lines == [True, False] * (len(lines) // 2), "same bits elsewhere": eye.sees(moved)}
    words = eye.notes[2]
    known = words.clone()
    words[0] = 0  # a line whose hash is the invalid word
    found["word that says never seen"] = eye.sees(inputs)
    words.copy_(torch.randint(-(2**62), 2**62, words.shape, generator=noise))
    found |= {"garbage": eye.sees(inputs), "after garbage": eye.sees(inputs), "words": bool((words == known).all())}
    return found


def layouts(request: dict) -> dict:
    """Weights whose lines lie apart, and in half precision; two weights; what must be seen, and what lies between."""
    task = linear(100, 24, pitch=True)
    eye = Eye(task, generator.emit(task, SPLIT, (1,), HOPPER, PROVEN))
    whole = torch.randn(24, 107, generator=torch.Generator().manual_seed(0))
    inputs = [torch.zeros(1, 100), whole[:, :100].t()[None], torch.zeros(1, 24)]
    found = {"apart, first": eye.sees(inputs)}
    whole[3, 100:] = 5.0
    found["apart, gap"] = eye.sees(inputs)
    rows = []
    for row in range(24):
        _flip(99 - row)(whole[row])
        rows.append(eye.sees(inputs))
    found |= {"apart, each row": all(rows), "apart, after": eye.sees(inputs)}
    for dtype in ("bfloat16", "float16"):
        found |= _two_weights(dtype)
    return found


def _two_weights(dtype: str) -> dict:
    task = linear(64, 128, dtype)
    buffers = (Buffer("taken", dtype, str(64 * 128 + 128)), Buffer("proven", "int32", "1", zeroed=True))
    constants = (("ONE", 64 * 128), ("TWO", 128))
    take = Launch("take", ("1",), ("in:1", "in:2", "buf:taken", "buf:proven"), constants, weights_only=True)
    give = Launch("give", ("1",), ("buf:taken", "out:0"), (("ONE", 128),))
    candidate = Candidate("triton", COPYING, LaunchPlan(buffers, (take, give), proof="proven"), "", "native", "test")
    eye = Eye(task, candidate)
    weight, bias = torch.randn(128, 64).to(getattr(torch, dtype)), torch.randn(128).to(getattr(torch, dtype))
    inputs = [torch.zeros(1, 64, dtype=weight.dtype), weight.t()[None], bias[None]]
    seen = [eye.sees(inputs), eye.sees(inputs)]
    for flat, place in ((weight.view(-1), 8191), (bias, 0), (weight.view(-1), 0), (bias, 127)):
        _flip(place)(flat)
        seen += [eye.sees(inputs), eye.sees(inputs)]
    return {f"{dtype}, two weights": seen == [True, False] * 5 and eye.launches == 2}


class Net(nn.Module):
    """What the site's task computes."""

    def __init__(self) -> None:
        super().__init__()
        self.one = nn.Linear(72, 40)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return nn.functional.gelu(self.one(x))


class _Stored:
    domain = Domain((AxisRange("m", 1, 64),))


def _entry() -> Callable[..., None]:
    task = linear(72, 40)
    dims: RawDims = ((0, 1), (None, 1, 0), (None, 0))
    candidate = generator.emit(task, SPLIT, (6,), HOPPER, PROVEN)
    runtime.install(lambda site: (_Stored, load(candidate, task, dims)))  # type: ignore[arg-type, return-value]
    strides = ((72, 1), (72, 1), (1,))
    site = Site(CacheKey("t", "cpu", "n", 1), task, dims, (2,), (6,), True, "cpu", "w", strides, (1, 2), proven=True)
    return runtime.entry(to_text(site))


def _step(net: Net, make: Callable = lambda parameters: torch.optim.SGD(parameters, lr=0.5)) -> None:
    optimizer = make(net.parameters())
    with torch.enable_grad():
        net(torch.ones(4, 72)).square().sum().backward()
    optimizer.step()


def _load(net: Net, assign: bool) -> None:
    net.load_state_dict({name: torch.randn_like(value) for name, value in net.state_dict().items()}, assign=assign)


def _outside(net: Net) -> None:
    array: np.ndarray = net.one.weight.detach().numpy()
    array *= 1.5


WAYS: dict[str, Callable[[Net], object]] = {
    "optimizer": _step,
    "fused optimizer": lambda net: _step(net, lambda parameters: torch.optim.AdamW(parameters, lr=0.1, fused=True)),
    "state dict": lambda net: _load(net, False),
    "state dict, assigned": lambda net: _load(net, True),
    "in place": lambda net: net.one.weight.mul_(1.5),
    "data": lambda net: net.one.weight.data.mul_(1.5),
    "data of one element": lambda net: net.one.weight.data.view(-1)[-1:].add_(1.0),
    "outside": _outside,
    "new storage": lambda net: setattr(net.one.weight, "data", torch.randn(40, 72)),
    "new parameter": lambda net: setattr(net.one, "weight", nn.Parameter(torch.randn(40, 72))),
    "bias": lambda net: net.one.bias.data.add_(1.0),
}


def ways(request: dict) -> dict:
    """Worst error over a reference in fp64 after each way of changing weights, how far each moved the result, and what was
    kept; errors and moves relative to the result's RMS."""
    torch.manual_seed(25)
    ledger.reset()
    keeper.limit(None)
    entry, net = _entry(), Net().eval()
    twin = copy.deepcopy(net)
    x = torch.randn(6, 72, generator=torch.Generator().manual_seed(3))
    errors: dict[str, float] = {}
    moves: dict[str, float] = {}
    start = keeper.kept_bytes()
    with torch.no_grad():
        for name, change in {"nothing": lambda net: None, **WAYS}.items():
            before = net(x)
            change(net)
            moves[name] = float((net(x) - before).abs().max() / net(x).square().mean().sqrt())
            errors[name] = max(_error(entry, net, x) for _ in range(2))
        errors["another model"] = max(_error(entry, twin, x), _error(entry, net, x), _error(entry, twin, x))
        kept = keeper.kept_bytes() - start
        copies = ledger.stats()["prepacked"]
        keeper.limit(0)
        errors["no room"] = _error(entry, Net().eval(), x)
        keeper.limit(None)
        net = twin = None  # type: ignore[assignment]
        gc.collect()
    return {"errors": errors, "moves": moves, "kept": kept, "copies": copies, "left": keeper.kept_bytes() - start,
            "calls": ledger.stats()["calls"], "fallbacks": ledger.stats()["fallback_calls"]}  # fmt: skip


def _error(entry: Callable[..., None], net: Net, x: torch.Tensor) -> float:
    out = torch.full((6, 40), float("nan"))
    entry(x, net.one.weight, net.one.bias, out, net.one.weight, net.one.bias)
    exact = copy.deepcopy(net).double()(x.double())
    scale = float(exact.square().mean().sqrt())
    return float((out.double() - exact).abs().max()) / scale
