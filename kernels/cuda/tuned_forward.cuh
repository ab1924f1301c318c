#pragma once

#include "kernels/cuda/policy.hpp"
#include "kernels/cuda/tuned_forward_steps.cuh"

// Forward. One read of x, one write of y: the row stays packed in registers between the sum of
// squares and the output. Plain grids, one row per block or lane group and no loop: the hardware
// hands rows to whichever SM is free, and many resident blocks keep the 64 KB per SM in flight that
// the memory needs; persistent blocks lost 8 to 30 %.

namespace rmsnorm::kernels::cuda {

/// The sum over the block with one barrier; every warp adds the warps' sums itself. Once per
/// kernel.
__device__ __forceinline__ float block_sum_once(float value) {
  __shared__ float warp_sums[kMaxWarps];
  value = lanes_sum(value);
  const int thread = static_cast<int>(threadIdx.x), warps = static_cast<int>(blockDim.x) / 32;
  if (thread % 32 == 0) warp_sums[thread / 32] = value;
  __syncthreads();
  // By shuffles: with all sums in the registers of a thread, one block of float32 rows fewer fits.
  const int warp = thread % kMaxWarps;
  const float total = lanes_sum(warp < warps ? warp_sums[warp] : 0.0f, lane_group(kMaxWarps));
  asm volatile("" ::: "memory");  // loads that come after it stay after it
  return total;
}

/// kLanes lanes of a warp per row, V vectors each. gamma is loaded before the sums, so that its
/// latency hides behind x. kRows rows at once, because one leaves too few loads in flight; the
/// block then stores rstd of all its rows together, and behind that barrier all of y: the memory
/// takes what comes at one time for one place better than rows that come as they are ready.
template <class T, class G, int kLanes, int V, int kRows, bool kKeepX, Fault F>
__global__ void __launch_bounds__(kForwardLanesThreads)
    forward_lanes_kernel(ForwardParams<T> p, const G* __restrict__ gamma) {
  constexpr int W = kPack<T>, kGroups = kForwardLanesThreads / kLanes, kBlockRows = kRows * kGroups;
  using A = Access<T, W>;
  allow_next_kernel();
  const auto lane = static_cast<int>(threadIdx.x % kLanes);
  const auto group = static_cast<int>(threadIdx.x / kLanes);
  const int cols = static_cast<int>(p.cols);
  const std::int64_t first = std::int64_t{blockIdx.x} * kBlockRows;
  // Several rows are compared in 32 bits, counted from the block's first: that takes fewer
  // registers, but longer for a single one.
  const auto row_of = [&](int r) { return r * kGroups + group; };
  const auto rows = static_cast<int>(min(p.rows - first, std::int64_t{kBlockRows}));
  const auto is_row = [&](int r) {
    return kRows == 1 ? first + row_of(r) < p.rows : row_of(r) < rows;
  };
  wait_for_previous_kernel();
  typename A::Packed packed[kRows][V];
#pragma unroll
  for (int r = 0; r < kRows; ++r) {
    const bool there = is_row(r);
    const T* x = kept<kKeepX>(p.x(first + (there ? row_of(r) : 0)));
#pragma unroll
    for (int j = 0; j < V; ++j) {
      const int column = (lane + j * kLanes) * W;
      packed[r][j] = there && column < cols ? A::load(x + column) : A::zero();
    }
  }
  LaneGamma<T, G, W> scale[V];
#pragma unroll
  for (int j = 0; j < V; ++j) {
    const int column = (lane + j * kLanes) * W;
    scale[j].load(gamma, column, column < cols);
  }
  float rstd[kRows];
#pragma unroll
  for (int r = 0; r < kRows; ++r) {
    float sum = 0;
#pragma unroll
    for (int j = 0; j < V; ++j) {
      float values[W];
      A::widen(packed[r][j], values);
      sum = add_squares<F>(sum, values, (lane + j * kLanes) * W, p);
    }
    rstd[r] = inverse_rms<F>(lanes_sum(sum, lane_group(kLanes)), p);
  }
  if (kRows == 1) {
    if (lane == 0 && is_row(0) && p.rstd != nullptr) keep_rstd<F>(p, first + row_of(0), rstd[0]);
  } else if (p.rstd != nullptr) {
    __shared__ float block_rstd[kBlockRows];
    if (lane == 0) {
#pragma unroll
      for (int r = 0; r < kRows; ++r) block_rstd[row_of(r)] = rstd[r];
    }
    __syncthreads();
#pragma unroll
    for (int i = static_cast<int>(threadIdx.x); i < kBlockRows; i += kForwardLanesThreads) {
      if (i < rows) keep_rstd<F>(p, first + i, block_rstd[i]);
    }
  }
#pragma unroll
  for (int r = 0; r < kRows; ++r) {
    if (!is_row(r)) continue;
    const std::int64_t row = first + row_of(r);
#pragma unroll
    for (int j = 0; j < V; ++j) {
      const int column = (lane + j * kLanes) * W;
      if (column >= cols) continue;
      float values[W], factors[W];
      A::widen(packed[r][j], values);
      scale[j].widen(factors);
      store_elements<F>(values, factors, rstd[r], p.y + row_offset<F>(row, p.cols) + column, row,
                        column, p);
    }
  }
}

/// Whether the j-th of a thread's `count` vectors lies in the row, whatever its columns: all but
/// the last do, in the blocks that the policy makes for a row. What needs no comparison leaves
/// sooner.
template <Fault F>
__device__ __forceinline__ bool is_always_in_row(int j, int count) {
  return kHasAllKernels<F> && j < count - 1;
}

/// A block per row, V vectors per thread.
template <class T, class G, int V, bool kKeepX, Fault F>
__global__ void __launch_bounds__(V == 3 ? kForwardThreadsOfThree : 512, V == 2   ? 3
                                                                         : V == 3 ? 4
                                                                                  : 2)
    forward_block_kernel(ForwardParams<T> p, const G* __restrict__ gamma) {
  // gamma is loaded before the barrier, which hides its latency, where a thread has registers for
  // it that would not be a block per SM; otherwise behind it, and comes from the caches.
  constexpr bool kGammaFirst = sizeof(G) <= sizeof(T) && (sizeof(T) == 4 || V < 4);
  constexpr int W = kPack<T>;
  allow_next_kernel();
  const std::int64_t row = blockIdx.x;
  const auto vector = [](int j) { return static_cast<int>(threadIdx.x + j * blockDim.x); };
  const int vectors = static_cast<int>(p.cols / W);
  // Comparing all of four vectors is faster than comparing one (README.md).
  const auto has = [&](int j) {
    return (V < 4 && is_always_in_row<F>(j, V)) || vector(j) < vectors;
  };
  wait_for_previous_kernel();
  const uint4* x = kept<kKeepX>(reinterpret_cast<const uint4*>(p.x(row)));
  uint4 packed[V];
#pragma unroll
  for (int j = 0; j < V; ++j) packed[j] = has(j) ? x[vector(j)] : uint4{0, 0, 0, 0};
  GammaPack<T, G> scale[V];
  const auto load_gamma = [&](int first, int count) {
#pragma unroll
    for (int j = first; j < V && j < first + count; ++j) {
      if (has(j)) scale[j].load(gamma, vector(j));
    }
  };
  if constexpr (kGammaFirst) load_gamma(0, V);
  float sum = 0;
#pragma unroll
  for (int j = 0; j < V; ++j) {
    float values[W];
    widen_pack<T>(packed[j], values);
    sum = add_squares<F>(sum, values, vector(j) * W, p);
  }
  const float rstd = inverse_rms<F>(block_sum_once(sum), p);
  if (threadIdx.x == 0 && p.rstd != nullptr) keep_rstd<F>(p, row, rstd);
#pragma unroll
  for (int j = 0; j < V; ++j) pin(packed[j]);  // not the widened row across the barrier
  uint4* y = reinterpret_cast<uint4*>(p.y + row_offset<F>(row, p.cols));
  // All of gamma at once, but where it would take twice the registers of x.
  constexpr int kAtOnce = sizeof(G) > sizeof(T) ? 1 : V;
#pragma unroll
  for (int j = 0; j < V; ++j) {
    if (!kGammaFirst && j % kAtOnce == 0) {
      asm volatile("" ::: "memory");
      load_gamma(j, kAtOnce);
    }
    if (!has(j)) continue;
    float values[W], factors[W];
    widen_pack<T>(packed[j], values);
    scale[j].widen(factors);
    store_elements<F>(values, factors, rstd, reinterpret_cast<T*>(y + vector(j)), row,
                      vector(j) * W, p);
  }
}

/// A block per row that does not fit the registers: the second read goes from the row's end to its
/// start, and finds most of it in L2.
template <class T, class G, Fault F>
__global__ void __launch_bounds__(512)
    forward_two_pass_kernel(ForwardParams<T> p, const G* __restrict__ gamma) {
  constexpr int W = kPack<T>;
  constexpr int kUnroll = 8;
  allow_next_kernel();
  const std::int64_t row = blockIdx.x;
  const std::int64_t vectors = p.cols / W;
  const std::int64_t step = std::int64_t{kUnroll} * blockDim.x;
  wait_for_previous_kernel();
  const uint4* x = reinterpret_cast<const uint4*>(p.x(row));
  float sum = 0;
  for (std::int64_t begin = 0; begin < vectors; begin += step) {
    uint4 packed[kUnroll];
#pragma unroll
    for (int j = 0; j < kUnroll; ++j) {
      const std::int64_t vector = begin + threadIdx.x + j * blockDim.x;
      packed[j] = vector < vectors ? x[vector] : uint4{0, 0, 0, 0};
    }
#pragma unroll
    for (int j = 0; j < kUnroll; ++j) {
      float values[W];
      widen_pack<T>(packed[j], values);
      sum = add_squares<F>(sum, values, (begin + threadIdx.x + j * blockDim.x) * W, p);
    }
  }
  const float rstd = inverse_rms<F>(block_sum_once(sum), p);
  if (threadIdx.x == 0 && p.rstd != nullptr) keep_rstd<F>(p, row, rstd);
  uint4* y = reinterpret_cast<uint4*>(p.y + row_offset<F>(row, p.cols));
  for (std::int64_t begin = (vectors - 1) / step * step; begin >= 0; begin -= step) {
    uint4 packed[kUnroll];
#pragma unroll
    for (int j = 0; j < kUnroll; ++j) {
      const std::int64_t vector = begin + threadIdx.x + j * blockDim.x;
      if (vector < vectors) packed[j] = x[vector];
    }
#pragma unroll
    for (int j = 0; j < kUnroll; ++j) {
      const std::int64_t vector = begin + threadIdx.x + j * blockDim.x;
      if (vector >= vectors) continue;
      GammaPack<T, G> scale;
      scale.load(gamma, vector);
      float values[W], factors[W];
      widen_pack<T>(packed[j], values);
      scale.widen(factors);
      store_elements<F>(values, factors, rstd, reinterpret_cast<T*>(y + vector), row, vector * W,
                        p);
    }
  }
}

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

/// The same of `cols` columns, wherever gamma begins, or ones where there is none. `by_vectors`: it
/// begins at a 16-byte boundary, so that single elements are needed at its end alone.
template <class T, class G>
__device__ __forceinline__ void load_factors(const G* gamma, bool by_vectors, int column, int head,
                                             int cols, float (&factors)[kPack<T>]) {
  if (by_vectors && column - head + kPack<T> + kPack<G> <= cols)
    return load_joined<T>(gamma, column, head, factors);
#pragma unroll
  for (int e = 0; e < kPack<T>; ++e)
    factors[e] = gamma == nullptr ? 1.0f : static_cast<float>(widen(gamma[column + e]));
}

constexpr int kPeelWarps = 8;  // a row each

/// Rows that start at any element: the vectors inside a row of x are read whole, the few elements
/// before and after them one per thread. A block per row, or a warp (kWarp) for short ones.
/// kOneShift: y lies as far past a 16-byte boundary as x, so that it is written by the same
/// vectors, and gamma is of x's dtype and aligned. Otherwise the row also goes to shared memory,
/// out of which the vectors of y are joined.
template <class T, class G, int V, bool kWarp, bool kOneShift, bool kKeepX, Fault F>
__global__ void __launch_bounds__(kWarp ? 32 * kPeelWarps : 512, kWarp    ? (V == 4 ? 3 : 1)
                                                                 : V == 2 ? 3
                                                                          : 2)
    forward_peel_kernel(ForwardParams<T> p, const G* __restrict__ gamma) {
  constexpr int W = kPack<T>;
  allow_next_kernel();
  const int t = static_cast<int>(threadIdx.x) % (kWarp ? 32 : 512);
  const int threads = kWarp ? 32 : static_cast<int>(blockDim.x);
  const std::int64_t row =
      kWarp ? std::int64_t{blockIdx.x} * kPeelWarps + threadIdx.x / 32 : std::int64_t{blockIdx.x};
  if (kWarp && row >= p.rows) return;
  wait_for_previous_kernel();
  constexpr int kStaged = kOneShift ? 1 : V * (kWarp ? 32 : 512) + 2;
  __shared__ uint4 staged_rows[kWarp && !kOneShift ? kPeelWarps : 1][kStaged];
  uint4* const staged = staged_rows[kWarp && !kOneShift ? threadIdx.x / 32 : 0];
  T* const elements = reinterpret_cast<T*>(staged);  // column c at `past` + c
  const T* x = kept<kKeepX>(p.x(row));
  T* y = p.y + row_offset<F>(row, p.cols);
  const int past = static_cast<int>(reinterpret_cast<std::uintptr_t>(x) / sizeof(T) % W);
  const int cols = static_cast<int>(p.cols);
  const int head = min((W - past) % W, cols);
  const int vectors = (cols - head) / W;
  const uint4* body = reinterpret_cast<const uint4*>(x + head);
  const auto vector = [&](int j) { return t + j * threads; };
  const auto has = [&](int j) {
    return (!kWarp && is_always_in_row<F>(j, V)) || vector(j) < vectors;
  };
  uint4 packed[V], scale[V];
#pragma unroll
  for (int j = 0; j < V; ++j) packed[j] = has(j) ? body[vector(j)] : uint4{0, 0, 0, 0};
  // The left-over elements: thread t takes the t-th, first those before the vectors, then those
  // behind.
  const int edges = cols - vectors * W;
  const int edge = t < head ? t : t + vectors * W;
  const float edge_value = t < edges ? widen(x[edge]) : 0.0f;
  float edge_factor = 1.0f;
  if (t < edges && gamma != nullptr) edge_factor = static_cast<float>(widen(gamma[edge]));
  // The loads of x leave first, whatever branches gamma's take.
  asm volatile("" ::: "memory");
  // gamma comes from a cache, so that all this is done before x is there; a pair at a time, because
  // a vector has to hold two until it is joined.
  if constexpr (kOneShift) {
    constexpr int kPair = V < 2 ? V : 2;
#pragma unroll
    for (int first = 0; first < V; first += kPair) {
      uint4 low[kPair], high[kPair];
#pragma unroll
      for (int i = 0; i < kPair; ++i) {
        const int j = first + i;
        if (!has(j)) continue;
        const uint4* source = reinterpret_cast<const uint4*>(gamma) + vector(j);
        low[i] = __ldg(source);
        // The second vector may reach past gamma's end in the last vector of the row, and in no
        // other; to know that costs a register too many where x is not kept.
        high[i] = (kKeepX && !kWarp && is_always_in_row<F>(j, V)) || (vector(j) + 2) * W <= cols
                      ? __ldg(source + 1)
                      : elements_between<T>(reinterpret_cast<const T*>(source + 1), 0, head);
      }
      join<T>(low, high, head);
#pragma unroll
      for (int i = 0; i < kPair; ++i) scale[first + i] = low[i];
    }
  }
  if constexpr (!kOneShift) {
#pragma unroll
    for (int j = 0; j < V; ++j) {
      if (has(j)) staged[(past + head) / W + vector(j)] = packed[j];
    }
    if (t < edges) narrow(edge_value, elements[past + edge]);
  }
  float sum = add_squares<F>(0.0f, {edge_value}, edge, p);
#pragma unroll
  for (int j = 0; j < V; ++j) {
    float values[W];
    widen_pack<T>(packed[j], values);
    sum = add_squares<F>(sum, values, head + vector(j) * W, p);
  }
  float total;
  if constexpr (kWarp) {
    total = lanes_sum(sum);
  } else {
    total = block_sum_once(sum);
  }
  const float rstd = inverse_rms<F>(total, p);
  if (t == 0 && p.rstd != nullptr) keep_rstd<F>(p, row, rstd);
  if constexpr (!kOneShift) {
    if constexpr (kWarp) __syncwarp();
    const int y_past = static_cast<int>(reinterpret_cast<std::uintptr_t>(y) / sizeof(T) % W);
    const int y_head = (W - y_past) % W, y_vectors = (cols - y_head) / W;
    const uint4* const from = staged + (past + y_head) / W;
    const int apart = (past + y_head) % W;
    const bool by_vectors = gamma != nullptr && reinterpret_cast<std::uintptr_t>(gamma) % 16 == 0;
#pragma unroll
    for (int j = 0; j < V; ++j) {
      if (vector(j) >= y_vectors) continue;
      const int column = y_head + vector(j) * W;
      float values[W], factors[W];
      load_factors<T>(gamma, by_vectors, column, y_head % kPack<G>, cols, factors);
      widen_pack<T>(joined<T>(from[vector(j)], from[vector(j) + (apart > 0 ? 1 : 0)], apart),
                    values);
      store_elements<F>(values, factors, rstd, y + column, row, column, p);
    }
    const int column = t < y_head ? t : t + y_vectors * W;
    if (column >= cols) return;
    const float factor = gamma == nullptr ? 1.0f : static_cast<float>(widen(gamma[column]));
    store_elements<F>({widen(elements[past + column])}, {factor}, rstd, y + column, row, column, p);
  } else {
#pragma unroll
    for (int j = 0; j < V; ++j) {
      pin(packed[j]);
      pin(scale[j]);
    }
#pragma unroll
    for (int j = 0; j < V; ++j) {
      if (!has(j)) continue;
      const int column = head + vector(j) * W;
      float values[W], factors[W];
      widen_pack<T>(packed[j], values);
      widen_pack<T>(scale[j], factors);
      store_elements<F>(values, factors, rstd, y + column, row, column, p);
    }
    // Last: the whole vectors of the other threads need not wait for these.
    if (t < edges) store_elements<F>({edge_value}, {edge_factor}, rstd, y + edge, row, edge, p);
  }
}

}  // namespace rmsnorm::kernels::cuda
