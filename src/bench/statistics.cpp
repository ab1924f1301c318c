#include "bench/statistics.hpp"

#include <algorithm>
#include <cmath>
#include <stdexcept>

namespace rmsnorm::bench {
namespace {

double quantile(const std::vector<double>& sorted, double q) {
  const double position = q * static_cast<double>(sorted.size() - 1);
  const auto below = static_cast<std::size_t>(position);
  const std::size_t above = std::min(below + 1, sorted.size() - 1);
  const double weight = position - static_cast<double>(below);
  return sorted[below] + weight * (sorted[above] - sorted[below]);
}

}  // namespace

Statistics summarize(std::vector<double> samples_us) {
  const bool finite = std::all_of(samples_us.begin(), samples_us.end(),
                                  [](double sample) { return std::isfinite(sample); });
  if (samples_us.empty() || !finite) {
    throw std::invalid_argument("benchmark: there must be samples, all finite; got " +
                                std::to_string(samples_us.size()) + " samples");
  }
  std::sort(samples_us.begin(), samples_us.end());
  return {.median_us = quantile(samples_us, 0.5),
          .p10_us = quantile(samples_us, 0.1),
          .p90_us = quantile(samples_us, 0.9),
          .samples = static_cast<std::int64_t>(samples_us.size())};
}

}  // namespace rmsnorm::bench
