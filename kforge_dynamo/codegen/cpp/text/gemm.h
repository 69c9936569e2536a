// Own matrix product. One operand is the vector side: packed into panels [k][NV * W], so that a row of a panel is NV vectors.
// The other is the scalar side: MR of its lines at a time are copied into [MR][SP] and broadcast element by element.
INLINE V blend_pair(V a, V b, int s, bool high) {              // lane l of the low result: l & s ? b[l - s] : a[l]; high: l & s ? b[l] : a[l + s]
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
INLINE V load_some(const float* p, long n) { return n >= W ? load<W>(p) : load_first(p, (int)n); }
template <class T> INLINE V load_some(const T* p, long n) {
  if (n >= W) return load<W>(p);
  T lanes[W] = {};
  for (long l = 0; l < n; ++l) lanes[l] = p[l];
  return load<W>(lanes);
}
INLINE void store_some(float* p, V x, long n) {
  if (n >= W) store<W>(p, x);
  else if (n > 0) store_first(p, x, (int)n);
}
// dst[l * pitch + x] for l < lines, x < count; lines `line` and neighbours `step` apart in src. Up to W lines.
// Lines are read abreast: each starts on a page of its own, and alone would wait for memory at every start.
template <class T> INLINE void copy_lines(float* dst, long pitch, const T* src, long line, long step, long lines, long count) {
  if (step == 1) {
    for (long x = 0; x < count; x += W)
      for (long l = 0; l < lines; ++l) store<W>(dst + l * pitch + x, load_some(src + l * line + x, count - x));
  } else if (line == 1) {
    for (long x = 0; x < count; x += W) {
      V r[W];
#pragma GCC unroll 16
      for (int i = 0; i < W; ++i) r[i] = x + i < count ? load_some(src + (x + i) * step, lines) : set1(0);
      transpose(r);
#pragma GCC unroll 16
      for (int i = 0; i < W; ++i)
        if (i < lines) store<W>(dst + i * pitch + x, r[i]);
    }
  } else {
    for (long l = 0; l < lines; ++l)
      for (long x = 0; x < count; ++x) dst[l * pitch + x] = every(src + l * line + x * step)[0];
  }
}
// one panel: dst[x * NV * W + l], lines beyond `lines` zero
template <int NV, class T> static void pack_panel(float* dst, const T* src, long line, long step, long lines, long count) {
  constexpr int P = NV * W;
  for (int g = 0; g < NV; ++g, src += W * line, lines -= W) {
    if (line == 1 && lines > 0) {
      for (long x = 0; x < count; ++x) store<W>(dst + x * P + g * W, load_some(src + x * step, lines));
    } else if (step == 1 && lines > 0) {
      for (long x = 0; x < count; x += W) {
        V r[W];
#pragma GCC unroll 16
        for (int i = 0; i < W; ++i) r[i] = i < lines ? load_some(src + i * line + x, count - x) : set1(0);
        transpose(r);
        const long left = count - x;
#pragma GCC unroll 16
        for (int i = 0; i < W; ++i)
          if (i < left) store<W>(dst + (x + i) * P + g * W, r[i]);
      }
    } else {
      for (long x = 0; x < count; ++x)
        for (int l = 0; l < W; ++l) dst[x * P + g * W + l] = l < lines ? every(src + l * line + x * step)[0] : 0.0f;
    }
  }
}
// The scalar side's lines that come next, copied while a tile is computed, and those after them, fetched into the cache.
template <class T> struct Next {
  const T* from;
  long line, lines;
  float* to;
  const T* far;
};
// c[i * pitch + l] = or += sum over x of s[i * SP + x] * v[x * vp + l], l < limit
template <int MR, int NV, int SP, bool COPY, class T>
INLINE void tile(long k, const float* v, long vp, const float* s, float* c, long pitch, long limit, bool add, const Next<T>& next) {
  V acc[MR][NV];
#pragma GCC unroll 32
  for (int i = 0; i < MR; ++i)
#pragma GCC unroll 8
    for (int j = 0; j < NV; ++j) acc[i][j] = V{};
  auto steps = [&](long x, long end) __attribute__((always_inline)) {
    for (; x < end; ++x) {
      V b[NV];
#pragma GCC unroll 8
      for (int j = 0; j < NV; ++j) b[j] = load<W>(v + x * vp + j * W);
#pragma GCC unroll 32
      for (int i = 0; i < MR; ++i) {
        const V a = set1(s[i * SP + x]);
#pragma GCC unroll 8
        for (int j = 0; j < NV; ++j) acc[i][j] += a * b[j];
      }
    }
  };
  long done = 0;
  if (COPY) {
    for (; done + W <= k; done += W) {
      for (long i = 0; i < next.lines; ++i) {
        __builtin_prefetch(next.far + i * next.line + done, 0, 2);
        store<W>(next.to + i * SP + done, load<W>(next.from + i * next.line + done));
      }
      steps(done, done + W);
    }
  }
  steps(done, k);
  if (limit >= NV * W) {
#pragma GCC unroll 32
    for (int i = 0; i < MR; ++i)
#pragma GCC unroll 8
      for (int j = 0; j < NV; ++j) {
        float* p = c + i * pitch + j * W;
        store<W>(p, add ? load<W>(p) + acc[i][j] : acc[i][j]);
      }
  } else {
#pragma GCC unroll 32
    for (int i = 0; i < MR; ++i)
#pragma GCC unroll 8
      for (int j = 0; j < NV; ++j) {
        float* p = c + i * pitch + j * W;
        const long n = limit - j * W;
        if (n > 0) store_some(p, add ? load_some(p, n) + acc[i][j] : acc[i][j], n);
      }
  }
}

// out(v, s) for `vn` lines of the vector side from `v0` on, and `sn` of the scalar side: c[s * pitch + v]. The vector side is
// packed as [k block][panel][k][NV * W] with `padded` lines in all; v0 is the start of a panel. With `exact` nothing beyond vn
// and sn is written, else whole tiles are. `own` holds 2 * MR * (KC + 16) + MR * NV * W floats.
template <int MR, int NV, int KC, class T>
static void multiply(const float* panels, long padded, long v0, long vn, const T* src, long line, long step, long sn, long k, float* c, long pitch,
                     bool exact, float* own) {
  constexpr int SP = KC + 16, P = NV * W;
  float* const rest = own + 2 * MR * SP;
  const long tiles = (sn + MR - 1) / MR, blocks = (k + KC - 1) / KC, all = tiles * blocks;
  auto place = [&](long q) { q = q < all ? q : all - 1; return src + (q % tiles) * MR * line + (q / tiles) * KC * step; };
  auto lines = [&](long q) { const long left = sn - (q % tiles) * MR; return q >= all ? 0 : left < MR ? left : MR; };
  auto depth = [&](long q) { const long left = k - (q / tiles) * KC; return left < KC ? left : KC; };
  copy_lines(own, SP, src, line, step, lines(0), depth(0));
  for (long q = 0; q < all; ++q) {
    const long kk = depth(q), used = lines(q);
    const float* const s = own + (q & 1) * MR * SP;
    float* const to = own + (~q & 1) * MR * SP;
    const bool last = q + 1 >= all, beside = !last && step == 1 && depth(q + 1) == kk;
    const Next<T> next = {place(q + 1), line, lines(q + 1), to, place(q + 2)};
    const float* block = panels + q / tiles * KC * padded + v0 * kk;
    for (long v = 0; v < vn; v += P, block += kk * P) {
      float* const out = c + (q % tiles) * MR * pitch + v;
      const bool direct = !exact || (used == MR && v + P <= vn);
      float* const at = direct ? out : rest;
      const long at_pitch = direct ? pitch : P;
      const bool add = q >= tiles && direct;
      if (NV > 1 && vn - v <= P / 2) tile<MR, (NV + 1) / 2, SP, false>(kk, block, P, s, at, at_pitch, P, add, next);
      else if (v == 0 && beside) tile<MR, NV, SP, true>(kk, block, P, s, at, at_pitch, P, add, next);
      else tile<MR, NV, SP, false>(kk, block, P, s, at, at_pitch, P, add, next);
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
    const bool copied = beside && !(NV > 1 && vn <= P / 2);
    const long done = copied ? kk / W * W : 0;
    if (done < depth(q + 1)) copy_lines(to + done, SP, next.from + done * step, line, step, next.lines, depth(q + 1) - done);
  }
}
// packs panels `low` to `high` of a side with `lines` lines: see `multiply`
template <int NV, int KC, class T>
static void pack_panels(float* dst, const T* src, long line, long step, long lines, long k, long low, long high) {
  constexpr int P = NV * W;
  const long padded = (lines + P - 1) / P * P;
  for (long p = low; p < high; ++p)
    for (long x = 0; x < k; x += KC) {
      const long kk = k - x < KC ? k - x : KC;
      pack_panel<NV>(dst + x * padded + p * P * kk, src + p * P * line + x * step, line, step, lines - p * P, kk);
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
