// Vectors of W floats with masks and conversions. ISA dependent parts have a portable twin built from GCC vector types.
#include <math.h>
#include <stdint.h>
#include <string.h>
#if defined(__x86_64__)
#include <immintrin.h>
#endif

#define INLINE static inline __attribute__((always_inline))
#if defined(__AVX512F__)
#define W 16
#elif defined(__AVX__)
#define W 8
#else
#define W 4
#endif

typedef float V __attribute__((vector_size(4 * W), may_alias));
typedef int32_t B __attribute__((vector_size(4 * W), may_alias));   // a mask: 0 or -1 a lane; also 32-bit integers
typedef int64_t I __attribute__((vector_size(8 * W), may_alias));   // 64-bit integers, one a lane
typedef V VU __attribute__((aligned(4)));
typedef B BU __attribute__((aligned(4)));
struct bf16 { uint16_t bits; };
struct f16 { uint16_t bits; };
template <int N> struct Lanes { static constexpr int count = N; };

INLINE V set1(float x) { return x - V{}; }
INLINE B set1i(int32_t x) { return x - B{}; }
INLINE I set1l(int64_t x) { return x - I{}; }
INLINE V select(B m, V a, V b) { return m ? a : b; }
INLINE I select(B m, I a, I b) { return __builtin_convertvector(m, I) ? a : b; }
INLINE B select(B m, B a, B b) { return m ? a : b; }
INLINE B bits(V x) { return (B)x; }
INLINE V real(B x) { return (V)x; }
INLINE B iota() {
  B r;
  for (int l = 0; l < W; ++l) r[l] = l;
  return r;
}
template <int N> INLINE V keep(V old, V fresh) { return N == W ? fresh : select(iota() < N, fresh, old); }
template <int N> INLINE B keep(B old, B fresh) { return N == W ? fresh : select(iota() < N, fresh, old); }
template <int N> INLINE I keep(I old, I fresh) { return N == W ? fresh : select(iota() < N, fresh, old); }

// fp32 memory
#if defined(__AVX512F__)
template <int N> INLINE V load(const float* p) {
  return N == W ? (V)_mm512_loadu_ps(p) : (V)_mm512_maskz_loadu_ps((__mmask16)((1u << (N & 15)) - 1), p);
}
template <int N> INLINE void store(float* p, V x) {
  if (N == W) _mm512_storeu_ps(p, (__m512)x);
  else _mm512_mask_storeu_ps(p, (__mmask16)((1u << (N & 15)) - 1), (__m512)x);
}
INLINE V load_first(const float* p, int n) { return (V)_mm512_maskz_loadu_ps((__mmask16)((1u << n) - 1), p); }
INLINE void store_first(float* p, V x, int n) { _mm512_mask_storeu_ps(p, (__mmask16)((1u << n) - 1), (__m512)x); }
#else
#if defined(__AVX__)
INLINE __m256i first_lanes(int n) { return (__m256i)(iota() < n); }
INLINE V load_first(const float* p, int n) { return (V)_mm256_maskload_ps(p, first_lanes(n)); }
INLINE void store_first(float* p, V x, int n) { _mm256_maskstore_ps(p, first_lanes(n), (__m256)x); }
#else
INLINE V load_first(const float* p, int n) {
  V r = {};
  for (int l = 0; l < W; ++l) if (l < n) r[l] = p[l];
  return r;
}
INLINE void store_first(float* p, V x, int n) { for (int l = 0; l < W; ++l) if (l < n) p[l] = x[l]; }
#endif
template <int N> INLINE V load(const float* p) { if (N == W) return *(const VU*)p; return load_first(p, N); }
template <int N> INLINE void store(float* p, V x) { if (N == W) *(VU*)p = x; else store_first(p, x, N); }
#endif

// 16-bit memory; `short_lanes` holds W raw halves
typedef uint16_t H __attribute__((vector_size(2 * W), may_alias));
template <int N> INLINE H short_lanes(const uint16_t* p) { H h = {}; memcpy(&h, p, 2 * N); return h; }
INLINE V widen(H h, bf16) { return real(__builtin_convertvector(h, B) << 16); }
INLINE H narrow(V x, bf16) {
  typedef uint32_t U __attribute__((vector_size(4 * W)));
  U u = (U)x;
  u = (U)(select(x != x, (B)(u | 0x400000u), (B)(u + 0x7fffu + ((u >> 16) & 1u))));   // nearest even; NaN stays NaN
  return __builtin_convertvector(u >> 16, H);
}
#if defined(__AVX512F__)
INLINE V widen(H h, f16) { return (V)_mm512_cvtph_ps((__m256i)h); }
INLINE H narrow(V x, f16) { return (H)_mm512_cvtps_ph((__m512)x, _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC); }
#elif defined(__F16C__)
INLINE V widen(H h, f16) { return (V)_mm256_cvtph_ps((__m128i)h); }
INLINE H narrow(V x, f16) { return (H)_mm256_cvtps_ph((__m256)x, _MM_FROUND_TO_NEAREST_INT); }
#else
INLINE V widen(H h, f16) {                                    // exact: exponent moved by a product with 2^112
  B u = __builtin_convertvector(h, B);
  B magnitude = (u & 0x7fff) << 13;
  V x = real(magnitude) * 0x1p112f;
  x = select(magnitude >= 0x0f800000, real(magnitude | 0x7f800000), x);
  return real(bits(x) | ((u & 0x8000) << 16));
}
INLINE H narrow(V x, f16) {                                   // nearest even, by adding a power of two that ends at the last kept bit
  B sign = bits(x) & (int32_t)0x80000000, u = bits(x) & 0x7fffffff;
  V a = real(u);
  B e = (u & 0x7f800000);
  e = select(e < 0x38800000, set1i(0x38800000), e);
  V magic = real(e + (13 << 23));
  V r = (a + magic) - magic;
  B h = (bits(r * 0x1p-112f)) >> 13;
  h = select(r >= 65536.0f, set1i(0x7c00), h);
  h = select(x != x, set1i(0x7e00), h);
  return __builtin_convertvector(h | ((sign >> 16) & 0x8000), H);
}
#endif
template <int N> INLINE V load(const bf16* p) { return widen(short_lanes<N>((const uint16_t*)p), bf16()); }
template <int N> INLINE V load(const f16* p) { return widen(short_lanes<N>((const uint16_t*)p), f16()); }
template <int N> INLINE void store(bf16* p, V x) { H h = narrow(x, bf16()); memcpy(p, &h, 2 * N); }
template <int N> INLINE void store(f16* p, V x) { H h = narrow(x, f16()); memcpy(p, &h, 2 * N); }

// bool and integer memory
typedef uint8_t C8 __attribute__((vector_size(W), may_alias));
typedef int8_t S8 __attribute__((vector_size(W), may_alias));
template <int N> INLINE B load(const uint8_t* p) { C8 c = {}; memcpy(&c, p, N); return __builtin_convertvector((S8)(c != 0), B); }
template <int N> INLINE void store(uint8_t* p, B m) { S8 c = __builtin_convertvector(m, S8) & 1; memcpy(p, &c, N); }
template <int N> INLINE I load(const int64_t* p) { I r = {}; memcpy(&r, p, 8 * N); return r; }
template <int N> INLINE void store(int64_t* p, I x) { memcpy(p, &x, 8 * N); }
template <int N> INLINE I load(const int32_t* p) { B r = {}; memcpy(&r, p, 4 * N); return __builtin_convertvector(r, I); }
template <int N> INLINE void store(int32_t* p, I x) { B r = __builtin_convertvector(x, B); memcpy(p, &r, 4 * N); }

// one element for all lanes, elements `step` apart, and elements in a fixed pattern
INLINE V every(const float* p) { return set1(*p); }
INLINE V every(const bf16* p) { uint32_t u = (uint32_t)p->bits << 16; float x; memcpy(&x, &u, 4); return set1(x); }
INLINE V every(const f16* p) { H h = {}; h[0] = p->bits; return set1(widen(h, f16())[0]); }
INLINE B every(const uint8_t* p) { return set1i(*p ? -1 : 0); }
INLINE I every(const int64_t* p) { return set1l(*p); }
INLINE I every(const int32_t* p) { return set1l(*p); }
template <int N, class T> INLINE auto spaced(const T* p, long step) {
  T lanes[W] = {};
  for (int l = 0; l < N; ++l) lanes[l] = p[l * step];
  return load<W>(lanes);
}
template <int N, class T> INLINE auto pattern(const T* p, const int (&where)[W]) {
  T lanes[W] = {};
  for (int l = 0; l < N; ++l) lanes[l] = p[where[l]];
  return load<W>(lanes);
}

// horizontal reductions, by halves
template <class F> INLINE float across(V x, F f) {
  float lanes[W];
  store<W>(lanes, x);
  for (int half = W / 2; half; half /= 2)
    for (int l = 0; l < half; ++l) lanes[l] = f(lanes[l], lanes[l + half]);
  return lanes[0];
}
template <class F> INLINE int32_t across(B x, F f) {
  int32_t r = x[0];
  for (int l = 1; l < W; ++l) r = f(r, x[l]);
  return r;
}
template <class F> INLINE int64_t across(I x, F f) {
  int64_t r = x[0];
  for (int l = 1; l < W; ++l) r = f(r, x[l]);
  return r;
}
// every lane gets the result of its group of E neighbours (E a power of two)
template <int E, class T, class F> INLINE T within(T x, F f) {
  for (int d = 1; d < E; d *= 2) {
    T y;
    for (int l = 0; l < W; ++l) y[l] = x[l ^ d];
    x = f(x, y);
  }
  return x;
}
template <int E, class T> INLINE T one_in(T x) {
  T y = x;
  for (int l = 0; l < W / E; ++l) y[l] = x[l * E];
  return y;
}

// argmax and argmin: the first of equals, NaN before anything; `at` is negative where nothing was seen yet
INLINE void index_step(V& best, B& at, V x, B where, bool largest) {
  B better = largest ? (B)(x > best) : (B)(x < best);
  B take = better | ((x != x) & (best == best)) | (at < 0);
  best = select(take, x, best);
  at = select(take, where, at);
}
INLINE int64_t index_across(const V* best, const B* at, int count, bool largest) {
  float top = 0;
  int32_t found = -1;
  for (int u = 0; u < count; ++u)
    for (int l = 0; l < W; ++l) {
      float x = best[u][l];
      int32_t a = at[u][l];
      if (a < 0) continue;
      bool nan = x != x, top_nan = top != top;
      bool better = found < 0 || (nan ? !top_nan || a < found : !top_nan && ((largest ? x > top : x < top) || (x == top && a < found)));
      if (better) top = x, found = a;
    }
  return found;
}

// Without the compiler's OpenMP the runtime that torch loaded is called by name: a second one must not come in.
extern "C" int omp_get_thread_num(void);
extern "C" int omp_get_num_threads(void);
#if !defined(_OPENMP)
extern "C" void GOMP_parallel(void (*)(void*), void*, unsigned, unsigned);
extern "C" void GOMP_barrier(void);
#endif
static void barrier() {
#if defined(_OPENMP)
#pragma omp barrier
#else
  if (omp_get_num_threads() > 1) GOMP_barrier();
#endif
}
