// y = relu(x @ w^T + b) / 2 for x (M, K), w (N, K), b (N), all fp32 and dense: one 32x32 tile a block.
#define TILE 32

__global__ void gemm_relu_divide(const float* x, const float* w, const float* b, float* y, int M, int N, int K) {
  __shared__ float xs[TILE][TILE + 1], ws[TILE][TILE + 1];
  const int row = blockIdx.y * TILE + threadIdx.y, col = blockIdx.x * TILE + threadIdx.x;
  float sum = 0.f;
  for (int k0 = 0; k0 < K; k0 += TILE) {
    xs[threadIdx.y][threadIdx.x] = row < M && k0 + threadIdx.x < K ? x[row * K + k0 + threadIdx.x] : 0.f;
    const int wrow = blockIdx.x * TILE + threadIdx.y;
    ws[threadIdx.y][threadIdx.x] = wrow < N && k0 + threadIdx.x < K ? w[wrow * K + k0 + threadIdx.x] : 0.f;
    __syncthreads();
#pragma unroll
    for (int k = 0; k < TILE; ++k) sum += xs[threadIdx.y][k] * ws[threadIdx.x][k];
    __syncthreads();
  }
  if (row < M && col < N) y[row * N + col] = fmaxf(sum + b[col], 0.f) / 2.f;
}
