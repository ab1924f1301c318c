#include "check/check.hpp"

#include <algorithm>

#include "operator/kernels.hpp"
#include "reference/tensor_tables.hpp"
#include "support/catch.hpp"
#include "support/device.hpp"

// The CUDA tables through the check path.

namespace rmsnorm::test {
namespace {

constexpr Operation kOperations[] = {Operation::forward, Operation::backward, Operation::gamma};
constexpr Dtype kDtypes[] = {Dtype::float64, Dtype::float32, Dtype::float16, Dtype::bfloat16};
constexpr Layout kLayouts[] = {Layout::contiguous, Layout::offset, Layout::row_strided,
                               Layout::heads, Layout::expanded_dy};
constexpr GammaKind kGammas[] = {GammaKind::same, GammaKind::float32, GammaKind::none};

/// The built-in CUDA kernels that there are.
std::vector<const rmsnorm_implementation*> built_in_tables() {
  std::vector<const rmsnorm_implementation*> tables;
  for (const char* name : {"rowwise", "tuned"}) {
    if (const auto* table = find_kernels(name, RMSNORM_CUDA)) tables.push_back(table);
  }
  return tables;
}

Config config() {
  Config config;
  config.tolerance[Dtype::float64] = {.atol = 1e-12, .rtol = 1e-12};
  config.tolerance[Dtype::float32] = {.atol = 1e-5, .rtol = 1e-4};
  config.tolerance[Dtype::float16] = {.atol = 3e-3, .rtol = 3e-3};
  config.tolerance[Dtype::bfloat16] = {.atol = 2e-2, .rtol = 2e-2};
  return config;
}

void check_passes(const rmsnorm_implementation& table, Operation operation, const Case& problem,
                  const Config& used = config()) {
  InProcessRunner runner({table.name, &table, nullptr});
  const ComparisonResult result = check_case(operation, problem, runner, used, test_device());
  CAPTURE(table.name, problem.name(), command_name(operation), result.reason);
  const bool nothing = operation == Operation::gamma && problem.gamma == GammaKind::none;
  CHECK(name(result.state) == name(nothing ? State::skipped : State::passed));
}

bool is_case(Dtype dtype, GammaKind gamma) {
  return gamma != GammaKind::float32 || size_bytes(dtype) == 2;
}

TEST_CASE("CUDA kernels pass on every layout, gamma and input", "[check]") {
  auto tables = built_in_tables();
  REQUIRE_FALSE(tables.empty());
  tables.push_back(find_tensor_table("reference", RMSNORM_CUDA));
  for (const rmsnorm_implementation* table : tables) {
    for (const Dtype dtype : kDtypes) {
      for (const Layout layout : kLayouts) {
        for (const GammaKind gamma : kGammas) {
          if (!is_case(dtype, gamma)) continue;
          for (const InputKind inputs : {InputKind::normal, InputKind::scaled}) {
            for (const Operation operation : kOperations) {
              check_passes(*table, operation, {12, 257, dtype, layout, gamma, inputs});
            }
          }
        }
      }
    }
  }
}

TEST_CASE("CUDA kernels pass on both sides of every tile edge", "[check]") {
  for (const rmsnorm_implementation* table : built_in_tables()) {
    for (const Dtype dtype : kDtypes) {
      for (const std::int64_t cols :
           {1,   2,   31,   32,   33,   127,  128,  129,  255,  256,  257, 511,
            512, 513, 1023, 1024, 1025, 2047, 2048, 2049, 4095, 4096, 4097}) {
        for (const Operation operation : kOperations) {
          check_passes(*table, operation, {3, cols, dtype});
        }
      }
      for (const std::int64_t rows : {1, 2, 31, 32, 33, 127, 128, 129, 1000}) {
        for (const Operation operation : kOperations) {
          check_passes(*table, operation, {rows, 65, dtype});
        }
      }
    }
  }
}

// Enough rows for the persistent backward kernels, and several for every block or group of them:
// columns on both sides of the edges at which the plan changes.
TEST_CASE("CUDA kernels pass on many rows on both sides of every edge of the plan", "[check]") {
  const rmsnorm_implementation* tuned = find_kernels("tuned", RMSNORM_CUDA);
  REQUIRE(tuned != nullptr);
  for (const std::int64_t cols :
       {1,     2,     3,     4,     5,     6,     7,     8,     9,     33,    128,
        129,   136,   192,   255,   256,   257,   264,   383,   385,   500,   512,
        513,   520,   768,   776,   1000,  1024,  1025,  1032,  1151,  1153,  2048,
        2049,  2056,  2304,  3000,  3584,  3592,  4096,  4097,  4104,  5120,  6144,
        6152,  7681,  8184,  8192,  8193,  8200,  9601,  9607,  15360, 15361, 15368,
        16384, 16385, 16392, 19201, 19999, 23033, 23041, 32768, 32769, 32776}) {
    const std::int64_t rows = std::max<std::int64_t>(401, 3'000'001 / cols);
    Config used = config();
    // dx of one column is eps * rstd^3 * dy * gamma, the difference of two numbers that are nearly
    // equal while x^2 is far above eps: of millions of rows some lose, in float32 and with libtorch
    // as well, more digits than the tolerance grants.
    if (cols == 1) used.epsilon = 1e-2;
    for (const Dtype dtype : {Dtype::float32, Dtype::bfloat16}) {
      for (const Operation operation : {Operation::forward, Operation::backward, Operation::gamma})
        check_passes(*tuned, operation, {rows, cols, dtype}, used);
    }
  }
  // Rows that a cluster shares, and both sides of where its blocks hold more of them.
  for (const std::int64_t cols :
       {20000,  24576,  24584,  30721,  33601,  53248,  53256,  65536,  65537,  57089, 57137,
        106504, 131073, 212992, 262144, 262145, 262152, 268800, 268801, 425992, 524296}) {
    for (const Dtype dtype : {Dtype::float32, Dtype::bfloat16}) {
      for (const std::int64_t rows : {1, 19})
        check_passes(*tuned, Operation::gamma, {rows, cols, dtype});
    }
  }
  // Both sides of what a cluster's shared memory holds; beyond it rows are read twice.
  for (const std::int64_t cols : {1843199, 1843200, 1843201, 1900008}) {
    for (const Dtype dtype : {Dtype::float32, Dtype::bfloat16})
      check_passes(*tuned, Operation::gamma, {3, cols, dtype});
  }
  // More long rows than a launch takes: the second adds to the first one's part of dgamma.
  check_passes(*tuned, Operation::backward, {970, 262141, Dtype::float32, Layout::offset});
  // Few long rows, so that chunks of them may be empty; and both sides of where the vectors of a
  // frame need a chunk or a block of columns more than the row.
  for (const std::int64_t rows : {4, 5, 6, 9, 11}) {
    check_passes(*tuned, Operation::backward, {rows, 262152, Dtype::bfloat16});
    check_passes(*tuned, Operation::backward, {rows, 300000, Dtype::float32});
  }
  check_passes(*tuned, Operation::backward, {945, 300000, Dtype::float32});
  for (const std::int64_t cols : {262145, 269234, 294906}) {
    for (const Dtype dtype : {Dtype::bfloat16, Dtype::float16})
      check_passes(*tuned, Operation::gamma, {19, cols, dtype, Layout::offset});
  }
  for (const Layout layout : {Layout::offset, Layout::row_strided, Layout::heads}) {
    for (const std::int64_t cols : {270001, 1850000, 1850001}) {
      for (const Operation operation : {Operation::forward, Operation::backward})
        check_passes(*tuned, operation, {6, cols, Dtype::float16, layout, GammaKind::float32});
    }
  }
  check_passes(*tuned, Operation::forward,
               {2, 1850001, Dtype::bfloat16, Layout::contiguous, GammaKind::none});
  check_passes(*tuned, Operation::backward,
               {2, 270001, Dtype::bfloat16, Layout::contiguous, GammaKind::none});
  // x, dy and what is written start apart: by one element, or by as many as rows of three heads
  // come to, each of x and of dy; and both sides of every edge of the ring that joins them.
  for (const std::int64_t cols :
       {33,    257,   513,   1032,  1161,  2304,  4096,  4097,  5761,  7672,
        7681,  8192,  10241, 10249, 11520, 11521, 12288, 15345, 15353, 15360,
        15361, 16384, 16385, 20000, 30713, 30721, 33593, 33601, 65544}) {
    const std::int64_t rows = std::max<std::int64_t>(411, 1'000'001 / cols / 24 * 24 + 3);
    for (const Operation operation : {Operation::forward, Operation::backward}) {
      for (const Layout layout : {Layout::offset, Layout::row_strided, Layout::heads})
        check_passes(*tuned, operation, {rows, cols, Dtype::float16, layout, GammaKind::float32});
      for (const Dtype dtype : {Dtype::float32, Dtype::bfloat16})
        check_passes(*tuned, operation, {rows, cols, dtype, Layout::offset});
    }
  }
}

// For compute-sanitizer, under which all is some hundred times slower: small, ragged, misaligned,
// strided. Operation::gamma runs the forward and both halves of the backward.
TEST_CASE("Small ragged cases for the sanitizers", "[.sanitizer]") {
  const std::pair<std::int64_t, std::int64_t> shapes[] = {
      {1, 1}, {3, 31}, {6, 257}, {17, 33}, {2, 1030}};
  for (const rmsnorm_implementation* table : built_in_tables()) {
    std::size_t next = 0;
    for (const Dtype dtype : kDtypes) {
      for (const Layout layout : kLayouts) {
        // Each layout meets each shape over the dtypes.
        const auto& [rows, cols] = shapes[(next + next / 5) % 5];
        ++next;
        check_passes(*table, Operation::gamma, {rows, cols, dtype, layout});
      }
      check_passes(*table, Operation::backward,
                   {5, 33, dtype, Layout::contiguous, GammaKind::none});
      if (size_bytes(dtype) == 2) {
        check_passes(*table, Operation::gamma, {5, 33, dtype, Layout::offset, GammaKind::float32});
      }
    }
  }
}

// Two block-wide sums one after the other, and the paths that only many rows take or long ones:
// lanes, groups, frames, rings of blocks and of clusters, of aligned rows and of others. So few
// rows that no stage of a ring is filled twice: racecheck does not see that a barrier in shared
// memory orders bulk copies with other accesses, and would report every refill.
TEST_CASE("B028 sums that follow each other in a block share no memory unguarded", "[.sanitizer]") {
  for (const rmsnorm_implementation* table : built_in_tables()) {
    for (const Dtype dtype : {Dtype::float32, Dtype::bfloat16}) {
      for (const auto& [rows, cols] : {std::pair{2, 1024}, {2, 8192}, {513, 24}}) {
        check_passes(*table, Operation::gamma, {rows, cols, dtype});
      }
    }
    for (const std::int64_t cols : {33, 264, 521, 776}) {
      check_passes(*table, Operation::gamma, {513, cols, Dtype::bfloat16});
    }
    // One row for each group of a shifted ring's blocks.
    check_passes(*table, Operation::gamma, {560, 1161, Dtype::bfloat16});
    // Rows that start elsewhere in x than in dx: short ones by lanes, others joined.
    for (const auto& [rows, cols] : {std::pair{513, 129}, {540, 500}, {560, 1161}, {3, 15363}}) {
      check_passes(*table, Operation::gamma, {rows, cols, Dtype::bfloat16, Layout::offset});
    }
    check_passes(*table, Operation::gamma, {385, 4104, Dtype::float32});
    for (const std::int64_t cols : {20000, 32776, 32769, 57137}) {
      check_passes(*table, Operation::gamma, {3, cols, Dtype::bfloat16});
    }
    // Rows that no ring holds, or no cluster.
    for (const Layout layout : {Layout::contiguous, Layout::offset}) {
      for (const std::int64_t cols : {262152, 270001})
        check_passes(*table, Operation::backward, {3, cols, Dtype::bfloat16, layout});
      check_passes(*table, Operation::forward, {1, 1850001, Dtype::bfloat16, layout});
    }
  }
}

// What only an x takes that L2 is to keep; as above, no stage of a ring is filled twice.
TEST_CASE("Forwards of 16 MiB for the sanitizers", "[.sanitizer]") {
  const rmsnorm_implementation* tuned = find_kernels("tuned", RMSNORM_CUDA);
  for (const auto& [rows, cols] : {std::pair{65536, 128}, {2048, 4096}, {128, 65536}})
    check_passes(*tuned, Operation::forward, {rows, cols, Dtype::bfloat16});
}

// Not for racecheck: it counts a thread's barriers, whichever they are, and takes what two threads
// do after equally many for simultaneous.
TEST_CASE("Groups of a block with unequally many rows, for the other sanitizers", "[.unequal]") {
  for (const rmsnorm_implementation* table : built_in_tables())
    check_passes(*table, Operation::gamma, {513, 1161, Dtype::bfloat16});
}

}  // namespace
}  // namespace rmsnorm::test
