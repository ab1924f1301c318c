#pragma once

#include "kernels/cuda/tuned_ring.cuh"

// Backward by a ring, rows of whole vectors at 16-byte boundaries: a block per row, or a cluster.

namespace rmsnorm::kernels::cuda {

/// The part of a row that a thread works on, in a stage of the ring.
template <class T, class G, int V, bool kExact, Fault F>
struct RingSlice {
  static constexpr int W = kPack<T>;
  int thread, threads, vectors;  ///< vectors: of the block's slice

  __device__ __forceinline__ int vector(int j) const { return thread + j * threads; }
  __device__ __forceinline__ bool has(int j) const { return kExact || vector(j) < vectors; }

  /// This thread's share of sum(dy * gamma * x); leaves x and dy packed.
  __device__ __forceinline__ float dot(const uint4* x_stage, const uint4* dy_stage,
                                       GammaPack<T, G> (&scale)[V], uint4 (&x)[V], uint4 (&dy)[V],
                                       std::int64_t first_vector,
                                       const BackwardParams<T>& p) const {
    float sum = 0;
#pragma unroll
    for (int j = 0; j < V; ++j) {
      if (!has(j)) continue;
      x[j] = x_stage[vector(j)];
      dy[j] = dy_stage[vector(j)];
      sum += dot_of_vector<F>(x[j], dy[j], scale[j], (first_vector + vector(j)) * W, p);
    }
    return sum;
  }

  /// Writes dx of the slice (unless nullptr) and adds its share of dgamma to `sums`.
  __device__ __forceinline__ void write(const uint4 (&x)[V], const uint4 (&dy)[V],
                                        GammaPack<T, G> (&scale)[V], int j, float rstd,
                                        float projection, T* dx, float (&sums)[V][W],
                                        std::int64_t row, const BackwardParams<T>& p) const {
    float out[W];
    backward_of_vector<F>(x[j], dy[j], scale[j], rstd, projection, out, sums[j], row, p);
    const uint4 packed = narrow_pack<T>(out);
    if (dx != nullptr) *(reinterpret_cast<uint4*>(dx) + vector(j)) = packed;
  }
};

/// Rows of whole vectors at 16-byte boundaries. Block: groups * group_threads threads and one warp
/// that issues the copies. kReread: x and dy are read from shared memory twice, for rows whose
/// packed halves do not fit the registers beside gamma and the sums.
template <class T, class G, int V, bool kReread, bool kExact, bool kOneWarp, Fault F>
__global__ void __launch_bounds__(kExact || kOneWarp ? 512 : 544, 1)
    backward_ring_kernel(BackwardParams<T> p, const G* __restrict__ gamma, RingParams ring) {
#if __CUDA_ARCH__ >= 900  // the policy never chooses it below
  constexpr int W = kPack<T>;
  extern __shared__ __align__(128) unsigned char shared[];
  RingHeader& header = *reinterpret_cast<RingHeader*>(shared);
  unsigned char* stages = ring_start(shared);
  const BarrierAddress full = shared_address(header.full), empty = shared_address(header.empty);
  const int consumers = ring.groups * ring.group_threads;
  const int group = static_cast<int>(threadIdx.x) / ring.group_threads;
  const RingSlice<T, G, V, kExact, F> slice{static_cast<int>(threadIdx.x) % ring.group_threads,
                                            ring.group_threads, static_cast<int>(p.cols / W)};
  const RingLayout layout(ring, blockIdx.x, gridDim.x, group);

  allow_next_kernel();
  prepare_ring<false>(header, ring.stages * ring.groups, 1,
                      (ring.together ? ring.groups : 1) * (kReread ? ring.group_threads / 32 : 1));
  wait_for_previous_kernel();

  float sums[V][W] = {};
  if (static_cast<int>(threadIdx.x) >= consumers) {
    issue_rows(p, ring, header, stages, blockIdx.x, gridDim.x, 0,
               static_cast<unsigned>(slice.vectors) * 16);
    __syncwarp();
  } else {
    GammaPack<T, G> scale[V];
#pragma unroll
    for (int j = 0; j < V; ++j) {
      if (slice.has(j)) scale[j].load(gamma, slice.vector(j));
    }
    const std::int64_t group_step = layout.row_step;
    std::int64_t row = layout.first_row;
    float next_rstd = row < p.rows ? saved_rstd_of<F>(p, row) : 0.0f;
    int stage = 0;
    unsigned parity = 0, turn = 0;
#pragma unroll 1
    for (; row < p.rows; row += group_step, turn ^= 1) {
      const float rstd = next_rstd;
      if (row + group_step < p.rows) next_rstd = saved_rstd_of<F>(p, row + group_step);
      const unsigned slot = layout.slot(stage);
      const uint4* x_stage = reinterpret_cast<const uint4*>(stages + layout.x(stage));
      const uint4* dy_stage = reinterpret_cast<const uint4*>(stages + layout.dy(stage));
      barrier_wait(full + slot, parity);

      uint4 x[V], dy[V];
      const float dot = lanes_sum(slice.dot(x_stage, dy_stage, scale, x, dy, 0, p));
      float* group_sums =
          header.group_sums[group][turn];  // two, so that one barrier per row is enough
      if constexpr (kOneWarp) {
        __syncwarp();  // all lanes have read the stage
      } else {
        if (slice.thread % 32 == 0) group_sums[slice.thread / 32] = dot;
        group_barrier(group, ring.group_threads);
      }
      if (!kReread && slice.thread == 0) barrier_arrive(empty + slot);
      const float total = kOneWarp ? dot : sum_of_warps(group_sums);
      const float projection = projection_factor<F>(rstd, total * rstd * p.inverse_cols);
      T* dx = p.dx == nullptr ? nullptr : p.dx + row_offset<F>(row, p.cols);
#pragma unroll
      for (int j = 0; j < V; ++j) {
        if (!slice.has(j)) continue;
        if constexpr (kReread) {
          // Not kept in registers across the barrier: the compiler must not see that these are the
          // same loads.
          asm volatile("" ::: "memory");
          x[j] = x_stage[slice.vector(j)];
          dy[j] = dy_stage[slice.vector(j)];
        } else {
          pin(x[j]);
          pin(dy[j]);
        }
        slice.write(x, dy, scale, j, rstd, projection, dx, sums, row, p);
      }
      if constexpr (kReread) {
        __syncwarp();
        if (slice.thread % 32 == 0) barrier_arrive(empty + slot);
      }
      if (++stage == ring.stages) {
        stage = 0;
        parity ^= 1;
      }
    }
  }
  __syncthreads();
  if (p.partials == nullptr) return;
  write_partial_row(
      sums, reinterpret_cast<float*>(stages), group, ring.groups, slice.thread, ring.group_threads,
      p.partials + std::int64_t{blockIdx.x} * p.pitch,
      [&](int j) -> std::int64_t { return slice.has(j) ? std::int64_t{slice.vector(j)} * W : -1; });
#endif
}

/// A row spread over the blocks of a cluster, which exchange their dots through each other's shared
/// memory. The exchange takes about a microsecond and is hidden: dots run kAhead rows before the dx
/// that needs them. Those rows stay in the ring and are read twice.
template <class T, class G, int V, unsigned kAhead, Fault F>
__global__ void __launch_bounds__(544, 1)
    backward_ring_cluster_kernel(BackwardParams<T> p, const G* __restrict__ gamma,
                                 RingParams ring) {
#if __CUDA_ARCH__ >= 900  // the policy never chooses it below
  constexpr int W = kPack<T>, kThreads = 512;
  // A block may be kAhead + 1 turns ahead of another, which may be reading sums kAhead turns old.
  static_assert(2 * kAhead + 2 <= kExchanges);
  extern __shared__ __align__(128) unsigned char shared[];
  RingHeader& header = *reinterpret_cast<RingHeader*>(shared);
  unsigned char* stages = ring_start(shared);
  const BarrierAddress full = shared_address(header.full), empty = shared_address(header.empty);
  const BarrierAddress exchanged = shared_address(header.exchanged);
  const unsigned rank = cluster_rank();
  const std::int64_t first_vector = rank * ring.slice;
  const std::int64_t row_vectors = p.cols / W;
  const RingSlice<T, G, V, false, F> slice{
      static_cast<int>(threadIdx.x) % kThreads, kThreads,
      static_cast<int>(max(std::int64_t{0}, min(ring.slice, row_vectors - first_vector)))};
  const std::int64_t first_row = blockIdx.x / ring.cluster, row_step = gridDim.x / ring.cluster;
  constexpr int kWarps = kThreads / 32;

  allow_next_kernel();
  prepare_ring<true>(header, ring.stages, 1, kWarps);
  wait_for_previous_kernel();

  float sums[V][W] = {};
  const bool consumer = static_cast<int>(threadIdx.x) < kThreads;
  if (!consumer) {
    issue_rows(p, ring, header, stages, first_row, row_step, first_vector * W,
               static_cast<unsigned>(slice.vectors) * 16);
    __syncwarp();
  } else {
    GammaPack<T, G> scale[V];
#pragma unroll
    for (int j = 0; j < V; ++j) {
      if (slice.has(j)) scale[j].load(gamma, first_vector + slice.vector(j));
    }
    const int lane = slice.thread % 32;
    int stage = 0, write_stage = 0;
    unsigned parity = 0, turn = 0;
    float rstds[kAhead + 1] = {},
                         next_rstd = first_row < p.rows ? saved_rstd_of<F>(p, first_row) : 0.0f;
    uint4 x[V], dy[V];
    // kAhead turns more than rows: the last only write.
#pragma unroll 1
    for (std::int64_t row = first_row; row < p.rows + kAhead * row_step; row += row_step, ++turn) {
#pragma unroll
      for (unsigned i = kAhead; i > 0; --i) rstds[i] = rstds[i - 1];
      if (row < p.rows) {
        rstds[0] = next_rstd;
        if (row + row_step < p.rows) next_rstd = saved_rstd_of<F>(p, row + row_step);
        const unsigned char* part = stages + std::size_t{2} * ring.part_bytes * stage;
        barrier_wait(full + static_cast<unsigned>(stage) * 8, parity);
        const float dot = lanes_sum(slice.dot(
            reinterpret_cast<const uint4*>(part),
            reinterpret_cast<const uint4*>(part + ring.part_bytes), scale, x, dy, first_vector, p));
        // Every warp leaves its sum with every block; the barrier of this turn counts the bytes
        // that come.
        const unsigned slot = turn % kExchanges;
        if (slice.thread == 0) {
          barrier_arrive_expect(exchanged + slot * 8,
                                static_cast<unsigned>(ring.cluster * kWarps) * 4);
        }
        if (lane < ring.cluster) {
          store_remote(dot, shared_address(&header.cluster_sums[slot][rank][slice.thread / 32]),
                       exchanged + slot * 8, static_cast<unsigned>(lane));
        }
      }
      if (turn >= kAhead) {
        const float write_rstd = rstds[kAhead];
        const unsigned slot = (turn - kAhead) % kExchanges;
        barrier_wait_cluster(exchanged + slot * 8, ((turn - kAhead) / kExchanges) & 1);
        const float total = sum_of_cluster(&header.cluster_sums[slot][0][0], ring.cluster);
        const float projection =
            projection_factor<F>(write_rstd, total * write_rstd * p.inverse_cols);
        const unsigned char* part = stages + std::size_t{2} * ring.part_bytes * write_stage;
        const uint4* x_stage = reinterpret_cast<const uint4*>(part);
        const uint4* dy_stage = reinterpret_cast<const uint4*>(part + ring.part_bytes);
        T* dx = p.dx == nullptr
                    ? nullptr
                    : p.dx + row_offset<F>(row - kAhead * row_step, p.cols) + first_vector * W;
#pragma unroll
        for (int j = 0; j < V; ++j) {
          if (!slice.has(j)) continue;
          asm volatile("" ::: "memory");
          x[j] = x_stage[slice.vector(j)];
          dy[j] = dy_stage[slice.vector(j)];
          // Asked for with a fault alone; to the product, the number would be one more in the loop.
          const std::int64_t asked_row = kIsInGradients<F> ? row - kAhead * row_step : 0;
          slice.write(x, dy, scale, j, write_rstd, projection, dx, sums, asked_row, p);
        }
        __syncwarp();
        if (lane == 0) barrier_arrive(empty + static_cast<unsigned>(write_stage) * 8);
        if (++write_stage == ring.stages) write_stage = 0;
      }
      if (++stage == ring.stages) {
        stage = 0;
        parity ^= 1;
      }
    }
  }
  __syncthreads();
  if (p.partials != nullptr) {
    write_partial_row(sums, reinterpret_cast<float*>(stages), consumer ? 0 : 1, 1, slice.thread,
                      kThreads, p.partials + first_row * p.pitch, [&](int j) -> std::int64_t {
                        return slice.has(j) ? (first_vector + slice.vector(j)) * W : -1;
                      });
  }
  cluster_barrier();  // no block leaves while another may still store into its memory
#endif
}

}  // namespace rmsnorm::kernels::cuda
