#include "bench/support.hpp"
#include "support/catch.hpp"

using namespace rmsnorm;
using namespace rmsnorm::bench;
using rmsnorm::test::Collected;
using rmsnorm::test::run;
using rmsnorm::test::small_config;

namespace {

const at::Device device(at::kCUDA, 0);
const std::vector<std::string> protocols{"calls", "cold", "cold_write", "graph"};
const std::vector<std::string> passes{"forward", "backward", "forward_backward"};

void check_all_timed(const Collected& collected) {
  for (const Row& row : collected.rows) {
    CAPTURE(row.problem.name(), row.implementation, name(row.protocol), name(row.pass), row.reason);
    CHECK(row.state == State::passed);
    CHECK(row.timed());
    CHECK(row.floor_us > 0);
  }
}

}  // namespace

TEST_CASE("every implementation is timed in every protocol", "[benchmark]") {
  const Collected small =
      run(small_config({"reference", "rowwise", "aten"}, protocols, passes, 128, 257), device);
  CHECK(small.rows.size() == 2 * 5 + 6 * 4);
  check_all_timed(small);
  check_all_timed(run(small_config({"reference", "rowwise", "aten"}, protocols, passes, 2048, 4096,
                                   Dtype::bfloat16),
                      device));
}

TEST_CASE("every gamma and layout can be timed", "[benchmark]") {
  Config config =
      small_config({"reference", "rowwise"}, protocols, passes, 24, 40, Dtype::bfloat16);
  config.benchmark.groups.front().layouts = {Layout::contiguous, Layout::offset,
                                             Layout::row_strided, Layout::heads};
  config.benchmark.groups.front().gammas = {GammaKind::same, GammaKind::float32, GammaKind::none};
  check_all_timed(run(config, device));
}

TEST_CASE("B037 nothing is faster than the memory on a cold cache", "[benchmark]") {
  constexpr double most_bytes_per_us =
      8.2e6;  // no card that this is built for has more than 8 TB/s
  for (const std::int64_t cols : {1024, 2048, 4096, 8192, 16384}) {
    Config config = small_config({"rowwise", "aten"}, {"cold"}, {"forward", "backward"}, 8192, cols,
                                 Dtype::bfloat16);
    config.benchmark.samples = 9;
    config.benchmark.full_check_elements = std::int64_t{1} << 24;
    for (const Row& row : run(config, device).rows) {
      CAPTURE(row.problem.name(), row.implementation, name(row.pass), row.reason);
      CHECK(static_cast<double>(row.bytes) / row.time.median_us < most_bytes_per_us);
    }
  }
}

TEST_CASE("B038 twice the rows take about twice the time above the cost of a launch",
          "[benchmark]") {
  double last_us = 0;
  for (const std::int64_t rows : {8192, 16384, 32768, 65536}) {
    Config config = small_config({"rowwise"}, {"cold"}, {"forward"}, rows, 4096, Dtype::bfloat16);
    config.benchmark.samples = 9;
    config.benchmark.full_check_elements = std::int64_t{1} << 24;
    const double median_us = run(config, device).row("rowwise").time.median_us;
    CAPTURE(rows, median_us, last_us);
    if (last_us > 0) CHECK(median_us / last_us == Approx(2).epsilon(0.2));
    last_us = median_us;
  }
}
