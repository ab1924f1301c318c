#include "core/comparison.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <bit>
#include <cmath>
#include <limits>
#include <stdexcept>

namespace rmsnorm {
namespace {

constexpr double quiet_nan = std::numeric_limits<double>::quiet_NaN();
constexpr double infinity = std::numeric_limits<double>::infinity();

/// Rounds doubles to the significand of a dtype, to nearest, ties to even; its exponent range is
/// left to the terms of the bounds that stand for subnormals. Integer operations only, for the loop
/// over elements.
class SignificandRounding {
 public:
  explicit SignificandRounding(Dtype dtype) {
    const int dropped_bits = dropped_significand_bits(dtype);
    if (dropped_bits == 0) return;
    odd_bit_ = std::uint64_t{1} << dropped_bits;
    shift_ = dropped_bits;
    half_ = (odd_bit_ >> 1) - 1;
  }

  double operator()(double value) const {
    const std::uint64_t bits = std::bit_cast<std::uint64_t>(value);
    const std::uint64_t tie = (bits & odd_bit_) >> shift_;
    return std::bit_cast<double>((bits + half_ + tie) & ~(half_ * 2 + (odd_bit_ != 0)));
  }

 private:
  std::uint64_t odd_bit_ = 0, half_ = 0;
  int shift_ = 0;
};

/// The larger of two maxima of which either may be NaN; a NaN stays.
double nan_or_max(double a, double b) {
  return std::isnan(a) || a >= b ? a : b;
}

void append_sentence(std::string& reason, std::string_view sentence) {
  if (!reason.empty()) reason += "; ";
  reason += sentence;
}

std::string row_reason(std::string_view first, std::int64_t rows) {
  if (rows < 2) return std::string(first);
  return fmt::format("{} (and in {} more rows)", first, rows - 1);
}

std::string gain_reason(double gain, double bound) {
  return fmt::format("gain {:.3g} above its bound {:.3g}: a systematic scale error", gain, bound);
}

}  // namespace

int dropped_significand_bits(Dtype dtype) {
  return -std::ilogb(unit_roundoff(Dtype::float64) / unit_roundoff(dtype));
}

double accumulation_bound(Dtype dtype, std::int64_t terms) {
  constexpr double following_roundings = 16;
  return unit_roundoff(accumulation_dtype(dtype)) *
         (following_roundings + std::sqrt(static_cast<double>(terms)) / 8);
}

std::string_view name(State state) {
  switch (state) {
    case State::passed:
      return "passed";
    case State::skipped:
      return "skipped";
    case State::mistrusted:
      return "mistrusted";
    case State::unimplemented:
      return "unimplemented";
    case State::failed:
      return "failed";
    case State::error:
      break;
  }
  return "error";
}

State worse(State a, State b) {
  return std::max(a, b);
}

Comparison::Comparison(const Bounds& bounds, std::int64_t cols)
    : bounds_(bounds), cols_(cols), accumulation_(accumulation_bound(bounds.dtype, bounds.terms)) {
  if (cols < 1)
    throw std::invalid_argument(fmt::format("Comparison: cols must be >= 1; got {}", cols));
}

void Comparison::add(std::span<const double> want, std::span<const double> magnitude,
                     std::span<const double> got) {
  const auto cols = static_cast<std::size_t>(cols_);
  if (want.size() != got.size() || want.size() != magnitude.size() || want.size() % cols != 0) {
    throw std::invalid_argument(
        fmt::format("Comparison::add: want, magnitude and got must be equally many whole rows of "
                    "{}; got {}, {} and {}",
                    cols, want.size(), magnitude.size(), got.size()));
  }
  for (std::size_t at = 0; at < want.size(); at += cols, ++rows_) {
    RowSums row;
    double largest = 0;
    for (std::size_t i = at; i < at + cols; ++i) {
      const double abs_want = std::fabs(want[i]);
      row.abs_want += abs_want;
      row.want2 += want[i] * want[i];
      largest = abs_want > largest ? abs_want : largest;
    }
    if (std::isfinite(row.abs_want) && !may_overflow(largest)) {
      nonzero_ |= row.abs_want != 0;
      add_finite_row(&want[at], &magnitude[at], &got[at], row);
    } else {
      add_nonfinite_row(&want[at], &got[at]);
    }
    result_.compared += cols_;
  }
}

void Comparison::add(const MeasuredRows& measured) {
  if (measured.rows.empty()) return;
  result_.max_abs_error = nan_or_max(result_.max_abs_error, measured.max_abs_error);
  result_.max_rel_error = nan_or_max(result_.max_rel_error, measured.max_rel_error);
  note_worst(rows_ * cols_ + measured.worst_index, measured.expected, measured.got,
             measured.tolerance);
  for (const RowSums& row : measured.rows) {
    nonzero_ |= row.abs_want != 0;
    finish_row(row);
    ++rows_;
  }
  result_.compared += static_cast<std::int64_t>(measured.rows.size()) * cols_;
}

void Comparison::add_finite_row(const double* want, const double* magnitude, const double* got,
                                RowSums row) {
  const double rms = std::sqrt(row.want2 / static_cast<double>(cols_));
  const double atol =
      bounds_.elementwise.atol * (bounds_.scale_atol_by_row ? std::max(1.0, rms) : 1.0);
  const double rtol = bounds_.elementwise.rtol;
  const SignificandRounding round(bounds_.dtype);
  std::int64_t mismatched = 0;
  double max_abs = result_.max_abs_error, max_rel = result_.max_rel_error;
  // A note is taken of the first element too, which a perfect result would leave unnamed.
  double worst_used = result_.worst_index < 0 ? -1 : result_.used_of_tolerance;
  RowSums sums = row;  // never has its address taken, so that it stays in registers
  for (std::int64_t i = 0; i < cols_; ++i) {
    const double w = want[i], m = magnitude[i];
    const double error = got[i] - w;
    const double diff = std::fabs(error), abs_want = std::fabs(w),
                 tolerance = atol + rtol * abs_want;
    mismatched += !(diff <= tolerance);
    // Both maxima are kept without a division for each element; a NaN takes the first branch.
    if (!(diff <= worst_used * tolerance)) [[unlikely]] {
      note_worst(rows_ * cols_ + i, w, got[i], tolerance);
      worst_used = result_.used_of_tolerance;
    }
    if (diff > max_rel * abs_want && abs_want > 0) [[unlikely]]
      max_rel = diff / abs_want;
    max_abs = diff > max_abs ? diff : max_abs;
    sums.want4 += (w * w) * (w * w);
    sums.error2 += error * error;
    sums.error_want += error * w;
    const double rounding = round(w) - w;
    sums.rounding2 += rounding * rounding;
    const double down = (round(w - accumulation_ * m) - w) * w,
                 up = (round(w + accumulation_ * m) - w) * w;
    sums.rounding_want_low += std::min(down, up);
    sums.rounding_want_high += std::max(down, up);
    sums.magnitude2 += m * m;
    sums.magnitude_want += m * abs_want;
  }
  row = sums;
  const bool has_nan = std::isnan(row.error2);
  result_.max_abs_error = has_nan ? quiet_nan : max_abs;
  result_.max_rel_error = has_nan ? quiet_nan : max_rel;
  result_.mismatched += mismatched;
  // A got that is not finite has already failed by its element; it would only drown the rest in
  // NaN.
  if (mismatched > 0 && !std::isfinite(row.error2)) {
    result_.row_rel_l2 = nan_or_max(result_.row_rel_l2, std::sqrt(row.error2 / row.want2));
    return;
  }
  finish_row(row);
}

void Comparison::finish_row(const RowSums& row) {
  const double relative = row.error2 == 0 ? 0 : std::sqrt(row.error2 / row.want2);
  result_.row_rel_l2 = nan_or_max(result_.row_rel_l2, relative);
  judge_row(row);
  if (!std::isfinite(row.magnitude2)) return;
  total_.want2 += row.want2, total_.want4 += row.want4, total_.abs_want += row.abs_want;
  total_.error2 += row.error2, total_.error_want += row.error_want;
  total_.rounding_want_low += row.rounding_want_low;
  total_.rounding_want_high += row.rounding_want_high;
  total_.magnitude2 += row.magnitude2, total_.magnitude_want += row.magnitude_want;
}

void Comparison::add_nonfinite_row(const double* want, const double* got) {
  for (std::int64_t i = 0; i < cols_; ++i) {
    const double w = want[i];
    const bool same_infinity = std::isinf(w) && got[i] == w;
    const double diff = same_infinity ? 0 : std::fabs(got[i] - w);
    // An infinite want leaves no room for another value; NaN as the tolerance says so.
    const double tolerance =
        std::isfinite(w) ? bounds_.elementwise.atol + bounds_.elementwise.rtol * std::fabs(w)
                         : quiet_nan;
    // Where rounding to the dtype overflows, the infinity of want's sign is right; within the
    // tolerance of that limit both are.
    const bool overflowed =
        std::isinf(got[i]) && std::signbit(got[i]) == std::signbit(w) && may_overflow(std::fabs(w));
    const bool within = same_infinity || overflowed || diff <= tolerance;
    nonzero_ |= w != 0 && !overflowed;
    result_.mismatched += !within;
    if (overflowed && result_.worst_index >= 0) continue;
    if (!within || result_.worst_index < 0 || diff > result_.used_of_tolerance * tolerance) {
      note_worst(rows_ * cols_ + i, w, got[i], tolerance);
    }
    result_.max_abs_error = nan_or_max(result_.max_abs_error, diff);
    if (w != 0) {
      const double relative = same_infinity ? 0 : std::isfinite(w) ? diff / std::fabs(w) : diff;
      result_.max_rel_error = nan_or_max(result_.max_rel_error, relative);
    }
  }
}

bool Comparison::may_overflow(double abs_want) const {
  return abs_want + bounds_.elementwise.atol + bounds_.elementwise.rtol * abs_want >=
         largest_finite(bounds_.dtype) * (1 + unit_roundoff(bounds_.dtype));
}

void Comparison::note_worst(std::int64_t index, double want, double got, double tolerance) {
  const double diff = want == got ? 0 : std::fabs(got - want);
  double used = diff == 0 ? 0 : diff / tolerance;
  if (std::isnan(used)) used = infinity;
  if (result_.worst_index >= 0 && used <= result_.used_of_tolerance) return;
  result_.worst_index = index;
  result_.expected = want;
  result_.got = got;
  result_.used_of_tolerance = used;
}

void Comparison::judge_row(const RowSums& row) {
  const double want_l2 = std::sqrt(row.want2), error_l2 = std::sqrt(row.error2);
  const double accumulation = accumulation_ * std::sqrt(row.magnitude2);
  double bound = unit_roundoff(bounds_.dtype) * want_l2 + accumulation;
  if (bounds_.one_rounding) bound = std::min(bound, std::sqrt(row.rounding2) + 2 * accumulation);
  bound += std::sqrt(static_cast<double>(cols_)) * smallest_subnormal(bounds_.dtype) / 2;
  if (!std::isfinite(bound)) {
    // The oracle's fault, or a want beyond the range of its own squares: nothing would be checked.
    if (++row_l2_failure_.rows == 1)
      row_l2_failure_.first = fmt::format("row {}: its L2 bound is {}", rows_, bound);
    return;
  }
  if (!(error_l2 <= bound) && ++row_l2_failure_.rows == 1) {
    row_l2_failure_.first =
        want_l2 > 0
            ? fmt::format("row {}: relative L2 error {:.3g} above its bound {:.3g}", rows_,
                          error_l2 / want_l2, bound / want_l2)
            : fmt::format("row {}: L2 error {:.3g} above its bound {:.3g} where zeros are expected",
                          rows_, error_l2, bound);
  }
  if (row.want2 == 0) return;
  const double gain = std::fabs(row.error_want) / row.want2;
  const double allowed_gain = gain_bound(row);
  if (!(gain <= allowed_gain) && ++row_gain_failure_.rows == 1) {
    row_gain_failure_.first = fmt::format("row {}: {}", rows_, gain_reason(gain, allowed_gain));
  }
}

double Comparison::gain_bound(const RowSums& sums) const {
  constexpr double deviations = 8;
  const double u = unit_roundoff(bounds_.dtype);
  const double averaged =
      std::min(u, deviations * u / std::sqrt(3.0) * std::sqrt(sums.want4) / sums.want2);
  const double unavoidable =
      std::max(-sums.rounding_want_low, sums.rounding_want_high) / sums.want2;
  return std::max(averaged + accumulation_ * sums.magnitude_want / sums.want2, unavoidable) +
         smallest_subnormal(bounds_.dtype) / 2 * sums.abs_want / sums.want2;
}

std::string Comparison::elementwise_reason() const {
  const std::int64_t row = result_.worst_index / cols_, col = result_.worst_index % cols_;
  return fmt::format(
      "{} of {} elements outside {} + rtol*|want|, the worst at row {}, col {}: expected {:.9g}, "
      "got {:.9g}",
      result_.mismatched, result_.compared,
      bounds_.scale_atol_by_row ? "atol*max(1, rms of the row)" : "atol", row, col,
      result_.expected, result_.got);
}

ComparisonResult Comparison::finish() const {
  ComparisonResult result = result_;
  if (result.mismatched > 0) append_sentence(result.reason, elementwise_reason());
  for (const RowFailure* failure : {&row_l2_failure_, &row_gain_failure_}) {
    if (failure->rows > 0)
      append_sentence(result.reason, row_reason(failure->first, failure->rows));
  }
  // Of a single row it has been said already.
  if (rows_ > 1 && total_.want2 != 0) {
    const double gain = std::fabs(total_.error_want) / total_.want2;
    const double allowed_gain = gain_bound(total_);
    if (!(gain <= allowed_gain)) append_sentence(result.reason, gain_reason(gain, allowed_gain));
  }
  if (!result.reason.empty()) {
    result.state = State::failed;
  } else if (result.compared == 0) {
    result.state = State::mistrusted;
    result.reason = "nothing was compared";
  } else if (!nonzero_) {
    result.state = State::mistrusted;
    result.reason =
        fmt::format("all {} expected values are zero or beyond the dtype, which proves nothing",
                    result.compared);
  } else {
    result.state = State::passed;
  }
  return result;
}

}  // namespace rmsnorm
