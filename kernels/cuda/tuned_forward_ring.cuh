#pragma once

#include "kernels/cuda/tuned_forward_steps.cuh"
#include "kernels/cuda/tuned_ring.cuh"

// Forward of rows that no block's registers hold: read from memory once, by a ring.

namespace rmsnorm::kernels::cuda {

constexpr int kForwardRingThreads = 512;  // that compute; one more warp issues the copies

/// A row spread over the blocks of a cluster, which stay on their SMs; V vectors of it per thread.
/// The blocks exchange their sums of squares through each other's shared memory, and meanwhile add
/// up the next row: y is written one row later, from the ring.
template <class T, class G, int V, Fault F>
__global__ void __launch_bounds__(kForwardRingThreads + 32, 1)
    forward_ring_kernel(ForwardParams<T> p, const G* __restrict__ gamma, RingParams ring) {
#if __CUDA_ARCH__ >= 900  // the policy never chooses it below
  constexpr int W = kPack<T>, kWarps = kForwardRingThreads / 32;
  extern __shared__ __align__(128) unsigned char shared[];
  RingHeader& header = *reinterpret_cast<RingHeader*>(shared);
  unsigned char* const stages = ring_start(shared);
  const BarrierAddress full = shared_address(header.full), empty = shared_address(header.empty);
  const BarrierAddress exchanged = shared_address(header.exchanged);
  const int thread = static_cast<int>(threadIdx.x), lane = thread % 32;
  const unsigned rank = cluster_rank();
  const std::int64_t first_vector = rank * ring.slice;
  const int vectors =
      static_cast<int>(max(std::int64_t{0}, min(ring.slice, p.cols / W - first_vector)));
  const std::int64_t first_row = blockIdx.x / ring.cluster, row_step = gridDim.x / ring.cluster;
  const auto vector = [&](int j) { return thread + j * kForwardRingThreads; };

  allow_next_kernel();
  prepare_ring<true>(header, ring.stages, 1, kWarps);
  wait_for_previous_kernel();

  if (thread >= kForwardRingThreads) {
    if (thread == kForwardRingThreads) {
      issue_rows(ring, header, stages, p.rows, first_row, row_step, first_vector * W,
                 static_cast<unsigned>(vectors) * 16, p.x_priority(), p.x);
    }
    __syncwarp();
  } else {
    GammaPack<T, G> scale[V];
#pragma unroll
    for (int j = 0; j < V; ++j) {
      if (vector(j) < vectors) scale[j].load(gamma, first_vector + vector(j));
    }
    int stage = 0, write_stage = 0;
    unsigned parity = 0, turn = 0;
    // One turn more than rows: the last only writes.
#pragma unroll 1
    for (std::int64_t row = first_row; row < p.rows + row_step; row += row_step, ++turn) {
      if (row < p.rows) {
        const uint4* const x =
            reinterpret_cast<const uint4*>(stages + std::size_t{ring.part_bytes} * stage);
        barrier_wait(full + static_cast<unsigned>(stage) * 8, parity);
        float sum = 0;
#pragma unroll
        for (int j = 0; j < V; ++j) {
          if (vector(j) >= vectors) continue;
          float values[W];
          widen_pack<T>(x[vector(j)], values);
          sum = add_squares<F>(sum, values, (first_vector + vector(j)) * W, p);
        }
        sum = lanes_sum(sum);
        send_to_cluster(sum, ring, kWarps, header, exchanged, turn, rank, thread, lane);
      }
      if (turn > 0) {
        const std::int64_t write_row = row - row_step;
        const unsigned slot = (turn - 1) % kExchanges;
        barrier_wait_cluster(exchanged + slot * 8, ((turn - 1) / kExchanges) & 1);
        const float rstd =
            inverse_rms<F>(sum_of_cluster(&header.cluster_sums[slot][0][0], ring.cluster), p);
        if (rank == 0 && thread == 0 && p.rstd != nullptr) keep_rstd<F>(p, write_row, rstd);
        const uint4* const x =
            reinterpret_cast<const uint4*>(stages + std::size_t{ring.part_bytes} * write_stage);
        uint4* const y =
            reinterpret_cast<uint4*>(p.y + row_offset<F>(write_row, p.cols)) + first_vector;
#pragma unroll
        for (int j = 0; j < V; ++j) {
          if (vector(j) >= vectors) continue;
          float values[W], factors[W];
          widen_pack<T>(x[vector(j)], values);
          scale[j].pin();
          scale[j].widen(factors);
          store_elements<F>(values, factors, rstd, reinterpret_cast<T*>(y + vector(j)), write_row,
                            (first_vector + vector(j)) * W, p);
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
  cluster_barrier();  // no block leaves while another may still store into its memory
#endif
}

}  // namespace rmsnorm::kernels::cuda
