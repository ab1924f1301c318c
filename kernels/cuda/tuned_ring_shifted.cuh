#pragma once

#include "kernels/cuda/tuned_ring_elements.cuh"

// Backward of rows that start anywhere, as long as x, dy and dx of a row start equally far past a
// 16-byte boundary and that distance, the shift, is the same for all rows of a group: with odd cols
// it repeats every 8 (or 4) rows, and blocks * groups is a multiple of that. Then whole vectors can
// be used as in aligned rows: a thread's vectors lie in a frame that begins `shift` elements before
// the row. gamma is moved into the frame once, dgamma's sums stay in it until the end. The two
// vectors at the ends of the frame also hold elements of the neighbour rows, which count as zeros
// and are not written.

namespace rmsnorm::kernels::cuda {

/// Zeros for the elements of a vector outside [begin, end).
template <class T>
__device__ __forceinline__ void keep_elements(uint4& vector, int begin, int end) {
  constexpr int kPerWord = kPack<T> / 4;
  std::uint32_t* const words[4] = {&vector.x, &vector.y, &vector.z, &vector.w};
#pragma unroll
  for (int i = 0; i < 4; ++i) {
    std::uint32_t kept = 0;
#pragma unroll
    for (int e = 0; e < kPerWord; ++e) {
      const int element = i * kPerWord + e;
      const std::uint32_t bits = kPerWord == 1 ? 0xFFFFFFFFu : 0xFFFFu << (16 * e);
      if (element >= begin && element < end) kept |= bits;
    }
    *words[i] &= kept;
  }
}

/// Stores those elements of a vector that lie in [begin, end).
template <class T>
__device__ __forceinline__ void store_elements_of(const uint4& vector, T* to, int begin, int end) {
  float values[kPack<T>];
  widen_pack<T>(vector, values);
#pragma unroll
  for (int e = 0; e < kPack<T>; ++e) {
    if (e >= begin && e < end) narrow(values[e], to[e]);
  }
}

/// gamma of the columns [column, column + W), ones where there is none; zeros outside the row,
/// which meet zeros and must not be NaN.
template <class T, class G>
__device__ __forceinline__ GammaPack<T, G> load_gamma_at(const G* gamma, int column, int cols) {
  constexpr int W = kPack<T>;
  GammaPack<T, G> pack;
#pragma unroll
  for (int v = 0; v < GammaPack<T, G>::kVectors; ++v) {
    float values[kPack<G>];
#pragma unroll
    for (int e = 0; e < kPack<G>; ++e) {
      const int c = column + v * kPack<G> + e;
      values[e] = c < 0 || c >= cols ? 0.0f : gamma == nullptr ? 1.0f : widen(gamma[c]);
    }
    pack.packed[v] = narrow_pack<G>(values);  // exact: they were of type G
  }
  static_assert(W == kPack<G> * GammaPack<T, G>::kVectors);
  return pack;
}

/// More than four vectors per thread would spill: longer rows go to clusters.
template <class T, class G, int V, Fault F>
__global__ void __launch_bounds__(512, 1)
    backward_ring_shifted_kernel(BackwardParams<T> p, const G* __restrict__ gamma, RingParams ring,
                                 ElementWindows<T> windows) {
#if __CUDA_ARCH__ >= 900  // the policy never chooses it below
  constexpr int W = kPack<T>;
  extern __shared__ __align__(128) unsigned char shared[];
  RingHeader& header = *reinterpret_cast<RingHeader*>(shared);
  unsigned char* stages = ring_start(shared);
  const BarrierAddress full = shared_address(header.full), empty = shared_address(header.empty);
  const int consumers = ring.groups * ring.group_threads;
  const int cols = static_cast<int>(p.cols);

  allow_next_kernel();
  prepare_ring<false>(header, ring.stages * ring.groups, 1, ring.group_threads / 32);
  wait_for_previous_kernel();

  const int group = static_cast<int>(threadIdx.x) / ring.group_threads;
  const int thread = static_cast<int>(threadIdx.x) % ring.group_threads;
  const RingLayout layout(ring, blockIdx.x, gridDim.x, group);
  std::int64_t row = layout.first_row;
  const auto first = reinterpret_cast<std::uintptr_t>(p.x(row < p.rows ? row : 0));
  const int shift = static_cast<int>(first / sizeof(T) % W);
  float sums[V][W] = {};
  if (static_cast<int>(threadIdx.x) >= consumers) {
    issue_windows(p, ring, windows, header, stages);
    return;
  }
  const auto column = [&](int j) { return (thread + j * ring.group_threads) * W - shift; };
  GammaPack<T, G> scale[V];
#pragma unroll
  for (int j = 0; j < V; ++j) scale[j] = load_gamma_at<T, G>(gamma, column(j), cols);
  // Where a row's frame lies in its part of a stage: as far past 128 bytes as in memory.
  unsigned x_at = static_cast<unsigned>(first),
           dy_at = static_cast<unsigned>(
               reinterpret_cast<std::uintptr_t>(p.dy(row < p.rows ? row : 0)));
  const unsigned x_step = static_cast<unsigned>(layout.row_step * p.x.stride * sizeof(T)),
                 dy_step = static_cast<unsigned>(layout.row_step * p.dy.stride * sizeof(T));
  float next_rstd = row < p.rows ? saved_rstd_of<F>(p, row) : 0.0f;
  int stage = 0;
  unsigned parity = 0, turn = 0;
#pragma unroll 1
  for (; row < p.rows; row += layout.row_step, turn ^= 1) {
    const float rstd = next_rstd;
    if (row + layout.row_step < p.rows) next_rstd = saved_rstd_of<F>(p, row + layout.row_step);
    const unsigned slot = layout.slot(stage);
    const uint4* x_frame =
        reinterpret_cast<const uint4*>(stages + layout.x(stage) + (x_at & 112)) + thread;
    const uint4* dy_frame =
        reinterpret_cast<const uint4*>(stages + layout.dy(stage) + (dy_at & 112)) + thread;
    x_at += x_step;
    dy_at += dy_step;
    barrier_wait(full + slot, parity);

    uint4 x[V], dy[V];
    float dot = 0;
#pragma unroll
    for (int j = 0; j < V; ++j) {
      const int begin = column(j);
      if (begin >= cols) continue;
      x[j] = x_frame[j * ring.group_threads];
      dy[j] = dy_frame[j * ring.group_threads];
      if (begin < 0 || begin + W > cols) {
        keep_elements<T>(x[j], -begin, cols - begin);
        keep_elements<T>(dy[j], -begin, cols - begin);
      }
      add_vector<F>(x[j], dy[j], scale[j], rstd, dot, sums[j], row, begin, p);
    }
    dot = lanes_sum(dot);
    __syncwarp();  // all lanes have read the stage
    if (thread % 32 == 0) barrier_arrive(empty + slot);
    float* group_sums =
        header.group_sums[group][turn];  // two, so that one barrier per row is enough
    const bool one_warp = ring.group_threads == 32;
    if (!one_warp) {
      if (thread % 32 == 0) group_sums[thread / 32] = dot;
      group_barrier(group, ring.group_threads);
    }
    const float total = one_warp ? dot : sum_of_warps(group_sums);
    const float projection = projection_factor<F>(rstd, total * rstd * p.inverse_cols);
    T* dx = p.dx == nullptr ? nullptr : p.dx + row_offset<F>(row, p.cols);
#pragma unroll
    for (int j = 0; j < V; ++j) {
      const int begin = column(j);
      if (begin >= cols) continue;
      pin(x[j]);
      pin(dy[j]);
      if (dx == nullptr) continue;
      const uint4 packed = dx_vector<F, T>(x[j], dy[j], scale[j], rstd, projection);
      if (begin >= 0 && begin + W <= cols) {
        *reinterpret_cast<uint4*>(dx + begin) = packed;
      } else {
        store_elements_of<T>(packed, dx + begin, -begin, cols - begin);
      }
    }
    if (++stage == ring.stages) {
      stage = 0;
      parity ^= 1;
    }
  }
  if (p.partials == nullptr) return;
  groups_barrier(consumers);  // nothing uses the ring's memory any more
  // Groups may have other shifts, so the sums meet in the row's own columns.
  float* fold = reinterpret_cast<float*>(stages);
#pragma unroll
  for (int j = 0; j < V; ++j) {
#pragma unroll
    for (int e = 0; e < W; ++e) {
      const int c = column(j) + e;
      if (c >= 0 && c < cols) fold[group * p.pitch + c] = sums[j][e];
    }
  }
  groups_barrier(consumers);
  float* partial = p.partials + std::int64_t{blockIdx.x} * p.pitch;
  for (int c = static_cast<int>(threadIdx.x); c < static_cast<int>(p.pitch); c += consumers) {
    float total = 0;
    for (int g = 0; c < cols && g < ring.groups; ++g) total += fold[g * p.pitch + c];
    partial[c] = total;
  }
#endif
}

}  // namespace rmsnorm::kernels::cuda
