#include "bench/benchmark.hpp"

#include <ATen/Parallel.h>

#include <atomic>
#include <string>

#include "bench/support.hpp"
#include "bench/timer.hpp"
#include "operator/kernels.hpp"
#include "support/catch.hpp"

using namespace rmsnorm;
using namespace rmsnorm::bench;
using rmsnorm::test::Collected;
using rmsnorm::test::run;
using rmsnorm::test::run_with;
using rmsnorm::test::small_config;

namespace {

const at::Device cpu(at::kCPU);

const rmsnorm_implementation& right() {
  return *find_kernels("rowwise", RMSNORM_CPU);
}

std::atomic<std::int64_t> forward_calls{0}, backward_calls{0};

std::int32_t counted_forward(const rmsnorm_forward_args* args) {
  ++forward_calls;
  return right().forward(args);
}

std::int32_t counted_backward(const rmsnorm_backward_args* args) {
  ++backward_calls;
  return right().backward(args);
}

rmsnorm_implementation counted() {
  rmsnorm_implementation table = right();
  table.forward = counted_forward;
  table.backward = counted_backward;
  forward_calls = 0;
  backward_calls = 0;
  return table;
}

/// A y whose last element is off.
std::int32_t wrong_forward(const rmsnorm_forward_args* args) {
  ++forward_calls;
  const std::int32_t status = right().forward(args);
  static_cast<float*>(args->y)[args->rows * args->cols - 1] += 1;
  return status;
}

/// Right until it is called often, as by a benchmark.
std::int32_t tiring_forward(const rmsnorm_forward_args* args) {
  const std::int32_t status = right().forward(args);
  if (++forward_calls > 12) static_cast<float*>(args->y)[0] += 1;
  return status;
}

/// dx without the projection, dgamma right.
std::int32_t wrong_backward(const rmsnorm_backward_args* args) {
  const std::int32_t status = right().backward(args);
  if (args->dx != nullptr) static_cast<float*>(args->dx)[0] *= 2;
  return status;
}

const char* refuses(const rmsnorm_forward_args*) {
  return "takes nothing";
}

Collected run_table(const Config& config, const rmsnorm_implementation& table) {
  return run_with(config, cpu, [&](std::string_view name) {
    return Subject{std::string(name), &table, nullptr};
  });
}

}  // namespace

TEST_CASE("every column of a protocol gets a row with times and a floor", "[benchmark]") {
  const Config config =
      small_config({"reference", "rowwise", "aten"}, {"calls", "cold", "cold_write"},
                   {"forward", "backward", "forward_backward"}, 16, 33);
  const Collected collected = run(config, cpu);
  CHECK(static_cast<std::int64_t>(collected.rows.size()) == row_count(plan(config, "")));
  CHECK(collected.rows.size() == 2 * 5 + 4 * 4);
  CHECK(collected.checks.size() == 3);
  for (const Row& row : collected.rows) {
    CAPTURE(row.implementation, name(row.protocol), name(row.pass), row.reason);
    CHECK(row.state == State::passed);
    CHECK(row.time.samples == 3);
    CHECK(row.time.p10_us <= row.time.median_us);
    CHECK(row.time.median_us <= row.time.p90_us);
    CHECK(row.time.median_us > 0);
    CHECK(row.floor_us > 0);
  }
  CHECK(collected.row("copy").ratio_to_floor() == 1);
}

TEST_CASE("every dtype, gamma and layout that the config names can be timed", "[benchmark]") {
  Config config =
      small_config({"reference", "rowwise"}, {"calls", "cold"},
                   {"forward", "backward", "forward_backward"}, 24, 40, Dtype::bfloat16);
  config.benchmark.groups.front().layouts = {Layout::contiguous, Layout::offset,
                                             Layout::row_strided, Layout::heads};
  config.benchmark.groups.front().gammas = {GammaKind::same, GammaKind::float32, GammaKind::none};
  for (const Row& row : run(config, cpu).rows) {
    CAPTURE(row.problem.name(), row.implementation, name(row.protocol), name(row.pass), row.reason);
    CHECK(row.state == State::passed);
    CHECK(row.timed());
  }
}

TEST_CASE("a wrong implementation is not timed", "[benchmark]") {
  rmsnorm_implementation table = counted();
  SECTION("in its forward") {
    table.forward = wrong_forward;
  }
  SECTION("in its backward") {
    table.backward = wrong_backward;
  }
  const Collected collected =
      run_table(small_config({"planted"}, {"calls", "cold"}, {"forward"}, 9, 31), table);
  REQUIRE(collected.checks.size() == 1);
  CHECK(collected.checks[0].result.state == State::failed);
  CHECK(forward_calls <= 6);  // those of the checks
  for (const Row& row : collected.rows) {
    CAPTURE(row.implementation);
    if (row.implementation != "planted") continue;
    CHECK(row.state == State::failed);
    CHECK_FALSE(row.timed());
    CHECK(row.reason.find("not timed") != std::string::npos);
  }
  CHECK(collected.row("copy").timed());
}

TEST_CASE("a case that an implementation refuses is unimplemented, by either check",
          "[benchmark]") {
  rmsnorm_implementation table = counted();
  table.forward_refusal = refuses;
  Config config = small_config({"planted"}, {"cold"}, {"forward"}, 9, 31);
  SECTION("of every element") {}
  SECTION("of a sample") {
    config.benchmark.full_check_elements = 1;
  }
  const Collected collected = run_table(config, table);
  CHECK(collected.checks[0].result.state == State::unimplemented);
  CHECK(collected.row("planted").state == State::unimplemented);
  CHECK(collected.row("planted").reason.find("takes nothing") != std::string::npos);
}

TEST_CASE("a wrong implementation is not timed where only a sample is checked", "[benchmark]") {
  rmsnorm_implementation table = counted();
  table.forward = wrong_forward;
  Config config = small_config({"planted"}, {"cold"}, {"forward"}, 9, 31);
  config.benchmark.full_check_elements = 9 * 31 - 1;
  const Collected collected = run_table(config, table);
  CHECK(collected.checks[0].sampled);
  CHECK(collected.row("planted").state == State::failed);
  CHECK_FALSE(collected.row("planted").timed());
}

TEST_CASE("what the timed calls left is verified, not only what was checked before",
          "[benchmark]") {
  for (const char* protocol : {"calls", "cold"}) {
    CAPTURE(protocol);
    rmsnorm_implementation table = counted();
    table.forward = tiring_forward;
    Config config = small_config({"tiring"}, {protocol}, {"forward"}, 9, 31);
    config.benchmark.warmup_calls = 20;
    const Collected collected = run_table(config, table);
    REQUIRE(collected.checks[0].result.state == State::passed);
    CHECK(collected.row("tiring").state == State::failed);
    CHECK(collected.row("tiring").reason.find("the timed call") != std::string::npos);
  }
}

TEST_CASE("calls are as many as the config says, and one before each sample", "[benchmark]") {
  Config config = small_config({"counted"}, {"calls"}, {"forward"}, 5, 7);
  rmsnorm_implementation table = counted();
  run_table(config, table);
  const std::int64_t forward_only = forward_calls, checks_backward = backward_calls;
  config.benchmark.samples = 5;
  table = counted();
  run_table(config, table);
  CHECK(forward_calls - forward_only == 2 * (1 + 4));  // two more samples of four calls
  CHECK(backward_calls == checks_backward);

  config.benchmark.groups.front().passes = {"forward_backward"};
  table = counted();
  run_table(config, table);
  CHECK(backward_calls - checks_backward == 2 + 5 * (1 + 4));
}

TEST_CASE("samples of complete calls are taken from each column in turn", "[benchmark]") {
  static std::string called;
  called.clear();
  rmsnorm_implementation first = right(), second = right();
  first.forward = [](const rmsnorm_forward_args* args) {
    called += 'a';
    return right().forward(args);
  };
  second.forward = [](const rmsnorm_forward_args* args) {
    called += 'b';
    return right().forward(args);
  };
  const Config config = small_config({"first", "second"}, {"calls"}, {"forward"}, 5, 7);
  run_with(config, cpu, [&](std::string_view name) {
    return Subject{std::string(name), name == "first" ? &first : &second, nullptr};
  });
  const std::string turn = "aaaaabbbbb", turns = turn + turn + turn;  // one and four calls each
  REQUIRE(called.size() > turns.size());
  CHECK(called.substr(called.size() - turns.size()) == turns);
}

TEST_CASE("the CPU skips graphs and says why", "[benchmark]") {
  const Collected collected =
      run(small_config({"rowwise"}, {"graph"}, {"forward", "backward"}, 4, 8), cpu);
  REQUIRE(collected.rows.size() == 4);
  for (const Row& row : collected.rows) {
    CHECK(row.state == State::skipped);
    CHECK_FALSE(row.timed());
    CHECK(row.reason.find("CPU") != std::string::npos);
  }
}

TEST_CASE("B038 time grows with the rows", "[benchmark]") {
  // 64 times the rows, well above the cost of a call: over four times the time, whatever else runs.
  // One thread: many wait for each other longer than they work when something else runs.
  const int threads = at::get_num_threads();
  at::set_num_threads(1);
  const auto fastest_us = [](std::int64_t rows) {
    Config config = small_config({"rowwise"}, {"cold"}, {"forward"}, rows, 256);
    config.benchmark.samples = 9;
    config.benchmark.full_check_elements = 1 << 20;
    return run(config, cpu).row("rowwise").time.p10_us;
  };
  const double few_us = fastest_us(2048), many_us = fastest_us(131072);
  at::set_num_threads(threads);
  CAPTURE(few_us, many_us);
  CHECK(many_us > 4 * few_us);
}

TEST_CASE("the copy copies and combines every byte", "[benchmark]") {
  const rmsnorm_implementation& copy = copy_table(RMSNORM_CPU);
  for (const std::int64_t bytes : {2, 14, 64, 66, 1 << 15, (1 << 15) + 2, 300'002}) {
    CAPTURE(bytes);
    std::vector<unsigned char> x(static_cast<std::size_t>(bytes)), dy(x.size()),
        out(x.size() + 1, 7);
    for (std::size_t i = 0; i < x.size(); ++i) {
      x[i] = static_cast<unsigned char>(i * 31 + 1);
      dy[i] = static_cast<unsigned char>(i * 17 + 3);
    }
    rmsnorm_forward_args forward{};
    forward.rows = 1;
    forward.cols = bytes / 2;
    forward.x = {.data = x.data(),
                 .inner_rows = 1,
                 .inner_stride = forward.cols,
                 .outer_stride = forward.cols,
                 .dtype = RMSNORM_BFLOAT16};
    forward.y = out.data();
    forward.executor = &cpu_executor();
    REQUIRE(copy.forward(&forward) == RMSNORM_OK);
    CHECK(std::equal(x.begin(), x.end(), out.begin()));
    CHECK(out.back() == 7);

    rmsnorm_backward_args backward{};
    backward.rows = 1;
    backward.cols = forward.cols;
    backward.x = forward.x;
    backward.dy = forward.x;
    backward.dy.data = dy.data();
    backward.dx = out.data();
    backward.executor = &cpu_executor();
    REQUIRE(copy.backward(&backward) == RMSNORM_OK);
    bool equal = true;
    for (std::size_t i = 0; i < x.size(); ++i) equal = equal && out[i] == (x[i] ^ dy[i]);
    CHECK(equal);
    CHECK(out.back() == 7);
  }
}
