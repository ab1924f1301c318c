#pragma once

#include "kernels/common/fault.hpp"
#include "kernels/common/steps.hpp"
#include "kernels/common/tuned_faults.hpp"
#include "kernels/cuda/access.cuh"
#include "kernels/cuda/hopper.cuh"

// What the forward kernels do to the elements that a thread holds.

namespace rmsnorm::kernels::cuda {

template <class T>
struct ForwardParams {
  RowAddress<T> x;
  T* y;
  float* rstd;
  std::int64_t rows, cols;
  float eps, inverse_cols;
  bool keep_x;  ///< L2 gives up x's lines after all others

  __device__ __forceinline__ L2Priority x_priority() const {
    return keep_x ? last_priority() : normal_priority();
  }
};

/// As exact as a division and a root that are both rounded, without their branches: the fused mean
/// is rounded once, and one step of Newton takes the fast root's last two bits. The step makes NaN
/// of zero and infinity, whose fast root is exact.
template <Fault F, class T>
__device__ __forceinline__ float inverse_rms(float square_sum, const ForwardParams<T>& p) {
  if constexpr (kIsInInverseRms<F>) return kernels::inverse_rms<F>(square_sum, p.cols, p.eps);
  const float mean = fmaf(square_sum, p.inverse_cols, p.eps);
  const float fast = rsqrtf(mean);
  const float exact = fmaf(0.5f * fast, fmaf(-mean * fast, fast, 1.0f), fast);
  return isnan(exact) ? fast : exact;
}

/// Keeps rstd of a row, where it is wanted: the end of the row's work for one of its threads.
template <Fault F, class T>
__device__ __forceinline__ void keep_rstd(const ForwardParams<T>& p, std::int64_t row, float rstd) {
  p.rstd[row] = saved_rstd<F>(rstd, RoundTo<T>{});
  if constexpr (F == Fault::store_past_row) {
    for (std::int64_t column = p.cols; column < whole_vectors(p.cols + 3, 4); ++column)
      narrow(0.0f, p.y[row * p.cols + column]);
  }
}

/// `sum` with the squares of W elements of a row, from `column` on.
template <Fault F, class T, int W>
__device__ __forceinline__ float add_squares(float sum, const float (&values)[W],
                                             std::int64_t column, const ForwardParams<T>& p) {
  if constexpr (kIsInSquares<F>) {
#pragma unroll
    for (int e = 0; e < W; ++e) {
      if (column + e >= summed_cols<F>(p.cols)) continue;
      sum = add_square<F>(sum, square<F>(values[e], 0.0f, RoundTo<T>{}), RoundTo<T>{});
    }
    return sum;
  }
  float squares = 0;
#pragma unroll
  for (float value : values) squares = fmaf(value, value, squares);
  return sum + squares;
}

/// `sum` with the square of the element at `column`: always one fused operation, so that kernels
/// that take a row's elements in the same order sum them up to the same bits.
template <Fault F, class T>
__device__ __forceinline__ float add_fused_square(float sum, float value, std::int64_t column,
                                                  const ForwardParams<T>& p) {
  if constexpr (kIsInSquares<F>) return add_squares<F>(sum, {value}, column, p);
  return fmaf(value, value, sum);
}

/// The element of y at `column` of row `row`, before it is rounded.
template <Fault F, class T>
__device__ __forceinline__ float y_of(float x, float gamma, float rstd, std::int64_t row,
                                      std::int64_t column, const ForwardParams<T>& p) {
  if (is_spoiled<F>(row, column, p.rows, p.cols)) return NAN;
  if constexpr (kIsInYElement<F>) return y_element<F>(x, rstd, gamma, RoundTo<T>{});
  return x * rstd * gamma;
}

/// W elements of row `row` of y, from `column` on, before they are rounded.
template <Fault F, class T, int W>
__device__ __forceinline__ void y_elements(const float (&x)[W], const float (&gamma)[W], float rstd,
                                           float (&out)[W], std::int64_t row, std::int64_t column,
                                           const ForwardParams<T>& p) {
#pragma unroll
  for (int e = 0; e < W; ++e) out[e] = y_of<F>(x[e], gamma[e], rstd, row, column + e, p);
}

/// The same, to `y`.
template <Fault F, class T, int W>
__device__ __forceinline__ void store_elements(const float (&x)[W], const float (&gamma)[W],
                                               float rstd, T* y, std::int64_t row,
                                               std::int64_t column, const ForwardParams<T>& p) {
  float out[W];
  y_elements<F>(x, gamma, rstd, out, row, column, p);
  if constexpr (F == Fault::tail_not_stored) {
#pragma unroll
    for (int e = 0; e < W; ++e) {
      if (column + e < stored_cols<F>(p.cols)) narrow(out[e], y[e]);
    }
  } else {
    Access<T, W>::store(out, y);
  }
}

}  // namespace rmsnorm::kernels::cuda
