"""Kernels whose preparation of a weight outlives a call under the device's proof: those that misuse it, and honest ones.

The hash is kforge's own, so what is left to a candidate is when it prepares, and what it writes to memory that lasts."""

from __future__ import annotations

from dataclasses import replace

from kforge_dynamo.records.candidate import Buffer, Candidate, Launch, LaunchPlan
from kforge_dynamo.records.outcome import Status
from tests.sandbox.adversarial.cases import HIGHEST, PASS, PLAIN, Case, upto

PROVEN = replace(HIGHEST, proven=True)
REJECTED, UNBUILT = (Status.REJECTED,), (Status.COMPILE_ERROR,)
SOURCE = """import triton
import triton.language as tl


@triton.jit
def pack(w, packed, proven, wk, wn, K: tl.constexpr, N: tl.constexpr):
    n = tl.arange(0, N)
    done = tl.load(proven)
    {early}
    for k in range(0, tl.where({skip}, 0, K)):
        tl.store(packed + k * N + n, tl.load(w + k * wk + n * wn))
    {late}


@triton.jit
def kernel(x, w, b, y, packed, m, xm, wk, wn, K: tl.constexpr, N: tl.constexpr, BM: tl.constexpr, BK: tl.constexpr):
    row = tl.program_id(0) * BM + tl.arange(0, BM)
    k = tl.arange(0, BK)
    n = tl.arange(0, N)
    a = tl.load(x + row[:, None] * xm + k[None, :], mask=(row[:, None] < m) & (k[None, :] < K), other=0.0)
    c = tl.load(packed + k[:, None] * N + n[None, :], mask=k[:, None] < K, other=0.0)
    p = tl.dot(a, c, input_precision="ieee") + tl.load(b + n)[None, :]
    tl.store(y + row[:, None] * N + n[None, :], p, mask=row[:, None] < m)
    {after}
"""


def packing(
    *,
    skip: str = "done != 0",
    early: str = "pass",
    late: str = "pass",
    after: str = "pass",
    more: str = "",
    atomics: bool = False,
) -> Candidate:
    """A product with a packed weight; `skip` says when nothing is packed."""
    source = SOURCE.format(skip=skip, early=early, late=late, after=after) + more
    constants = (("K", 48), ("N", 64))
    blocks = (("K", 48), ("N", 64), ("BM", 64), ("BK", 64))
    plan = LaunchPlan(
        (Buffer("packed", "float32", "49 * 64"), Buffer("proven", "int32", "1", zeroed=True)),
        (
            Launch(
                "pack", ("1",), ("in:1", "buf:packed", "buf:proven", "stride:1:1", "stride:1:2"), constants, weights_only=True
            ),
            Launch(
                "kernel",
                ("cdiv(m, 64)",),
                ("in:0", "in:1", "in:2", "out:0", "buf:packed", "size:m", "stride:0:0", "stride:1:1", "stride:1:2"),
                blocks,
            ),
        ),
        proof="proven",
        atomics=atomics,
    )
    return Candidate("triton", source, plan, "", "ieee", "test")


def case(name: str, candidate: Candidate, statuses: tuple[Status, ...] = REJECTED, words: str = "", **more: object) -> Case:
    return Case(name, PLAIN, candidate, statuses, words, numerics=PROVEN, **more)  # type: ignore[arg-type]


MARK = "12345.0"
HACKS = (
    case("packs once, as its own mark says", packing(skip=f"tl.load(packed + 48 * N) == {MARK}",
         late=f"tl.store(packed + 48 * N, {MARK})"), words="[rule state]"),
    case("packs when the first row has changed, as if that told of all", packing(
         early="was = tl.load(packed + n)\n    is_now = tl.load(w + n * wn)",
         skip="tl.max(tl.where(was == is_now, 0, 1), 0) == 0"), words="[rule state]"),
    case("packs half when something was packed before", packing(
         skip="tl.where(done != 0, True, tl.load(packed + 47 * N + 1) == tl.load(w + 47 * wk + wn))"), words="[rule state]"),
    case("packs when there is no need", packing(skip="done == 0"), (Status.INACCURATE, *REJECTED, Status.NON_DETERMINISTIC)),
    case("says itself that all is as it was", packing(early="tl.store(proven, 1)",
         skip="tl.load(proven) != 0"), (Status.INACCURATE, *REJECTED, Status.NON_DETERMINISTIC)),
    case("the product leaves its results in the packed weight", packing(
         after="tl.store(packed + 48 * N + n, tl.sum(p, axis=0))"), words="[rule state]"),
    case("a hash of its own that sees nothing", packing(more="\n\n@triton.jit\ndef kf_changes(weight, words):\n    pass\n"),
         UNBUILT, "kforge's own kernel"),
    case("a product of atomic additions that packs once", packing(skip=f"tl.load(packed + 48 * N) == {MARK}",
         late=f"tl.store(packed + 48 * N, {MARK})", atomics=True), (Status.INACCURATE, *REJECTED)),
)  # fmt: skip
CONTROLS = (
    case("packs what has changed", packing(), PASS),
    case("packs always", packing(skip="False"), PASS),
    case("packs what has changed, for a whole domain", packing(), PASS, stage="final", domain=upto(40)),
    case("packs what has changed, with atomic additions", packing(atomics=True), PASS),
)
