// Few rows against many: both operands lie along k, vectors run along k, and the lanes are summed at the end.
INLINE V lane_sums(V (&r)[W]) {                                // lane l of the result is the sum of r[l]
#pragma GCC unroll 8
  for (int s = 1; s < W; s *= 2)
#pragma GCC unroll 16
    for (int i = 0; i < W; ++i)
      if (!(i & (2 * s - 1))) r[i] = blend_pair(r[i], r[i + s], s, false) + blend_pair(r[i], r[i + s], s, true);
  return r[0];
}
// keeps a loaded vector in a register: the compiler would load it again for every use, and loads are what is short here
INLINE V pinned(V x) {
#if defined(__x86_64__)
  asm("" : "+v"(x));
#endif
  return x;
}
// p[m * pitch + n] for MT rows of a and n < count of b (at most W / MT)
template <int MT, class T> INLINE void dot_tile(const T* a, long a_line, const T* b, long b_line, long count, long k, float* p, long pitch) {
  constexpr int NT = W / MT;
  V acc[W];
#pragma GCC unroll 16
  for (int i = 0; i < W; ++i) acc[i] = V{};
  const T* lines[NT];
#pragma GCC unroll 16
  for (int n = 0; n < NT; ++n) lines[n] = b + (n < count ? n : count - 1) * b_line;
  constexpr int K = Lane<T>::K;
  long x = 0;
  for (; x + W * K <= k; x += W * K) {
    V u[MT];
#pragma GCC unroll 16
    for (int m = 0; m < MT; ++m) u[m] = load<W>(a + m * a_line + x);
#pragma GCC unroll 16
    for (int n = 0; n < NT; ++n) {
      const V w = pinned(load<W>(lines[n] + x));
#pragma GCC unroll 16
      for (int m = 0; m < MT; ++m) acc[m * NT + n] = multiply_add(acc[m * NT + n], u[m], w, (const T*)0);
    }
  }
  if (x < k) {
    V u[MT];
#pragma GCC unroll 16
    for (int m = 0; m < MT; ++m) u[m] = load_some(a + m * a_line + x, k - x);
#pragma GCC unroll 16
    for (int n = 0; n < NT; ++n) {
      const V w = load_some(lines[n] + x, k - x);
#pragma GCC unroll 16
      for (int m = 0; m < MT; ++m) acc[m * NT + n] = multiply_add(acc[m * NT + n], u[m], w, (const T*)0);
    }
  }
  float out[W];
  store<W>(out, lane_sums(acc));
  for (int m = 0; m < MT; ++m)
    for (int n = 0; n < NT && n < count; ++n) p[m * pitch + n] = out[m * NT + n];
}
template <int MT, class T>
INLINE void dot_rows(const T* a, long a_line, const T* b, long b_line, long n, long k, float* p, long pitch) {
  constexpr int NT = W / MT;
  for (long j = 0; j < n; j += NT) dot_tile<MT>(a, a_line, b + j * b_line, b_line, n - j < NT ? n - j : NT, k, p + j, pitch);
}
// P (m, n) = A (m, k) B (n, k)^T, k contiguous in both; `STRIP` lines of b at a time, so that they are still in the cache for the next rows
template <int MT, int STRIP, class T>
static void dot_product(const T* a, long a_line, const T* b, long b_line, long m, long n, long k, float* p, long pitch) {
  for (long j = 0; j < n; j += STRIP, b += STRIP * b_line, p += STRIP) {
    const long count = n - j < STRIP ? n - j : STRIP;
    long i = 0;
    for (; i + MT <= m; i += MT) dot_rows<MT>(a + i * a_line, a_line, b, b_line, count, k, p + i * pitch, pitch);
    if (MT > 4 && i + 4 <= m) dot_rows<4>(a + i * a_line, a_line, b, b_line, count, k, p + i * pitch, pitch), i += 4;
    if (MT > 2 && i + 2 <= m) dot_rows<2>(a + i * a_line, a_line, b, b_line, count, k, p + i * pitch, pitch), i += 2;
    for (; i < m; ++i) dot_rows<1>(a + i * a_line, a_line, b, b_line, count, k, p + i * pitch, pitch);
  }
}
