#include "bench/plan.hpp"

#include <cmath>
#include <set>

#include "bench/support.hpp"
#include "support/catch.hpp"

using namespace rmsnorm;
using namespace rmsnorm::bench;

TEST_CASE("a forward moves two tensors, a backward three, both five", "[plan]") {
  Case problem;
  problem.rows = 16384;
  problem.cols = 4096;
  problem.dtype = Dtype::bfloat16;
  CHECK(bytes_moved(Pass::forward, problem) == 268435456);
  CHECK(bytes_moved(Pass::backward, problem) == 402653184);
  CHECK(bytes_moved(Pass::forward_backward, problem) == 671088640);
  problem.dtype = Dtype::float32;
  CHECK(bytes_moved(Pass::forward, problem) == 536870912);
  problem = {.rows = 1, .cols = 1, .dtype = Dtype::float64};
  CHECK(bytes_moved(Pass::backward, problem) == 24);
  problem = {.rows = std::int64_t{1} << 20, .cols = std::int64_t{1} << 20};
  CHECK(bytes_moved(Pass::forward, problem) == std::int64_t{1} << 43);
}

TEST_CASE("complete calls time no backward alone, the others nothing else", "[plan]") {
  CHECK(times(Protocol::calls, Pass::forward));
  CHECK(times(Protocol::calls, Pass::forward_backward));
  CHECK_FALSE(times(Protocol::calls, Pass::backward));
  for (const Protocol protocol : {Protocol::cold, Protocol::cold_write, Protocol::graph}) {
    CAPTURE(name(protocol));
    CHECK(times(protocol, Pass::forward));
    CHECK(times(protocol, Pass::backward));
    CHECK_FALSE(times(protocol, Pass::forward_backward));
  }
}

TEST_CASE("a plan has a task for each case, with the measurements its protocols know", "[plan]") {
  Config config = test::small_config({"rowwise", "aten"}, {"calls", "cold"},
                                     {"forward", "backward", "forward_backward"}, 8, 16);
  config.benchmark.groups.front().shapes = {{8, 16}, {4, 32}};
  config.benchmark.groups.push_back(config.benchmark.groups.front());
  config.benchmark.groups.back().implementations = {"reference"};
  config.benchmark.groups.back().protocols = {"graph"};
  const auto tasks = plan(config, "");
  REQUIRE(tasks.size() == 4);
  CHECK(tasks[0].problem.name() == "8x16-float32");
  CHECK(tasks[0].implementations == std::vector<std::string>{"rowwise", "aten"});
  CHECK(tasks[0].measurements.size() == 4);
  CHECK(tasks[3].problem.name() == "4x32-float32");
  CHECK(tasks[3].implementations == std::vector<std::string>{"reference"});
  CHECK(tasks[3].measurements.size() == 2);
  CHECK(plan(config, "4x32*").size() == 2);
  CHECK(plan(config, "nothing").empty());
}

TEST_CASE("B037 a cold time clearly below the copy's is mistrusted above the cache's size",
          "[plan]") {
  constexpr std::int64_t cache = 60 << 20, large = cache + 1;
  const auto doubted = [&](Protocol protocol, double median_us, std::int64_t bytes) {
    return !reason_to_mistrust(protocol, median_us, 100, bytes, cache).empty();
  };
  CHECK_FALSE(doubted(Protocol::cold, 100, large));
  CHECK_FALSE(doubted(Protocol::cold, 97, large));
  CHECK(doubted(Protocol::cold, 96, large));
  CHECK(doubted(Protocol::cold, 40, large));
  CHECK_FALSE(doubted(Protocol::cold_write, 96, large));
  CHECK(doubted(Protocol::cold_write, 93, large));
  CHECK_FALSE(doubted(Protocol::cold, 40, cache));
  CHECK_FALSE(doubted(Protocol::graph, 40, large));
  CHECK_FALSE(doubted(Protocol::calls, 40, large));
}

TEST_CASE("a time of nothing is mistrusted in every protocol", "[plan]") {
  for (const Protocol protocol :
       {Protocol::calls, Protocol::cold, Protocol::cold_write, Protocol::graph}) {
    CHECK_FALSE(reason_to_mistrust(protocol, 0, 100, 1, 1 << 20).empty());
    CHECK_FALSE(reason_to_mistrust(protocol, std::nan(""), 100, 1, 1 << 20).empty());
  }
}

TEST_CASE("the configs that are shipped can be planned", "[plan]") {
  for (const char* file : {"minimum", "benchmark", "benchmark-small", "benchmark-cpu", "sweep"}) {
    CAPTURE(file);
    const Config config = read_config(std::string(RMSNORM_SOURCE_DIR "/configs/") + file + ".yaml");
    CHECK_FALSE(plan(config, "").empty());
  }
}

TEST_CASE("the sweep has odd columns and those of 8k+4, at about 64 MiB of x", "[plan]") {
  const auto tasks = plan(read_config(RMSNORM_SOURCE_DIR "/configs/sweep.yaml"), "");
  std::set<std::int64_t> cols;
  for (const Task& task : tasks) {
    CAPTURE(task.problem.name());
    cols.insert(task.problem.cols);
    const double bytes = static_cast<double>(bytes_moved(Pass::forward, task.problem)) / 2;
    CHECK(bytes == Approx(64 << 20).epsilon(0.001));
  }
  CHECK(*cols.begin() == 1);
  CHECK(*cols.rbegin() == 20000);
  for (const std::int64_t base : {256, 1024, 4096, 16384}) {
    CHECK(cols.contains(base + 1));
    CHECK(cols.contains(base + 4));
  }
}
