#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <functional>
#include <string>
#include <string_view>
#include <vector>

#include "bench/plan.hpp"
#include "bench/statistics.hpp"
#include "check/subject.hpp"
#include "core/comparison.hpp"

namespace rmsnorm::bench {

/// Names of the columns that every benchmark has beside the implementations.
inline constexpr std::string_view kCopy = "copy";    ///< the same bytes through a device copy
inline constexpr std::string_view kFloor = "floor";  ///< an empty autograd function; calls only

/// One measurement, or why there is none: its times are there only when it was timed.
struct Row {
  Case problem;
  Pass pass = Pass::forward;
  Protocol protocol = Protocol::calls;
  std::string implementation;
  State state = State::error;
  std::string reason;
  Statistics time;
  std::int64_t bytes = 0;
  double floor_us = 0;       ///< the copy's median in the same protocol; 0: there is none
  double empty_us = 0;       ///< the empty autograd function's, in `calls`
  std::string cache;         ///< what a cache could serve the timed calls
  std::int64_t buffers = 1;  ///< copies of the inputs taken in turn

  bool timed() const { return time.samples > 0; }
  double ratio_to_floor() const { return floor_us > 0 ? time.median_us / floor_us : 0; }
  double ratio_to_empty() const { return empty_us > 0 ? time.median_us / empty_us : 0; }
};

/// What decides whether an implementation is timed on a case.
struct CheckedCase {
  Case problem;
  std::string implementation;
  ComparisonResult result;  ///< the worst of forward, backward and gamma
  bool sampled = false;     ///< a sample of the rows was looked at
};

struct Hooks {
  std::function<Subject(std::string_view)> find;  ///< may throw, before anything is timed
  std::function<void()> between;                  ///< what it throws ends the run
  std::function<void(const CheckedCase&)> checked;
  std::function<void(const Row&)> timed;
};

/// Rows that run_benchmark will hand to Hooks::timed.
std::int64_t row_count(const std::vector<Task>& tasks);

/// Checks and times. For each task: every implementation is checked on the case by the path of
/// the checks, on every element up to config.benchmark.full_check_elements; one that does not pass
/// is not timed and its rows take the check's state. Each measurement times the copy first, in
/// `calls` the empty function next, then the implementations. What the last timed call left is
/// verified against the oracle; a cold time below the copy's is `mistrusted`. Runs on `device`,
/// which becomes the current one.
void run_benchmark(const std::vector<Task>& tasks, const Config& config, const at::Device& device,
                   const Hooks& hooks);

}  // namespace rmsnorm::bench
