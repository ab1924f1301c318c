#pragma once

#include "kernels/cuda/policy.hpp"
#include "kernels/cuda/tuned_backward_steps.cuh"
#include "kernels/cuda/tuned_forward.cuh"
#include "kernels/cuda/tuned_ring_shifted.cuh"

// Rows that no cluster holds. What needs a whole row comes first, in a kernel of its own: sums over
// chunks of rows, left in the workspace. Then the second reading: y by chunks, or dx and dgamma by
// columns, so that dgamma's sums stay in registers.
//
// Threads have whole vectors of what is written, those of a frame that begins at the 16-byte
// boundary before the row. Vectors of what is read are joined from two where they begin elsewhere.

namespace rmsnorm::kernels::cuda {

/// The place of a vector in every row whose frame begins equally far before it.
template <class T, Start kStart>
struct Place {
  static constexpr int W = kPack<T>;
  std::int64_t column;  ///< the first of its W columns; before the row where it is negative
  int begin, end;       ///< the elements that are columns of the row
  bool is_whole;        ///< all are
  bool is_inside;       ///< and the vectors around it lie in the row

  __device__ __forceinline__ Place(std::int64_t column_, std::int64_t cols) : column(column_) {
    if constexpr (kStart == Start::aligned) {
      begin = 0;
      end = column < cols ? W : 0;
      is_whole = is_inside = column < cols;
    } else {
      begin = static_cast<int>(max(-column, std::int64_t{0}));
      end = static_cast<int>(min(max(cols - column, std::int64_t{0}), std::int64_t{W}));
      is_whole = begin == 0 && end == W;
      is_inside = column >= W && cols - column >= 2 * W;
    }
  }
};

/// A vector of a row on its way from memory: where it begins anywhere, as the two 16-byte vectors
/// around it. Zeros stand for elements outside the row, which are not read.
template <class T, Start kStart>
class VectorOnItsWay {
 public:
  __device__ __forceinline__ void load(const T* row, const Place<T, kStart>& place) {
    const T* const from = row + place.column;
    past_ = 0;
    if (kStart == Start::anywhere ? place.is_inside : place.is_whole) {
      const auto address = reinterpret_cast<std::uintptr_t>(from);
      const auto* const vector = reinterpret_cast<const uint4*>(
          kStart == Start::anywhere ? address & ~std::uintptr_t{15} : address);
      low_ = vector[0];
      if constexpr (kStart == Start::anywhere) {
        past_ = static_cast<int>(address / sizeof(T) % kPack<T>);
        if (past_ != 0) high_ = vector[1];
      }
    } else if constexpr (kStart == Start::aligned) {
      low_ = {0, 0, 0, 0};
    } else {
      low_ = elements_between<T>(from, place.begin, place.end);
    }
  }
  __device__ __forceinline__ uint4 get() const {
    return kStart == Start::anywhere ? joined<T>(low_, high_, past_) : low_;
  }

 private:
  uint4 low_, high_{0, 0, 0, 0};
  int past_;
};

/// gamma of the columns of a vector of T in the same way; ones where there is none.
template <class T, class G, Start kStart>
class GammaOnItsWay {
  static constexpr int kVectors = GammaPack<T, G>::kVectors;
  static constexpr bool kAligned = kStart == Start::aligned;

 public:
  __device__ __forceinline__ void load(const G* gamma, const Place<T, kStart>& place) {
    is_there_ = gamma != nullptr;
    if (!is_there_) return;
    const G* const from = gamma + place.column;
    const auto address = reinterpret_cast<std::uintptr_t>(from);
    past_ = 0;
    if (place.is_inside) {
      past_ = kAligned ? 0 : static_cast<int>(address / sizeof(G) % kPack<G>);
      const auto* const vectors = reinterpret_cast<const uint4*>(address - past_ * sizeof(G));
#pragma unroll
      for (int i = 0; i < kVectors; ++i) packed_[i] = __ldg(vectors + i);
      if (past_ != 0) packed_[kVectors] = __ldg(vectors + kVectors);
    } else {
#pragma unroll
      for (int i = 0; i < kVectors; ++i) {
        constexpr int kPart = kPack<G>;
        packed_[i] = elements_between<G>(from + i * kPart, place.begin - i * kPart,
                                         min(place.end - i * kPart, kPart));
      }
    }
  }
  __device__ __forceinline__ GammaPack<T, G> get() const {
    GammaPack<T, G> pack;
    if (!is_there_) {
      pack.load(nullptr, 0);
      return pack;
    }
#pragma unroll
    for (int i = 0; i < kVectors; ++i)
      pack.packed[i] = kAligned ? packed_[i] : joined<G>(packed_[i], packed_[i + 1], past_);
    return pack;
  }

 private:
  uint4 packed_[kVectors + 1];
  int past_;
  bool is_there_;
};

/// The column of a thread's j-th vector in a chunk of a row whose frame begins `shift` elements
/// before it.
template <class T>
__device__ __forceinline__ std::int64_t chunk_column(std::int64_t chunk, int j, int shift) {
  return ((chunk * kLongChunkVectors + j) * kLongThreads + threadIdx.x) * kPack<T> - shift;
}

/// Stores what of a vector of the frame lies in the row at `to`, before column `end`.
template <class T, Start kStart>
__device__ __forceinline__ void store_in_row(const uint4& packed, T* to,
                                             const Place<T, kStart>& place, int end) {
  if (place.is_whole && end == kPack<T>) {
    *reinterpret_cast<uint4*>(to + place.column) = packed;
  } else if (place.begin < end) {
    store_elements_of<T>(packed, to + place.column, place.begin, end);
  }
}

/// Elements between the 16-byte boundary before `row` and `row`.
template <class T, bool kAligned>
__device__ __forceinline__ int shift_of(const T* row) {
  return kAligned ? 0
                  : static_cast<int>(reinterpret_cast<std::uintptr_t>(row) / sizeof(T) % kPack<T>);
}

/// The sum of a row's chunks, the same in all threads of a warp, which call it together.
__device__ __forceinline__ float sum_of_chunks(const float* sums, int chunks) {
  float sum = 0;
  for (int i = static_cast<int>(threadIdx.x) % 32; i < chunks; i += 32) sum += sums[i];
  return lanes_sum(sum);
}

/// The sum of squares of a chunk of a row, in x's own frame: squares[row * chunks + chunk].
template <class T, bool kAligned, Fault F>
__global__ void __launch_bounds__(kLongThreads, 2)
    forward_long_squares_kernel(ForwardParams<T> p, float* squares, int chunks) {
  constexpr int W = kPack<T>, kAtOnce = 4;
  constexpr Start kStart = kAligned ? Start::aligned : Start::in_frame;
  static_assert(kLongChunkVectors % kAtOnce == 0);
  allow_next_kernel();
  const std::int64_t row = blockIdx.x / static_cast<unsigned>(chunks);
  const std::int64_t chunk = blockIdx.x % static_cast<unsigned>(chunks);
  wait_for_previous_kernel();
  const T* const x_row = p.x(row);
  const int shift = shift_of<T, kAligned>(x_row);
  float sum = 0;
#pragma unroll 1
  for (int first = 0; first < kLongChunkVectors; first += kAtOnce) {
    VectorOnItsWay<T, kStart> x[kAtOnce];
#pragma unroll
    for (int j = 0; j < kAtOnce; ++j)
      x[j].load(x_row, {chunk_column<T>(chunk, first + j, shift), p.cols});
#pragma unroll
    for (int j = 0; j < kAtOnce; ++j) {
      float values[W];
      widen_pack<T>(x[j].get(), values);
      sum = add_squares<F>(sum, values, chunk_column<T>(chunk, first + j, shift), p);
    }
  }
  sum = block_sum_once(sum);
  if (threadIdx.x == 0) squares[row * chunks + chunk] = sum;
}

/// y of a chunk of a row, in y's frame.
template <class T, class G, Start kStart, Fault F>
__global__ void __launch_bounds__(kLongThreads, 2)
    forward_long_kernel(ForwardParams<T> p, const G* __restrict__ gamma, const float* squares,
                        int chunks) {
  constexpr int W = kPack<T>, kAtOnce = sizeof(G) > sizeof(T) ? 1 : 2;
  static_assert(kLongChunkVectors % kAtOnce == 0);
  allow_next_kernel();
  const std::int64_t row = blockIdx.x / static_cast<unsigned>(chunks);
  const std::int64_t chunk = blockIdx.x % static_cast<unsigned>(chunks);
  wait_for_previous_kernel();
  const float rstd = inverse_rms<F>(sum_of_chunks(squares + row * chunks, chunks), p);
  if (chunk == 0 && threadIdx.x == 0 && p.rstd != nullptr) keep_rstd<F>(p, row, rstd);
  const T* const x_row = p.x(row);
  T* const y_row = p.y + row_offset<F>(row, p.cols);
  const int shift = shift_of<T, kStart == Start::aligned>(y_row);
#pragma unroll 1
  for (int first = 0; first < kLongChunkVectors; first += kAtOnce) {
    VectorOnItsWay<T, kStart> x[kAtOnce];
    GammaOnItsWay<T, G, kStart> scale[kAtOnce];
#pragma unroll
    for (int j = 0; j < kAtOnce; ++j) {
      const Place<T, kStart> place(chunk_column<T>(chunk, first + j, shift), p.cols);
      x[j].load(x_row, place);
      scale[j].load(gamma, place);
    }
#pragma unroll
    for (int j = 0; j < kAtOnce; ++j) {
      const Place<T, kStart> place(chunk_column<T>(chunk, first + j, shift), p.cols);
      float values[W], factors[W], out[W];
      widen_pack<T>(x[j].get(), values);
      scale[j].get().widen(factors);
      y_elements<F>(values, factors, rstd, out, row, place.column, p);
      int end = place.end;
      if constexpr (F == Fault::tail_not_stored)
        end = static_cast<int>(min(std::int64_t{end}, stored_cols<F>(p.cols) - place.column));
      store_in_row<T>(narrow_pack<T>(out), y_row, place, end);
    }
  }
}

/// The rows that a launch of the backward takes: so many that their dots fit the workspace.
struct RowRange {
  std::int64_t begin, end;
};

/// sum(dy * gamma * x) over a chunk of a row, in dx's frame:
/// dots[(row - rows.begin) * chunks + chunk].
template <class T, class G, Start kStart, Fault F>
__global__ void __launch_bounds__(kLongThreads, 2)
    backward_long_dots_kernel(BackwardParams<T> p, const G* __restrict__ gamma, RowRange rows,
                              float* dots, int chunks) {
  constexpr int W = kPack<T>, kAtOnce = sizeof(G) > sizeof(T) ? 1 : 2;
  static_assert(kLongChunkVectors % kAtOnce == 0);
  allow_next_kernel();
  const std::int64_t row = rows.begin + blockIdx.x / static_cast<unsigned>(chunks);
  const std::int64_t chunk = blockIdx.x % static_cast<unsigned>(chunks);
  wait_for_previous_kernel();
  const T* const x_row = p.x(row);
  const T* const dy_row = p.dy(row);
  const int shift = kStart == Start::aligned ? 0 : frame_shift(p, row);
  float dot = 0;
#pragma unroll 1
  for (int first = 0; first < kLongChunkVectors; first += kAtOnce) {
    VectorOnItsWay<T, kStart> x[kAtOnce], dy[kAtOnce];
    GammaOnItsWay<T, G, kStart> scale[kAtOnce];
#pragma unroll
    for (int j = 0; j < kAtOnce; ++j) {
      const Place<T, kStart> place(chunk_column<T>(chunk, first + j, shift), p.cols);
      x[j].load(x_row, place);
      dy[j].load(dy_row, place);
      scale[j].load(gamma, place);
    }
#pragma unroll
    for (int j = 0; j < kAtOnce; ++j) {
      float xs[W], dys[W], factors[W];
      widen_pack<T>(x[j].get(), xs);
      widen_pack<T>(dy[j].get(), dys);
      scale[j].get().widen(factors);
      dot += dot_elements<F>(xs, dys, factors, chunk_column<T>(chunk, first + j, shift), p);
    }
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

/// A vector of dx's frame per thread, row by row over a chunk of rows: dx, and dgamma's sums in
/// registers, which become dgamma or a partial row per chunk, on top of what the rows of an earlier
/// launch have left there.
///
/// Rows of one shift come after those of another, `period` of them; then the sums go to their
/// columns, by way of shared memory. Blocks overlap by a vector: each has all that its columns are
/// in, wherever the frame begins.
template <class T, class G, Start kStart, Fault F>
__global__ void __launch_bounds__(
    kLongColumnThreads, kLongColumnBlocks<kStart != Start::anywhere && sizeof(G) <= sizeof(T)>)
    backward_long_columns_kernel(BackwardParams<T> p, const G* __restrict__ gamma,
                                 G* __restrict__ dgamma, RowRange rows, const float* projections,
                                 int chunks, std::int64_t chunk_rows, int period) {
  constexpr bool kAligned = kStart == Start::aligned;
  constexpr int W = kPack<T>, kOwned = kLongBlockVectors<kAligned>;
  constexpr int kAtOnce = 2;
  __shared__ float fold[kAligned ? 1 : kLongColumnThreads * W];
  allow_next_kernel();
  const unsigned chunk = blockIdx.x % static_cast<unsigned>(chunks);
  const std::int64_t block = blockIdx.x / static_cast<unsigned>(chunks);
  const std::int64_t begin = rows.begin + chunk * chunk_rows;
  const std::int64_t end = min(begin + chunk_rows, rows.end);
  const int thread = static_cast<int>(threadIdx.x);
  const std::int64_t owned_column = (block * kOwned + thread) * W;
  wait_for_previous_kernel();
  float sums[W] = {};  // of a chunk without rows too
  if constexpr (!kAligned) {
#pragma unroll
    for (int e = 0; e < W; ++e) fold[thread * W + e] = 0;
  }
#pragma unroll 1
  for (std::int64_t first_of_shift = begin; first_of_shift < min(begin + period, end);
       ++first_of_shift) {
    const int shift = kAligned ? 0 : frame_shift(p, first_of_shift);
    const Place<T, kStart> place(owned_column - shift, p.cols);
    GammaOnItsWay<T, G, kStart> factors;
    factors.load(gamma, place);
#pragma unroll
    for (float& sum : sums) sum = 0;
#pragma unroll 1
    for (std::int64_t first = first_of_shift; first < end; first += kAtOnce * period) {
      VectorOnItsWay<T, kStart> x[kAtOnce], dy[kAtOnce];
      float rstd[kAtOnce], projection[kAtOnce];
#pragma unroll
      for (int i = 0; i < kAtOnce; ++i) {
        const std::int64_t row = first + i * period;
        rstd[i] = projection[i] = 0;
        if (row >= end) continue;
        x[i].load(p.x(row), place);
        dy[i].load(p.dy(row), place);
        rstd[i] = saved_rstd_of<F>(p, row);
        if (p.dx != nullptr) projection[i] = projections[row - rows.begin];
      }
      // Not before the loop, so that the first rows are on their way meanwhile.
      GammaPack<T, G> scale = factors.get();
#pragma unroll
      for (int i = 0; i < kAtOnce; ++i) {
        const std::int64_t row = first + i * period;
        if (row >= end) continue;
        const uint4 x_packed = x[i].get(), dy_packed = dy[i].get();
        float xs[W], dys[W];
        widen_pack<T>(x_packed, xs);
        widen_pack<T>(dy_packed, dys);
#pragma unroll
        for (int e = 0; e < W; ++e)
          sums[e] = add_to_dgamma<F>(sums[e], xs[e], dys[e], rstd[i], row, p);
        if (p.dx == nullptr || thread >= kOwned) continue;
        store_in_row<T>(dx_vector<F, T>(x_packed, dy_packed, scale, rstd[i], projection[i]),
                        p.dx + row_offset<F>(row, p.cols), place, place.end);
      }
    }
    if constexpr (!kAligned) {
      __syncthreads();
#pragma unroll
      for (int e = 0; e < W; ++e) {
        const int at = thread * W + e - shift;
        if (at >= 0) fold[at] += sums[e];
      }
    }
  }
  if constexpr (!kAligned) {
    __syncthreads();
#pragma unroll
    for (int e = 0; e < W; ++e) sums[e] = fold[thread * W + e];
  }
  if (dgamma == nullptr || thread >= kOwned) return;
  if (p.partials != nullptr) {
    float* const partial = p.partials + chunk * p.pitch + owned_column;
#pragma unroll
    for (int e = 0; e < W; ++e) {
      if (owned_column + e >= p.pitch) continue;
      if (rows.begin > 0) sums[e] += partial[e];
      partial[e] = owned_column + e < p.cols ? sums[e] : 0.0f;
    }
    return;
  }
#pragma unroll
  for (int e = 0; e < W; ++e) {
    if (owned_column + e >= p.cols) continue;
    if constexpr (F == Fault::dgamma_accumulated) sums[e] += widen(dgamma[owned_column + e]);
    narrow(sums[e], dgamma[owned_column + e]);
  }
}

}  // namespace rmsnorm::kernels::cuda
