"""Whether weights have changed since a copy was made of them, found out on the device: a hash of all their bits in each call.

A plan with `proof` starts with launches that read nothing but weights and write what may be kept. Here such a plan gets a
launch ahead of them for each weight, which reads the weight once, compares a hash of each line with the one it stored when it
last saw the line, stores those that differ, and sets the plan's proof to 1 where none did. So a call with unchanged weights
costs one read of them, a call with changed ones prepares anew, and no host looks at either: it works in CUDA graphs, and
however the weights were written. The kernel is kforge's own and not a candidate's, which has no say in when its preparation
is left out.

**What it can miss.** A line is at most 2048 elements x_i, the numbers that their bits are. Of each line two sums are kept,
sum_i k_i x_i + 1 mod 2^64 for two sequences of keys k_i in [1, 2^32), fixed, different from one another within a sequence, and
without a rule that weights could follow by accident: `kf_key` mixes the position as the end of MurmurHash3 does, which is a
bijection of 32 bits. Let d_i = x_i - x_i' be what has changed, |d_i| < 2^32.

- One element: k_i d_i is no multiple of 2^64, since both are below 2^32 and not 0. Always seen.
- Two elements by the same, in the same or in opposite directions (an exchange of two, say): with d = 2^t u, u odd and t < 32,
  k_i + k_j or k_i - k_j would have to be a multiple of 2^(64-t), and is not 0 and below 2^33. Always seen.
- Anything else, for keys drawn at random independently of the weights: whatever the other keys are, k_i d_i has to be one
  certain number mod 2^64, which leaves one value of k_i mod 2^(64-t), so at most one of 2^32. Two independent sums: at most
  2^-64 a changed line (multilinear hashing; Carter and Wegman, Journal of Computer and System Sciences 18, 1979).

A weight of 8192 x 8192 has 2^15 lines; if all of them change in each of a million steps, one is missed with a probability of
2^-29. The keys are no secret: who computes weights in order to deceive can, and needs no hash for that in his own process.
Signs of zeros and payloads of NaNs are bits like others. The first word 0 stands for "never seen": a line whose sum is 0 is
never believed, and prepared in each call.

**What it relies on.** Calls that share copies follow one another on the device, launch by launch; whoever calls sees to that.
A weight that is written while a call reads it gives that call anything, as it would eager, and is prepared anew in the next
call unless it has meanwhile got back the bits that were hashed.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace

from kforge_dynamo.records.candidate import Buffer, Launch, LaunchPlan
from kforge_dynamo.records.prepack import fault, halves, passed_in
from kforge_dynamo.records.task import InputSpec, Task

KERNEL = "kf_changes"
NAMES = (KERNEL, "kf_key")
"""Functions that no source of a candidate with a proof may define."""

_LINE = 2048
_ELEMENTS = 8192  # of a program at a time: 64 registers of 128 threads, so that three programs share a multiprocessor
_WARPS = 4
_PROGRAMS = 1024
"""More than a device runs at a time; each computes the keys once. The count is below 2^16 (see `state` in the kernel)."""
_SHORTEST = 64  # elements that lie side by side, below which a line wastes most of its threads
_MOST_COLUMNS = 2**31 - 2 * _LINE  # columns are counted in 32 bits
_BITS = {"float32": 32, "float16": 16, "bfloat16": 16}

SOURCE = f"""

@triton.jit
def kf_key(place, salt: tl.constexpr):
    key = place.to(tl.uint32) + salt
    key = (key ^ (key >> 16)) * 0x85EBCA6B
    key = (key ^ (key >> 13)) * 0xC2B2AE35
    return (key ^ (key >> 16)).to(tl.int64)


@triton.jit
def {KERNEL}(weight, words, proven, state, n_rows, n_columns, pitch, BITS: tl.constexpr, FIRST: tl.constexpr,
             LINE: tl.constexpr, LINES: tl.constexpr):
    place = tl.arange(0, LINE)
    one, two = kf_key(place, 0x3C6EF372), kf_key(place, 0x1B873593)
    parts = tl.cdiv(n_columns, LINE)
    lines = n_rows * parts
    changed = tl.zeros((LINES,), tl.int32)
    for start in range(tl.program_id(0) * LINES, lines, tl.num_programs(0) * LINES):
        line = start + tl.arange(0, LINES)
        line_ok = line < lines
        column = (line % parts)[:, None] * LINE + place[None, :]
        at = weight + (line // parts).to(tl.int64)[:, None] * pitch + column
        x = tl.load(at, mask=line_ok[:, None] & (column < n_columns), other=0.0, eviction_policy="evict_first")
        if BITS == 32:
            bits = x.to(tl.uint32, bitcast=True).to(tl.int64)
        else:
            bits = x.to(tl.uint16, bitcast=True).to(tl.int64)
        first = tl.sum(bits * one[None, :], axis=1) + 1
        second = tl.sum(bits * two[None, :], axis=1) + 1
        spot = words + line
        seen_first = tl.load(spot, mask=line_ok, other=0)
        seen_second = tl.load(spot + lines, mask=line_ok, other=0)
        new = line_ok & ((seen_first != first) | (seen_second != second) | (seen_first == 0))
        tl.store(spot, first, mask=new)
        tl.store(spot + lines, second, mask=new)
        changed = changed | new.to(tl.int32)
    # state counts the programs that are done, and from bit 16 on those that found a change; the last one says so
    mine = 1 + tl.max(changed, axis=0) * 65536
    total = tl.atomic_add(state, mine) + mine
    if total % 65536 == tl.num_programs(0):
        same = tl.where(total < 65536, 1, 0)
        if not FIRST:
            same = same & tl.load(proven)
        tl.store(proven, same)
        tl.store(state, 0)
"""
"""What is added to the source of a candidate with a proof."""


@dataclass(frozen=True, slots=True)
class _Lines:
    """How a weight lies in memory: `rows` pieces of `columns` elements, `pitch` (argument text) apart."""

    rows: int
    columns: int
    pitch: str


@dataclass(frozen=True, slots=True)
class Watched:
    """`plan` takes `copies` and then `notes` as outputs behind the task's (see `languages.base.Proven`)."""

    plan: LaunchPlan
    copies: tuple[Buffer, ...]
    notes: tuple[Buffer, ...]


def watched(plan: LaunchPlan, task: Task) -> Watched | None:
    """A plan with a proof, and the launches that set it; None where it has none, or a weight lies such that it has no lines."""
    kept = halves(plan, len(task.outputs))
    if not plan.proof or kept is None or fault(plan, task) is not None:
        return None
    state = Buffer("kf_state", "int32", "1", zeroed=True)
    notes = [next(buffer for buffer in plan.buffers if buffer.name == plan.proof), state]
    launches: list[Launch] = []
    for number in plan.packed_inputs:
        lines = _lines(task.inputs[number], number)
        if lines is None:
            return None
        words = f"kf_words{number}"
        launch, count = _launch(task.inputs[number], number, lines, words, plan.proof, first=not launches)
        launches.append(launch)
        notes.append(Buffer(words, "int64", str(2 * count), zeroed=True))
    known = {buffer.name for buffer in plan.buffers}
    if known & {buffer.name for buffer in notes[1:]}:
        return None
    whole = replace(plan, buffers=(*plan.buffers, *notes[1:]), launches=(*launches, *plan.launches))
    names = tuple(buffer.name for buffer in (*kept.kept, *notes))
    return Watched(passed_in(whole, len(task.outputs), names), kept.kept, tuple(notes))


def _launch(item: InputSpec, number: int, lines: _Lines, words: str, proof: str, first: bool) -> tuple[Launch, int]:
    """The launch that looks at an input, and how many lines it has."""
    line = max(_SHORTEST, min(_LINE, 1 << (lines.columns - 1).bit_length()))
    count = lines.rows * -(-lines.columns // line)
    together = _ELEMENTS // line
    programs = min(_PROGRAMS, -(-count // together))
    arguments = (f"in:{number}", f"buf:{words}", f"buf:{proof}", "buf:kf_state")
    numbers = (f"size:{lines.rows}", f"size:{lines.columns}", lines.pitch)
    constants = (("BITS", _BITS[item.value.dtype]), ("FIRST", first), ("LINE", line), ("LINES", together))
    return Launch(KERNEL, (str(programs),), arguments + numbers, constants, _WARPS, 1, weights_only=True), count


def _lines(item: InputSpec, number: int) -> _Lines | None:
    """None for a dtype or a layout that is not looked at."""
    dims = [
        (extent, stride, dimension)
        for dimension, (extent, stride) in enumerate(zip(item.value.shape, item.strides, strict=True))
        if extent != 1 and stride != 0
    ]
    if item.value.dtype not in _BITS or any(isinstance(extent, str) for extent, _, _ in dims):
        return None
    apart = [(int(extent), dimension) for extent, stride, dimension in dims if stride == "pitch"]
    columns = math.prod(int(extent) for extent, stride, _ in dims if stride != "pitch")
    if len(apart) > 1 or columns > _MOST_COLUMNS or (apart and columns < _SHORTEST):
        return None
    if not apart:
        return _Lines(1, columns, f"size:{columns}")
    (rows, dimension), *_ = apart
    if rows * -(-columns // _LINE) >= 2**31 - _PROGRAMS * _ELEMENTS:
        return None
    return _Lines(rows, columns, f"stride:{number}:{dimension}")
