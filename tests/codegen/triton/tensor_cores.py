"""What tensor cores make of a product, addition by addition, for tests of the error model; and the split that precedes it.

Model: the products of two 11-bit or 8-bit numbers are exact. An addition takes `group` of them and the accumulator, cuts each
towards zero at the bit 2^-24 of the largest, adds them exactly, and cuts the sum to fp32, again towards zero.
Source: Fasi, Higham, Mikaitis, Pranesh, "Numerical behavior of NVIDIA tensor cores", PeerJ CS 7 (2021).
"""

from __future__ import annotations

import torch

from kforge_dynamo.codegen.triton.schemes import SCHEMES, Scheme

_DTYPES = {"float16": torch.float16, "bfloat16": torch.bfloat16}


def _cut(x: torch.Tensor, step: torch.Tensor) -> torch.Tensor:
    """`x` towards zero to a multiple of `step`, a power of two."""
    return torch.trunc(x / step) * step


def _step_below(x: torch.Tensor, bits: int) -> torch.Tensor:
    """The power of two `bits` below the largest of each vector along the last dimension, which it keeps."""
    _, exponent = torch.frexp(x.abs().amax(dim=-1, keepdim=True).clamp(min=2.0**-960))
    return torch.ldexp(torch.ones_like(x[..., :1]), exponent - 1 - bits)


def added(accumulator: torch.Tensor, products: torch.Tensor) -> torch.Tensor:
    """One addition: `accumulator` (M, N), `products` (M, N, group), fp64 that hold fp32 and exact products."""
    terms = torch.cat([products, accumulator[..., None]], dim=-1)
    total = _cut(terms, _step_below(terms, 24)).sum(dim=-1, keepdim=True)
    return _cut(total, _step_below(total, 23))[..., 0]


def split(x: torch.Tensor, scheme: Scheme) -> tuple[list[torch.Tensor], torch.Tensor]:
    """Parts (fp64) of the rows of `x` and what undoes their scales `(rows, 1)`, as the split kernel makes them."""
    back = torch.ones(x.shape[0], 1, dtype=torch.float64)
    rest = x.float()
    if scheme.scaled:
        _, exponent = torch.frexp(rest.abs().amax(dim=1, keepdim=True))
        up = (15 - exponent).clamp(max=125)
        rest, back = torch.ldexp(rest, up), torch.ldexp(back, -up)
    parts = []
    for _ in range(scheme.parts):
        part = rest.to(_DTYPES[scheme.part]).float()
        parts.append(part.double())
        rest = rest - part
    return parts, back


def multiplied(
    a: torch.Tensor, b: torch.Tensor, name: str, promote: int, together: bool = False, group: int = 16
) -> torch.Tensor:
    """The product of `a` (M, K) and `b` (N, K) by a scheme that reads copies of both, in fp64."""
    scheme = SCHEMES[name]
    (left, back_left), (right, back_right) = split(a, scheme), split(b, scheme)
    depth = a.shape[1]
    promote = promote or depth
    total = torch.zeros(a.shape[0], b.shape[0], dtype=torch.float64)
    for start in range(0, depth, promote):
        part = torch.zeros_like(total)
        blocks = [slice(k, k + group) for k in range(start, min(start + promote, depth), group)]
        pairs = [(block, pair) for block in blocks for pair in scheme.products]
        if not together:
            pairs = [(block, pair) for pair in scheme.products for block in blocks]
        for block, (x, y) in pairs:
            part = added(part, left[x][:, None, block] * right[y][None, :, block])
        total = (total + part).float().double()
    return total * back_left * back_right.T
