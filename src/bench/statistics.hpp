#pragma once

#include <cstdint>
#include <vector>

namespace rmsnorm::bench {

/// Of the times of the samples of one measurement.
struct Statistics {
  double median_us = 0, p10_us = 0, p90_us = 0;
  std::int64_t samples = 0;
};

/// Quantiles by linear interpolation between the sorted samples: quantile q of n samples lies at
/// position q * (n - 1). Throws std::invalid_argument for no samples or one that is not finite.
Statistics summarize(std::vector<double> samples_us);

}  // namespace rmsnorm::bench
