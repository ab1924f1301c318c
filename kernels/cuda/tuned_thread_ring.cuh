#pragma once

#include "kernels/cuda/hopper.cuh"
#include "kernels/cuda/policy.hpp"
#include "kernels/cuda/tuned_backward.cuh"

// Backward of aligned rows with a ring that each thread has to itself: it copies its own 16 bytes
// of the rows to come into its own places in shared memory (cp.async), and nobody else reads them.
// No barrier guards the ring, and the bytes in flight cost no registers.
//
// Two rows of each group on their way, one barrier and no issuing warp leave the SMs so evenly
// timed that none runs ahead of the others, and no pace has to be kept.

namespace rmsnorm::kernels::cuda {

/// kBytes (4 or 16) from global to shared memory, or zeros unless `inside`; `from` must be an
/// address of the tensor either way.
template <int kBytes>
__device__ __forceinline__ void copy_or_zero(void* shared, const void* from, bool inside) {
  const auto to = static_cast<std::uint32_t>(__cvta_generic_to_shared(shared));
  const int bytes = inside ? kBytes : 0;
  if constexpr (kBytes == 16) {
    asm volatile("cp.async.cg.shared.global [%0], [%1], 16, %2;" ::"r"(to), "l"(from), "r"(bytes)
                 : "memory");
  } else {
    asm volatile("cp.async.ca.shared.global [%0], [%1], 4, %2;" ::"r"(to), "l"(from), "r"(bytes)
                 : "memory");
  }
}
__device__ __forceinline__ void copy_vector(uint4* shared, const uint4* from) {
  const auto to = static_cast<std::uint32_t>(__cvta_generic_to_shared(shared));
  asm volatile("cp.async.cg.shared.global [%0], [%1], 16;" ::"r"(to), "l"(from) : "memory");
}
/// The first `bytes` of 16, and zeros for the others.
__device__ __forceinline__ void copy_first(uint4* shared, const void* from, int bytes) {
  const auto to = static_cast<std::uint32_t>(__cvta_generic_to_shared(shared));
  asm volatile("cp.async.cg.shared.global [%0], [%1], 16, %2;" ::"r"(to), "l"(from), "r"(bytes)
               : "memory");
}
__device__ __forceinline__ void end_copies() {
  asm volatile("cp.async.commit_group;" ::: "memory");
}
/// Until all but the newest `kNewest` groups of this thread's copies have landed.
template <int kNewest>
__device__ __forceinline__ void wait_for_copies() {
  asm volatile("cp.async.wait_group %0;" ::"n"(kNewest) : "memory");
}

/// The rings of V vectors of x and dy per thread, S rows of them; a thread's places lie a block
/// apart.
template <int V, int S>
struct ThreadRing {
  static constexpr std::size_t kBytes = thread_ring_bytes(V, S);
  uint4* first;

  __device__ explicit ThreadRing(unsigned char* shared)
      : first(reinterpret_cast<uint4*>(shared) + threadIdx.x) {}
  __device__ __forceinline__ uint4* x(int stage, int j) const {
    return first + (stage * 2 * V + j) * kThreadRingBlock;
  }
  __device__ __forceinline__ uint4* dy(int stage, int j) const {
    return first + ((stage * 2 + 1) * V + j) * kThreadRingBlock;
  }
};

template <int V>
constexpr int kLanesRingStages = lanes_ring_stages(V);

/// `lanes` lanes of a warp per row, V vectors each: rows of up to 96 vectors. Persistent: dgamma's
/// sums stay in registers, one partial row per block. rstd comes through the ring as well.
template <class T, class G, int V, Fault F>
__global__ void __launch_bounds__(kThreadRingBlock, 1)
    backward_lanes_ring_kernel(BackwardParams<T> p, const G* __restrict__ gamma,
                               LaneGroup lane_group) {
  constexpr int W = kPack<T>, S = kLanesRingStages<V>, kWarps = kThreadRingBlock / 32;
  constexpr bool kReread = V == 3;  // for want of registers
  extern __shared__ __align__(128) unsigned char shared[];
  __shared__ float rstds[S][kThreadRingBlock];
  allow_next_kernel();
  const ThreadRing<V, S> ring(shared);
  const int thread = static_cast<int>(threadIdx.x);
  const int lanes = lane_group.lanes(), lane = lane_group.lane(thread);
  const int vectors = static_cast<int>(p.cols / W);
  const auto vector = [&](int j) { return lane + j * lanes; };
  const std::int64_t groups = lane_group.group(std::int64_t{gridDim.x} * kThreadRingBlock);
  const std::int64_t group = lane_group.group(std::int64_t{blockIdx.x} * kThreadRingBlock + thread);
  wait_for_previous_kernel();

  LaneGamma<T, G, W> scale[V];
#pragma unroll
  for (int j = 0; j < V; ++j)
    scale[j].load(gamma, std::int64_t{vector(j)} * W, vector(j) < vectors);
  float sums[V][W] = {};
  // Places without columns and groups without rows get zeros, which leave all sums as they are.
  std::int64_t next = group;
  const auto copy_next = [&](int stage) {
    const bool inside = next < p.rows;
    const std::int64_t row = inside ? next : 0;
    const uint4* const x = reinterpret_cast<const uint4*>(p.x(row));
    const uint4* const dy = reinterpret_cast<const uint4*>(p.dy(row));
#pragma unroll
    for (int j = 0; j < V; ++j) {
      const bool has = inside && vector(j) < vectors;
      copy_or_zero<16>(ring.x(stage, j), x + (has ? vector(j) : 0), has);
      copy_or_zero<16>(ring.dy(stage, j), dy + (has ? vector(j) : 0), has);
    }
    copy_or_zero<4>(&rstds[stage][thread], p.rstd + rstd_row<F>(row), inside);
    end_copies();
    next += groups;
  };
#pragma unroll
  for (int s = 0; s < S; ++s) copy_next(s);
  int stage = 0;
  // Whole warps stay in the loop for the shuffles.
  std::int64_t row = group, first = group - lane_group.group(thread % 32);
#pragma unroll 1
  for (; first < p.rows; row += groups, first += groups) {
    wait_for_copies<S - 1>();
    const float rstd = rstds[stage][thread];
    uint4 x[V], dy[V];
    float dot = 0;
#pragma unroll
    for (int j = 0; j < V; ++j) {
      x[j] = *ring.x(stage, j);
      dy[j] = *ring.dy(stage, j);
      add_vector<F>(x[j], dy[j], scale[j].pack, rstd, dot, sums[j], row, vector(j) * W, p);
    }
    if constexpr (!kReread) copy_next(stage);
    const float projection =
        projection_factor<F>(rstd, lanes_sum(dot, lane_group) * rstd * p.inverse_cols);
    if (p.dx != nullptr && row < p.rows) {
      uint4* const dx = reinterpret_cast<uint4*>(p.dx + row_offset<F>(row, p.cols));
#pragma unroll
      for (int j = 0; j < V; ++j) {
        if (vector(j) >= vectors) continue;
        if constexpr (kReread) {
          asm volatile("" ::: "memory");
          x[j] = *ring.x(stage, j);
          dy[j] = *ring.dy(stage, j);
        } else if constexpr (V > 1) {  // packed until here, for want of registers
          pin(x[j]);
          pin(dy[j]);
        }
        dx[vector(j)] = dx_vector<F, T>(x[j], dy[j], scale[j].pack, rstd, projection);
      }
    }
    if constexpr (kReread) copy_next(stage);
    if (++stage == S) stage = 0;
  }
  wait_for_copies<0>();
  if (p.partials == nullptr) return;
  __syncthreads();  // the sums of the warps go where the rings were
  float* const fold = reinterpret_cast<float*>(shared);
  const int width = lanes * V * W;
#pragma unroll
  for (int j = 0; j < V; ++j) {
#pragma unroll
    for (int e = 0; e < W; ++e) {
      for (int offset = lanes; offset < 32; offset *= 2)
        sums[j][e] += __shfl_xor_sync(0xFFFFFFFFu, sums[j][e], offset);
      if (thread % 32 < lanes) fold[thread / 32 * width + vector(j) * W + e] = sums[j][e];
    }
  }
  __syncthreads();
  for (std::int64_t c = thread; c < p.pitch; c += kThreadRingBlock) {
    float total = 0;
    if (c < p.cols) {
#pragma unroll
      for (int w = 0; w < kWarps; ++w) total += fold[w * width + c];
    }
    p.partials[std::int64_t{blockIdx.x} * p.pitch + c] = total;
  }
}

constexpr int kMaxGroups = kThreadRingBlock / 64;

/// Groups of `group_threads` threads, two warps and more, take rows in turn, V vectors per thread:
/// rows of up to 1024 vectors. Persistent: the groups' sums of dgamma meet at the end, and a block
/// leaves one partial row. dgamma's addends are taken before the barrier, and so only dx is behind
/// it. kExact: a row is as many vectors as a group has places for.
template <class T, class G, int V, bool kExact, Fault F>
__global__ void __launch_bounds__(kThreadRingBlock, 1)
    backward_groups_kernel(BackwardParams<T> p, const G* __restrict__ gamma, int group_threads) {
  constexpr int W = kPack<T>, S = kGroupsStages;
  extern __shared__ __align__(128) unsigned char shared[];
  __shared__ alignas(16) float row_sums[kMaxGroups][2][kMaxWarps];
  allow_next_kernel();
  const ThreadRing<V, S> ring(shared);
  const int group = static_cast<int>(threadIdx.x) / group_threads;
  const int thread = static_cast<int>(threadIdx.x) % group_threads;
  const int groups = static_cast<int>(blockDim.x) / group_threads;
  const int vectors = static_cast<int>(p.cols / W);
  const auto vector = [&](int j) { return thread + j * group_threads; };
  const auto has = [&](int j) { return kExact || vector(j) < vectors; };
  for (int i = static_cast<int>(threadIdx.x); i < kMaxGroups * 2 * kMaxWarps;
       i += static_cast<int>(blockDim.x)) {
    (&row_sums[0][0][0])[i] = 0;  // of absent warps
  }
  wait_for_previous_kernel();
  __syncthreads();

  GammaPack<T, G> scale[V];
#pragma unroll
  for (int j = 0; j < V; ++j) {
    if (has(j)) scale[j].load(gamma, vector(j));
  }
  float sums[V][W] = {};
  const std::int64_t step = std::int64_t{gridDim.x} * groups;
  std::int64_t row = blockIdx.x + std::int64_t{group} * gridDim.x, next = row;
  RowCursor<T> x_row(p.x, row < p.rows ? row : 0, step, thread * W),
      dy_row(p.dy, row < p.rows ? row : 0, step, thread * W);
  const auto copy_next = [&](int stage) {
    if (next < p.rows) {
      const uint4* x = reinterpret_cast<const uint4*>(x_row.get());
      const uint4* dy = reinterpret_cast<const uint4*>(dy_row.get());
#pragma unroll
      for (int j = 0; j < V; ++j) {
        if (!has(j)) continue;
        copy_vector(ring.x(stage, j), x + j * group_threads);
        copy_vector(ring.dy(stage, j), dy + j * group_threads);
      }
    }
    end_copies();
    next += step;
    x_row.next(next);
    dy_row.next(next);
  };
#pragma unroll
  for (int s = 0; s < S; ++s) copy_next(s);
  float next_rstd = row < p.rows ? saved_rstd_of<F>(p, row) : 0.0f;
  int stage = 0, turn = 0;
#pragma unroll 1
  for (; row < p.rows; row += step, turn ^= 1) {
    const float rstd = next_rstd;
    if (row + step < p.rows) next_rstd = saved_rstd_of<F>(p, row + step);
    wait_for_copies<S - 1>();
    uint4 x[V], dy[V];
    float dot = 0;
#pragma unroll
    for (int j = 0; j < V; ++j) {
      if (!has(j)) continue;
      x[j] = *ring.x(stage, j);
      dy[j] = *ring.dy(stage, j);
      add_vector<F>(x[j], dy[j], scale[j], rstd, dot, sums[j], row, vector(j) * W, p);
    }
    copy_next(stage);
    dot = lanes_sum(dot);
    float* const mine = row_sums[group][turn];  // of two, so that one barrier per row is enough
    if (thread % 32 == 0) mine[thread / 32] = dot;
    group_barrier(group, group_threads);
    const float projection = projection_factor<F>(rstd, sum_of_warps(mine) * rstd * p.inverse_cols);
    uint4* dx = reinterpret_cast<uint4*>(p.dx + (p.dx == nullptr ? 0 : row_offset<F>(row, p.cols)));
#pragma unroll
    for (int j = 0; j < V; ++j) {
      if (!has(j)) continue;
      pin(x[j]);
      pin(dy[j]);
      const uint4 packed = dx_vector<F, T>(x[j], dy[j], scale[j], rstd, projection);
      if (p.dx != nullptr) dx[vector(j)] = packed;
    }
    if (++stage == S) stage = 0;
  }
  if (p.partials == nullptr) return;
  __syncthreads();  // nobody's copies are under way any more
  write_partial_row(sums, reinterpret_cast<float*>(shared), group, groups, thread, group_threads,
                    p.partials + std::int64_t{blockIdx.x} * p.pitch,
                    [&](int j) -> std::int64_t { return has(j) ? vector(j) * W : -1; });
}

}  // namespace rmsnorm::kernels::cuda
