#pragma once

#include "kernels/common/fault.hpp"
#include "kernels/cuda/access.cuh"

namespace rmsnorm::kernels::cuda {

constexpr int kFinalizeThreads = 512;
constexpr int kFinalizeColumns = 32;

/// dgamma[c] = sum over the partial rows of partials[p][c], rounded once. A block sums 32 columns:
/// 8 lanes of four columns, 64 partial rows at a time; shuffles fold a warp, one barrier the block.
/// Fixed order, no atomics. Puts `pace_count` (or nullptr) back to zero for the next backward.
/// Launched while its predecessor still runs.
template <class G, Fault F>
__global__ void __launch_bounds__(kFinalizeThreads)
    finalize_kernel(const float* __restrict__ partials, G* __restrict__ dgamma, int partial_rows,
                    std::int64_t pitch, std::int64_t cols, unsigned* pace_count) {
  constexpr int kWarps = kFinalizeThreads / 32;
  __shared__ float4 sums[kWarps][8];
  const int lane = static_cast<int>(threadIdx.x) % 32, warp = static_cast<int>(threadIdx.x) / 32;
  const std::int64_t column = std::int64_t{blockIdx.x} * kFinalizeColumns + lane % 8 * 4;
  wait_for_previous_kernel();
  float4 sum{0, 0, 0, 0};
  if (column < pitch) {
    for (int row = warp * 4 + lane / 8; row < partial_rows; row += kWarps * 4) {
      const float4 part = *reinterpret_cast<const float4*>(partials + row * pitch + column);
      sum.x += part.x;
      sum.y += part.y;
      sum.z += part.z;
      sum.w += part.w;
    }
  }
#pragma unroll
  for (int offset = 8; offset < 32; offset *= 2) {
    sum.x += __shfl_xor_sync(0xFFFFFFFFu, sum.x, offset);
    sum.y += __shfl_xor_sync(0xFFFFFFFFu, sum.y, offset);
    sum.z += __shfl_xor_sync(0xFFFFFFFFu, sum.z, offset);
    sum.w += __shfl_xor_sync(0xFFFFFFFFu, sum.w, offset);
  }
  if (lane < 8) sums[warp][lane] = sum;
  __syncthreads();
  if (threadIdx.x < kFinalizeColumns) {
    const int c = static_cast<int>(threadIdx.x);
    float total = 0;
#pragma unroll
    for (int w = 0; w < kWarps; ++w) total += reinterpret_cast<const float*>(sums[w])[c];
    const std::int64_t target = std::int64_t{blockIdx.x} * kFinalizeColumns + c;
    if constexpr (F == Fault::dgamma_accumulated) {
      if (target < cols) total += widen(dgamma[target]);
    }
    if (target < cols) narrow(total, dgamma[target]);
  }
  if constexpr (F == Fault::scratch_overrun) {
    if (blockIdx.x == 0 && threadIdx.x == 0) const_cast<float*>(partials)[partial_rows * pitch] = 0;
  }
  if (pace_count != nullptr && blockIdx.x == 0 && threadIdx.x == 0) *pace_count = 0;
}

/// The same for float64: one thread per column.
template <Fault F>
__global__ void finalize_float64_kernel(const double* __restrict__ partials,
                                        double* __restrict__ dgamma, int partial_rows,
                                        std::int64_t pitch, std::int64_t cols) {
  const std::int64_t column = std::int64_t{blockIdx.x} * blockDim.x + threadIdx.x;
  wait_for_previous_kernel();
  if (column >= cols) return;
  double total = 0;
  for (int row = 0; row < partial_rows; ++row) total += partials[row * pitch + column];
  dgamma[column] = total;
}

}  // namespace rmsnorm::kernels::cuda
