#include "bench/plan.hpp"

#include <fmt/format.h>

#include <array>
#include <stdexcept>

namespace rmsnorm::bench {
namespace {

/// How much faster than the copy a call may be: kernels with better access patterns than one vector
/// per thread beat it by up to 2.5 % after reading. After writing, what the drain of dirty lines
/// takes scatters more.
constexpr double kFasterThanCopy = 0.03;
constexpr double kFasterThanCopyAfterWrite = 0.06;
constexpr double kEventResolution_us = 0.5;

constexpr std::array all_passes{Pass::forward, Pass::backward, Pass::forward_backward};
constexpr std::array all_protocols{Protocol::calls, Protocol::cold, Protocol::cold_write,
                                   Protocol::graph};

template <class T, std::size_t N>
T parse(const std::array<T, N>& all, const std::string& text) {
  for (const T value : all) {
    if (name(value) == text) return value;
  }
  throw std::logic_error("benchmark: the config lets through the word " + text);
}

std::vector<std::pair<Protocol, Pass>> measurements_of(const BenchmarkGroup& group) {
  std::vector<std::pair<Protocol, Pass>> measurements;
  for (const std::string& protocol : group.protocols) {
    for (const std::string& pass : group.passes) {
      const std::pair measurement{parse(all_protocols, protocol), parse(all_passes, pass)};
      if (times(measurement.first, measurement.second)) measurements.push_back(measurement);
    }
  }
  return measurements;
}

std::vector<Case> cases_of(const BenchmarkGroup& group, std::string_view pattern) {
  CaseGrid grid;
  grid.shapes = group.shapes;
  grid.dtypes = group.dtypes;
  grid.layouts = group.layouts;
  grid.gammas = group.gammas;
  Config config;
  config.cases = {grid};
  return select_cases(expand_cases(config), pattern);
}

}  // namespace

std::string_view name(Pass pass) {
  switch (pass) {
    case Pass::forward:
      return "forward";
    case Pass::backward:
      return "backward";
    case Pass::forward_backward:
      break;
  }
  return "forward_backward";
}

std::string_view name(Protocol protocol) {
  switch (protocol) {
    case Protocol::calls:
      return "calls";
    case Protocol::cold:
      return "cold";
    case Protocol::cold_write:
      return "cold_write";
    case Protocol::graph:
      break;
  }
  return "graph";
}

bool times(Protocol protocol, Pass pass) {
  if (protocol == Protocol::calls) return pass != Pass::backward;
  return pass != Pass::forward_backward;
}

std::int64_t bytes_moved(Pass pass, const Case& problem) {
  const std::int64_t tensor_bytes = problem.rows * problem.cols * size_bytes(problem.dtype);
  switch (pass) {
    case Pass::forward:
      return 2 * tensor_bytes;
    case Pass::backward:
      return 3 * tensor_bytes;
    case Pass::forward_backward:
      break;
  }
  return 5 * tensor_bytes;
}

std::vector<Task> plan(const Config& config, std::string_view pattern) {
  std::vector<Task> tasks;
  for (const BenchmarkGroup& group : config.benchmark.groups) {
    const auto measurements = measurements_of(group);
    if (measurements.empty()) continue;
    for (const Case& problem : cases_of(group, pattern)) {
      tasks.push_back(
          {problem, group.implementations.empty() ? config.implementations : group.implementations,
           measurements});
    }
  }
  return tasks;
}

std::string reason_to_mistrust(Protocol protocol, double median_us, double floor_us,
                               std::int64_t bytes, std::int64_t cache_bytes) {
  if (!(median_us > 0)) return "the clock saw no time pass";
  const bool cold = protocol == Protocol::cold || protocol == Protocol::cold_write;
  if (!cold || bytes <= cache_bytes) return {};
  const double share = protocol == Protocol::cold ? kFasterThanCopy : kFasterThanCopyAfterWrite;
  if (median_us >= (1 - share) * floor_us - kEventResolution_us) return {};
  return fmt::format(
      "{:.2f} us are more than {:.0f} % below the {:.2f} us of a copy of the same "
      "bytes on a cold cache: it cannot have moved them all",
      median_us, 100 * share, floor_us);
}

}  // namespace rmsnorm::bench
