#pragma once

#include "kernels/cuda/tuned_backward.cuh"
#include "kernels/cuda/tuned_ring.cuh"

// Backward by a ring of bulk copies, rows of whole vectors at 16-byte boundaries that are too long
// for threads with a ring of their own: a block per row, or a cluster. x and dy are read from
// shared memory twice, since their packed halves do not fit the registers beside gamma and the
// sums.

namespace rmsnorm::kernels::cuda {

constexpr int kRingThreads = 512;  // that compute; one more warp issues the copies

/// The part of a row that a thread works on, in a stage of the ring.
template <class T, class G, int V, Fault F>
struct RingSlice {
  static constexpr int W = kPack<T>;
  int thread, vectors;  ///< vectors: of the block's slice
  std::int64_t first_vector;

  __device__ __forceinline__ int vector(int j) const { return thread + j * kRingThreads; }
  __device__ __forceinline__ bool has(int j) const { return vector(j) < vectors; }
  __device__ __forceinline__ std::int64_t column(int j) const {
    return (first_vector + vector(j)) * W;
  }

  __device__ __forceinline__ void load(GammaPack<T, G> (&scale)[V], const G* gamma) const {
#pragma unroll
    for (int j = 0; j < V; ++j) {
      if (has(j)) scale[j].load(gamma, first_vector + vector(j));
    }
  }

  /// This thread's share of sum(dy * gamma * x) of a row; its addends of dgamma go to `sums`.
  __device__ __forceinline__ float add(const unsigned char* stage, std::uint32_t part_bytes,
                                       GammaPack<T, G> (&scale)[V], float rstd, float (&sums)[V][W],
                                       std::int64_t row, const BackwardParams<T>& p) const {
    const uint4* const x = reinterpret_cast<const uint4*>(stage);
    const uint4* const dy = reinterpret_cast<const uint4*>(stage + part_bytes);
    float dot = 0;
#pragma unroll
    for (int j = 0; j < V; ++j) {
      if (!has(j)) continue;
      add_vector<F>(x[vector(j)], dy[vector(j)], scale[j], rstd, dot, sums[j], row, column(j), p);
    }
    return dot;
  }

  /// Writes dx of the slice, if it is wanted.
  __device__ __forceinline__ void write(const unsigned char* stage, std::uint32_t part_bytes,
                                        GammaPack<T, G> (&scale)[V], float rstd, float projection,
                                        std::int64_t row, const BackwardParams<T>& p) const {
    if (p.dx == nullptr) return;
    const uint4* const x = reinterpret_cast<const uint4*>(stage);
    const uint4* const dy = reinterpret_cast<const uint4*>(stage + part_bytes);
    uint4* const dx = reinterpret_cast<uint4*>(p.dx + row_offset<F>(row, p.cols)) + first_vector;
#pragma unroll
    for (int j = 0; j < V; ++j) {
      if (!has(j)) continue;
      // Not kept in registers since the sums: the compiler must not see that these are the same
      // loads.
      asm volatile("" ::: "memory");
      dx[vector(j)] = dx_vector<F, T>(x[vector(j)], dy[vector(j)], scale[j], rstd, projection);
    }
  }

  /// The partial row of the slice.
  __device__ __forceinline__ void write_partial(const float (&sums)[V][W], float* partial) const {
#pragma unroll
    for (int j = 0; j < V; ++j) {
      if (!has(j)) continue;
      store_floats(partial + column(j), sums[j]);
    }
  }
};

/// A block per row, four vectors per thread.
template <class T, class G, Fault F>
__global__ void __launch_bounds__(kRingThreads + 32, 1)
    backward_ring_kernel(BackwardParams<T> p, const G* __restrict__ gamma, RingParams ring) {
#if __CUDA_ARCH__ >= 900  // the policy never chooses it below
  constexpr int V = 4, W = kPack<T>;
  extern __shared__ __align__(128) unsigned char shared[];
  RingHeader& header = *reinterpret_cast<RingHeader*>(shared);
  unsigned char* stages = ring_start(shared);
  const BarrierAddress full = shared_address(header.full), empty = shared_address(header.empty);
  const int thread = static_cast<int>(threadIdx.x);
  const RingSlice<T, G, V, F> slice{thread, static_cast<int>(p.cols / W), 0};
  const std::int64_t first_row = blockIdx.x, row_step = gridDim.x;

  allow_next_kernel();
  prepare_ring<false>(header, ring.stages, 1, kRingThreads / 32);
  wait_for_previous_kernel();

  if (thread >= kRingThreads) {
    if (thread == kRingThreads) {
      issue_rows(ring, header, stages, p.rows, first_row, row_step, 0,
                 static_cast<unsigned>(slice.vectors) * 16, normal_priority(), p.x, p.dy);
    }
    return;
  }
  float sums[V][W] = {};
  GammaPack<T, G> scale[V];
  slice.load(scale, gamma);
  float next_rstd = first_row < p.rows ? saved_rstd_of<F>(p, first_row) : 0.0f;
  int stage = 0;
  unsigned parity = 0, turn = 0;
#pragma unroll 1
  for (std::int64_t row = first_row; row < p.rows; row += row_step, turn ^= 1) {
    const float rstd = next_rstd;
    if (row + row_step < p.rows) next_rstd = saved_rstd_of<F>(p, row + row_step);
    const unsigned char* const part = stages + std::size_t{2} * ring.part_bytes * stage;
    barrier_wait(full + static_cast<unsigned>(stage) * 8, parity);
    const float dot = lanes_sum(slice.add(part, ring.part_bytes, scale, rstd, sums, row, p));
    float* const row_sums = header.group_sums[0][turn];  // of two, so that one barrier is enough
    if (thread % 32 == 0) row_sums[thread / 32] = dot;
    group_barrier(0, kRingThreads);
    const float projection =
        projection_factor<F>(rstd, sum_of_warps(row_sums) * rstd * p.inverse_cols);
    slice.write(part, ring.part_bytes, scale, rstd, projection, row, p);
    __syncwarp();
    if (thread % 32 == 0) barrier_arrive(empty + static_cast<unsigned>(stage) * 8);
    if (++stage == ring.stages) {
      stage = 0;
      parity ^= 1;
    }
  }
  if (p.partials != nullptr)
    slice.write_partial(sums, p.partials + std::int64_t{blockIdx.x} * p.pitch);
#endif
}

/// A row spread over the blocks of a cluster, which exchange their dots through each other's shared
/// memory. The exchange takes about a microsecond and is hidden: dots run kAhead rows before the dx
/// that needs them.
template <class T, class G, int V, unsigned kAhead, Fault F>
__global__ void __launch_bounds__(kRingThreads + 32, 1)
    backward_ring_cluster_kernel(BackwardParams<T> p, const G* __restrict__ gamma,
                                 RingParams ring) {
#if __CUDA_ARCH__ >= 900  // the policy never chooses it below
  constexpr int W = kPack<T>, kWarps = kRingThreads / 32;
  // A block may be kAhead + 1 turns ahead of another, which may be reading sums kAhead turns old.
  static_assert(2 * kAhead + 2 <= kExchanges);
  extern __shared__ __align__(128) unsigned char shared[];
  RingHeader& header = *reinterpret_cast<RingHeader*>(shared);
  unsigned char* stages = ring_start(shared);
  const BarrierAddress full = shared_address(header.full), empty = shared_address(header.empty);
  const BarrierAddress exchanged = shared_address(header.exchanged);
  const int thread = static_cast<int>(threadIdx.x);
  const unsigned rank = cluster_rank();
  const std::int64_t first_vector = rank * ring.slice;
  const RingSlice<T, G, V, F> slice{
      thread, static_cast<int>(max(std::int64_t{0}, min(ring.slice, p.cols / W - first_vector))),
      first_vector};
  const std::int64_t first_row = blockIdx.x / ring.cluster, row_step = gridDim.x / ring.cluster;

  allow_next_kernel();
  prepare_ring<true>(header, ring.stages, 1, kWarps);
  wait_for_previous_kernel();

  if (thread >= kRingThreads) {
    if (thread == kRingThreads) {
      issue_rows(ring, header, stages, p.rows, first_row, row_step, first_vector * W,
                 static_cast<unsigned>(slice.vectors) * 16, normal_priority(), p.x, p.dy);
    }
    __syncwarp();
  } else {
    float sums[V][W] = {};
    GammaPack<T, G> scale[V];
    slice.load(scale, gamma);
    const int lane = thread % 32;
    int stage = 0, write_stage = 0;
    unsigned parity = 0, turn = 0;
    float rstds[kAhead + 1] = {},
                         next_rstd = first_row < p.rows ? saved_rstd_of<F>(p, first_row) : 0.0f;
    // kAhead turns more than rows: the last only write.
#pragma unroll 1
    for (std::int64_t row = first_row; row < p.rows + kAhead * row_step; row += row_step, ++turn) {
#pragma unroll
      for (unsigned i = kAhead; i > 0; --i) rstds[i] = rstds[i - 1];
      if (row < p.rows) {
        rstds[0] = next_rstd;
        if (row + row_step < p.rows) next_rstd = saved_rstd_of<F>(p, row + row_step);
        const unsigned char* const part = stages + std::size_t{2} * ring.part_bytes * stage;
        barrier_wait(full + static_cast<unsigned>(stage) * 8, parity);
        const float dot =
            lanes_sum(slice.add(part, ring.part_bytes, scale, rstds[0], sums, row, p));
        send_to_cluster(dot, ring, kWarps, header, exchanged, turn, rank, thread, lane);
      }
      if (turn >= kAhead) {
        const float write_rstd = rstds[kAhead];
        const unsigned slot = (turn - kAhead) % kExchanges;
        barrier_wait_cluster(exchanged + slot * 8, ((turn - kAhead) / kExchanges) & 1);
        const float total = sum_of_cluster(&header.cluster_sums[slot][0][0], ring.cluster);
        const float projection =
            projection_factor<F>(write_rstd, total * write_rstd * p.inverse_cols);
        slice.write(stages + std::size_t{2} * ring.part_bytes * write_stage, ring.part_bytes, scale,
                    write_rstd, projection, row - kAhead * row_step, p);
        __syncwarp();
        if (lane == 0) barrier_arrive(empty + static_cast<unsigned>(write_stage) * 8);
        if (++write_stage == ring.stages) write_stage = 0;
      }
      if (++stage == ring.stages) {
        stage = 0;
        parity ^= 1;
      }
    }
    if (p.partials != nullptr) slice.write_partial(sums, p.partials + first_row * p.pitch);
  }
  cluster_barrier();  // no block leaves while another may still store into its memory
#endif
}

}  // namespace rmsnorm::kernels::cuda
