// The GEMM that ships in torch; the loader fills the pointers. Fortran order: a row-major product is computed transposed.
typedef void Sgemm(const char*, const char*, const int*, const int*, const int*, const float*, const float*, const int*, const float*,
                   const int*, const float*, float*, const int*);
typedef void Bgemm(int, int, int, int, int, int, float, const void*, int, const void*, int, float, float*, int);
extern "C" {
__attribute__((visibility("default"))) Sgemm* kforge_sgemm = nullptr;
__attribute__((visibility("default"))) Bgemm* kforge_bgemm = nullptr;
}
// A matrix of rows x cols elements; one of its strides must be 1 and the other no shorter than the row it steps over.
struct Operand { long row, col; };
INLINE bool by_rows(Operand s, long cols) { return s.col == 1 && s.row >= (cols > 1 ? cols : 1); }
INLINE bool by_cols(Operand s, long rows) { return s.row == 1 && s.col >= (rows > 1 ? rows : 1); }
template <class T> INLINE float real_of(const T* p) { return every(p)[0]; }
// strides that no library call takes: correct, and slow
template <class T> static void plain_product(const T* a, Operand sa, const T* b, Operand sb, long m, long n, long k, float* p, long pitch) {
  for (long i = 0; i < m; ++i)
    for (long j = 0; j < n; ++j) {
      float lanes[8] = {};
      for (long x = 0; x < k; ++x) lanes[x & 7] += real_of(a + i * sa.row + x * sa.col) * real_of(b + x * sb.row + j * sb.col);
      p[i * pitch + j] = ((lanes[0] + lanes[1]) + (lanes[2] + lanes[3])) + ((lanes[4] + lanes[5]) + (lanes[6] + lanes[7]));
    }
}
// P (m, n) = A (m, k) B (k, n), strides in elements
INLINE void library_product(const float* a, Operand sa, const float* b, Operand sb, long m, long n, long k, float* p, long pitch) {
  const bool a_rows = by_rows(sa, k), b_rows = by_rows(sb, n);
  if (!kforge_sgemm || !(a_rows || by_cols(sa, m)) || !(b_rows || by_cols(sb, k))) return plain_product(a, sa, b, sb, m, n, k, p, pitch);
  const int mi = (int)m, ni = (int)n, ki = (int)k, lda = (int)(a_rows ? sa.row : sa.col), ldb = (int)(b_rows ? sb.row : sb.col), ldp = (int)pitch;
  const float one = 1, zero = 0;
  kforge_sgemm(b_rows ? "N" : "T", a_rows ? "N" : "T", &ni, &mi, &ki, &one, b, &ldb, a, &lda, &zero, p, &ldp);
}
INLINE void library_product(const bf16* a, Operand sa, const bf16* b, Operand sb, long m, long n, long k, float* p, long pitch) {
  const bool a_rows = by_rows(sa, k), b_rows = by_rows(sb, n);
  if (!kforge_bgemm || !(a_rows || by_cols(sa, m)) || !(b_rows || by_cols(sb, k))) return plain_product(a, sa, b, sb, m, n, k, p, pitch);
  kforge_bgemm(101, a_rows ? 111 : 112, b_rows ? 111 : 112, (int)m, (int)n, (int)k, 1, a, (int)(a_rows ? sa.row : sa.col), b,
               (int)(b_rows ? sb.row : sb.col), 0, p, (int)pitch);
}
