#pragma once

#include "kernels/common/fault.hpp"

// Which faults `tuned` has mutants of, on the CPU and on CUDA alike, and where in it they are. With
// Fault::none and Fault::control every question below is answered with no.

namespace rmsnorm::kernels {

/// Left out, because nothing in tuned answers to them:
/// - overread_next_row, load_aligned_down: a row is whole vectors and single elements; neither is
///   found by an address that could be one off
/// - mean_subtracted: would be a sum more for each row, not a mistake in one
/// - order_by_rows: the order of a row's sum is the policy's, which has tests of its own
/// - gamma_by_row: gamma is read by vectors of columns, for several rows at once
/// - gamma_read_as_x: a mutant of tuned takes one dtype
/// - x_scaled_dense: x is read once, or by one address for both reads
/// - dy_overwritten: dy is in registers or in the ring when dx is written
/// - partial_not_written, dgamma_unordered: there are no partials of rows x cols; the partial rows
///   of blocks and strips are few
constexpr Fault kTunedFaults[] = {
    Fault::denominator_block,
    Fault::denominator_n_minus_1,
    Fault::denominator_padded,
    Fault::denominator_rows,
    Fault::tail_last_column,
    Fault::tail_last_vector,
    Fault::column_tile,
    Fault::tail_not_stored,
    Fault::store_past_row,
    Fault::last_row_skipped,
    Fault::eps_dropped,
    Fault::eps_outside_root,
    Fault::eps_double_root,
    Fault::eps_doubled,
    Fault::eps_of_dtype,
    Fault::eps_truncated,
    Fault::sum_for_mean,
    Fault::sum_in_16_bits,
    Fault::square_rounded,
    Fault::square_infinite,
    Fault::rstd_in_16_bits,
    Fault::normalized_twice,
    Fault::rounded_twice,
    Fault::gamma_ignored,
    Fault::gamma_twice,
    Fault::nan_element,
    Fault::nan_hidden,
    Fault::row_offset_narrow,
    Fault::outer_stride_ignored,
    Fault::mean_ux_block,
    Fault::mean_ux_n_minus_1,
    Fault::mean_ux_rows,
    Fault::mean_ux_last_vector,
    Fault::rstd_of_other_row,
    Fault::no_projection,
    Fault::rstd_squared,
    Fault::projection_added,
    Fault::gamma_missing_in_mean,
    Fault::gamma_twice_in_projection,
    Fault::gamma_missing_in_dx,
    Fault::dy_for_x,
    Fault::dx_zero,
    Fault::divided_by_gamma,
    Fault::dy_by_x_stride,
    Fault::dx_needs_dgamma,
    Fault::dgamma_needs_dx,
    Fault::dgamma_average,
    Fault::dgamma_without_rstd,
    Fault::dgamma_rstd_twice,
    Fault::dgamma_last_block_lost,
    Fault::dgamma_last_row_lost,
    Fault::dgamma_row_twice,
    Fault::dgamma_overwritten,
    Fault::dgamma_accumulated,
    Fault::dgamma_in_16_bits,
    Fault::dgamma_past_threshold,
    Fault::scratch_overrun,
};

template <Fault... kOf>
constexpr bool is_one_of(Fault fault) {
  return ((fault == kOf) || ...);
}

constexpr bool is_tuned_fault(Fault fault) {
  for (const Fault known : kTunedFaults) {
    if (fault == known) return true;
  }
  return false;
}

/// Whether the mutant takes float16, and not float32: the fault is a rounding to x's dtype.
constexpr bool needs_16_bits(Fault fault) {
  return is_one_of<Fault::sum_in_16_bits, Fault::square_rounded, Fault::square_infinite,
                   Fault::rstd_in_16_bits, Fault::rounded_twice, Fault::dgamma_in_16_bits>(fault);
}

/// The step of the forward that changes. Variables, since device code may not call these functions.
template <Fault F>
constexpr bool kIsInSummedCols =
    is_one_of<Fault::tail_last_column, Fault::tail_last_vector, Fault::column_tile>(F);
template <Fault F>
constexpr bool kIsInSquare = is_one_of<Fault::sum_in_16_bits, Fault::square_rounded,
                                       Fault::square_infinite, Fault::nan_hidden>(F);
template <Fault F>
constexpr bool kIsInSquares = kIsInSummedCols<F> || kIsInSquare<F>;
template <Fault F>
constexpr bool kIsInInverseRms = is_one_of<Fault::eps_outside_root, Fault::eps_double_root>(F);
template <Fault F>
constexpr bool kIsInYElement =
    is_one_of<Fault::normalized_twice, Fault::rounded_twice, Fault::gamma_ignored,
              Fault::gamma_twice, Fault::nan_hidden>(F);

/// The step of the backward that changes.
template <Fault F>
constexpr bool kIsInDot = is_one_of<Fault::mean_ux_last_vector, Fault::gamma_missing_in_mean>(F);
template <Fault F>
constexpr bool kIsInDxElement =
    is_one_of<Fault::gamma_twice_in_projection, Fault::gamma_missing_in_dx, Fault::dy_for_x,
              Fault::dx_zero, Fault::divided_by_gamma>(F);
constexpr bool is_in_dgamma_sum(Fault fault) {
  return is_one_of<Fault::dgamma_average, Fault::dgamma_without_rstd, Fault::dgamma_rstd_twice,
                   Fault::dgamma_last_block_lost, Fault::dgamma_last_row_lost,
                   Fault::dgamma_row_twice, Fault::dgamma_overwritten, Fault::dgamma_in_16_bits>(
      fault);
}
template <Fault F>
constexpr bool kIsInDgammaSum = is_in_dgamma_sum(F);

template <Fault F>
constexpr bool kIsInGradients = kIsInDxElement<F> || kIsInDgammaSum<F>;

/// Whether the fault is in what the host prepares, so that the CUDA kernels are the right ones.
constexpr bool is_on_the_host(Fault fault) {
  return is_one_of<Fault::denominator_block, Fault::denominator_n_minus_1,
                   Fault::denominator_padded, Fault::denominator_rows, Fault::sum_for_mean,
                   Fault::eps_dropped, Fault::eps_doubled, Fault::eps_of_dtype,
                   Fault::eps_truncated, Fault::last_row_skipped, Fault::outer_stride_ignored,
                   Fault::mean_ux_block, Fault::mean_ux_n_minus_1, Fault::mean_ux_rows,
                   Fault::dy_by_x_stride, Fault::dx_needs_dgamma, Fault::dgamma_needs_dx,
                   Fault::dgamma_past_threshold>(fault);
}

/// Whether every CUDA kernel of the product is compiled with the fault. For the sake of compile
/// time a mutant has, of kernels that differ in the size of a thread's share alone, only the
/// largest, and of those that leave something out where they can, only the one that does not: these
/// do for all of the plan's launches.
constexpr bool has_all_kernels(Fault fault) {
  return fault == Fault::none || fault == Fault::control;
}
template <Fault F>
constexpr bool kHasAllKernels = has_all_kernels(F);

}  // namespace rmsnorm::kernels
