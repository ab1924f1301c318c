#pragma once

#include <string>
#include <vector>

#include "bench/benchmark.hpp"
#include "check/subject.hpp"

namespace rmsnorm::test {

/// A config that times one float32 shape, quickly.
inline Config small_config(std::vector<std::string> implementations,
                           std::vector<std::string> protocols, std::vector<std::string> passes,
                           std::int64_t rows, std::int64_t cols, Dtype dtype = Dtype::float32) {
  Config config;
  config.contract = Contract::full;
  config.implementations = std::move(implementations);
  config.tolerance = {{Dtype::float32, {.atol = 1e-5, .rtol = 1e-4}},
                      {Dtype::bfloat16, {.atol = 2e-2, .rtol = 2e-2}}};
  BenchmarkGroup& group = config.benchmark.groups.front();
  group.protocols = std::move(protocols);
  group.passes = std::move(passes);
  group.shapes = {{rows, cols}};
  group.dtypes = {dtype};
  config.benchmark.warmup_calls = 2;
  config.benchmark.samples = 3;
  config.benchmark.calls_per_sample = 4;
  return config;
}

struct Collected {
  std::vector<bench::CheckedCase> checks;
  std::vector<bench::Row> rows;

  const bench::Row& row(std::string_view implementation) const {
    for (const bench::Row& row : rows) {
      if (row.implementation == implementation) return row;
    }
    throw std::logic_error("no row of " + std::string(implementation));
  }
};

/// Runs the benchmark of a config, with subjects that `find` gives.
template <class Find>
Collected run_with(const Config& config, const at::Device& device, Find find) {
  Collected collected;
  const bench::Hooks hooks{
      .find = find,
      .between = [] {},
      .checked = [&](const bench::CheckedCase& checked) { collected.checks.push_back(checked); },
      .timed = [&](const bench::Row& row) { collected.rows.push_back(row); }};
  bench::run_benchmark(bench::plan(config, ""), config, device, hooks);
  return collected;
}

inline Collected run(const Config& config, const at::Device& device) {
  return run_with(config, device, [&](std::string_view name) {
    return find_subject(name, device.is_cuda() ? RMSNORM_CUDA : RMSNORM_CPU);
  });
}

}  // namespace rmsnorm::test
