// Pointwise functions on vectors; NaN and infinities as in torch.
INLINE V round_even(V x) {
#if defined(__AVX512F__)
  return (V)_mm512_roundscale_ps((__m512)x, _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC);
#else
  V r;
  for (int l = 0; l < W; ++l) r[l] = __builtin_rintf(x[l]);
  return r;
#endif
}
template <class F> INLINE V lanewise(V x, F f) {
  V r;
  for (int l = 0; l < W; ++l) r[l] = f(x[l]);
  return r;
}
INLINE V floor_(V x) { return lanewise(x, [](float a) { return __builtin_floorf(a); }); }
INLINE V ceil_(V x) { return lanewise(x, [](float a) { return __builtin_ceilf(a); }); }
INLINE V trunc_(V x) { return lanewise(x, [](float a) { return __builtin_truncf(a); }); }
INLINE V sqrt_(V x) {
#if defined(__AVX512F__)
  return (V)_mm512_sqrt_ps((__m512)x);
#else
  return lanewise(x, [](float a) { return __builtin_sqrtf(a); });
#endif
}
INLINE V abs_(V x) { return real(bits(x) & 0x7fffffff); }
INLINE V copysign_(V x, V s) { return real((bits(x) & 0x7fffffff) | (bits(s) & (int32_t)0x80000000)); }
// the second operand wins where it is NaN: one instruction, right when the first is never NaN
INLINE V max_known(V c, V x) { return x < c ? c : x; }
INLINE V min_known(V c, V x) { return x > c ? c : x; }
INLINE V max_(V a, V b) { return (a != a) | (b < a) ? a : b; }
INLINE V min_(V a, V b) { return (a != a) | (b > a) ? a : b; }
INLINE float max_(float a, float b) { return (a != a) | (b < a) ? a : b; }
INLINE float min_(float a, float b) { return (a != a) | (b > a) ? a : b; }
INLINE int64_t max_(int64_t a, int64_t b) { return a > b ? a : b; }
INLINE int64_t min_(int64_t a, int64_t b) { return a < b ? a : b; }
INLINE I max_(I a, I b) { return a > b ? a : b; }
INLINE I min_(I a, I b) { return a < b ? a : b; }
INLINE V sign_(V x) { return select(x > 0.0f, set1(1.0f), select(x < 0.0f, set1(-1.0f), set1(0.0f))); }
INLINE B nonzero(V x) { return x != 0.0f; }
INLINE B nonzero(I x) { return __builtin_convertvector(x != 0, B); }
INLINE B nonzero(B x) { return x; }
INLINE B isnan_(V x) { return x != x; }
INLINE B isinf_(V x) { return abs_(x) == __builtin_inff(); }
INLINE B isfinite_(V x) { return abs_(x) < __builtin_inff(); }
INLINE V to_real(B m) { return select(m, set1(1.0f), set1(0.0f)); }
INLINE V to_real(I x) { return __builtin_convertvector(x, V); }
INLINE V to_real(V x) { return x; }
INLINE I to_int(B m) { return -__builtin_convertvector(m, I); }
INLINE I to_int(V x) { return __builtin_convertvector(x, I); }
INLINE I to_int(I x) { return x; }
INLINE V rounded(V x, bf16) { return widen(narrow(x, bf16()), bf16()); }
INLINE V rounded(V x, f16) { return widen(narrow(x, f16()), f16()); }

// x * 2^n for integral n in [-300, 300]: two factors, so that gradual underflow and overflow come out right
INLINE V scale2(V x, V n) {
#if defined(__AVX512F__)
  return (V)_mm512_scalef_ps((__m512)x, (__m512)n);
#else
  B k = __builtin_convertvector(n, B), half = k >> 1;
  return x * real((half + 127) << 23) * real((k - half + 127) << 23);
#endif
}

// e^r - 1 for |r| <= ln(2)/2, by a minimax polynomial; `n` is the power of two taken out of x
struct Reduced { V n, small; };
INLINE Reduced reduce_exp(V x) {
  V n = round_even(x * 0x1.715476p+0f);
  V r = x - n * 0x1.62e400p-1f;
  r = r - n * 0x1.7f7d1cp-20f;
  V p = set1(0x1.a19ebap-13f);
  p = p * r + 0x1.6d74fcp-10f;
  p = p * r + 0x1.111092p-7f;
  p = p * r + 0x1.5554aep-5f;
  p = p * r + 0x1.555556p-3f;
  p = p * r + 0.5f;
  return {n, p * (r * r) + r};
}
INLINE V exp_(V x) {
  Reduced e = reduce_exp(max_known(set1(-105.0f), min_known(set1(90.0f), x)));
  return scale2(e.small + 1.0f, e.n);
}
INLINE V exp2_(V x) {                                        // 2^x = e^(r ln 2) 2^n, r = x - n exact
  x = max_known(set1(-152.0f), min_known(set1(130.0f), x));
  V n = round_even(x), r = x - n;
  V p = set1(0x1.ffcbfcp-17f);
  p = p * r + 0x1.430912p-13f;
  p = p * r + 0x1.5d87fep-10f;
  p = p * r + 0x1.3b2ab6p-7f;
  p = p * r + 0x1.c6b08ep-5f;
  p = p * r + 0x1.ebfbe0p-3f;
  p = p * r + 0x1.62e430p-1f;
  return scale2(p * r + 1.0f, n);
}
INLINE V expm1_(V x) {
  Reduced e = reduce_exp(max_known(set1(-30.0f), min_known(set1(89.0f), x)));
  V s = scale2(set1(0.5f), e.n);
  V y = s * e.small + (s - 0.5f);
  return select(x == 0.0f, x, y + y);
}
INLINE V tanh_(V x) {
  Reduced e = reduce_exp(min_known(set1(20.0f), abs_(x) * 2.0f));
  V s = scale2(set1(1.0f), e.n), t = s * e.small + (s - 1.0f);
  return copysign_(t / (t + 2.0f), x);
}
INLINE V sigmoid_(V x) { return 1.0f / (1.0f + exp_(-x)); }
INLINE V erf_(V x) {                                         // erf(a) = 1 - e^(-a q(a)); q fitted on [0, 4], beyond it erf is 1
  V a = min_known(set1(4.0f), abs_(x));
  V q = set1(0x1.405418p-20f);
  q = q * a - 0x1.66460cp-16f;
  q = q * a + 0x1.5f3c08p-13f;
  q = q * a - 0x1.845560p-11f;
  q = q * a + 0x1.d7b0b6p-10f;
  q = q * a - 0x1.095adcp-12f;
  q = q * a - 0x1.39396cp-6f;
  q = q * a + 0x1.a4f37ep-4f;
  q = q * a + 0x1.45f308p-1f;
  Reduced e = reduce_exp(-(a * 0x1.20dd76p+0f + (a * q - 0x1.f7ac92p-25f) * a));
  V s = scale2(set1(1.0f), e.n);
  return copysign_((1.0f - s) - s * e.small, x);
}
// log(1 + t) for 1 + t in [sqrt(1/2), sqrt(2)), plus n ln 2
INLINE V log_tail(V t, V n) {
  V p = set1(0x1.1b5c52p-4f);
  p = p * t - 0x1.e27ec2p-4f;
  p = p * t + 0x1.e60866p-4f;
  p = p * t - 0x1.fb5282p-4f;
  p = p * t + 0x1.233954p-3f;
  p = p * t - 0x1.55629ap-3f;
  p = p * t + 0x1.99a4e2p-3f;
  p = p * t - 0x1.ffffeep-3f;
  p = p * t + 0x1.555546p-2f;
  V q = t * t;
  V y = (p * t) * q + n * -0x1.05c610p-29f;
  y = q * -0.5f + y;
  return n * 0x1.62e430p-1f + (t + y);
}
struct Split { V t, n; };
INLINE Split mantissa(V x) {                                 // x = (1 + t) 2^n; x positive and normal
  B i = bits(x) - 0x3f3504f3;
  return {real((i & 0x7fffff) + 0x3f3504f3) - 1.0f, __builtin_convertvector(i >> 23, V)};
}
INLINE V log_edges(V x, V y) {
  y = select(x == __builtin_inff(), x, y);
  y = select(x == 0.0f, set1(-__builtin_inff()), y);
  return select((x < 0.0f) | (x != x), set1(__builtin_nanf("")), y);
}
INLINE V log_(V x) {
  B small = x < 0x1p-126f;
  Split s = mantissa(select(small, x * 0x1p23f, x));
  return log_edges(x, log_tail(s.t, s.n - select(small, set1(23.0f), set1(0.0f))));
}
INLINE V log2_(V x) {
  B small = x < 0x1p-126f;
  Split s = mantissa(select(small, x * 0x1p23f, x));
  V y = log_tail(s.t, set1(0.0f)) * 0x1.715476p+0f;
  return log_edges(x, y + (s.n - select(small, set1(23.0f), set1(0.0f))));
}
INLINE V log1p_(V x) {                                       // the mantissa of 1 + x is taken from x, so no bit of it is lost
  B big = x > 0x1p64f;
  V xs = select(big, x * 0x1p-64f, x);
  B i = (bits(select(big, xs, x + 1.0f)) - 0x3f3504f3) & (int32_t)0xff800000;
  V s = real(0x3f800000 - i);
  V t = xs * s + select(big, set1(-1.0f), s - 1.0f);
  V n = __builtin_convertvector(i >> 23, V) + select(big, set1(64.0f), set1(0.0f));
  V y = log_tail(t, n);
  y = select(x == -1.0f, set1(-__builtin_inff()), select(x == __builtin_inff(), x, y));
  return select(x == 0.0f, x, select((x < -1.0f) | (x != x), set1(__builtin_nanf("")), y));
}
INLINE V sin_(V x) { return lanewise(x, [](float a) { return sinf(a); }); }
INLINE V cos_(V x) { return lanewise(x, [](float a) { return cosf(a); }); }
INLINE V pow_(V x, V y) {
  V r;
  for (int l = 0; l < W; ++l) r[l] = powf(x[l], y[l]);
  return r;
}
