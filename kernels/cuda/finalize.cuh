#pragma once

#include "kernels/common/fault.hpp"
#include "kernels/cuda/access.cuh"

namespace rmsnorm::kernels::cuda {

constexpr int kFinalizeThreads = 512;

/// dgamma[c] = sum over the partial rows of partials[p][c], rounded once. kLanes lanes of four
/// columns side by side, all other threads of the block at further partial rows; shuffles fold a
/// warp, one barrier the block. Few partial rows want many lanes. Fixed order, no atomics. Puts
/// `pace_count` (or nullptr) back to zero for the next backward.
///
/// It is launched while its predecessor still runs, and a first pass over no rows uses that time to
/// bring the code into the caches. What that gains was not told from noise.
template <class G, int kLanes, Fault F>
__global__ void __launch_bounds__(kFinalizeThreads)
    finalize_kernel(const float* partials, G* __restrict__ dgamma, int partial_rows,
                    std::int64_t pitch, std::int64_t cols, unsigned* pace_count,
                    bool next_may_start) {
  constexpr int kRowStep = kFinalizeThreads / kLanes;
  constexpr int kSums = kLanes < 32 ? kFinalizeThreads / 32 : kRowStep;  // of a column, to be added
  constexpr int kColumns = 4 * kLanes;
  constexpr int kAtOnce = 5;  // loads under way: one after the other, a thread's few take longest
  __shared__ float4 sums[kSums][kLanes];
  const int thread = static_cast<int>(threadIdx.x);
  const int first_row = thread / kLanes, lane = thread % kLanes;
  const std::int64_t column = std::int64_t{blockIdx.x} * kColumns + lane * 4;
  const std::int64_t target = std::int64_t{blockIdx.x} * kColumns + thread;
  const std::int64_t row_step = kRowStep * pitch;
  int rows = 0;
#pragma unroll 1
  for (int pass = 0;; ++pass) {
    float4 sum{0, 0, 0, 0};
    const float* from = partials + first_row * pitch + column;
    int row = column < pitch ? first_row : rows;
#pragma unroll 1
    do {
      float4 parts[kAtOnce];
#pragma unroll
      for (float4& part : parts) {
        // From L2, where the predecessor has just written it.
        part = row < rows ? __ldcg(reinterpret_cast<const float4*>(from)) : float4{0, 0, 0, 0};
        row += kRowStep;
        from += row_step;
      }
#pragma unroll
      for (const float4& part : parts) {
        sum.x += part.x;
        sum.y += part.y;
        sum.z += part.z;
        sum.w += part.w;
      }
    } while (row < rows);
#pragma unroll
    for (int offset = kLanes; offset < 32; offset *= 2) {
      sum.x += __shfl_xor_sync(0xFFFFFFFFu, sum.x, offset);
      sum.y += __shfl_xor_sync(0xFFFFFFFFu, sum.y, offset);
      sum.z += __shfl_xor_sync(0xFFFFFFFFu, sum.z, offset);
      sum.w += __shfl_xor_sync(0xFFFFFFFFu, sum.w, offset);
    }
    if (kLanes >= 32 || thread % 32 < kLanes)
      sums[kLanes < 32 ? thread / 32 : first_row][lane] = sum;
    __syncthreads();
    float total = 0;
    if (thread < kColumns) {
#pragma unroll
      for (int s = 0; s < kSums; ++s) total += reinterpret_cast<const float*>(sums[s])[thread];
    }
    if (pass == 1) {
      if (thread < kColumns && target < cols) {
        if constexpr (F == Fault::dgamma_accumulated) total += widen(dgamma[target]);
        narrow(total, dgamma[target]);
      }
      break;
    }
    __syncthreads();
    wait_for_previous_kernel();
    if (next_may_start) allow_next_kernel();
    rows = partial_rows;
  }
  if constexpr (F == Fault::scratch_overrun) {
    if (blockIdx.x == 0 && thread == 0) const_cast<float*>(partials)[partial_rows * pitch] = 0;
  }
  if (pace_count != nullptr && blockIdx.x == 0 && thread == 0) *pace_count = 0;
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
