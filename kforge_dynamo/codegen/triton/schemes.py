"""How fp32 operands are multiplied: the one table of precision schemes, what each may be used for, and why.

**Splitting.** A part of an operand is what earlier parts leave of it, rounded to nearest in the format of the parts; the product
is the sum of the products of parts in `products`, smallest first. With fp16 and tf32 (11 bits) one part is off by at most
2^-11 |x|, two by 2^-23 |x| (the second part's sign is a bit as well); with bf16 (8 bits) one by 2^-8 |x|, two by 2^-17 |x|, and
three hold all 24 bits. Let S be the sum over k of |a_ik| |b_kj|, and sigma S what the products of parts miss of it:

| scheme | what is missing of a term | sigma |
|---|---|---|
| `tf32x3`, `fp16x3` | what two parts leave of either operand, and the product of second parts | 2.01 * 2^-22 |
| `fp16x4` | what two parts leave of either operand | 1.01 * 2^-22 |
| `bf16x3` | as fp16x3 | 2.01 * 2^-16 |
| `bf16x6` | the products of a second and a third part, and of both third ones | 2.01 * 2^-25 |
| `bf16x9` | nothing | 0 |
| `fp16_rows`, `fp16` / `bf16` | both roundings | 2.01 * 2^-11 / 2.01 * 2^-8 |
| `tf32` | both roundings to 11 bits | 2.01 * 2^-11 |

**Scales.** fp16 has few exponents. So every row of the left and every column of the right operand is multiplied by a power of
two that brings its largest element to [2^14, 2^15): exact, without overflow, and undone when the product is complete. (A
right operand that is split in registers has a scale for each block of K, undone with that block, or one that `samples` finds.)
An element loses what lies below fp16's smallest step 2^-24, at most 2^-25, which is 2^-39 of the largest. Summed over K terms
that is at most 2^-39 sqrt(K) |a_i| |b_j| a side (Euclidean norms of row and column): below sigma for K to 2^30. It is no bound
component by component: a large element that meets a zero weight sets the scale of all others, which is why the fp16 schemes
are not for `strict`. A scale is at most 2^125; fp32 numbers are multiples of 2^-149, so a row that this leaves below 2^14
consists of multiples of 2^-24 and loses nothing.
bf16 has fp32's exponents and needs no scale; what a third part has below 2^-133 is lost, at most 2^-134 an element.

**Accumulation.** Tensor cores truncate: adding 16 products (tf32: 8) to an accumulator is off by at most t = 2^-22 of the largest
magnitude in the sum, always towards zero, so n additions are off by at most n t S. Adding the accumulator to a second one in
fp32, rounded to nearest, each P of K (`Schedule.promote`) leaves n = P / 16 additions that count where the products of later
parts come first, while the sum is 2^-8 or less of what it will be; all of them where products alternate
(`Schedule.together`); and K / P roundings of 2^-24:

    |found - exact| <= (sigma + 2^-22 (n + 1) + 2^-24 (K / P + 2)) S,    S <= |a_i| |b_j| by Cauchy and Schwarz

beside the terms above. So each scheme is bounded norm-wise by a constant times |a_i| |b_j|, and those without scales
component-wise by the same constant times S, as fp32 itself is by K 2^-24 S, which is the larger constant for `highest`'s
schemes wherever K is at least 64 and 2 n. Without promotion P is K (`tf32x3` alone is promoted by Triton at each block of K).
Source of the truncation: Fasi, Higham, Mikaitis, Pranesh, "Numerical behavior of NVIDIA tensor cores", PeerJ CS 7 (2021); seen
on one H200: 9.7e-6 without promotion, 1.25e-6, 6.5e-7, 3.7e-7 with P = 1024, 512, 256 (fp16x3, K = 8192, N(0, 1)).

**What is not finite.** An operand that is infinite or NaN has an infinite or NaN first part (a scale keeps it), and the product
of first parts is always added, so every accumulator of its row or column is not finite. An operand beyond bf16's largest number
rounds to infinity and is found as well. Where splitting would leave the bounds above, in rows whose largest element lies
below `smallest`, the split writes a NaN instead of the first part. A tile with an accumulator that is not finite is computed
again with `ieee` products from the operands themselves (`redone`). So if all accumulators of a tile are finite, all operands
that met in it are, and the bounds hold; otherwise the tile is what fp32 gives. No host looks at any of it.
"""

from __future__ import annotations

from dataclasses import dataclass

from kforge_dynamo.codegen.triton.forms import Unsupported

_TWO = ((0, 1), (1, 0), (0, 0))
_FOUR = ((1, 1), *_TWO)
_SIX = ((1, 1), (0, 2), (2, 0), *_TWO)
_NINE = ((2, 2), (1, 2), (2, 1), *_SIX)
_ANY = ("strict", "highest", "high", "medium", "mixed")
_NORMS = _ANY[1:]
_TENSOR = _ANY[2:]
_FP16_LEAST, _BF16_LEAST = 2.0**-126, 2.0**-110


@dataclass(frozen=True, slots=True)
class Scheme:
    """A precision scheme for fp32 operands, or `native` for half-precision ones.

    `settings` are the promises under which it may be used, `needs` the feature of the target. `error` is sigma above.
    `part` is the dtype of the parts where operands are rounded or split before they are multiplied, and `products` their
    products (part of the left operand, part of the right one), smallest first; `dot` is what Triton's `tl.dot` is told
    where operands are fp32. `scaled`: rows and columns are scaled by powers of two first. `redone`: tiles that are not finite
    are computed again. `smallest`: rows whose largest element is below are left to that second computation.
    """

    name: str
    settings: tuple[str, ...]
    needs: str | None
    error: float
    part: str | None = None
    products: tuple[tuple[int, int], ...] = ((0, 0),)
    dot: str | None = None
    scaled: bool = False
    redone: bool = False
    smallest: float = 0.0

    @property
    def parts(self) -> int:
        """Parts of an operand."""
        return 1 + max(max(pair) for pair in self.products)

    @property
    def coarse(self) -> bool:
        """Whether products carry 11 bits or fewer of their operands: then fast functions do in the epilogue."""
        return self.error >= 2.0**-12

    @property
    def peak(self) -> str:
        """The peak of the target that it runs at."""
        return "fp32_flops" if self.dot == "ieee" else "tf32_flops" if self.dot is not None else "fp16_flops"

    @property
    def passes(self) -> int:
        """Products made for one."""
        return 3 if self.dot == "tf32x3" else len(self.products)


_BF16 = {"needs": "bf16_dot", "part": "bfloat16", "redone": True, "smallest": _BF16_LEAST}
_FP16 = {"needs": "fp16_dot", "part": "float16", "redone": True, "smallest": _FP16_LEAST, "scaled": True}

SCHEMES: dict[str, Scheme] = {
    scheme.name: scheme
    for scheme in (
        Scheme("ieee", _ANY, None, 0.0, dot="ieee"),
        Scheme("tf32x3", _ANY, "tf32", 2.01 * 2.0**-22, dot="tf32x3", redone=True),
        Scheme("bf16x9", _ANY, error=0.0, products=_NINE, **_BF16),  # type: ignore[arg-type]
        Scheme("bf16x6", _ANY, error=2.01 * 2.0**-25, products=_SIX, **_BF16),  # type: ignore[arg-type]
        Scheme("fp16x4", _NORMS, error=1.01 * 2.0**-22, products=_FOUR, **_FP16),  # type: ignore[arg-type]
        Scheme("fp16x3", _NORMS, error=2.01 * 2.0**-22, products=_TWO, **_FP16),  # type: ignore[arg-type]
        Scheme("bf16x3", _TENSOR, error=2.01 * 2.0**-16, products=_TWO, **_BF16),  # type: ignore[arg-type]
        Scheme("fp16_rows", _TENSOR, error=2.01 * 2.0**-11, **_FP16),  # type: ignore[arg-type]
        Scheme("tf32", _TENSOR, "tf32", 2.01 * 2.0**-11, dot="tf32"),
        Scheme("fp16", ("mixed",), "fp16_dot", 2.01 * 2.0**-11, part="float16"),
        Scheme("bf16", ("medium",), "bf16_dot", 2.01 * 2.0**-8, part="bfloat16"),
    )
}
"""The table: which scheme may be used under which setting."""

NATIVE = Scheme("native", (), None, 2.01 * 2.0**-11)


def scheme_of(name: str) -> Scheme:
    """The scheme called `name`. Raises: Unsupported."""
    found = NATIVE if name == "native" else SCHEMES.get(name)
    if found is None:
        raise Unsupported(f"no precision scheme {name!r}; known are {', '.join(SCHEMES)} and native")
    return found


def allowed(setting: str, features: tuple[str, ...]) -> tuple[str, ...]:
    """Names of the schemes that a promise for fp32 operands allows on a target with these features; `ieee` under any."""
    return tuple(
        scheme.name
        for scheme in SCHEMES.values()
        if scheme.name == "ieee" or (setting in scheme.settings and (scheme.needs is None or scheme.needs in features))
    )


def worst_error(name: str, depth: int, promote: int, together: bool = False, sampled: bool = False) -> float:
    """The bound above as a multiple of |a_i| |b_j|, for K = `depth` and promotion each `promote` of it (0: never)."""
    scheme = scheme_of(name)
    if name == "ieee":
        return depth * 2.0**-24
    chain = min(promote or depth, depth)
    scales = (2.0**-38 + (2.0**-32 if sampled else 0.0)) * depth**0.5 if scheme.scaled else 0.0
    added = chain / (8 if scheme.dot is not None else 16) * (scheme.passes if together else 1)
    return scheme.error + scales + 2.0**-22 * (added + 1) + 2.0**-24 * (depth / chain + 2)
