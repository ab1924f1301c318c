#pragma once

#include "kernels/cuda/policy.hpp"
#include "kernels/cuda/tuned_backward_steps.cuh"
#include "kernels/cuda/tuned_forward.cuh"
#include "kernels/cuda/tuned_ring_shifted.cuh"

// Rows that no cluster holds, which start anywhere. What needs a whole row comes first, in a kernel
// of its own: sums over chunks of rows, left in the workspace. Then the second reading: y by
// chunks, or dx and dgamma by columns, so that dgamma's sums stay in registers.
//
// Threads have a vector of columns, and join its elements from the two vectors around them where it
// does not begin at a 16-byte boundary.

namespace rmsnorm::kernels::cuda {

/// The vector of elements from `from` on: one, or what two around it have of it. kAligned: `from`
/// is at a 16-byte boundary.
template <class T, bool kAligned>
__device__ __forceinline__ uint4 load_anywhere(const T* from) {
  if constexpr (kAligned) return *reinterpret_cast<const uint4*>(from);
  const auto address = reinterpret_cast<std::uintptr_t>(from);
  const auto past = static_cast<int>(address / sizeof(T) % kPack<T>);
  const uint4* const low = reinterpret_cast<const uint4*>(address & ~std::uintptr_t{15});
  const uint4 first = low[0], second = low[past > 0 ? 1 : 0];
  return joined<T>(first, second, past);
}

/// gamma of the columns [column, column + W), wherever gamma begins; ones where there is none,
/// zeros behind the row's end.
template <class T, class G, bool kAligned>
__device__ __forceinline__ GammaPack<T, G> column_gamma(const G* gamma, std::int64_t column,
                                                        std::int64_t cols) {
  constexpr int W = kPack<T>;
  GammaPack<T, G> pack;
  if (column < cols && (kAligned || (column >= W && cols - column >= 2 * W))) {
    if (gamma == nullptr) {
      pack.load(nullptr, 0);
    } else {
#pragma unroll
      for (int i = 0; i < GammaPack<T, G>::kVectors; ++i)
        pack.packed[i] = load_anywhere<G, kAligned>(gamma + column + i * kPack<G>);
    }
    return pack;
  }
  const int left = static_cast<int>(max(std::int64_t{0}, min(cols - column, std::int64_t{W})));
  return load_gamma_at<T, G>(gamma == nullptr ? gamma : gamma + column, 0, left);
}

/// Stores the first `count` elements of a vector per lane, vectors one behind the other in a warp.
/// Where they do not begin at a 16-byte boundary, every lane completes its vector of the frame with
/// elements of the next one's; those of a vector that nobody completes are stored one by one.
template <class T, bool kAligned>
__device__ __forceinline__ void store_anywhere(const uint4& packed, T* to, int lane, int count) {
  constexpr int W = kPack<T>;
  if constexpr (kAligned) {
    if (count == W) *reinterpret_cast<uint4*>(to) = packed;
    return;
  }
  constexpr unsigned kAll = 0xFFFFFFFFu;
  const auto past = static_cast<int>(reinterpret_cast<std::uintptr_t>(to) / sizeof(T) % W);
  const int head = (W - past) % W;  // the same in the whole warp
  const uint4 next{__shfl_down_sync(kAll, packed.x, 1), __shfl_down_sync(kAll, packed.y, 1),
                   __shfl_down_sync(kAll, packed.z, 1), __shfl_down_sync(kAll, packed.w, 1)};
  const int next_count = __shfl_down_sync(kAll, count, 1);
  const bool completes = count == W && (head == 0 || (lane < 31 && next_count >= head));
  const bool is_begun = __shfl_up_sync(kAll, static_cast<int>(completes), 1) != 0 && lane > 0;
  if (completes) *reinterpret_cast<uint4*>(to + head) = joined<T>(packed, next, head);
  const int begin = is_begun ? head : 0, end = completes ? head : count;
  if (begin < end) store_elements_of<T>(packed, to, begin, end);
}

/// Where a thread has a vector of columns in every row: reads it wherever the row begins.
template <class T, bool kAligned>
class ColumnVector {
  static constexpr int W = kPack<T>;

 public:
  __device__ __forceinline__ ColumnVector(std::int64_t column, std::int64_t cols)
      : column_(column),
        count_(static_cast<int>(min(cols - column, std::int64_t{W}))),
        is_inside_(column >= W && cols - column >= 2 * W) {}
  __device__ __forceinline__ int count() const { return count_; }
  /// Zeros behind the row's end. `readable`: the tensor.
  __device__ __forceinline__ uint4 load(const T* row, const Readable& readable) const {
    const T* const from = row + column_;
    if constexpr (kAligned) return load_anywhere<T, kAligned>(from);
    const std::uintptr_t low = reinterpret_cast<std::uintptr_t>(from) & ~std::uintptr_t{15};
    const bool has_both = low >= readable.low && low + 32 <= readable.high;
    if (is_inside_ || (count_ == W && has_both)) return load_anywhere<T, kAligned>(from);
    return first_elements<T>(from, count_);
  }

 private:
  std::int64_t column_;
  int count_;
  bool is_inside_;  ///< the vectors around it lie in the row
};

/// The column of a thread's j-th vector in a chunk.
template <class T>
__device__ __forceinline__ std::int64_t chunk_column(std::int64_t chunk, int j) {
  return ((chunk * kLongChunkVectors + j) * kLongThreads + threadIdx.x) * kPack<T>;
}

/// The sum of a row's chunks, the same in all threads of a warp, which call it together.
__device__ __forceinline__ float sum_of_chunks(const float* sums, int chunks) {
  float sum = 0;
  for (int i = static_cast<int>(threadIdx.x) % 32; i < chunks; i += 32) sum += sums[i];
  return lanes_sum(sum);
}

/// The sum of squares of a chunk of a row: squares[row * chunks + chunk].
template <class T, bool kAligned, Fault F>
__global__ void __launch_bounds__(kLongThreads, 2)
    forward_long_squares_kernel(ForwardParams<T> p, Extent<T> extent, float* squares, int chunks) {
  constexpr int W = kPack<T>;
  allow_next_kernel();
  const Readable readable(extent.begin, extent.end);
  const std::int64_t row = blockIdx.x / static_cast<unsigned>(chunks);
  const std::int64_t chunk = blockIdx.x % static_cast<unsigned>(chunks);
  wait_for_previous_kernel();
  const T* const x = p.x(row);
  float sum = 0;
#pragma unroll 4
  for (int j = 0; j < kLongChunkVectors; ++j) {
    const std::int64_t column = chunk_column<T>(chunk, j);
    if (column >= p.cols) continue;
    float values[W];
    widen_pack<T>(ColumnVector<T, kAligned>(column, p.cols).load(x, readable), values);
    sum = add_squares<F>(sum, values, column, p);
  }
  sum = block_sum_once(sum);
  if (threadIdx.x == 0) squares[row * chunks + chunk] = sum;
}

/// y of a chunk of a row.
template <class T, class G, bool kAligned, Fault F>
__global__ void __launch_bounds__(kLongThreads, 2)
    forward_long_kernel(ForwardParams<T> p, const G* __restrict__ gamma, Extent<T> extent,
                        const float* squares, int chunks) {
  constexpr int W = kPack<T>;
  allow_next_kernel();
  const Readable readable(extent.begin, extent.end);
  const std::int64_t row = blockIdx.x / static_cast<unsigned>(chunks);
  const std::int64_t chunk = blockIdx.x % static_cast<unsigned>(chunks);
  const int lane = static_cast<int>(threadIdx.x) % 32;
  wait_for_previous_kernel();
  const float rstd = inverse_rms<F>(sum_of_chunks(squares + row * chunks, chunks), p);
  if (chunk == 0 && threadIdx.x == 0 && p.rstd != nullptr) keep_rstd<F>(p, row, rstd);
  const T* const x = p.x(row);
  T* const y = p.y + row_offset<F>(row, p.cols);
#pragma unroll 4
  for (int j = 0; j < kLongChunkVectors; ++j) {
    const std::int64_t column = chunk_column<T>(chunk, j);
    // Whole warps stay, for the shuffles.
    if (column - lane * W >= p.cols) continue;
    const bool has_columns = column < p.cols;
    const ColumnVector<T, kAligned> vector(has_columns ? column : 0, has_columns ? p.cols : 0);
    float values[W] = {}, factors[W], out[W];
    if (has_columns) widen_pack<T>(vector.load(x, readable), values);
    column_gamma<T, G, kAligned>(gamma, column, p.cols).widen(factors);
    y_elements<F>(values, factors, rstd, out, row, column, p);
    int count = vector.count();
    if constexpr (F == Fault::tail_not_stored)
      count = static_cast<int>(
          max(std::int64_t{0}, min(std::int64_t{count}, stored_cols<F>(p.cols) - column)));
    store_anywhere<T, kAligned>(narrow_pack<T>(out), y + column, lane, count);
  }
}

/// The rows that a launch of the backward takes: so many that their dots fit the workspace.
struct RowRange {
  std::int64_t begin, end;
};

/// sum(dy * gamma * x) over a chunk of a row: dots[(row - rows.begin) * chunks + chunk].
template <class T, class G, bool kAligned, Fault F>
__global__ void __launch_bounds__(kLongThreads, 2)
    backward_long_dots_kernel(BackwardParams<T> p, const G* __restrict__ gamma,
                              ElementWindows<T> windows, RowRange rows, float* dots, int chunks) {
  constexpr int W = kPack<T>;
  allow_next_kernel();
  const std::int64_t row = rows.begin + blockIdx.x / static_cast<unsigned>(chunks);
  const std::int64_t chunk = blockIdx.x % static_cast<unsigned>(chunks);
  wait_for_previous_kernel();
  const T* const x_row = p.x(row);
  const T* const dy_row = p.dy(row);
  const Readable x_readable(windows.x_begin, windows.x_end),
      dy_readable(windows.dy_begin, windows.dy_end);
  float dot = 0;
#pragma unroll 4
  for (int j = 0; j < kLongChunkVectors; ++j) {
    const std::int64_t column = chunk_column<T>(chunk, j);
    if (column >= p.cols) continue;
    const ColumnVector<T, kAligned> vector(column, p.cols);
    float xs[W], dys[W], factors[W];
    widen_pack<T>(vector.load(x_row, x_readable), xs);
    widen_pack<T>(vector.load(dy_row, dy_readable), dys);
    column_gamma<T, G, kAligned>(gamma, column, p.cols).widen(factors);
    dot += dot_elements<F>(xs, dys, factors, column, p);
  }
  dot = block_sum_once(dot);
  if (threadIdx.x == 0) dots[blockIdx.x] = dot;
}

/// A warp per row: the chunks' dots, added up, become the row's projection, at
/// projections[row - rows.begin].
template <class T, Fault F>
__global__ void __launch_bounds__(kLongColumnThreads)
    backward_long_projections_kernel(BackwardParams<T> p, RowRange rows, const float* dots,
                                     float* projections, int chunks) {
  allow_next_kernel();
  const std::int64_t index = (std::int64_t{blockIdx.x} * kLongColumnThreads + threadIdx.x) / 32;
  wait_for_previous_kernel();
  if (rows.begin + index >= rows.end) return;
  const float dot = sum_of_chunks(dots + index * chunks, chunks);
  const float rstd = saved_rstd_of<F>(p, rows.begin + index);
  const float projection = projection_factor<F>(rstd, dot * rstd * p.inverse_cols);
  if (threadIdx.x % 32 == 0) projections[index] = projection;
}

/// A vector of columns per thread, row by row over a chunk of rows: dx, and dgamma's sums in
/// registers, which become dgamma or a partial row per chunk, on top of what the rows of an earlier
/// launch have left there.
template <class T, class G, bool kAligned, Fault F>
__global__ void __launch_bounds__(kLongColumnThreads)
    backward_long_columns_kernel(BackwardParams<T> p, const G* __restrict__ gamma,
                                 G* __restrict__ dgamma, ElementWindows<T> windows, RowRange rows,
                                 const float* projections, int chunks, std::int64_t chunk_rows) {
  constexpr int W = kPack<T>, kAtOnce = 2;
  allow_next_kernel();
  const unsigned chunk = blockIdx.x % static_cast<unsigned>(chunks);
  const std::int64_t block = blockIdx.x / static_cast<unsigned>(chunks);
  const std::int64_t column = (block * kLongColumnThreads + threadIdx.x) * W;
  const std::int64_t begin = rows.begin + chunk * chunk_rows;
  const std::int64_t end = min(begin + chunk_rows, rows.end);
  const int lane = static_cast<int>(threadIdx.x) % 32;
  wait_for_previous_kernel();
  // Whole warps stay, for the shuffles.
  if (column - lane * W >= p.cols) return;
  const bool has_columns = column < p.cols;
  const ColumnVector<T, kAligned> vector(has_columns ? column : 0, has_columns ? p.cols : 0);
  const Readable x_readable(windows.x_begin, windows.x_end),
      dy_readable(windows.dy_begin, windows.dy_end);
  GammaPack<T, G> scale = column_gamma<T, G, kAligned>(gamma, column, p.cols);
  float sums[W] = {};
#pragma unroll 1
  for (std::int64_t first = begin; first < end; first += kAtOnce) {
    uint4 x[kAtOnce], dy[kAtOnce];
    float rstd[kAtOnce], projection[kAtOnce];
#pragma unroll
    for (int i = 0; i < kAtOnce; ++i) {
      x[i] = dy[i] = {0, 0, 0, 0};
      rstd[i] = projection[i] = 0;
      if (first + i >= end) continue;
      rstd[i] = saved_rstd_of<F>(p, first + i);
      if (p.dx != nullptr) projection[i] = projections[first + i - rows.begin];
      if (!has_columns) continue;
      x[i] = vector.load(p.x(first + i), x_readable);
      dy[i] = vector.load(p.dy(first + i), dy_readable);
    }
#pragma unroll
    for (int i = 0; i < kAtOnce; ++i) {
      const std::int64_t row = first + i;
      if (row >= end) continue;
      float xs[W], dys[W];
      widen_pack<T>(x[i], xs);
      widen_pack<T>(dy[i], dys);
#pragma unroll
      for (int e = 0; e < W; ++e)
        sums[e] = add_to_dgamma<F>(sums[e], xs[e], dys[e], rstd[i], row, p);
      if (p.dx == nullptr) continue;
      const uint4 packed = dx_vector<F, T>(x[i], dy[i], scale, rstd[i], projection[i]);
      store_anywhere<T, kAligned>(packed, p.dx + row_offset<F>(row, p.cols) + column, lane,
                                  has_columns ? vector.count() : 0);
    }
  }
  if (dgamma == nullptr) return;
  if (p.partials != nullptr) {
    float* const partial = p.partials + chunk * p.pitch + column;
#pragma unroll
    for (int e = 0; e < W; ++e) {
      if (column + e >= p.pitch) continue;
      if (rows.begin > 0) sums[e] += partial[e];
      partial[e] = column + e < p.cols ? sums[e] : 0.0f;
    }
    return;
  }
#pragma unroll
  for (int e = 0; e < W; ++e) {
    if (column + e >= p.cols) continue;
    if constexpr (F == Fault::dgamma_accumulated) sums[e] += widen(dgamma[column + e]);
    narrow(sums[e], dgamma[column + e]);
  }
}

}  // namespace rmsnorm::kernels::cuda
