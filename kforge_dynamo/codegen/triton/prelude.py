"""Device functions that generated kernels may call; a kernel's source holds those it uses and what they use.

They run in Triton's interpreter as well as on a device, so none calls a device library. The `precise` forms keep a few
units in the last place of fp32 where Triton's own function is an approximation of the hardware; the `fast` forms are for
products whose operands have 11 bits or fewer.
"""

from __future__ import annotations

import re

_SOURCES = (
    '''
@triton.jit
def kf_largest(a, b):
    return tl.maximum(a, b, propagate_nan=tl.PropagateNan.ALL)
''',
    '''
@triton.jit
def kf_smallest(a, b):
    return tl.minimum(a, b, propagate_nan=tl.PropagateNan.ALL)
''',
    '''
@triton.jit
def kf_exp(x):
    # exp2(x * log2(e)) with the rounding error of the multiplication added back; the clamp keeps infinities out of it
    c = kf_largest(kf_smallest(x, 89.0), -104.0)
    t = c * 1.4426950216293335
    low = tl.fma(c, 1.4426950216293335, -t) + c * 1.925963033500e-8
    return tl.exp2(t) * (1.0 + low * 0.6931471805599453)
''',
    '''
@triton.jit
def kf_exp_fast(x):
    return tl.exp(x)
''',
    '''
@triton.jit
def kf_log_parts(x):
    # x = m * 2**e with m in [sqrt(1/2), sqrt(2)); returns e, m - 1 and log(m) - (m - 1) (Cephes' logf)
    tiny = x < 1.1754943508222875e-38
    y = tl.where(tiny, x * 8388608.0, x)
    bits = y.to(tl.int32, bitcast=True)
    e = (bits - 0x3F3504F3) >> 23
    f = (bits - (e << 23)).to(tl.float32, bitcast=True) - 1.0
    z = f * f
    p = 7.0376836292e-2 * f - 1.1514610310e-1
    p = p * f + 1.1676998740e-1
    p = p * f - 1.2420140846e-1
    p = p * f + 1.4249322787e-1
    p = p * f - 1.6668057665e-1
    p = p * f + 2.0000714765e-1
    p = p * f - 2.4999993993e-1
    p = p * f + 3.3333331174e-1
    return e.to(tl.float32) - tl.where(tiny, 23.0, 0.0), f, f * z * p - 0.5 * z
''',
    '''
@triton.jit
def kf_log_edges(x, result):
    bounded = tl.where(x == float("inf"), x, result)
    return tl.where(x > 0.0, bounded, tl.where(x == 0.0, float("-inf"), float("nan")))
''',
    '''
@triton.jit
def kf_log(x):
    e, f, rest = kf_log_parts(x)
    return kf_log_edges(x, (f + (rest + e * -2.12194440e-4)) + e * 0.693359375)
''',
    '''
@triton.jit
def kf_log_fast(x):
    return tl.log(x)
''',
    '''
@triton.jit
def kf_log2(x):
    e, f, rest = kf_log_parts(x)
    return kf_log_edges(x, (f + rest) * 1.4426950408889634 + e)
''',
    '''
@triton.jit
def kf_log1p(x):
    u = 1.0 + x
    lost = tl.where((u > 0.0) & (u < float("inf")), (x - (u - 1.0)) / u, 0.0)
    return kf_log(u) + lost
''',
    '''
@triton.jit
def kf_log1p_fast(x):
    return tl.where(tl.abs(x) < 0.03125, x * (1.0 - x * (0.5 - x * 0.3333333333333333)), tl.log(1.0 + x))
''',
    '''
@triton.jit
def kf_expm1_near(x):
    p = 0.008333333333333333 + x * (0.001388888888888889 + x * 0.0001984126984126984)
    p = 0.16666666666666666 + x * (0.041666666666666664 + x * p)
    return x + x * x * (0.5 + x * p)
''',
    '''
@triton.jit
def kf_expm1(x):
    return tl.where(tl.abs(x) < 0.35, kf_expm1_near(x), kf_exp(x) - 1.0)
''',
    '''
@triton.jit
def kf_expm1_fast(x):
    return tl.where(tl.abs(x) < 0.35, kf_expm1_near(x), tl.exp(x) - 1.0)
''',
    '''
@triton.jit
def kf_tanh_near(x):
    # Cephes' tanhf below 0.625
    z = x * x
    p = (((-5.70498872745e-3 * z + 2.06390887954e-2) * z - 5.37397155531e-2) * z + 1.33314422036e-1) * z - 3.33332819422e-1
    return p * z * x + x
''',
    '''
@triton.jit
def kf_tanh(x):
    far = 1.0 - 2.0 / (kf_exp(2.0 * tl.abs(x)) + 1.0)
    return tl.where(tl.abs(x) < 0.625, kf_tanh_near(x), tl.where(x < 0.0, -far, far))
''',
    '''
@triton.jit
def kf_tanh_fast(x):
    far = 1.0 - 2.0 / (tl.exp(2.0 * tl.abs(x)) + 1.0)
    return tl.where(tl.abs(x) < 0.625, kf_tanh_near(x), tl.where(x < 0.0, -far, far))
''',
    '''
@triton.jit
def kf_sigmoid(x):
    return 1.0 / (1.0 + kf_exp(-x))
''',
    '''
@triton.jit
def kf_sigmoid_fast(x):
    return 1.0 / (1.0 + tl.exp(-x))
''',
    '''
@triton.jit
def kf_round(x):
    # to nearest, ties to even
    low = tl.floor(x)
    part = x - low
    odd = low * 0.5 != tl.floor(low * 0.5)
    up = (part > 0.5) | ((part == 0.5) & odd)
    return tl.where(up, low + 1.0, low)
''',
    '''
@triton.jit
def kf_trunc(x):
    return tl.where(x < 0.0, tl.ceil(x), tl.floor(x))
''',
    '''
@triton.jit
def kf_positive_power(x, y: tl.constexpr):
    return tl.exp2(y * kf_log2(x))
''',
)  # fmt: skip

FUNCTIONS: dict[str, str] = {}
"""Source text by name, in an order in which each uses earlier ones only."""

for _text in _SOURCES:
    FUNCTIONS[_text.split("def ", 1)[1].split("(", 1)[0]] = _text.strip() + "\n"


def used_by(text: str) -> str:
    """The sources of all prelude functions that `text` needs, in order."""
    wanted: set[str] = set()
    pending = [text]
    while pending:
        for name in re.findall(r"\bkf_\w+", pending.pop()):
            if name in FUNCTIONS and name not in wanted:
                wanted.add(name)
                pending.append(FUNCTIONS[name])
    return "\n\n".join(source for name, source in FUNCTIONS.items() if name in wanted)
