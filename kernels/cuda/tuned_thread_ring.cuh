#pragma once

#include "kernels/cuda/tuned_backward.cuh"

// Backward of aligned rows with a ring that each thread has to itself: it copies its own 16 bytes
// of the rows to come into its own places in shared memory (cp.async), and nobody else reads them.
// No barrier guards the ring, and the bytes in flight cost no registers.
//
// Short rows, a few lanes of a warp per row: 64 registers, where holding the rows to come in
// registers took 128.
//
// Rows of a few kilobytes, a block per row: two threads' worth of loads, one barrier and no issuing
// warp leave an SM's rows so evenly timed that no block runs ahead of the others. Lighter rows (of
// float32, half the arithmetic per byte) do run ahead, and are left to the paced ring of
// tuned_ring.cuh: 233 us against 188 at 16384 x 4096.

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
__device__ __forceinline__ void end_copies() {
  asm volatile("cp.async.commit_group;" ::: "memory");
}
/// Until all but the newest `kNewest` groups of this thread's copies have landed.
template <int kNewest>
__device__ __forceinline__ void wait_for_copies() {
  asm volatile("cp.async.wait_group %0;" ::"n"(kNewest) : "memory");
}

constexpr int kLanesRingStages = 4;
constexpr std::size_t kLanesRingBytes = kLanesRingStages * kLanesBlock * (2 * sizeof(uint4) + 4);

/// `lanes` lanes of a warp per row, 16 bytes of it each. Persistent: dgamma's sums stay in
/// registers, one partial row per block.
template <class T, class G, Fault F>
__global__ void __launch_bounds__(kLanesBlock, 4)
    backward_lanes_ring_kernel(BackwardParams<T> p, const G* __restrict__ gamma,
                               LaneGroup lane_group) {
  constexpr int W = kPack<T>, S = kLanesRingStages;
  struct Stage {
    uint4 x[kLanesBlock], dy[kLanesBlock];
    float rstd[kLanesBlock];
  };
  __shared__ union {
    Stage stages[S];
    float fold[kLanesBlock / 32][32 * W];
  } shared;
  allow_next_kernel();
  const int thread = static_cast<int>(threadIdx.x);
  const int lanes = lane_group.lanes(), column = lane_group.lane(thread) * W;
  const bool has_columns = column < p.cols;
  const std::int64_t groups = lane_group.group(std::int64_t{gridDim.x} * kLanesBlock);
  const std::int64_t group = lane_group.group(std::int64_t{blockIdx.x} * kLanesBlock + thread);
  wait_for_previous_kernel();

  LaneGamma<T, G, W> scale;
  scale.load(gamma, column, has_columns);
  float sums[W] = {};
  // Lanes without columns and groups without rows copy zeros, which leave all sums as they are.
  std::int64_t next = group;
  const auto copy_next = [&](int stage) {
    const bool inside = next < p.rows && has_columns;
    const std::int64_t row = inside ? next : 0, from = inside ? column : 0;
    copy_or_zero<16>(&shared.stages[stage].x[thread], p.x(row) + from, inside);
    copy_or_zero<16>(&shared.stages[stage].dy[thread], p.dy(row) + from, inside);
    copy_or_zero<4>(&shared.stages[stage].rstd[thread], p.rstd + rstd_row<F>(row), inside);
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
    const uint4 x = shared.stages[stage].x[thread], dy = shared.stages[stage].dy[thread];
    const float rstd = shared.stages[stage].rstd[thread];
    copy_next(stage);
    if (++stage == S) stage = 0;
    float xs[W], dys[W], factors[W], dx[W];
    widen_pack<T>(x, xs);
    widen_pack<T>(dy, dys);
    scale.widen(factors);
    const float dot = lanes_sum(dot_elements<F>(xs, dys, factors, column, p), lane_group);
    const float projection = projection_factor<F>(rstd, dot * rstd * p.inverse_cols);
    backward_elements<F>(xs, dys, factors, rstd, projection, dx, sums, row, p);
    if (p.dx != nullptr && row < p.rows && has_columns)
      *reinterpret_cast<uint4*>(p.dx + row_offset<F>(row, p.cols) + column) = narrow_pack<T>(dx);
  }
  wait_for_copies<0>();
  if (p.partials == nullptr) return;
  __syncthreads();
#pragma unroll
  for (int e = 0; e < W; ++e) {
    for (int offset = lanes; offset < 32; offset *= 2)
      sums[e] += __shfl_xor_sync(0xFFFFFFFFu, sums[e], offset);
  }
  if (thread % 32 < lanes) {
#pragma unroll
    for (int e = 0; e < W; ++e) shared.fold[thread / 32][thread % 32 * W + e] = sums[e];
  }
  __syncthreads();
  for (std::int64_t c = thread; c < p.pitch; c += kLanesBlock) {
    float total = 0;
    if (c < p.cols) {
#pragma unroll
      for (int w = 0; w < kLanesBlock / 32; ++w) total += shared.fold[w][c];
    }
    p.partials[std::int64_t{blockIdx.x} * p.pitch + c] = total;
  }
}

/// V vectors per thread, S rows under way, at most `kThreads` threads and at least `kBlocks` blocks
/// of that many per SM.
template <int V, int S, int kThreads_, int kBlocks_>
struct BlockShape {
  static constexpr int kVectors = V, kStages = S, kThreads = kThreads_, kBlocks = kBlocks_;
};

/// A block per row. Persistent: dgamma's sums stay in registers, one partial row per block. kExact:
/// all of kThreads threads, and a row is as many vectors as they have together.
template <class T, class G, class Shape, bool kExact, Fault F>
__global__ void __launch_bounds__(Shape::kThreads, Shape::kBlocks)
    backward_block_kernel(BackwardParams<T> p, const G* __restrict__ gamma) {
  constexpr int W = kPack<T>, V = Shape::kVectors, S = Shape::kStages;
  extern __shared__ __align__(128) unsigned char shared[];
  __shared__ alignas(16) float row_sums[2][kMaxWarps];
  allow_next_kernel();
  const int thread = static_cast<int>(threadIdx.x);
  const int threads = kExact ? Shape::kThreads : static_cast<int>(blockDim.x);
  const int vectors = static_cast<int>(p.cols / W);
  const auto vector = [&](int j) { return thread + j * threads; };
  const auto has = [&](int j) { return kExact || vector(j) < vectors; };
  uint4* const ring = reinterpret_cast<uint4*>(shared) + thread;
  const auto place = [&](int stage, int half, int j) {
    return ring + ((stage * 2 + half) * V + j) * threads;
  };
  if (thread < 2 * kMaxWarps) (&row_sums[0][0])[thread] = 0;  // of absent warps
  wait_for_previous_kernel();
  __syncthreads();

  GammaPack<T, G> scale[V];
#pragma unroll
  for (int j = 0; j < V; ++j) {
    if (has(j)) scale[j].load(gamma, vector(j));
  }
  float sums[V][W] = {};
  const std::int64_t step = gridDim.x;
  std::int64_t row = blockIdx.x, next = row;
  RowCursor<T> x_row(p.x, row < p.rows ? row : 0, step, thread * W),
      dy_row(p.dy, row < p.rows ? row : 0, step, thread * W);
  const auto copy_next = [&](int stage) {
    if (next < p.rows) {
      const uint4* x = reinterpret_cast<const uint4*>(x_row.get());
      const uint4* dy = reinterpret_cast<const uint4*>(dy_row.get());
#pragma unroll
      for (int j = 0; j < V; ++j) {
        if (!has(j)) continue;
        copy_vector(place(stage, 0, j), x + j * threads);
        copy_vector(place(stage, 1, j), dy + j * threads);
      }
    }
    end_copies();
    next += step;
    x_row.next();
    dy_row.next();
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
      x[j] = *place(stage, 0, j);
      dy[j] = *place(stage, 1, j);
      // Written out, here and below: with dot_of_vector or backward_of_vector the compiler orders
      // the loop another way, and the loop lives by its timing.
      float xs[W], dys[W], factors[W];
      scale[j].pin();
      widen_pack<T>(x[j], xs);
      widen_pack<T>(dy[j], dys);
      scale[j].widen(factors);
      dot += dot_elements<F>(xs, dys, factors, vector(j) * W, p);
    }
    copy_next(stage);
    dot = lanes_sum(dot);
    if (thread % 32 == 0) row_sums[turn][thread / 32] = dot;
    __syncthreads();  // one per row: the sums of two rows have places of their own
    const float projection =
        projection_factor<F>(rstd, sum_of_warps(row_sums[turn]) * rstd * p.inverse_cols);
    uint4* dx = reinterpret_cast<uint4*>(p.dx + (p.dx == nullptr ? 0 : row_offset<F>(row, p.cols)));
#pragma unroll
    for (int j = 0; j < V; ++j) {
      if (!has(j)) continue;
      pin(x[j]);
      pin(dy[j]);
      float xs[W], dys[W], factors[W], out[W];
      scale[j].pin();
      widen_pack<T>(x[j], xs);
      widen_pack<T>(dy[j], dys);
      scale[j].widen(factors);
      backward_elements<F>(xs, dys, factors, rstd, projection, out, sums[j], row, p);
      if (p.dx != nullptr) dx[vector(j)] = narrow_pack<T>(out);
    }
    if (++stage == S) stage = 0;
  }
  if (p.partials == nullptr) return;
  float* const partial = p.partials + std::int64_t{blockIdx.x} * p.pitch;
#pragma unroll
  for (int j = 0; j < V; ++j) {
    if (!has(j)) continue;
#pragma unroll
    for (int e = 0; e < W; e += 4) {
      *reinterpret_cast<float4*>(partial + vector(j) * W + e) =
          make_float4(sums[j][e], sums[j][e + 1], sums[j][e + 2], sums[j][e + 3]);
    }
  }
}

}  // namespace rmsnorm::kernels::cuda
