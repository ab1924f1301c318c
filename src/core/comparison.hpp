#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <string_view>

#include "core/config.hpp"
#include "core/dtype.hpp"

namespace rmsnorm {

/// The relative error allowed to sums of `terms` addends kept in the accumulation dtype of `dtype`,
/// times the magnitude of what is summed. Adding k numbers in some tree has an error that grows
/// like sqrt(k) of the longest chain; an eighth of it covers strips by up to 64 threads, the
/// constant the few roundings that follow.
double accumulation_bound(Dtype dtype, std::int64_t terms);

/// What a result is held to. Declared before the comparison, never changed after it.
struct Bounds {
  Tolerance elementwise;           ///< |got - want| <= atol + rtol * |want|, every element
  bool scale_atol_by_row = false;  ///< atol times max(1, rms of the wanted row)
  Dtype dtype = Dtype::float32;    ///< of the result: its rounding is allowed
  bool one_rounding = false;       ///< rows are held to what rounding each want once leaves
  std::int64_t terms = 1;          ///< addends of the sums behind each element
};

/// States of a case, from best to worst; a state never improves.
enum class State { passed, skipped, mistrusted, unimplemented, failed, error };
std::string_view name(State state);
State worse(State a, State b);

/// NaN and infinities are kept as they are.
struct ComparisonResult {
  State state = State::mistrusted;
  std::string reason;
  std::int64_t compared = 0;
  std::int64_t mismatched = 0;
  double max_abs_error = 0;
  double max_rel_error = 0;       ///< over elements with want != 0
  double row_rel_l2 = 0;          ///< worst row's |got - want| / |want|
  std::int64_t worst_index = -1;  ///< row-major, of the element that uses most of its tolerance
  double expected = 0, got = 0;   ///< at worst_index
  double used_of_tolerance = 0;   ///< worst |got - want| / (atol + rtol*|want|); infinite for a NaN
};

/// Sums over the elements of one row, or of all rows that are finite.
struct RowSums {
  double want2 = 0, want4 = 0, abs_want = 0;
  double error2 = 0, error_want = 0;  ///< error: got - want
  double rounding2 = 0;               ///< rounding: want rounded to the dtype, less want
  /// The least and the greatest sum of rounding * want, rounding anything in want +- accumulation *
  /// magnitude.
  double rounding_want_low = 0, rounding_want_high = 0;
  double magnitude2 = 0, magnitude_want = 0;
};

/// Rows whose elements were looked at elsewhere: all finite, each within the elementwise rule.
struct MeasuredRows {
  std::span<const RowSums> rows;
  double max_abs_error = 0, max_rel_error = 0;
  std::int64_t worst_index =
      0;  ///< within these rows, of the element that uses most of its tolerance
  double expected = 0, got = 0, tolerance = 0;  ///< at worst_index
};

/// Bits of a double's significand that rounding to `dtype` drops.
int dropped_significand_bits(Dtype dtype);

/// Compares rows of results with what the oracle wants, a slice at a time.
///
/// `want` and `got` are values; `magnitude` is, per element, the sum of the absolute values of the
/// terms whose sum `want` is, to which the error of sums is relative (x where the terms cancel,
/// want is small and magnitude is not). Passes only if all hold:
///  - every element meets the elementwise rule (NaN never does; an infinity matches only the same
///  infinity);
///  - every row has |got-want|_2 <= u*|want|_2 + a*|magnitude|_2 + sqrt(cols)*s/2, with u the unit
///  roundoff and s the
///    smallest subnormal of the result's dtype and a = accumulation_bound: atol hides a small term
///    in a large row. With one_rounding also <= |want rounded - want|_2 + 2*a*|magnitude|_2 + the
///    same: an element may end on the other side of a tie, never be rounded a second time;
///  - the gain |sum((got-want)*want)| / sum(want^2), per row and over everything, stays within what
///  rounding leaves of
///    it: 8 standard deviations u/sqrt(3)*sqrt(sum want^4)/sum want^2 (never more than u) plus the
///    same a term, or the largest gain of anything within a*magnitude of want, rounded to the
///    dtype, where that is larger (equal elements have equal rounding errors, which do not average
///    out, and next to a tie all of them may fall on its other side), plus the same s term.
///    Rounding averages out in the gain; a wrong scale, such as N-1 for N, does not.
/// Rows in which want is not finite, or larger than the dtype, are held to the elementwise rule
/// alone; where rounding want to the dtype overflows, the infinity of its sign is right.
/// Nothing compared, or a want that is zero (or overflows) everywhere, is `mistrusted`.
class Comparison {
 public:
  Comparison(const Bounds& bounds, std::int64_t cols);

  /// The next rows; the sizes must be equal and a multiple of cols.
  void add(std::span<const double> want, std::span<const double> magnitude,
           std::span<const double> got);

  /// The next rows, measured already; the rules about rows are applied here as to any others.
  void add(const MeasuredRows& measured);

  ComparisonResult finish() const;
  const Bounds& bounds() const { return bounds_; }
  /// accumulation_bound of the bounds.
  double accumulation() const { return accumulation_; }

 private:
  /// The first break of a rule about rows, and how many rows break it.
  struct RowFailure {
    std::string first;
    std::int64_t rows = 0;
  };

  void add_finite_row(const double* want, const double* magnitude, const double* got, RowSums row);
  void add_nonfinite_row(const double* want, const double* got);
  /// Whether a right result may be infinite: the dtype ends before, or within the tolerance of,
  /// that.
  bool may_overflow(double abs_want) const;
  void note_worst(std::int64_t index, double want, double got, double tolerance);
  void finish_row(const RowSums& row);
  void judge_row(const RowSums& row);
  double gain_bound(const RowSums& sums) const;
  std::string elementwise_reason() const;

  Bounds bounds_;
  std::int64_t cols_;
  double accumulation_;
  RowSums total_;
  std::int64_t rows_ = 0;
  bool nonzero_ = false;
  RowFailure row_l2_failure_, row_gain_failure_;
  ComparisonResult result_;
};

}  // namespace rmsnorm
