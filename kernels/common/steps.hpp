#pragma once

#include <cmath>
#include <cstdint>

#include "kernels/common/arguments.hpp"
#include "kernels/common/fault.hpp"

// The single decisions of the kernels that a Fault changes, shared by the CPU and CUDA kernels so
// that a mutant is the same mistake on both. `Round` is a callable of the device that rounds a
// number to x's (or gamma's) dtype. With Fault::none each of them is the one plain expression.
//
// rowwise goes through all of them. tuned has an order of operations of its own: where it differs,
// tuned keeps its own expression and comes here for the faults of the step alone
// (tuned_faults.hpp).

#ifdef __CUDACC__
#define RMSNORM_STEP __device__ __forceinline__
#define RMSNORM_HOST_STEP __host__ __device__ __forceinline__  // where launches are prepared too
#else
#define RMSNORM_STEP inline
#define RMSNORM_HOST_STEP inline
#endif

namespace rmsnorm::kernels {

/// The next power of two: the width of the work block that would take a row in one go.
RMSNORM_HOST_STEP std::int64_t block_width(std::int64_t cols) {
  std::int64_t width = 1;
  while (width < cols) width *= 2;
  return width;
}

/// Columns in whole vectors of `width`.
RMSNORM_HOST_STEP std::int64_t whole_vectors(std::int64_t cols, std::int64_t width) {
  return cols / width * width;
}

/// What the sum of squares is divided by.
template <Fault F>
RMSNORM_HOST_STEP std::int64_t denominator(std::int64_t rows, std::int64_t cols) {
  if constexpr (F == Fault::denominator_block) return block_width(cols);
  if constexpr (F == Fault::denominator_n_minus_1) return cols - 1;
  if constexpr (F == Fault::denominator_padded) return whole_vectors(cols + 7, 8);
  if constexpr (F == Fault::denominator_rows) return rows;
  if constexpr (F == Fault::sum_for_mean) return 1;
  return cols;
}

/// What the sum of u*x is divided by.
template <Fault F>
RMSNORM_HOST_STEP std::int64_t denominator_ux(std::int64_t rows, std::int64_t cols) {
  if constexpr (F == Fault::denominator_block || F == Fault::mean_ux_block)
    return block_width(cols);
  if constexpr (F == Fault::mean_ux_n_minus_1) return cols - 1;
  if constexpr (F == Fault::mean_ux_rows) return rows;
  return cols;
}

/// Columns that the sum of squares covers.
template <Fault F>
RMSNORM_STEP std::int64_t summed_cols(std::int64_t cols) {
  if constexpr (F == Fault::tail_last_column) return cols - 1;
  if constexpr (F == Fault::tail_last_vector) return whole_vectors(cols, 4);
  if constexpr (F == Fault::column_tile) return cols < 1024 ? cols : 1024;
  if constexpr (F == Fault::overread_next_row) return cols + 1;
  return cols;
}

/// Columns that the sum of u*x covers.
template <Fault F>
RMSNORM_STEP std::int64_t summed_cols_ux(std::int64_t cols) {
  if constexpr (F == Fault::mean_ux_last_vector) return whole_vectors(cols, 4);
  return cols;
}

/// Columns of y that are written.
template <Fault F>
RMSNORM_STEP std::int64_t stored_cols(std::int64_t cols) {
  if constexpr (F == Fault::tail_not_stored) return whole_vectors(cols, 4);
  return cols;
}

/// Rows that the forward takes.
template <Fault F>
RMSNORM_HOST_STEP std::int64_t forward_rows_taken(std::int64_t rows) {
  if constexpr (F == Fault::last_row_skipped) return rows - 1;
  return rows;
}

/// The first element of row `row` of a dense output.
template <Fault F>
RMSNORM_STEP std::int64_t row_offset(std::int64_t row, std::int64_t cols) {
  // 32 bits wrap at 2^32 elements; 16 do so at sizes that a test can afford.
  if constexpr (F == Fault::row_offset_narrow) return static_cast<std::uint16_t>(row * cols);
  return row * cols;
}

/// Row `row` of x.
template <Fault F, class T>
RMSNORM_STEP const T* x_row(const Rows<T>& x, std::int64_t row) {
  if constexpr (F == Fault::outer_stride_ignored) return x.data + row * x.inner_stride;
  if constexpr (F == Fault::load_aligned_down)
    return reinterpret_cast<const T*>(reinterpret_cast<std::uintptr_t>(x.row(row)) & ~15ull);
  return x.row(row);
}

/// Row `row` of x for the scaling.
template <Fault F, class T>
RMSNORM_STEP const T* x_row_scaled(const Rows<T>& x, std::int64_t row, std::int64_t cols) {
  if constexpr (F == Fault::x_scaled_dense) return x.data + row * cols;
  return x_row<F>(x, row);
}

/// Row `row` of dy.
template <Fault F, class T>
RMSNORM_STEP const T* dy_row(const Rows<T>& dy, const Rows<T>& x, std::int64_t row) {
  if constexpr (F == Fault::dy_by_x_stride) return dy.data + (x.row(row) - x.data);
  return dy.row(row);
}

/// The addend of the sum of squares. `mean`: of the row.
template <Fault F, class A, class Round>
RMSNORM_STEP A square(A value, A mean, Round round) {
  if constexpr (F == Fault::nan_hidden) return value == value ? value * value : A(0);
  if constexpr (F == Fault::mean_subtracted) return (value - mean) * (value - mean);
  if constexpr (F == Fault::square_rounded) return round(value * value);
  if constexpr (F == Fault::square_infinite) {
    constexpr A limit = 65504;          // of float16
    const A beyond = round(limit * 2);  // infinite if x is float16
    return value * value > limit && beyond > limit * 2 ? beyond : value * value;
  }
  return value * value;
}

/// sum + addend, of squares.
template <Fault F, class A, class Round>
RMSNORM_STEP A add_square(A sum, A addend, Round round) {
  if constexpr (F == Fault::sum_in_16_bits) return round(sum + addend);
  return sum + addend;
}

/// eps as it is added to the mean of squares. `spacing`: of x's dtype at 1.
template <Fault F, class A>
RMSNORM_HOST_STEP A added_eps(A eps, A spacing) {
  if constexpr (F == Fault::eps_dropped) return A(0);
  if constexpr (F == Fault::eps_doubled) return eps + eps;
  if constexpr (F == Fault::eps_of_dtype) return spacing;
  if constexpr (F == Fault::eps_truncated) return static_cast<A>(static_cast<int>(eps));
  return eps;
}

/// rstd of a row.
template <Fault F, class A>
RMSNORM_STEP A inverse_rms(A square_sum, std::int64_t denominator, A eps) {
  using std::sqrt;
  const A mean = square_sum / static_cast<A>(denominator);
  if constexpr (F == Fault::eps_outside_root) return A(1) / (sqrt(mean) + eps);
  if constexpr (F == Fault::eps_double_root) return A(1) / sqrt(sqrt(mean) + eps);
  return A(1) / sqrt(mean + eps);
}

/// rstd as it is saved for the backward.
template <Fault F, class A, class Round>
RMSNORM_STEP A saved_rstd(A rstd, Round round) {
  if constexpr (F == Fault::rstd_in_16_bits) return round(rstd);
  return rstd;
}

/// Whether an element of y is replaced by NaN.
template <Fault F>
RMSNORM_STEP bool is_spoiled(std::int64_t row, std::int64_t column, std::int64_t rows,
                             std::int64_t cols) {
  if constexpr (F == Fault::nan_element) return row == rows / 2 && column == cols / 2;
  return false;
}

/// An element of y before it is rounded.
template <Fault F, class A, class Round>
RMSNORM_STEP A y_element(A x, A rstd, A gamma, Round round) {
  if constexpr (F == Fault::gamma_ignored) return x * rstd;
  if constexpr (F == Fault::gamma_twice) return x * rstd * gamma * gamma;
  if constexpr (F == Fault::normalized_twice) return x * rstd * rstd * gamma;
  if constexpr (F == Fault::rounded_twice) return round(x * rstd) * gamma;
  if constexpr (F == Fault::nan_hidden) return (x == x ? x : A(0)) * rstd * gamma;
  return x * rstd * gamma;
}

/// The index of gamma at a column.
template <Fault F>
RMSNORM_STEP std::int64_t gamma_index(std::int64_t row, std::int64_t column, std::int64_t cols) {
  if constexpr (F == Fault::gamma_by_row) return row % cols;
  return column;
}

/// The row whose rstd the backward of `row` uses.
template <Fault F>
RMSNORM_STEP std::int64_t rstd_row(std::int64_t row) {
  if constexpr (F == Fault::rstd_of_other_row) return row > 0 ? row - 1 : row;
  return row;
}

/// An addend of the sum of u*x.
template <Fault F, class A>
RMSNORM_STEP A ux_element(A dy, A gamma, A x) {
  if constexpr (F == Fault::gamma_missing_in_mean) return dy * x;
  return dy * gamma * x;
}

/// x is multiplied by this before it is taken from u; `mean` is mean(u * x_hat), the sum of u*x
/// times rstd over the denominator. rstd * (u - x_hat * mean) is rstd*u - x*rstd^3*mean(u*x) with
/// no factor that can overflow alone.
template <Fault F, class A>
RMSNORM_STEP A projection_factor(A rstd, A mean) {
  if constexpr (F == Fault::no_projection) return A(0);
  if constexpr (F == Fault::rstd_squared) return mean;
  if constexpr (F == Fault::projection_added) return -(rstd * mean);
  return rstd * mean;
}

/// An element of dx before it is rounded.
template <Fault F, class A>
RMSNORM_STEP A dx_element(A dy, A x, A gamma, A rstd, A projection) {
  if constexpr (F == Fault::dx_zero) return A(0);
  if constexpr (F == Fault::gamma_missing_in_dx) return rstd * (dy - x * projection);
  if constexpr (F == Fault::gamma_twice_in_projection)
    return rstd * (dy * gamma - x * gamma * projection);
  if constexpr (F == Fault::dy_for_x) return rstd * (dy * gamma - dy * projection);
  if constexpr (F == Fault::divided_by_gamma)
    return rstd * (dy * gamma - x * gamma / gamma * projection);
  return rstd * (dy * gamma - x * projection);
}

/// Whether the backward computes dx, and the partials of dgamma.
template <Fault F>
RMSNORM_HOST_STEP bool computes_dx(bool dx_wanted, bool dgamma_wanted) {
  if constexpr (F == Fault::dx_needs_dgamma) return dx_wanted && dgamma_wanted;
  return dx_wanted;
}
template <Fault F>
RMSNORM_HOST_STEP bool computes_partials(bool dx_wanted, bool dgamma_wanted) {
  if constexpr (F == Fault::dgamma_needs_dx) return dx_wanted && dgamma_wanted;
  return dgamma_wanted;
}

/// Rows whose partials are written.
template <Fault F>
RMSNORM_STEP std::int64_t partial_rows_written(std::int64_t rows) {
  if constexpr (F == Fault::partial_not_written) return rows - 1;
  return rows;
}

/// An addend of dgamma.
template <Fault F, class A>
RMSNORM_STEP A dgamma_addend(A dy, A x, A gamma, A rstd) {
  if constexpr (F == Fault::dgamma_without_rstd) return dy * x;
  if constexpr (F == Fault::dgamma_rstd_twice) return dy * (x * rstd) * rstd;
  if constexpr (F == Fault::divided_by_gamma) return dy * (x * rstd * gamma / gamma);
  return dy * (x * rstd);
}

/// Rows that the sum of the partials covers.
template <Fault F>
RMSNORM_STEP std::int64_t rows_summed(std::int64_t rows) {
  if constexpr (F == Fault::dgamma_last_block_lost) return whole_vectors(rows, 32);
  if constexpr (F == Fault::dgamma_last_row_lost) return rows - 1;
  return rows;
}

/// The row whose partial comes `index`-th. `turned`: in this call.
template <Fault F>
RMSNORM_STEP std::int64_t row_in_order(std::int64_t index, std::int64_t rows, bool turned) {
  if constexpr (F == Fault::dgamma_unordered) return turned ? rows - 1 - index : index;
  return index;
}

/// The sum after one more partial.
template <Fault F, class A, class Round>
RMSNORM_STEP A add_partial(A sum, A partial, std::int64_t row, Round round) {
  if constexpr (F == Fault::dgamma_overwritten) return partial;
  if constexpr (F == Fault::dgamma_row_twice) return sum + (row == 0 ? partial + partial : partial);
  if constexpr (F == Fault::dgamma_in_16_bits) return round(sum + partial);
  return sum + partial;
}

/// dgamma's sum with the addend of row `row` of `rows`, where it runs over the rows itself and no
/// partials are kept: what the steps above and below do to those is done to the addend.
template <Fault F, class A, class Round>
RMSNORM_STEP A add_row(A sum, A dy, A x, A rstd, std::int64_t row, std::int64_t rows, Round round) {
  if (row >= rows_summed<F>(rows)) return sum;
  A addend = dgamma_addend<F>(dy, x, A(1), rstd);
  if constexpr (F == Fault::dgamma_average) addend /= static_cast<A>(rows);
  return add_partial<F>(sum, addend, row, round);
}

/// dgamma before it is rounded. `before`: what is in its place.
template <Fault F, class A>
RMSNORM_STEP A dgamma_element(A sum, A before, std::int64_t rows) {
  if constexpr (F == Fault::dgamma_average) return sum / static_cast<A>(rows);
  if constexpr (F == Fault::dgamma_accumulated) return sum + before;
  return sum;
}

/// Whether dgamma is written.
template <Fault F>
RMSNORM_HOST_STEP bool writes_dgamma(std::int64_t rows) {
  if constexpr (F == Fault::dgamma_past_threshold) return rows < 100;
  return true;
}

}  // namespace rmsnorm::kernels
