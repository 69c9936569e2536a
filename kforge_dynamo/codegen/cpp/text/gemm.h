// Own matrix product. One operand is the vector side: packed into panels [k][NV * W], so that a row of a panel is NV vectors.
// The other is the scalar side: MR of its lines at a time are copied into [MR][SP] and broadcast lane by lane.
// A lane holds one number, or for `duo` a pair of bfloat16 neighbours along k, which one instruction multiplies and adds up.
struct duo { uint16_t bits; };
template <class T> struct Lane { static constexpr int K = 1; };
template <> struct Lane<duo> { static constexpr int K = 2; };

INLINE V blend_pair(V a, V b, int s, bool high) {              // lane l: low  l & s ? b[l - s] : a[l]    high  l & s ? b[l] : a[l + s]
#if defined(__clang__)
  V r;
  for (int l = 0; l < W; ++l) r[l] = high ? (l & s ? b[l] : a[l + s]) : (l & s ? b[l - s] : a[l]);
  return r;
#else
  B m;
  for (int l = 0; l < W; ++l) m[l] = high ? (l & s ? W + l : l + s) : (l & s ? W + l - s : l);
  return __builtin_shuffle(a, b, m);
#endif
}
INLINE void transpose(V (&r)[W]) {
#pragma GCC unroll 8
  for (int s = 1; s < W; s *= 2)
#pragma GCC unroll 16
    for (int i = 0; i < W; ++i)
      if (!(i & s)) {
        V a = r[i], b = r[i + s];
        r[i] = blend_pair(a, b, s, false);
        r[i + s] = blend_pair(a, b, s, true);
      }
}
// `n` numbers from p on, at most a vector's worth, the rest zero
INLINE V load_some(const float* p, long n) { return n >= W ? load<W>(p) : load_first(p, (int)n); }
template <class T> INLINE V load_some(const T* p, long n) {
  if (n >= W) return load<W>(p);
  T lanes[W] = {};
  for (long l = 0; l < n; ++l) lanes[l] = p[l];
  return load<W>(lanes);
}
template <int N> INLINE V load(const duo* p) { V r = {}; memcpy(&r, p, 4 * N); return r; }
INLINE V load_some(const duo* p, long n) {
  if (n >= 2 * W) return load<W>(p);
  V r = {};
  memcpy(&r, p, 2 * n);
  return r;
}
INLINE void store_some(float* p, V x, long n) {
  if (n >= W) store<W>(p, x);
  else if (n > 0) store_first(p, x, (int)n);
}
// lanes at position x of `n` neighbouring lines (1 apart), numbers along k `step` apart, `count` of them in all
template <class T> INLINE V load_across(const T* p, long step, long n, long x, long count) { (void)count; return load_some(p + x * step, n); }
INLINE V load_across(const duo* p, long step, long n, long x, long count) {
  uint16_t pair[2][W] = {};
  for (long i = 0; i < 2 && 2 * x + i < count; ++i) memcpy(pair[i], p + (2 * x + i) * step, 2 * (n < W ? n : W));
  H low, high;
  memcpy(&low, pair[0], sizeof low);
  memcpy(&high, pair[1], sizeof high);
  return real(__builtin_convertvector(low, B) | (__builtin_convertvector(high, B) << 16));
}
// one lane
template <class T> INLINE float lane_at(const T* p, long step, long x, long count) { (void)count; return every(p + x * step)[0]; }
INLINE float lane_at(const duo* p, long step, long x, long count) {
  uint32_t u = p[2 * x * step].bits | (2 * x + 1 < count ? (uint32_t)p[(2 * x + 1) * step].bits << 16 : 0);
  float r;
  memcpy(&r, &u, 4);
  return r;
}
INLINE V multiply_add(V sum, V a, V b, const float*) { return sum + a * b; }
template <class T> INLINE V multiply_add(V sum, V a, V b, const T*) { return sum + a * b; }
#if defined(__AVX512BF16__) && W == 16
INLINE V multiply_add(V sum, V a, V b, const duo*) { return (V)_mm512_dpbf16_ps((__m512)sum, (__m512bh)a, (__m512bh)b); }
#else
INLINE V multiply_add(V sum, V a, V b, const duo*) {
  sum = sum + real(bits(a) << 16) * real(bits(b) << 16);
  return sum + real(bits(a) & (int32_t)0xffff0000) * real(bits(b) & (int32_t)0xffff0000);
}
#endif
// dst[l * pitch + x]: lanes of `lines` lines (up to W), `line` apart in src; `count` numbers along k, `step` apart.
// Lines are read abreast: each starts on a page of its own, and alone would wait for memory at every start.
template <class T> INLINE void copy_lines(float* dst, long pitch, const T* src, long line, long step, long lines, long count) {
  constexpr int K = Lane<T>::K;
  const long depth = (count + K - 1) / K;
  if (step == 1) {
    for (long x = 0; x < depth; x += W)
      for (long l = 0; l < lines; ++l) store<W>(dst + l * pitch + x, load_some(src + l * line + x * K, count - x * K));
  } else if (line == 1) {
    for (long x = 0; x < depth; x += W) {
      V r[W];
#pragma GCC unroll 16
      for (int i = 0; i < W; ++i) r[i] = x + i < depth ? load_across(src, step, lines, x + i, count) : set1(0);
      transpose(r);
#pragma GCC unroll 16
      for (int i = 0; i < W; ++i)
        if (i < lines) store<W>(dst + i * pitch + x, r[i]);
    }
  } else {
    for (long l = 0; l < lines; ++l)
      for (long x = 0; x < depth; ++x) dst[l * pitch + x] = lane_at(src + l * line, step, x, count);
  }
}
// one panel: dst[x * NV * W + l], lines beyond `lines` zero
template <int NV, class T> static void pack_panel(float* dst, const T* src, long line, long step, long lines, long count) {
  constexpr int P = NV * W, K = Lane<T>::K;
  const long depth = (count + K - 1) / K;
  for (int g = 0; g < NV; ++g, src += W * line, lines -= W) {
    if (line == 1 && lines > 0) {
      for (long x = 0; x < depth; ++x) store<W>(dst + x * P + g * W, load_across(src, step, lines, x, count));
    } else if (step == 1 && lines > 0) {
      for (long x = 0; x < depth; x += W) {
        V r[W];
#pragma GCC unroll 16
        for (int i = 0; i < W; ++i) r[i] = i < lines ? load_some(src + i * line + x * K, count - x * K) : set1(0);
        transpose(r);
        const long left = depth - x;
#pragma GCC unroll 16
        for (int i = 0; i < W; ++i)
          if (i < left) store<W>(dst + (x + i) * P + g * W, r[i]);
      }
    } else {
      for (long x = 0; x < depth; ++x)
        for (int l = 0; l < W; ++l) dst[x * P + g * W + l] = l < lines ? lane_at(src + l * line, step, x, count) : 0.0f;
    }
  }
}
// What comes next: the scalar side's lines, copied while a tile is computed; the lines after them, and `ahead` numbers of the
// vector side in steps of `step`, fetched into the cache.
template <class T> struct Next {
  const T* from;
  long line, lines;
  float* to;
  const T* far;
  const T* ahead;
  long step;
};
constexpr long FLUSH = 256;   // lanes summed in one register before they are added to memory: bounds the rounding error
// c[i * pitch + l] = or += sum over x of s[i * SP + x] * v[x * vp + l], l < NV * W
template <int MR, int NV, int SP, bool COPY, bool AHEAD, class T>
INLINE void tile(long depth, const float* v, long vp, const float* s, float* c, long pitch, bool add, const Next<T>& next) {
  for (long start = 0; start < depth; start += FLUSH, add = true) {
    const long end = depth - start < FLUSH ? depth : start + FLUSH;
    V acc[MR][NV];
#pragma GCC unroll 32
    for (int i = 0; i < MR; ++i)
#pragma GCC unroll 8
      for (int j = 0; j < NV; ++j) acc[i][j] = V{};
    auto steps = [&](long x, long stop) __attribute__((always_inline)) {
      for (; x < stop; ++x) {
        if (AHEAD) __builtin_prefetch(next.ahead + x * Lane<T>::K * next.step, 0, 2);
        V b[NV];
#pragma GCC unroll 8
        for (int j = 0; j < NV; ++j) b[j] = load<W>(v + x * vp + j * W);
#pragma GCC unroll 32
        for (int i = 0; i < MR; ++i) {
          const V a = set1(s[i * SP + x]);
#pragma GCC unroll 8
          for (int j = 0; j < NV; ++j) acc[i][j] = multiply_add(acc[i][j], a, b[j], (const T*)0);
        }
      }
    };
    long x = start;
    if (COPY) {
      const long line = next.line, lines = next.lines;
      const T *first = next.from + x * Lane<T>::K, *beyond = next.far + x * Lane<T>::K;
      float* copy = next.to + x;
      for (; x + W <= end; x += W, first += W * Lane<T>::K, beyond += W * Lane<T>::K, copy += W) {
        const T *from = first, *far = beyond;
        float* to = copy;
        for (long i = 0; i < lines; ++i, from += line, far += line, to += SP) {
          __builtin_prefetch(far, 0, 2);
          store<W>(to, load<W>(from));
        }
        steps(x, x + W);
      }
    }
    steps(x, end);
#pragma GCC unroll 32
    for (int i = 0; i < MR; ++i)
#pragma GCC unroll 8
      for (int j = 0; j < NV; ++j) {
        float* p = c + i * pitch + j * W;
        store<W>(p, add ? load<W>(p) + acc[i][j] : acc[i][j]);
      }
  }
}
// out(v, s) for `vn` lines of the vector side, and `sn` of the scalar side: c[s * pitch + v]. `panels(x, count)` gives the
// vector side's block of `count` numbers along k from x on, packed as [panel][lane of k][NV * W]. With `exact` nothing beyond
// vn and sn is written, else whole tiles are. `own` holds 2 * MR * (KC + 16) + MR * NV * W floats. KC counts lanes.
// `ahead` is where the vector side lies unpacked, where its lines are neighbours; null where it is packed already.
template <int MR, int NV, int KC, bool AHEAD, class T, class F>
INLINE void multiply(F panels, const T* ahead, long ahead_step, long vn, const T* src, long line, long step, long sn, long k, float* c,
                     long pitch, bool exact, float* own) {
  constexpr int SP = KC + 16, P = NV * W, K = Lane<T>::K;
  constexpr long KB = KC * K;
  float* const rest = own + 2 * MR * SP;
  const float* block = nullptr;
  const long tiles = (sn + MR - 1) / MR, all = tiles * ((k + KB - 1) / KB);
  auto place = [&](long q) { q = q < all ? q : all - 1; return src + (q % tiles) * MR * line + (q / tiles) * KB * step; };
  auto lines = [&](long q) { const long left = sn - (q % tiles) * MR; return q >= all ? 0 : left < MR ? left : MR; };
  auto numbers = [&](long q) { const long left = k - (q / tiles) * KB; return left < KB ? left : KB; };
  copy_lines(own, SP, src, line, step, lines(0), numbers(0));
  for (long q = 0; q < all; ++q) {
    const long count = numbers(q), depth = (count + K - 1) / K, used = lines(q);
    if (q % tiles == 0) block = panels(q / tiles * KB, count);
    const float* const s = own + (q & 1) * MR * SP;
    float* const to = own + (~q & 1) * MR * SP;
    const bool last = q + 1 >= all, beside = !last && step == 1 && numbers(q + 1) == count;
    Next<T> next = {place(q + 1), line, lines(q + 1), to, place(q + 2), ahead, ahead_step};
    if (AHEAD) next.ahead += ((q / tiles + 1) * KB < k ? (q / tiles + 1) * KB : 0) * ahead_step + q % tiles * vn / tiles;
    for (long v = 0; v < vn; v += P, next.ahead += P / tiles) {
      const float* const panel = block + v * depth;
      float* const out = c + (q % tiles) * MR * pitch + v;
      const bool direct = !exact || (used == MR && v + P <= vn);
      float* const at = direct ? out : rest;
      const long at_pitch = direct ? pitch : P;
      const bool add = q >= tiles && direct;
      if (NV > 1 && vn - v <= P / 2) tile<MR, (NV + 1) / 2, SP, false, AHEAD>(depth, panel, P, s, at, at_pitch, add, next);
      else if (v == 0 && beside) tile<MR, NV, SP, true, AHEAD>(depth, panel, P, s, at, at_pitch, add, next);
      else tile<MR, NV, SP, false, AHEAD>(depth, panel, P, s, at, at_pitch, add, next);
      if (!direct)
        for (long i = 0; i < used; ++i)
          for (long l = 0; l < P && v + l < vn; l += W) {
            float* const p = out + i * pitch + l;
            const long n = vn - v - l;
            const V x = load<W>(rest + i * P + l);
            store_some(p, q >= tiles ? load_some(p, n) + x : x, n);
          }
    }
    if (last) break;
    // what the tiles did not copy on the way: all of it, or the lanes behind the last whole vector
    const long done = beside && !(NV > 1 && vn <= P / 2) ? depth / W * W : 0;
    if (done * K < numbers(q + 1)) copy_lines(to + done, SP, next.from + done * K * step, line, step, next.lines, numbers(q + 1) - done * K);
  }
}
// The vector side packed before, with `padded` lines in all: [k block][panel][lane of k][NV * W]; v0 is the start of a panel.
template <int MR, int NV, int KC, class T>
static void multiply_packed(const float* packed, long padded, long v0, long vn, const T* src, long line, long step, long sn, long k, float* c,
                            long pitch, bool exact, float* own) {
  constexpr int K = Lane<T>::K;
  auto panels = [=](long x, long count) { return packed + x / K * padded + v0 * ((count + K - 1) / K); };
  multiply<MR, NV, KC, false>(panels, (const T*)0, 0, vn, src, line, step, sn, k, c, pitch, exact, own);
}
// The vector side packed here, block by block along k, into `fresh`.
template <int MR, int NV, int KC, class T>
static void multiply_fresh(float* fresh, const T* side, long side_line, long side_step, long vn, const T* src, long line, long step, long sn,
                           long k, float* c, long pitch, bool exact, float* own) {
  constexpr int P = NV * W, K = Lane<T>::K;
  auto panels = [=](long x, long count) {
    const long depth = (count + K - 1) / K;
    for (long v = 0; v < vn; v += P) pack_panel<NV>(fresh + v * depth, side + v * side_line + x * side_step, side_line, side_step, vn - v, count);
    return (const float*)fresh;
  };
  multiply<MR, NV, KC, true>(panels, side, side_step, vn, src, line, step, sn, k, c, pitch, exact, own);
}
// packs panels `low` to `high` of a side with `lines` lines: see `multiply`
template <int NV, int KC, class T>
static void pack_panels(float* dst, const T* src, long line, long step, long lines, long k, long low, long high) {
  constexpr int P = NV * W, K = Lane<T>::K;
  const long padded = (lines + P - 1) / P * P;
  for (long p = low; p < high; ++p)
    for (long x = 0; x < k; x += KC * K) {
      const long count = k - x < KC * K ? k - x : KC * K, depth = (count + K - 1) / K;
      pack_panel<NV>(dst + x / K * padded + p * P * depth, src + p * P * line + x * step, line, step, lines - p * P, count);
    }
}
// to[l * pitch + s] = from[s * given + l] for s < sn, l < vn
static void turn(float* to, long pitch, const float* from, long given, long sn, long vn) {
  for (long s = 0; s < sn; s += W)
    for (long l = 0; l < vn; l += W) {
      V r[W];
#pragma GCC unroll 16
      for (int i = 0; i < W; ++i) r[i] = s + i < sn ? load<W>(from + (s + i) * given + l) : set1(0);
      transpose(r);
      const long left = vn - l;
#pragma GCC unroll 16
      for (int i = 0; i < W; ++i)
        if (i < left) store_some(to + (l + i) * pitch + s, r[i], sn - s);
    }
}
