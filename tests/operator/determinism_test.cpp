#include <torch/csrc/autograd/autograd.h>

#include "rmsnorm/functional.hpp"
#include "support/catch.hpp"
#include "support/tensors.hpp"

namespace rmsnorm::test {
namespace {

constexpr std::int64_t kRows = 257;

TEST_CASE("The bits of a row of y do not depend on the other rows", "[determinism]") {
  for (const at::ScalarType type : all_types()) {
    for (const std::int64_t cols : {1, 31, 32, 33, 129, 255, 256, 257, 1000, 4096}) {
      CAPTURE(text(type), cols);
      const at::Tensor gamma = random({cols}, type, 2);
      at::Tensor x = random({kRows, cols}, type);
      // The same row first and last: 256 rows further, so equally aligned.
      x[kRows - 1].copy_(x[0]);
      const at::Tensor y = functional::rms_norm(x, gamma);
      CHECK(same_bits(y[0], y[kRows - 1]));
      for (const std::int64_t m :
           {std::int64_t{0}, std::int64_t{1}, std::int64_t{100}, kRows - 1}) {
        CAPTURE(m);
        // Read in place, hence with the alignment it had among the others.
        const at::Tensor alone = functional::rms_norm(x.narrow(0, m, 1), gamma);
        CHECK(same_bits(alone[0], y[m]));
      }
      const at::Tensor part = functional::rms_norm(x.narrow(0, 0, 64), gamma);
      CHECK(same_bits(part, y.narrow(0, 0, 64)));
      at::Tensor others = random({kRows, cols}, type, 3) * 100;
      others[0].copy_(x[0]);
      CHECK(same_bits(functional::rms_norm(others, gamma)[0], y[0]));
    }
  }
}

TEST_CASE("The bits of a long row of y do not depend on where y lies", "[determinism]") {
  for (const at::ScalarType type : all_types()) {
    for (const std::int64_t cols : {4097, 16385, 65537, 1850001}) {
      CAPTURE(text(type), cols);
      const at::Tensor gamma = random({cols}, type, 2);
      const at::Tensor x = random({3, cols}, type);
      const at::Tensor y = functional::rms_norm(x, gamma);
      for (const std::int64_t m : {1, 2})
        CHECK(same_bits(functional::rms_norm(x.narrow(0, m, 1), gamma)[0], y[m]));
    }
  }
}

TEST_CASE("The bits of a row of y do not depend on whether x fits a cache", "[determinism]") {
  // A third of the L2 of an H200; more than all of it for rows that start anywhere.
  const auto bytes = [](std::int64_t cols) {
    return std::int64_t{cols % 8 == 0 || !test_device().is_cuda() ? 20 : 68} << 20;
  };
  for (const at::ScalarType type : all_types()) {
    const auto size = static_cast<std::int64_t>(c10::elementSize(type));
    for (const std::int64_t cols :
         {8, 136, 512, 521, 1000, 2048, 4096, 4097, 6144, 12288, 20000, 32768, 65536}) {
      // Generated where it is needed: on the CPU most of the test's time would go into it.
      const at::Tensor x =
          at::randn({bytes(cols) / (cols * size), cols}, options(at::kFloat)).to(type);
      for (const at::ScalarType gamma_type : {type, at::kFloat}) {
        if (gamma_type != type && size != 2) continue;
        CAPTURE(text(type), text(gamma_type), cols);
        const at::Tensor gamma = random({cols}, gamma_type, 2);
        const at::Tensor y = functional::rms_norm(x, gamma);
        for (const std::int64_t first : {std::int64_t{0}, x.size(0) / 2, x.size(0) - 3}) {
          CAPTURE(first);
          CHECK(
              same_bits(functional::rms_norm(x.narrow(0, first, 3), gamma), y.narrow(0, first, 3)));
        }
      }
    }
  }
}

TEST_CASE("The bits of a row shorter than a vector do not depend on where it lies",
          "[determinism]") {
  constexpr std::int64_t kManyRows = 10007;  // whole blocks of tuned on CUDA, and rows behind them
  for (const at::ScalarType type : all_types()) {
    for (const std::int64_t cols : {1, 2, 3, 4, 5, 6, 7}) {
      if (cols * static_cast<std::int64_t>(c10::elementSize(type)) >= 16) continue;
      CAPTURE(text(type), cols);
      const at::Tensor gamma = random({cols}, type, 2);
      const at::Tensor x = random({kManyRows, cols}, type);
      const at::Tensor y = functional::rms_norm(x, gamma);
      for (const std::int64_t from : {1, 3, 256, 4096, 10006}) {
        CAPTURE(from);
        const std::int64_t count = kManyRows - from;
        CHECK(same_bits(functional::rms_norm(x.narrow(0, from, count), gamma),
                        y.narrow(0, from, count)));
      }
      at::Tensor wide = random({kManyRows, cols + 1}, type, 3);
      wide.narrow(1, 1, cols).copy_(x);
      CHECK(same_bits(functional::rms_norm(wide.narrow(1, 1, cols), gamma), y));
    }
  }
}

TEST_CASE("Gradients have the same bits in 100 runs", "[determinism]") {
  struct Problem {
    std::int64_t rows, cols;
    at::ScalarType type;
  };
  const Problem problems[] = {{257, 65, at::kFloat},     {4099, 3, at::kFloat},
                              {4099, 7, at::kBFloat16},  {33, 1000, at::kHalf},
                              {1000, 31, at::kBFloat16}, {64, 33, at::kDouble}};
  for (const Problem& problem : problems) {
    CAPTURE(problem.rows, problem.cols, text(problem.type));
    const at::Tensor x = random({problem.rows, problem.cols}, problem.type).requires_grad_();
    const at::Tensor gamma = random({problem.cols}, problem.type, 2).requires_grad_();
    const at::Tensor dy = random({problem.rows, problem.cols}, problem.type, 3);
    const at::Tensor y = functional::rms_norm(x, gamma);
    const auto want = torch::autograd::grad({y}, {x, gamma}, {dy}, true);
    int different = 0;
    for (int run = 0; run < 100; ++run) {
      const auto got = torch::autograd::grad({y}, {x, gamma}, {dy}, true);
      different += !same_bits(got[0], want[0]) + !same_bits(got[1], want[1]) +
                   !same_bits(functional::rms_norm(x, gamma), y);
    }
    CHECK(different == 0);
  }
}

}  // namespace
}  // namespace rmsnorm::test
