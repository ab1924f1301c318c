#include <limits>

#include "faults/support.hpp"

// DGAMMA and DETERM: the sum over rows.

namespace rmsnorm::test {
namespace {

TEST_CASE("B063 scratch that held NaN before changes nothing, with few rows or many", "[dgamma]") {
  for (const std::int64_t rows : {1, 2, 7, 100, 1000}) {
    const at::Tensor x = random({rows, 257}, at::kFloat), gamma = random({257}, at::kFloat, 2),
                     dy = random({rows, 257}, at::kFloat, 3);
    for (const rmsnorm_implementation* table : kernels()) {
      const Results want = run(*table, x, gamma, dy);
      check_against_oracle(want, x, gamma, dy);
      int different = 0;
      for (int repeat = 0; repeat < 20; ++repeat) {
        {
          // Given back to the allocator, which hands the same pages to outputs and scratch.
          std::vector<at::Tensor> poison;
          for (const std::int64_t size : {rows * 257, std::int64_t{257}, std::int64_t{1} << 18}) {
            poison.push_back(
                at::full({size}, std::numeric_limits<float>::quiet_NaN(), x.options()));
          }
        }
        different += !same_results(run(*table, x, gamma, dy), want);
      }
      CAPTURE(table->name, rows);
      CHECK(different == 0);
    }
    // The workspace itself full of NaN, between guards.
    for (const Dtype dtype : kDtypes) check_passes(Operation::gamma, {rows, 257, dtype});
  }
}

TEST_CASE("B079 the same data give the same bits of dgamma every time", "[dgamma]") {
  const at::Tensor x = random({32768, 64}, at::kFloat), gamma = random({64}, at::kFloat, 2),
                   dy = random({32768, 64}, at::kFloat, 3);
  for (const rmsnorm_implementation* table : kernels()) {
    const at::Tensor want = run(*table, x, gamma, dy).dgamma;
    int different = 0;
    for (int repeat = 0; repeat < 20; ++repeat) {
      different += !same_bits(run(*table, x, gamma, dy).dgamma, want);
    }
    CHECK(different == 0);
  }
}

TEST_CASE("B114 no seed makes a right kernel fail, and an expanded dy is handled", "[dgamma]") {
  Config config = fault_config();
  for (std::uint64_t seed = 0; seed < 100; ++seed) {
    config.seed = seed;
    const Dtype dtype = kDtypes[seed % 4];
    const Layout layout = seed % 3 == 0 ? Layout::expanded_dy : Layout::contiguous;
    CAPTURE(seed);
    for (const Operation operation : kOperations) {
      check_passes(operation, {24, 257, dtype, layout}, config);
      check_passes(operation, {24, 33, dtype, layout, GammaKind::same, InputKind::scaled}, config);
    }
  }
}

}  // namespace
}  // namespace rmsnorm::test
