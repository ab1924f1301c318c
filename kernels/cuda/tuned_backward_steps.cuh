#pragma once

#include "kernels/common/fault.hpp"
#include "kernels/common/steps.hpp"
#include "kernels/common/tuned_faults.hpp"
#include "kernels/cuda/access.cuh"

// What the backward kernels do to the elements that a thread holds.

namespace rmsnorm::kernels::cuda {

template <class T>
struct BackwardParams {
  RowAddress<T> x, dy;
  const accumulation_t<T>* rstd;
  T* dx;  ///< nullptr: not wanted
  accumulation_t<T>*
      partials;  ///< [partial rows, pitch]; nullptr where dgamma is not wanted or written directly
  std::int64_t rows, cols, pitch;
  accumulation_t<T> inverse_cols;
};

template <Fault F, class T>
__device__ __forceinline__ accumulation_t<T> saved_rstd_of(const BackwardParams<T>& p,
                                                           std::int64_t row) {
  return p.rstd[rstd_row<F>(row)];
}

/// sum(dy * gamma * x) of a row with the element of `column`.
template <Fault F, class T, class A>
__device__ __forceinline__ A add_to_dot(A dot, A x, A dy, A gamma, std::int64_t column,
                                        const BackwardParams<T>& p) {
  if constexpr (kIsInDot<F>) {
    return column < summed_cols_ux<F>(p.cols) ? dot + ux_element<F>(dy, gamma, x) : dot;
  } else {
    return dot + dy * x * gamma;
  }
}

/// sum(dy * gamma * x) over W elements of a row, from `column` on.
template <Fault F, class T, class A, int W>
__device__ __forceinline__ A dot_elements(const A (&x)[W], const A (&dy)[W], const A (&gamma)[W],
                                          std::int64_t column, const BackwardParams<T>& p) {
  A dot = A(0);
#pragma unroll
  for (int e = 0; e < W; ++e) dot = add_to_dot<F>(dot, x[e], dy[e], gamma[e], column + e, p);
  return dot;
}

/// dgamma with an element of row `row`.
template <Fault F, class T, class A>
__device__ __forceinline__ A add_to_dgamma(A sum, A x, A dy, A rstd, std::int64_t row,
                                           const BackwardParams<T>& p) {
  if constexpr (kIsInDgammaSum<F>) {
    return add_row<F>(sum, dy, x, rstd, row, p.rows, RoundTo<T>{});
  } else {
    return sum + dy * x * rstd;
  }
}

/// What W elements of row `row`, from `column` on, add to the row's sum(dy * gamma * x) and to
/// dgamma: both need dy * x, and neither has to wait for the other.
template <Fault F, class T, class A, int W>
__device__ __forceinline__ void add_elements(const A (&x)[W], const A (&dy)[W], const A (&gamma)[W],
                                             A rstd, A& dot, A (&dgamma)[W], std::int64_t row,
                                             std::int64_t column, const BackwardParams<T>& p) {
  dot += dot_elements<F>(x, dy, gamma, column, p);
#pragma unroll
  for (int e = 0; e < W; ++e) dgamma[e] = add_to_dgamma<F>(dgamma[e], x[e], dy[e], rstd, row, p);
}

/// dx of W elements. rstd * (u - x_hat * mean(u * x_hat)) is rstd*u - x*rstd^3*mean(u*x);
/// `projection` is rstd * mean(u * x_hat).
template <Fault F, class A, int W>
__device__ __forceinline__ void dx_elements(const A (&x)[W], const A (&dy)[W], const A (&gamma)[W],
                                            A rstd, A projection, A (&dx)[W]) {
  const A along_x = rstd * projection;
#pragma unroll
  for (int e = 0; e < W; ++e) {
    dx[e] = rstd * (dy[e] * gamma[e]) - x[e] * along_x;
    if constexpr (kIsInDxElement<F>) dx[e] = dx_element<F>(dy[e], x[e], gamma[e], rstd, projection);
  }
}

/// dx of W elements of row `row`, and their addends of dgamma.
template <Fault F, class T, class A, int W>
__device__ __forceinline__ void backward_elements(const A (&x)[W], const A (&dy)[W],
                                                  const A (&gamma)[W], A rstd, A projection,
                                                  A (&dx)[W], A (&dgamma)[W], std::int64_t row,
                                                  const BackwardParams<T>& p) {
#pragma unroll
  for (int e = 0; e < W; ++e) dgamma[e] = add_to_dgamma<F>(dgamma[e], x[e], dy[e], rstd, row, p);
  dx_elements<F>(x, dy, gamma, rstd, projection, dx);
}

/// add_elements of a vector that is packed, as its gamma is.
template <Fault F, class T, class G>
__device__ __forceinline__ void add_vector(const uint4& x, const uint4& dy, GammaPack<T, G>& gamma,
                                           float rstd, float& dot, float (&dgamma)[kPack<T>],
                                           std::int64_t row, std::int64_t column,
                                           const BackwardParams<T>& p) {
  float xs[kPack<T>], dys[kPack<T>], factors[kPack<T>];
  gamma.pin();
  widen_pack<T>(x, xs);
  widen_pack<T>(dy, dys);
  gamma.widen(factors);
  add_elements<F>(xs, dys, factors, rstd, dot, dgamma, row, column, p);
}

/// dx_elements of a vector that is packed, as its gamma is; packed again.
template <Fault F, class T, class G>
__device__ __forceinline__ uint4 dx_vector(const uint4& x, const uint4& dy, GammaPack<T, G>& gamma,
                                           float rstd, float projection) {
  float xs[kPack<T>], dys[kPack<T>], factors[kPack<T>], dx[kPack<T>];
  gamma.pin();
  widen_pack<T>(x, xs);
  widen_pack<T>(dy, dys);
  gamma.widen(factors);
  dx_elements<F>(xs, dys, factors, rstd, projection, dx);
  return narrow_pack<T>(dx);
}

}  // namespace rmsnorm::kernels::cuda
