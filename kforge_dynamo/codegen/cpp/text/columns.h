// Reductions over rows. A block's partial results: the sum, in double and stored as two floats, so that a mean far from zero
// keeps its digits; the sum of squared distances from the block's mean; extremes.
typedef double D __attribute__((vector_size(8 * W)));
INLINE void column_parts(const float* x, long pitch, long rows, long n, float* sum, float* rest, float* square, float* high, float* low) {
  auto strip = [&](long j, int lanes) __attribute__((always_inline)) {
    auto at = [&](long r) __attribute__((always_inline)) {
      const float* p = x + r * pitch + j;
      return lanes == W ? load<W>(p) : load_first(p, lanes);
    };
    auto put = [&](float* p, V v) __attribute__((always_inline)) {
      if (lanes == W) store<W>(p + j, v);
      else store_first(p + j, v, lanes);
    };
    D s = {};
    V h = set1(-__builtin_inff()), l = set1(__builtin_inff());
    for (long r = 0; r < rows; ++r) {
      const V v = at(r);
      if (sum) s += __builtin_convertvector(v, D);
      if (high) h = max_(h, v);
      if (low) l = min_(l, v);
    }
    const V near = __builtin_convertvector(s, V);
    if (sum) put(sum, near), put(rest, select(isfinite_(near), __builtin_convertvector(s - __builtin_convertvector(near, D), V), set1(0)));
    if (high) put(high, h);
    if (low) put(low, l);
    if (!square) return;
    const V mean = __builtin_convertvector(s / (double)rows, V);
    V q = set1(0);
    for (long r = 0; r < rows;) {                              // sums of sums: short chains of roundings
      V part = set1(0);
      for (const long end = r + 16 < rows ? r + 16 : rows; r < end; ++r) {
        const V d = at(r) - mean;
        part += d * d;
      }
      q += part;
    }
    put(square, q);
  };
  long j = 0;
  for (; j + W <= n; j += W) strip(j, W);
  if (j < n) strip(j, (int)(n - j));
}
static long block_count(const Call& c, long b) {
  long first = b % c.per_outer * c.block, left = c.rows - first;
  return left < c.block ? left : c.block;
}
static void merge_sum(const Call& c, const float* part, const float* rest, float* out, long n, long low, long high, double scale) {
  for (long j = low; j < high; ++j) {
    double total = 0;
    for (long b = 0; b < c.blocks; ++b) total += (double)part[b * n + j] + (double)rest[b * n + j];
    out[j] = (float)(total / scale);
  }
}
template <class F> static void merge_extreme(const Call& c, const float* part, float* out, long n, long low, long high, F f) {
  for (long j = low; j < high; ++j) out[j] = part[j];
  for (long b = 1; b < c.blocks; ++b)
    for (long j = low; j < high; ++j) out[j] = f(out[j], part[b * n + j]);
}
// Chan's rule: squares about the means of two parts give those about the common mean
static void merge_var(const Call& c, const float* sums, const float* rests, const float* squares, float* out, long n, long low, long high,
                      double correction) {
  double freedom = (double)(c.rows * c.outer) - correction;
  for (long j = low; j < high; ++j) {
    double count = 0, mean = 0, square = 0;
    for (long b = 0; b < c.blocks; ++b) {
      double rows = (double)block_count(c, b), own = ((double)sums[b * n + j] + (double)rests[b * n + j]) / rows, gap = own - mean, total = count + rows;
      square += (double)squares[b * n + j] + gap * gap * (count * rows / total);
      mean += gap * (rows / total);
      count = total;
    }
    out[j] = (float)(square / (freedom > 0 ? freedom : 0));
  }
}
