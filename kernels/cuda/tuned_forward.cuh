#pragma once

#include "kernels/cuda/tuned_forward_steps.cuh"

// Forward. One read of x, one write of y: the row stays packed in registers between the sum of
// squares and the output. Plain grids, one row per block or lane group and no loop: the hardware
// hands rows to whichever SM is free, and many resident blocks keep the 64 KB per SM in flight that
// the memory needs; persistent blocks lost 8 to 30 %.

namespace rmsnorm::kernels::cuda {

/// The sum over the block with one barrier: every thread adds the warps' sums itself. Once per
/// kernel.
__device__ __forceinline__ float block_sum_once(float value) {
  __shared__ alignas(16) float warp_sums[kMaxWarps];
  value = lanes_sum(value);
  const int thread = static_cast<int>(threadIdx.x), warps = static_cast<int>(blockDim.x) / 32;
  if (thread % 32 == 0) warp_sums[thread / 32] = value;
  if (thread >= warps && thread < kMaxWarps) warp_sums[thread] = 0;
  __syncthreads();
  const float total = sum_of_warps(warp_sums);
  asm volatile("" ::: "memory");  // loads that come after it stay after it
  return total;
}

/// Some lanes of a warp per row, V vectors each; shuffles only. kRows rows at once, because one
/// leaves too few loads in flight. gamma is loaded before the sums, so that its latency hides
/// behind x.
template <class T, class G, int V, int kRows, bool kKeepX, Fault F>
__global__ void __launch_bounds__(256)
    forward_lanes_kernel(ForwardParams<T> p, const G* __restrict__ gamma, LaneGroup group) {
  constexpr int W = kPack<T>;
  using A = Access<T, W>;
  allow_next_kernel();
  const int thread = static_cast<int>(threadIdx.x), lane = group.lane(thread);
  const int lanes = group.lanes(), groups = group.group(256);
  const int cols = static_cast<int>(p.cols);
  const std::int64_t first = std::int64_t{blockIdx.x} * groups * kRows + group.group(thread);
  wait_for_previous_kernel();
  typename A::Packed packed[kRows][V];
#pragma unroll
  for (int r = 0; r < kRows; ++r) {
    const std::int64_t row = first + r * groups;
    const T* x = p.x(row < p.rows ? row : 0);
#pragma unroll
    for (int j = 0; j < V; ++j) {
      const int column = (lane + j * lanes) * W;
      const bool inside = row < p.rows && column < cols;
      packed[r][j] = kKeepX    ? load_to_keep(reinterpret_cast<const uint4*>(x + column), inside)
                     : !inside ? A::zero()
                     : V == 1  ? A::load_streaming(x + column)
                               : A::load(x + column);
    }
  }
  LaneGamma<T, G, W> scale[V];
#pragma unroll
  for (int j = 0; j < V; ++j) {
    const int column = (lane + j * lanes) * W;
    scale[j].load(gamma, column, column < cols);
  }
#pragma unroll
  for (int r = 0; r < kRows; ++r) {
    const std::int64_t row = first + r * groups;
    float sum = 0;
#pragma unroll
    for (int j = 0; j < V; ++j) {
      float values[W];
      A::widen(packed[r][j], values);
      sum = add_squares<F>(sum, values, (lane + j * lanes) * W, p);
    }
    const float rstd = inverse_rms<F>(lanes_sum(sum, group), p);
    if (row >= p.rows) continue;
#pragma unroll
    for (int j = 0; j < V; ++j) {
      const int column = (lane + j * lanes) * W;
      if (column >= cols) continue;
      float values[W], factors[W];
      A::widen(packed[r][j], values);
      scale[j].widen(factors);
      store_elements<F>(values, factors, rstd, p.y + row_offset<F>(row, p.cols) + column, row,
                        column, p);
    }
    if (lane == 0 && p.rstd != nullptr) keep_rstd<F>(p, row, rstd);
  }
}

/// A block per row, V vectors per thread. gamma is loaded behind the barrier: it comes from the
/// caches, and the registers that it would hold meanwhile are worth another block per SM.
template <class T, class G, int V, bool kKeepX, Fault F>
__global__ void __launch_bounds__(512, V == 2 ? 3 : 2)
    forward_block_kernel(ForwardParams<T> p, const G* __restrict__ gamma) {
  constexpr int W = kPack<T>;
  allow_next_kernel();
  const std::int64_t row = blockIdx.x;
  const int vectors = static_cast<int>(p.cols / W);
  wait_for_previous_kernel();
  const uint4* x = reinterpret_cast<const uint4*>(p.x(row));
  uint4 packed[V];
#pragma unroll
  for (int j = 0; j < V; ++j) {
    const int vector = static_cast<int>(threadIdx.x + j * blockDim.x);
    packed[j] = kKeepX             ? load_to_keep(x + vector, vector < vectors)
                : vector < vectors ? x[vector]
                                   : uint4{0, 0, 0, 0};
  }
  float sum = 0;
#pragma unroll
  for (int j = 0; j < V; ++j) {
    float values[W];
    widen_pack<T>(packed[j], values);
    sum = add_squares<F>(sum, values, static_cast<int>(threadIdx.x + j * blockDim.x) * W, p);
  }
  const float rstd = inverse_rms<F>(block_sum_once(sum), p);
  // All of gamma at once, but where it would take twice the registers of x.
  constexpr int kAtOnce = sizeof(G) > sizeof(T) ? 1 : V;
  GammaPack<T, G> scale[V];
  if (threadIdx.x == 0 && p.rstd != nullptr) keep_rstd<F>(p, row, rstd);
#pragma unroll
  for (int j = 0; j < V; ++j) pin(packed[j]);  // not the widened row across the barrier
  uint4* y = reinterpret_cast<uint4*>(p.y + row_offset<F>(row, p.cols));
#pragma unroll
  for (int j = 0; j < V; ++j) {
    if (j % kAtOnce == 0) {
      asm volatile("" ::: "memory");
#pragma unroll
      for (int k = j; k < V && k < j + kAtOnce; ++k) {
        const int vector = static_cast<int>(threadIdx.x + k * blockDim.x);
        if (vector < vectors) scale[k].load(gamma, vector);
      }
    }
    const int vector = static_cast<int>(threadIdx.x + j * blockDim.x);
    if (vector >= vectors) continue;
    float values[W], factors[W];
    widen_pack<T>(packed[j], values);
    scale[j].widen(factors);
    store_elements<F>(values, factors, rstd, reinterpret_cast<T*>(y + vector), row, vector * W, p);
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
template <class T, class G, int V, bool kWarp, bool kOneShift, Fault F>
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
  const T* x = p.x(row);
  T* y = p.y + row_offset<F>(row, p.cols);
  const int past = static_cast<int>(reinterpret_cast<std::uintptr_t>(x) / sizeof(T) % W);
  const int cols = static_cast<int>(p.cols);
  const int head = min((W - past) % W, cols);
  const int vectors = (cols - head) / W;
  const uint4* body = reinterpret_cast<const uint4*>(x + head);
  uint4 packed[V], scale[V];
#pragma unroll
  for (int j = 0; j < V; ++j) {
    const int vector = t + j * threads;
    packed[j] = vector < vectors ? body[vector] : uint4{0, 0, 0, 0};
  }
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
        const int vector = t + (first + i) * threads;
        if (vector >= vectors) continue;
        const uint4* source = reinterpret_cast<const uint4*>(gamma) + vector;
        low[i] = __ldg(source);
        // The second vector may reach past gamma's end in the last vector of the row.
        high[i] = (vector + 2) * W <= cols
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
      const int vector = t + j * threads;
      if (vector < vectors) staged[(past + head) / W + vector] = packed[j];
    }
    if (t < edges) narrow(edge_value, elements[past + edge]);
  }
  float sum = add_squares<F>(0.0f, {edge_value}, edge, p);
#pragma unroll
  for (int j = 0; j < V; ++j) {
    float values[W];
    widen_pack<T>(packed[j], values);
    sum = add_squares<F>(sum, values, head + (t + j * threads) * W, p);
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
      const int vector = t + j * threads;
      if (vector >= y_vectors) continue;
      const int column = y_head + vector * W;
      float values[W], factors[W];
      load_factors<T>(gamma, by_vectors, column, y_head % kPack<G>, cols, factors);
      widen_pack<T>(joined<T>(from[vector], from[vector + (apart > 0 ? 1 : 0)], apart), values);
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
      const int vector = t + j * threads;
      if (vector >= vectors) continue;
      const int column = head + vector * W;
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
