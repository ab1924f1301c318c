#pragma once

#include "kernels/common/fault.hpp"
#include "kernels/cuda/access.cuh"

namespace rmsnorm::kernels::cuda {

constexpr int kFinalizeThreads = 512;

/// Brings the page of an address into this SM's reach, and its line into L2; reads nothing.
__device__ __forceinline__ void touch(const void* address) {
  asm volatile("prefetch.global.L2 [%0];" ::"l"(address));
}

/// dgamma[c] = sum over the partial rows of partials[p][c], rounded once. kLanes lanes of four
/// columns side by side, all other threads of the block at further partial rows, kAtOnce loads of
/// each under way at a time; shuffles fold a warp, one barrier the block. Few partial rows want
/// many lanes. Fixed order, no atomics. It starts while its predecessor still runs, and uses the
/// time to look up the pages that it will need.
template <class G, int kLanes, int kAtOnce, Fault F>
__global__ void __launch_bounds__(kFinalizeThreads)
    finalize_kernel(const float* partials, G* __restrict__ dgamma, int partial_rows,
                    std::int64_t pitch, std::int64_t cols, bool next_may_start) {
  constexpr int kRowStep = kFinalizeThreads / kLanes;
  constexpr int kSums = kLanes < 32 ? kFinalizeThreads / 32 : kRowStep;  // of a column, to be added
  constexpr int kColumns = 4 * kLanes;
  __shared__ float4 sums[kSums][kLanes];
  const int thread = static_cast<int>(threadIdx.x);
  const int first_row = thread / kLanes, lane = thread % kLanes;
  const std::int64_t column = std::int64_t{blockIdx.x} * kColumns + lane * 4;
  const std::int64_t target = std::int64_t{blockIdx.x} * kColumns + thread;
  const float* from = partials + first_row * pitch + column;
  const bool inside = column < pitch;
  if (thread == 0) touch(dgamma + target);
  if (lane == 0 && inside && first_row < partial_rows) touch(from);
  wait_for_previous_kernel();
  if (next_may_start) allow_next_kernel();

  float4 sum{0, 0, 0, 0};
#pragma unroll 1
  for (int row = first_row; inside && row < partial_rows; row += kAtOnce * kRowStep) {
    float4 parts[kAtOnce];
#pragma unroll
    for (int i = 0; i < kAtOnce; ++i) {
      // From L2, where the predecessor has just written it.
      parts[i] = row + i * kRowStep < partial_rows
                     ? __ldcg(reinterpret_cast<const float4*>(from + i * kRowStep * pitch))
                     : float4{0, 0, 0, 0};
    }
    from += kAtOnce * kRowStep * pitch;
#pragma unroll
    for (const float4& part : parts) {
      sum.x += part.x;
      sum.y += part.y;
      sum.z += part.z;
      sum.w += part.w;
    }
  }
#pragma unroll
  for (int offset = kLanes; offset < 32; offset *= 2) {
    sum.x += __shfl_xor_sync(0xFFFFFFFFu, sum.x, offset);
    sum.y += __shfl_xor_sync(0xFFFFFFFFu, sum.y, offset);
    sum.z += __shfl_xor_sync(0xFFFFFFFFu, sum.z, offset);
    sum.w += __shfl_xor_sync(0xFFFFFFFFu, sum.w, offset);
  }
  if (kLanes >= 32 || thread % 32 < kLanes) sums[kLanes < 32 ? thread / 32 : first_row][lane] = sum;
  __syncthreads();
  if (thread < kColumns && target < cols) {
    float total = 0;
#pragma unroll
    for (int s = 0; s < kSums; ++s) total += reinterpret_cast<const float*>(sums[s])[thread];
    if constexpr (F == Fault::dgamma_accumulated) total += widen(dgamma[target]);
    narrow(total, dgamma[target]);
  }
  if constexpr (F == Fault::scratch_overrun) {
    if (blockIdx.x == 0 && thread == 0) const_cast<float*>(partials)[partial_rows * pitch] = 0;
  }
}

/// The same for float64: one thread per column.
template <Fault F>
__global__ void finalize_float64_kernel(const double* partials, double* __restrict__ dgamma,
                                        int partial_rows, std::int64_t pitch, std::int64_t cols) {
  const std::int64_t column = std::int64_t{blockIdx.x} * blockDim.x + threadIdx.x;
  wait_for_previous_kernel();
  if (column >= cols) return;
  double total = 0;
  for (int row = 0; row < partial_rows; ++row) total += partials[row * pitch + column];
  dgamma[column] = total;
}

}  // namespace rmsnorm::kernels::cuda
