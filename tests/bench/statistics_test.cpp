#include "bench/statistics.hpp"

#include <limits>

#include "support/catch.hpp"

using rmsnorm::bench::Statistics;
using rmsnorm::bench::summarize;

TEST_CASE("the median is the middle sample, or lies between the two middle ones", "[statistics]") {
  CHECK(summarize({3, 1, 2}).median_us == 2);
  CHECK(summarize({4, 1, 3, 2}).median_us == 2.5);
  CHECK(summarize({7}).median_us == 7);
}

TEST_CASE("the tenth and ninetieth percent lie at their place between sorted samples",
          "[statistics]") {
  const Statistics eleven = summarize({10, 9, 8, 7, 6, 5, 4, 3, 2, 1, 0});
  CHECK(eleven.p10_us == 1);
  CHECK(eleven.p90_us == 9);
  CHECK(eleven.samples == 11);
  const Statistics two = summarize({20, 10});
  CHECK(two.p10_us == Approx(11));
  CHECK(two.p90_us == Approx(19));
  const Statistics one = summarize({5});
  CHECK(one.p10_us == 5);
  CHECK(one.p90_us == 5);
}

TEST_CASE("one wild sample does not move the median", "[statistics]") {
  CHECK(summarize({1, 1, 1, 1, 1e9}).median_us == 1);
}

TEST_CASE("no samples and samples that are not finite are refused", "[statistics]") {
  CHECK_THROWS_AS(summarize({}), std::invalid_argument);
  CHECK_THROWS_AS(summarize({1, std::numeric_limits<double>::quiet_NaN()}), std::invalid_argument);
  CHECK_THROWS_AS(summarize({std::numeric_limits<double>::infinity()}), std::invalid_argument);
}
