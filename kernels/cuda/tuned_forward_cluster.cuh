#pragma once

#include "kernels/cuda/hopper.cuh"
#include "kernels/cuda/tuned_forward.cuh"

// Forward of long rows, sm_90 and later: a row waits in shared memory and not in registers.

namespace rmsnorm::kernels::cuda {

/// A cluster of blocks per row: a row too long for one block is still read from memory once. One
/// thread copies the block's slice into shared memory, so that no register waits for a load and
/// several blocks fit an SM; the blocks exchange their sums of squares through each other's shared
/// memory. A cluster of one block is launched as a plain grid.
///
/// kShifted: rows start anywhere. The slices are of the row's frame, which begins at the 16-byte
/// boundary before it; the elements of its first and last vector come one by one, so that nothing
/// outside the row is read, and zeros stand for what is not the row's. kOneShift: those of y lie in
/// the same frame, and gamma begins at a 16-byte boundary. Otherwise the vectors of y, which has a
/// frame of its own, are joined out of shared memory.
template <class T, class G, int kThreads, bool kShifted, bool kOneShift, Fault F>
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
                loaded, p.x_priority());
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
    const auto store_one = [&](const T* from, int column) {
      if (column < 0 || column >= cols) return;
      const float value[1] = {widen(*from)};
      const float factor[1] = {gamma == nullptr ? 1.0f : static_cast<float>(widen(gamma[column]))};
      store_elements<F>(value, factor, rstd, y + column, row, column, p);
    };
    const int first_column = static_cast<int>(begin) * W - shift;
    const T* elements = reinterpret_cast<const T*>(slice_bytes);
    if constexpr (kOneShift) {
      // Where gamma ends before the last vector that would be read of it, single elements of it do.
      const int head = (kPack<G> - shift % kPack<G>) % kPack<G>;
      const int left = cols - first_column - W - kPack<G> + head;
      const int joined_end = gamma == nullptr || left < 0 ? 0 : min(whole_end, left / W + 1);
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
      // What of y's frame lies in the slice.
      const int y_past = static_cast<int>(reinterpret_cast<std::uintptr_t>(y) / sizeof(T) % W);
      const int from = max(first_column, 0), until = min(first_column + mine * W, cols);
      const int whole_from = (from + y_past + W - 1) / W * W - y_past;
      const int whole_until = (until + y_past) / W * W - y_past;
      const bool by_vectors = gamma != nullptr && reinterpret_cast<std::uintptr_t>(gamma) % 16 == 0;
      const int apart = (whole_from - first_column) % W, head = (W - y_past) % kPack<G>;
#pragma unroll 1
      for (int column = whole_from + thread * W; column < whole_until; column += kThreads * W) {
        const uint4* const at = x + (column - first_column) / W;
        float values[W], factors[W];
        load_factors<T>(gamma, by_vectors, column, head, cols, factors);
        widen_pack<T>(joined<T>(at[0], at[apart > 0 ? 1 : 0], apart), values);
        store_elements<F>(values, factors, rstd, y + column, row, column, p);
      }
      // Elements on both sides of these vectors, fewer than a vector each.
      const int before = min(whole_from, until) - from,
                column = thread < W ? from + thread : max(whole_from, whole_until) + thread - W;
      if (thread < W ? thread < before : thread < 2 * W && column < until)
        store_one(elements + (column - first_column), column);
    }
  }
#endif
}

}  // namespace rmsnorm::kernels::cuda
