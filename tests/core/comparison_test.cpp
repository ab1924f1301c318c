#include "core/comparison.hpp"

#include <cmath>
#include <limits>
#include <random>
#include <span>
#include <stdexcept>
#include <string>
#include <vector>

#include "support/catch.hpp"

using rmsnorm::Bounds;
using rmsnorm::Comparison;
using rmsnorm::ComparisonResult;
using rmsnorm::Dtype;
using rmsnorm::State;

namespace {

using Values = std::vector<double>;

constexpr double inf = std::numeric_limits<double>::infinity();
constexpr double quiet_nan = std::numeric_limits<double>::quiet_NaN();

/// The value of `dtype` nearest to `value`, ties to even. Written apart from the rounding in the
/// subject.
double rounded(double value, Dtype dtype) {
  if (dtype == Dtype::float64 || value == 0) return value;
  int exponent = 0;
  std::frexp(value, &exponent);
  const double spacing = std::max(std::ldexp(2 * rmsnorm::unit_roundoff(dtype), exponent - 1),
                                  rmsnorm::smallest_subnormal(dtype));
  return std::nearbyint(value / spacing) * spacing;
}

Values rounded(Values values, Dtype dtype) {
  for (double& value : values) value = rounded(value, dtype);
  return values;
}

Values absolute(Values values) {
  for (double& value : values) value = std::fabs(value);
  return values;
}

Bounds bounds_of(Dtype dtype, std::int64_t terms) {
  const rmsnorm::Tolerance wide{3e-3, 3e-3}, bfloat{2e-2, 2e-2}, narrow{1e-5, 1e-4};
  Bounds bounds;
  bounds.elementwise = dtype == Dtype::float16 ? wide : dtype == Dtype::bfloat16 ? bfloat : narrow;
  bounds.dtype = dtype;
  bounds.terms = terms;
  return bounds;
}

ComparisonResult compare(const Bounds& bounds, std::int64_t cols, const Values& want,
                         const Values& got) {
  Comparison comparison(bounds, cols);
  comparison.add(want, absolute(want), got);
  return comparison.finish();
}

/// Rows as RMSNorm makes them: normal values with a root mean square of one, times a gamma.
Values normalized_rows(std::int64_t rows, std::int64_t cols, unsigned seed) {
  std::mt19937_64 generator(seed);
  std::normal_distribution<double> normal;
  Values gamma(static_cast<std::size_t>(cols)), values;
  for (double& value : gamma) value = 1 + 0.3 * normal(generator);
  for (std::int64_t row = 0; row < rows; ++row) {
    Values x(static_cast<std::size_t>(cols));
    double sum = 0;
    for (double& value : x) {
      value = normal(generator);
      sum += value * value;
    }
    const double rstd = 1 / std::sqrt(sum / static_cast<double>(cols) + 1e-6);
    for (std::size_t i = 0; i < x.size(); ++i) values.push_back(x[i] * rstd * gamma[i]);
  }
  return values;
}

bool contains(const std::string& text, const std::string& part) {
  return text.find(part) != std::string::npos;
}

const std::vector<Dtype> all_dtypes{Dtype::float64, Dtype::float32, Dtype::float16,
                                    Dtype::bfloat16};

}  // namespace

TEST_CASE("correctly rounded results pass in every dtype and size") {
  for (const Dtype dtype : all_dtypes) {
    for (const std::int64_t cols : {1, 2, 31, 256, 257, 4096}) {
      for (unsigned seed = 0; seed < 40; ++seed) {
        const std::int64_t rows = cols == 4096 ? 1 + seed % 5 : 1 + seed * 4;
        const Values want = normalized_rows(rows, cols, seed);
        const ComparisonResult result =
            compare(bounds_of(dtype, cols), cols, want, rounded(want, dtype));
        CAPTURE(rmsnorm::name(dtype), rows, cols, seed, result.reason);
        REQUIRE(result.state == State::passed);
        CHECK(result.compared == rows * cols);
        CHECK(result.mismatched == 0);
        CHECK(result.reason.empty());
        CHECK(result.row_rel_l2 <= rmsnorm::unit_roundoff(dtype));
        CHECK(result.used_of_tolerance < 1);
      }
    }
  }
}

TEST_CASE("correctly rounded results that are all subnormal pass") {
  for (const Dtype dtype : {Dtype::float32, Dtype::float16, Dtype::bfloat16}) {
    Values want = normalized_rows(3, 257, 5);
    for (double& value : want) value *= 3 * rmsnorm::smallest_subnormal(dtype);
    const ComparisonResult result = compare(bounds_of(dtype, 257), 257, want, rounded(want, dtype));
    CAPTURE(rmsnorm::name(dtype), result.reason);
    CHECK(result.state == State::passed);
  }
}

TEST_CASE("rounding errors that are equal in every element pass") {
  // One column and a float32 gamma: every wanted value is +-gamma, and rounding does not average
  // out.
  for (const Dtype dtype : {Dtype::float16, Dtype::bfloat16}) {
    const double gamma = 1 + 0.99 * rmsnorm::unit_roundoff(dtype);
    Values want;
    for (int row = 0; row < 4096; ++row) want.push_back(row % 3 == 0 ? gamma : -gamma);
    const ComparisonResult result = compare(bounds_of(dtype, 1), 1, want, rounded(want, dtype));
    CAPTURE(result.reason);
    CHECK(result.state == State::passed);
  }
}

TEST_CASE("next to a tie any element may fall on either side, and farther away none") {
  for (const Dtype dtype : {Dtype::float16, Dtype::bfloat16}) {
    const double u = rmsnorm::unit_roundoff(dtype);
    const auto judged = [&](double distance) {
      Values want, got;
      for (int i = 0; i < 4096; ++i) {
        want.push_back(1 + u + (i % 2 == 0 ? distance : -distance));
        got.push_back(1 + 2 * u);
      }
      return compare(bounds_of(dtype, 4096), 4096, want, got);
    };
    const ComparisonResult near = judged(1e-7);
    CAPTURE(near.reason);
    CHECK(near.state == State::passed);
    const ComparisonResult far = judged(0.01 * u);
    CHECK(far.state == State::failed);
    CHECK(contains(far.reason, "gain"));
  }
}

TEST_CASE("one NaN fails wherever it stands") {
  const Values want = normalized_rows(4, 257, 1);
  for (const std::size_t at :
       {std::size_t{0}, std::size_t{256}, std::size_t{257}, want.size() - 1}) {
    Values got = want;
    got[at] = quiet_nan;
    const ComparisonResult result = compare(bounds_of(Dtype::float32, 257), 257, want, got);
    CAPTURE(at, result.reason);
    CHECK(result.state == State::failed);
    CHECK(result.mismatched == 1);
    CHECK(result.worst_index == static_cast<std::int64_t>(at));
    CHECK(std::isnan(result.got));
    CHECK(std::isnan(result.max_abs_error));
    CHECK(std::isnan(result.max_rel_error));
    CHECK(std::isnan(result.row_rel_l2));
    CHECK(result.used_of_tolerance == inf);
    CHECK(contains(result.reason, "1 of 1028 elements outside atol + rtol*|want|"));
    CHECK_FALSE(contains(result.reason, "gain"));
  }
}

TEST_CASE("NaN does not pass as the expected value either") {
  const ComparisonResult result =
      compare(bounds_of(Dtype::float32, 3), 3, {1, quiet_nan, 2}, {1, quiet_nan, 2});
  CHECK(result.state == State::failed);
  CHECK(result.mismatched == 1);
  CHECK(result.worst_index == 1);
}

TEST_CASE("an infinity matches the same infinity only") {
  const Bounds bounds = bounds_of(Dtype::float32, 2);
  const ComparisonResult same = compare(bounds, 2, {inf, 1, -inf, 2}, {inf, 1, -inf, 2});
  CAPTURE(same.reason);
  CHECK(same.state == State::passed);
  CHECK(same.max_abs_error == 0);
  CHECK(same.compared == 4);
  for (const Values& got : {Values{-inf, 1}, Values{1e308, 1}, Values{quiet_nan, 1},
                            Values{inf, inf}, Values{inf, 1.1}}) {
    const ComparisonResult result = compare(bounds, 2, {inf, 1}, got);
    CAPTURE(got[0], got[1], result.reason);
    CHECK(result.state == State::failed);
    CHECK(result.mismatched == 1);
  }
  const ComparisonResult finite = compare(bounds, 2, {3, 1}, {inf, 1});
  CHECK(finite.state == State::failed);
  CHECK(finite.max_abs_error == inf);
  CHECK(finite.got == inf);
  CHECK(finite.expected == 3);
}

TEST_CASE("an infinity is refused by a tolerance without a relative part too") {
  Bounds bounds = bounds_of(Dtype::float32, 2);
  bounds.elementwise = {1e-3, 0};
  CHECK(compare(bounds, 2, {inf, 1}, {2, 1}).mismatched == 1);
  bounds.elementwise = {0, 1e-3};
  CHECK(compare(bounds, 2, {0, 1}, {0, 1}).state == State::passed);
  CHECK(compare(bounds, 2, {0, 1}, {1e-30, 1}).mismatched == 1);
}

TEST_CASE("where rounding to the dtype overflows the infinity of the same sign is right") {
  Bounds bounds = bounds_of(Dtype::float16, 2);
  bounds.elementwise = {1e-3, 1e-3};
  // float16 ends at 65504 and rounds from 65520 on to infinity.
  for (const Values& got : {Values{inf, 1}, Values{65504, 1}}) {
    CHECK(compare(bounds, 2, {65521, 1}, got).state == State::passed);
    CHECK(compare(bounds, 2, {65519, 1}, got).state == State::passed);
  }
  CHECK(compare(bounds, 2, {4e5, 1}, {inf, 1}).state == State::passed);
  CHECK(compare(bounds, 2, {-4e5, 1}, {-inf, 1}).state == State::passed);
  for (const Values& got : {Values{-inf, 1}, Values{65504, 1}, Values{quiet_nan, 1},
                            Values{inf, inf}, Values{inf, 1.1}}) {
    CAPTURE(got[0], got[1]);
    CHECK(compare(bounds, 2, {4e5, 1}, got).state == State::failed);
  }
  CHECK(compare(bounds, 2, {6e4, 1}, {inf, 1}).state == State::failed);
  // Infinities alone prove nothing.
  CHECK(compare(bounds, 2, {4e5, -4e5}, {inf, -inf}).state == State::mistrusted);
}

TEST_CASE("a row that is not finite leaves the bounds of the others in force") {
  Values want = normalized_rows(3, 64, 2), got = want;
  want[70] = got[70] = inf;
  const Bounds bounds = bounds_of(Dtype::float32, 64);
  CHECK(compare(bounds, 64, want, got).state == State::passed);
  for (std::size_t i = 128; i < got.size(); ++i) got[i] *= 1 + 5e-5;
  const ComparisonResult result = compare(bounds, 64, want, got);
  CHECK(result.mismatched == 0);
  CHECK(contains(result.reason, "row 2: relative L2 error 5e-05 above its bound"));
}

TEST_CASE("one wrong element is found in the first and in the last position") {
  const Values want = normalized_rows(128, 257, 3);
  for (const std::size_t at : {std::size_t{0}, want.size() - 1}) {
    Values got = want;
    got[at] += 1;
    const ComparisonResult result = compare(bounds_of(Dtype::float32, 257), 257, want, got);
    CAPTURE(at, result.reason);
    CHECK(result.state == State::failed);
    CHECK(result.mismatched == 1);
    CHECK(result.worst_index == static_cast<std::int64_t>(at));
    CHECK(result.expected == want[at]);
    CHECK(result.got == got[at]);
    CHECK(result.max_abs_error == Approx(1));
    CHECK(result.max_rel_error == Approx(1 / std::fabs(want[at])));
    const std::string place = at == 0 ? "row 0, col 0: expected " : "row 127, col 256: expected ";
    CHECK(contains(result.reason,
                   "1 of 32896 elements outside atol + rtol*|want|, the worst at " + place));
  }
}

TEST_CASE("the worst element is the one that uses most of its tolerance") {
  Bounds bounds = bounds_of(Dtype::float16, 3);
  bounds.elementwise = {0.01, 0.01};
  const ComparisonResult result =
      compare(bounds, 3, {100, 1, 10}, {100.5, 1.1, 10});  // tolerances 1.01, 0.02, 0.11
  CHECK(result.worst_index == 1);
  CHECK(result.used_of_tolerance == Approx(5));
  CHECK(result.max_abs_error == Approx(0.5));
  CHECK(result.max_rel_error == Approx(0.1));
  CHECK(result.mismatched == 1);
}

TEST_CASE("a missing term that atol hides in a wide row breaks the row's bound") {
  const Values base = normalized_rows(2, 4096, 4), other = normalized_rows(2, 4096, 5);
  Values want, got;
  for (std::size_t i = 0; i < base.size(); ++i) {
    const bool second_row = i >= 4096;
    got.push_back(0.01 * base[i]);
    want.push_back(got.back() - (second_row ? 1e-6 * other[i] : 0));
  }
  const ComparisonResult result = compare(bounds_of(Dtype::float32, 4096), 4096, want, got);
  CAPTURE(result.reason);
  CHECK(result.state == State::failed);
  CHECK(result.mismatched == 0);
  CHECK(result.reason.starts_with("row 1: relative L2 error "));
  CHECK(contains(result.reason, " above its bound "));
}

TEST_CASE("N-1 for N is caught by the gain where every other rule passes") {
  const double wrong = std::sqrt(4095.0 / 4096.0);
  const auto scaled = [&](Values values, Dtype dtype) {
    for (double& value : values) value *= wrong;
    return rounded(values, dtype);
  };
  for (unsigned seed = 0; seed < 20; ++seed) {
    const Values want = normalized_rows(1, 4096, seed);
    const ComparisonResult result =
        compare(bounds_of(Dtype::float16, 4096), 4096, want, scaled(want, Dtype::float16));
    CAPTURE(seed, result.reason);
    CHECK(result.state == State::failed);
    CHECK(result.mismatched == 0);
    CHECK_FALSE(contains(result.reason, "L2"));
    CHECK(contains(result.reason, "row 0: gain 0.0001"));
    CHECK(result.reason.ends_with(": a systematic scale error"));
    CHECK_FALSE(contains(result.reason, ";"));
  }
  // bfloat16 rounds too coarsely for one row; over many rows the gain shows.
  const Values want = normalized_rows(128, 4096, 7);
  const ComparisonResult result =
      compare(bounds_of(Dtype::bfloat16, 4096), 4096, want, scaled(want, Dtype::bfloat16));
  CHECK(result.state == State::failed);
  CHECK(result.mismatched == 0);
  CHECK(result.reason.starts_with("gain 0.0001"));
}

TEST_CASE("a row of expected zeros takes only what rounding leaves") {
  const Bounds bounds = bounds_of(Dtype::float32, 2);
  CHECK(compare(bounds, 2, {0, 0, 1, 2}, {0, 0, 1, 2}).state == State::passed);
  CHECK(compare(bounds, 2, {1, 2, 0, 0}, {1, 2, 0, 0}).state == State::passed);
  const ComparisonResult result = compare(bounds, 2, {0, 0, 1, 2}, {1e-6, 0, 1, 2});
  CHECK(result.state == State::failed);
  CHECK(result.mismatched == 0);
  CHECK(result.row_rel_l2 == inf);
  CHECK(contains(result.reason, "row 0: L2 error 1e-06 above its bound "));
}

TEST_CASE("errors relative to the terms of a sum that cancels are allowed") {
  const Bounds bounds = bounds_of(Dtype::float32, 2);
  const Values want{1e-7, -2e-7, 1e-7, 3e-7}, got{2e-7, -2e-7, 2e-7, 3e-7};
  Comparison comparison(bounds, 2);
  comparison.add(want, Values(4, 1), got);
  CHECK(comparison.finish().state == State::passed);
  CHECK(compare(bounds, 2, want, got).state == State::failed);
}

TEST_CASE("a bound that is not a number holds nothing") {
  const Values want{1, 2};
  for (const double magnitude : {quiet_nan, inf}) {
    Comparison comparison(bounds_of(Dtype::float32, 2), 2);
    comparison.add(want, Values{1, magnitude}, want);
    CHECK(comparison.finish().state == State::failed);
  }
}

TEST_CASE("atol grows with the wanted row where the config scales rows") {
  Bounds bounds = bounds_of(Dtype::float16, 2);
  bounds.elementwise = {1e-3, 0};
  const Values want{1000, 0.001}, got{1000.2, 0.001};
  CHECK(compare(bounds, 2, want, got).mismatched == 1);
  bounds.scale_atol_by_row = true;
  CHECK(compare(bounds, 2, want, got).mismatched == 0);
  CHECK(compare(bounds, 2, {0.1, 0.1}, {0.1, 0.1005}).mismatched == 0);
  const ComparisonResult small_row = compare(bounds, 2, {0.1, 0.1}, {0.1, 0.102});
  CHECK(small_row.mismatched == 1);
  CHECK(contains(small_row.reason,
                 "1 of 2 elements outside atol*max(1, rms of the row) + rtol*|want|"));
}

TEST_CASE("an empty comparison and one with zeros alone are mistrusted") {
  const Bounds bounds = bounds_of(Dtype::float32, 3);
  CHECK(Comparison(bounds, 3).finish().state == State::mistrusted);
  CHECK(Comparison(bounds, 3).finish().reason == "nothing was compared");
  CHECK(Comparison(bounds, 3).finish().compared == 0);
  const ComparisonResult empty = compare(bounds, 3, {}, {});
  CHECK(empty.state == State::mistrusted);
  const ComparisonResult zeros = compare(bounds, 3, Values(6, 0), Values(6, 0));
  CHECK(zeros.state == State::mistrusted);
  CHECK(zeros.reason == "all 6 expected values are zero or beyond the dtype, which proves nothing");
  CHECK(compare(bounds, 3, Values(6, 0), Values(6, 1)).state == State::failed);
}

TEST_CASE("slices give the same result as all rows at once") {
  for (const Dtype dtype : all_dtypes) {
    const std::int64_t cols = 31;
    const Values want = normalized_rows(50, cols, 9), magnitude = absolute(want);
    Values got = rounded(want, dtype);
    got[700] += 0.25;
    got[1200] = quiet_nan;
    Comparison whole(bounds_of(dtype, cols), cols), sliced(bounds_of(dtype, cols), cols);
    whole.add(want, magnitude, got);
    std::size_t at = 0;
    for (const std::size_t rows :
         {std::size_t{1}, std::size_t{7}, std::size_t{0}, std::size_t{42}}) {
      const std::size_t size = rows * static_cast<std::size_t>(cols);
      const auto slice = [&](const Values& values) {
        return std::span<const double>(values).subspan(at, size);
      };
      sliced.add(slice(want), slice(magnitude), slice(got));
      at += size;
    }
    const ComparisonResult a = whole.finish(), b = sliced.finish();
    CHECK(a.state == b.state);
    CHECK(a.reason == b.reason);
    CHECK(a.compared == b.compared);
    CHECK(a.mismatched == b.mismatched);
    CHECK(a.worst_index == b.worst_index);
    CHECK(a.expected == b.expected);
    CHECK(a.used_of_tolerance == b.used_of_tolerance);
    CHECK(std::isnan(a.max_abs_error) == std::isnan(b.max_abs_error));
  }
}

TEST_CASE("every broken rule is told, the elementwise one first") {
  Values want = normalized_rows(3, 257, 11), got = want;
  for (double& value : got) value *= 1.4;
  const ComparisonResult result = compare(bounds_of(Dtype::float32, 257), 257, want, got);
  const std::size_t l2 = result.reason.find("; row 0: relative L2 error 0.4 above its bound ");
  const std::size_t gain = result.reason.find("; row 0: gain 0.4 above its bound ");
  const std::size_t total = result.reason.find("; gain 0.4 above its bound ");
  CAPTURE(result.reason);
  CHECK(contains(result.reason, " of 771 elements outside "));
  CHECK(contains(result.reason, "(and in 2 more rows)"));
  REQUIRE(total != std::string::npos);
  CHECK(l2 < gain);
  CHECK(gain < total);
}

TEST_CASE("sizes that are not whole rows are refused") {
  Comparison comparison(bounds_of(Dtype::float32, 3), 3);
  const Values three(3), four(4), six(6);
  CHECK_THROWS_AS(comparison.add(four, four, four), std::invalid_argument);
  CHECK_THROWS_AS(comparison.add(three, three, six), std::invalid_argument);
  CHECK_THROWS_AS(comparison.add(three, six, three), std::invalid_argument);
  CHECK_THROWS_AS(Comparison(bounds_of(Dtype::float32, 3), 0), std::invalid_argument);
}

TEST_CASE("a state never improves") {
  const std::vector<State> order{State::passed,        State::skipped, State::mistrusted,
                                 State::unimplemented, State::failed,  State::error};
  for (std::size_t a = 0; a < order.size(); ++a) {
    for (std::size_t b = 0; b < order.size(); ++b) {
      CHECK(rmsnorm::worse(order[a], order[b]) == order[std::max(a, b)]);
    }
  }
  CHECK(rmsnorm::name(State::mistrusted) == "mistrusted");
}

TEST_CASE("the bound of accumulated sums grows slowly and follows the accumulation dtype") {
  const double at_1 = rmsnorm::accumulation_bound(Dtype::float32, 1);
  CHECK(at_1 > rmsnorm::unit_roundoff(Dtype::float32));
  CHECK(rmsnorm::accumulation_bound(Dtype::float32, 4096) < 4 * at_1);
  CHECK(rmsnorm::accumulation_bound(Dtype::float32, 1 << 20) >
        rmsnorm::accumulation_bound(Dtype::float32, 4096));
  CHECK(rmsnorm::accumulation_bound(Dtype::bfloat16, 257) ==
        rmsnorm::accumulation_bound(Dtype::float32, 257));
  CHECK(rmsnorm::accumulation_bound(Dtype::float64, 257) < 1e-14);
}
