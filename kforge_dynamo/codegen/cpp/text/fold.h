// The right operand's columns summed in groups before the product: out[g * k + x] = scale * sum of b[x * row + j * col] over the
// columns j of group g. The sums are fp64, rounded once.
struct Fold {
  float* out;
  const float* b;
  long row, col, k, groups, width;
  double scale;
  long* next;
};
constexpr long FOLD = 256;                                     // elements along k of one piece of work
static void fold_piece(const Fold& f, long g, long low, long high) {
  const float* const b = f.b + g * f.width * f.col;
  if (f.row == 1) {
    double sums[FOLD] = {};
    for (long j = 0; j < f.width; ++j)
      for (long x = low; x < high; ++x) sums[x - low] += (double)b[x + j * f.col];
    for (long x = low; x < high; ++x) f.out[g * f.k + x] = (float)(f.scale * sums[x - low]);
    return;
  }
  for (long x = low; x < high; ++x) {
    double lanes[16] = {};
    const float* const line = b + x * f.row;
    long j = 0;
    if (f.col == 1)
      for (; j + 16 <= f.width; j += 16)
        for (int l = 0; l < 16; ++l) lanes[l] += (double)line[j + l];
    for (; j < f.width; ++j) lanes[j & 15] += (double)line[j * f.col];
    double sum = 0;
    for (int l = 0; l < 16; ++l) sum += lanes[l];
    f.out[g * f.k + x] = (float)(f.scale * sum);
  }
}
static void fold_all(const Fold& f) {
  const long across = (f.k + FOLD - 1) / FOLD;
  for (;;) {
    const long item = __atomic_fetch_add(f.next, 1, __ATOMIC_RELAXED);
    if (item >= across * f.groups) return;
    const long low = item % across * FOLD;
    fold_piece(f, item / across, low, low + FOLD < f.k ? low + FOLD : f.k);
  }
}
static void fold_columns(Fold f, int threads) {
  long next = 0;
  f.next = &next;
  const double most = 1 + (double)f.k * f.groups * f.width / 2.5e5;
  if (threads > most) threads = (int)most;
  if (threads <= 1) return fold_all(f);                        // no team: safe in a forked child
#if defined(_OPENMP)
#pragma omp parallel num_threads(threads)
  fold_all(f);
#else
  auto body = [](void* fold) { fold_all(*(const Fold*)fold); };
  GOMP_parallel(body, (void*)&f, (unsigned)threads, 0);
#endif
}
// The rows from the first to after the last that hold a number which is not finite; nothing between equal ends.
struct Lost { long first, end; };
static Lost lost_rows(const float* p, long rows, long width) {
  Lost found = {0, 0};
  for (long r = 0; r < rows; ++r) {
    float sum = 0;
    for (long j = 0; j < width; ++j) sum += p[r * width + j] * 0.0f;   // 0, or NaN from infinities and NaN
    if (sum == 0) continue;
    if (found.end == 0) found.first = r;
    found.end = r + 1;
  }
  return found;
}
