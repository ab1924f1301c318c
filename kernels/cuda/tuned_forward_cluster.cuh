#pragma once

#include "kernels/cuda/hopper.cuh"
#include "kernels/cuda/tuned_forward.cuh"

// Forward of long rows, sm_90 and later: a row waits in shared memory and not in registers.

namespace rmsnorm::kernels::cuda {

/// gamma of the W columns from `column` on, by vectors; that of the last goes on behind them.
/// `head` is column % kPack<G>, the same for the whole block.
template <class T, class G>
__device__ __forceinline__ void load_joined(const G* gamma, int column, int head,
                                            float (&factors)[kPack<T>]) {
  constexpr int kVectors = GammaPack<T, G>::kVectors;
  const uint4* source = reinterpret_cast<const uint4*>(gamma + (column - head));
  uint4 packed[kVectors + 1];
#pragma unroll
  for (int i = 0; i < kVectors + 1; ++i) packed[i] = __ldg(source + i);
#pragma unroll
  for (int i = 0; i < kVectors; ++i) {
    float part[kPack<G>];
    widen_pack<G>(joined<G>(packed[i], packed[i + 1], head), part);
#pragma unroll
    for (int e = 0; e < kPack<G>; ++e) factors[i * kPack<G> + e] = part[e];
  }
}

/// A cluster of blocks per row: a row too long for one block is still read from memory once. One
/// thread copies the block's slice into shared memory, so that no register waits for a load and
/// several blocks fit an SM; the blocks exchange their sums of squares through each other's shared
/// memory. A cluster of one block is launched as a plain grid.
///
/// kShifted: rows start anywhere. The slices are of the row's frame, which begins at the 16-byte
/// boundary before it; the elements of its first and last vector come one by one, so that nothing
/// outside the row is read, and zeros stand for what is not the row's.
template <class T, class G, int kThreads, bool kShifted, Fault F>
__global__ void __launch_bounds__(kThreads, 1536 / kThreads)
    forward_cluster_kernel(ForwardParams<T> p, const G* __restrict__ gamma, int cluster,
                           std::int64_t slice) {
#if __CUDA_ARCH__ >= 900  // the policy never chooses it below
  constexpr int W = kPack<T>, kWarps = kThreads / 32, kMaxCluster = 16;
  extern __shared__ __align__(128) unsigned char slice_bytes[];
  __shared__ std::uint64_t barriers[2];
  __shared__ float sums[kMaxCluster][kWarps];
  const BarrierAddress loaded = shared_address(&barriers[0]),
                       exchanged = shared_address(&barriers[1]);
  allow_next_kernel();
  const int thread = static_cast<int>(threadIdx.x);
  const bool is_spread = kThreads == 512 && cluster > 1;
  const unsigned rank = is_spread ? cluster_rank() : 0;
  const std::int64_t row = is_spread ? blockIdx.x / static_cast<unsigned>(cluster) : blockIdx.x;
  const T* row_start = p.x(row);
  // Elements between the frame's start and the row's.
  const int shift =
      kShifted ? static_cast<int>(reinterpret_cast<std::uintptr_t>(row_start) / sizeof(T) % W) : 0;
  const std::int64_t begin = rank * slice;  // in vectors of the frame
  const std::int64_t vectors = kShifted ? (p.cols + shift + W - 1) / W : p.cols / W;
  const int mine = static_cast<int>(max(std::int64_t{0}, min(slice, vectors - begin)));
  // Those of the slice that lie in the row as a whole.
  const int first_whole = kShifted && shift > 0 && rank == 0 ? 1 : 0;
  const int whole_end =
      kShifted ? static_cast<int>(min(std::int64_t{mine}, (p.cols + shift) / W - begin)) : mine;
  if (thread == 0) {
    barrier_init(loaded, 1);
    barrier_init(exchanged, 1);
    asm volatile("fence.mbarrier_init.release.cluster;" ::: "memory");
    asm volatile("fence.proxy.async.shared::cta;" ::: "memory");
    wait_for_previous_kernel();
    const int whole = max(0, whole_end - first_whole);
    barrier_arrive_expect(loaded, static_cast<unsigned>(whole) * 16);
    if (whole > 0) {
      bulk_copy(shared_address(slice_bytes) + static_cast<unsigned>(first_whole) * 16,
                row_start + (begin + first_whole) * W - shift, static_cast<unsigned>(whole) * 16,
                loaded);
    }
    if (is_spread) barrier_arrive_expect(exchanged, static_cast<unsigned>(cluster * kWarps) * 4);
  } else if (kShifted && thread >= 32 && thread < 32 + 2 * W) {
    // Another warp than the one that copies. First and last vector are two: rows are long.
    const int vector = thread < 32 + W ? 0 : whole_end, e = (thread - 32) % W;
    const bool is_edge =
        thread < 32 + W ? first_whole > 0 && mine > 0 : whole_end >= 0 && whole_end < mine;
    if (is_edge) {
      wait_for_previous_kernel();
      const std::int64_t column = (begin + vector) * W - shift + e;
      reinterpret_cast<T*>(slice_bytes)[vector * W + e] =
          column >= 0 && column < p.cols ? row_start[column] : constant<T>(0.0f);
    }
  }
  // The others may store once they know that this block's barriers are ready; the wait for them
  // hides under the load.
  if (is_spread) asm volatile("barrier.cluster.arrive.release.aligned;" ::: "memory");
  __syncthreads();
  wait_for_previous_kernel();
  const uint4* x = reinterpret_cast<const uint4*>(slice_bytes);
  barrier_wait(loaded, 0);
  float sum = 0;
#pragma unroll 4
  for (int vector = thread; vector < mine; vector += kThreads) {
    float values[W];
    widen_pack<T>(x[vector], values);
    sum = add_squares<F>(sum, values, (begin + vector) * W - shift, p);
  }
  float total = 0;
  if (is_spread) {
    sum = lanes_sum(sum);
    asm volatile("barrier.cluster.wait.acquire.aligned;" ::: "memory");
    const int lane = thread % 32;
    if (lane < cluster) {
      store_remote(sum, shared_address(&sums[rank][thread / 32]), exchanged,
                   static_cast<unsigned>(lane));
    }
    barrier_wait_cluster(exchanged, 0);
    for (int i = lane; i < cluster * kWarps; i += 32) total += (&sums[0][0])[i];
    total = lanes_sum(total);
  } else {
    total = block_sum_once(sum);
  }
  const float rstd = inverse_rms<F>(total, p);
  if (rank == 0 && thread == 0 && p.rstd != nullptr) keep_rstd<F>(p, row, rstd);
  T* y = p.y + row_offset<F>(row, p.cols);
  if constexpr (!kShifted) {
    // Four spill in six blocks of an SM, and beside a float32 gamma.
    constexpr int kAtOnce = kThreads == 512 && sizeof(G) <= sizeof(T) ? 4 : 2;
#pragma unroll kAtOnce
    for (int vector = thread; vector < mine; vector += kThreads) {
      const std::int64_t column = (begin + vector) * W;
      GammaPack<T, G> scale;
      scale.load(gamma, begin + vector);
      float values[W], factors[W];
      widen_pack<T>(x[vector], values);
      scale.widen(factors);
      store_elements<F>(values, factors, rstd, y + column, row, column, p);
    }
  } else {
    const int cols = static_cast<int>(p.cols);
    const bool same_phase =
        static_cast<int>(reinterpret_cast<std::uintptr_t>(y) / sizeof(T) % W) == shift;
    const bool gamma_aligned =
        gamma != nullptr && reinterpret_cast<std::uintptr_t>(gamma) % 16 == 0;
    const auto store_one = [&](const T* from, int column) {
      if (column < 0 || column >= cols) return;
      const float value[1] = {widen(*from)};
      const float factor[1] = {gamma == nullptr ? 1.0f : static_cast<float>(widen(gamma[column]))};
      store_elements<F>(value, factor, rstd, y + column, row, column, p);
    };
    const int first_column = static_cast<int>(begin) * W - shift;
    const T* elements = reinterpret_cast<const T*>(slice_bytes);
    if (same_phase) {
      // Where gamma is not aligned, or ends before the last vector that would be read of it, single
      // elements of it do.
      const int head = (kPack<G> - shift % kPack<G>) % kPack<G>;
      const int left = cols - first_column - W - kPack<G> + head;
      const int joined_end = !gamma_aligned || left < 0 ? 0 : min(whole_end, left / W + 1);
#pragma unroll 2
      for (int vector = first_whole + thread; vector < joined_end; vector += kThreads) {
        const int column = first_column + vector * W;
        float values[W], factors[W];
        load_joined<T>(gamma, column, head, factors);
        widen_pack<T>(x[vector], values);
        store_elements<F>(values, factors, rstd, y + column, row, column, p);
      }
#pragma unroll 1
      for (int vector = max(first_whole, joined_end) + thread; vector < whole_end;
           vector += kThreads) {
        const int column = first_column + vector * W;
        float values[W], factors[W];
#pragma unroll
        for (int e = 0; e < W; ++e) {
          factors[e] = gamma == nullptr ? 1.0f : static_cast<float>(widen(gamma[column + e]));
        }
        widen_pack<T>(x[vector], values);
        store_elements<F>(values, factors, rstd, y + column, row, column, p);
      }
      // Last, each by another warp than the vectors just above: nobody waits for all three.
      const int first_edge = thread - 32, last_edge = whole_end * W + thread - 64;
      if (first_whole > 0 && first_edge >= 0 && first_edge < W)
        store_one(elements + first_edge, first_column + first_edge);
      if (whole_end >= 0 && whole_end < mine && thread >= 64 && thread < 64 + W)
        store_one(elements + last_edge, first_column + last_edge);
    } else {
      // Neighbouring threads write neighbouring elements.
#pragma unroll 4
      for (int i = thread; i < mine * W; i += kThreads) store_one(elements + i, first_column + i);
    }
  }
#endif
}

}  // namespace rmsnorm::kernels::cuda
