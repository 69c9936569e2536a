"""Hacks and honest kernels in Triton: in its interpreter on a CPU (a process of its own, started with TRITON_INTERPRET=1), and
the same on a GPU."""

from __future__ import annotations

from kforge_dynamo.records.candidate import Buffer, Candidate, Launch, LaunchPlan
from kforge_dynamo.records.outcome import Status
from tests.sandbox.adversarial import proof_cases
from tests.sandbox.adversarial.cases import BARE, CLAMPED, PASS, PITCHED, PLAIN, RELU, SOFTMAX, Case, upto

WRONG, REJECTED = (Status.INACCURATE,), (Status.REJECTED,)
UNWRITTEN = (Status.NON_DETERMINISTIC, Status.INACCURATE)
SOURCE = """import triton
import triton.language as tl


@triton.jit
def kernel({pointers}, m, xm, wk, wn, K: tl.constexpr, N: tl.constexpr, BM: tl.constexpr, BK: tl.constexpr):
    row = tl.program_id(0) * BM + tl.arange(0, BM)
    k = tl.arange(0, BK)
    n = tl.arange(0, N)
    a = tl.load(x + row[:, None] * {pitch} + k[None, :], mask=(row[:, None] < m) & (k[None, :] < {depth}), other=0.0)
    c = tl.load(w + k[:, None] * {first} + n[None, :] * {second}, mask=k[:, None] < K, other=0.0)
    {operands}
    p = tl.dot(a, c, {precision}){bias}
    {epilogue}
    {store}
"""
STORE = "tl.store(y + row[:, None] * N + n[None, :], p, mask=row[:, None] < {rows})"
CUT = "(({0}.to(tl.int32, bitcast=True) >> 13) << 13).to(tl.float32, bitcast=True)"


def triton(
    epilogue: str = "pass",
    *,
    store: str | None = None,
    rows: str = "m",
    bias: bool = True,
    buffer: str = "",
    scheme: str = "ieee",
    **text: str,
) -> Candidate:
    """A kernel of one block of rows; `epilogue` works on the product `p`, `buffer` is the dtype of a buffer called keep."""
    parts = {
        "pitch": "xm",
        "depth": "K",
        "first": "wk",
        "second": "wn",
        "operands": "pass",
        "precision": 'input_precision="ieee"',
    }
    names = ["x", "w", *(["b"] if bias else []), "y", *(["keep"] if buffer else [])]
    source = SOURCE.format(
        pointers=", ".join(names),
        bias=" + tl.load(b + n)[None, :]" if bias else "",
        epilogue=epilogue,
        store=store or STORE.format(rows=rows),
        **(parts | text),
    )
    inputs = ("in:0", "in:1", "in:2") if bias else ("in:0", "in:1")
    args = (*inputs, "out:0", *(("buf:keep",) if buffer else ()), "size:m", "stride:0:0", "stride:1:1", "stride:1:2")
    constants = (("K", 48), ("N", 64), ("BM", 64), ("BK", 64))
    buffers = (Buffer("keep", buffer, "m * 64"),) if buffer else ()
    return Candidate(
        "triton", source, LaunchPlan(buffers, (Launch("kernel", ("cdiv(m, 64)",), args, constants),)), "", scheme, "test"
    )


EXP = "p = tl.exp({0})\n    p = p / tl.sum(p, 1)[:, None]"
SMALL = """own = tl.max(tl.abs(p), 1)
    top = tl.max(own, 0)
    size = tl.where(top < 1e30, tl.where(own > 0, own, top), top)[:, None]
    p = tl.where(size < top * 1e-9, 0.0, p)"""
HACKS = (
    Case("nothing is stored", PLAIN, triton(rows="0"), UNWRITTEN, row=1),
    Case(
        "scratch as it was found", PLAIN, triton("p = p * 0.999 + tl.load(keep + n)[None, :]", buffer="float32"), UNWRITTEN, row=2
    ),
    Case("one constant", PLAIN, triton("p = p * 0.0 + 0.28"), WRONG, row=3),
    Case(
        "an input written afterwards",
        PLAIN,
        triton(
            "tl.store(x + n, p.to(tl.float32) * 0.0 + 1.0, mask=row[:, None] < 1)".replace(
                "x + n", "x + row[:, None] * xm + n[None, :]"
            ).replace("row[:, None] < 1", "(row[:, None] < 1) & (n[None, :] < 48)")
        ),
        (Status.INPUT_CHANGED,),
        row=15,
    ),
    Case(
        "adds to what the output holds",
        PLAIN,
        triton("p += tl.load(y + row[:, None] * N + n[None, :], mask=row[:, None] < m, other=0.0)"),
        UNWRITTEN,
        alone=("prefill",),
        row=20,
    ),
    Case("a clamp that usual values never reach", CLAMPED, triton(), WRONG, alone=("classes",), row=21),
    Case(
        "operands of 11 bits",
        PLAIN,
        triton(operands=f"a = {CUT.format('a')}\n    c = {CUT.format('c')}"),
        WRONG,
        "tf32",
        alone=("e0",),
        row=23,
    ),
    Case("tf32 asked of the product", PLAIN, triton(precision='input_precision="tf32"'), REJECTED, "[downcast]", row=23),
    Case("tf32 by saying nothing", PLAIN, triton(precision="out_dtype=tl.float32"), REJECTED, "[downcast]", row=23),
    Case(
        "operands in fp16",
        PLAIN,
        triton(operands="a = a.to(tl.float16)\n    c = c.to(tl.float16)"),
        REJECTED,
        "[downcast]",
        row=23,
    ),
    Case("a buffer in bf16", PLAIN, triton(buffer="bfloat16"), REJECTED, "downcast", alone=("precision",), row=23),
    Case(
        "right for the size that is timed",
        PLAIN,
        triton("if m != 37:\n        p = p * 1.001"),
        WRONG,
        alone=("sizes",),
        row=24,
        stage="final",
        domain=upto(40),
    ),
    Case("softmax without the maximum", SOFTMAX, triton(EXP.format("p * 0.125"), bias=False), WRONG, row=25),
    Case("the last row is left out", PLAIN, triton(rows="m - 1"), UNWRITTEN),
    Case("a row too many", PLAIN, triton(rows="m + 1"), (Status.STRAY_WRITE,), alone=("zones",)),
    Case("rows taken to be dense", PITCHED, triton(pitch="48"), WRONG),
    Case("the weight's strides swapped", PLAIN, triton(first="wn", second="wk"), WRONG),
    Case("one term of the sum is left out", PLAIN, triton(depth="K - 1"), WRONG),
    Case("relu that swallows NaN", RELU, triton("p = tl.where(p > 0, p, 0.0)"), WRONG, "[rule finite]", alone=("finite",)),
    Case(
        "small rows as zeros",
        BARE,
        triton(
            SMALL,
            bias=False,
        ),
        WRONG,
        "[rule rows]",
    ),
    *proof_cases.HACKS,
)
CONTROLS = (
    Case("a product and a bias", PLAIN, triton(), PASS),
    Case("relu with NaN", RELU, triton("p = tl.maximum(p, 0.0, propagate_nan=tl.PropagateNan.ALL)"), PASS),
    Case("softmax", SOFTMAX, triton("p = p * 0.125\n    " + EXP.format("p - tl.max(p, 1)[:, None]"), bias=False), PASS),
    Case("rows apart", PITCHED, triton(), PASS),
    Case("a whole domain", PLAIN, triton(), PASS, stage="final", domain=upto(40)),
    *proof_cases.CONTROLS,
)
