#include <torch/csrc/autograd/autograd.h>

#include "rmsnorm/functional.hpp"
#include "support/catch.hpp"
#include "support/tensors.hpp"

namespace rmsnorm::test {
namespace {

constexpr double kSixDecimals = 5.1e-7;  // the golden values have six, and float32 nearly seven
constexpr double kSevenDecimals = 6e-8;  // one float32 rounding below 1

struct Setting {
  at::ScalarType type;
  Contract contract;
};
const std::vector<Setting> kSettings{
    {at::kFloat, Contract::minimum}, {at::kFloat, Contract::full}, {at::kDouble, Contract::full}};

TEST_CASE("The worked forward examples come out to all their decimals", "[golden]") {
  for (const Setting& setting : kSettings) {
    CAPTURE(text(setting.type), static_cast<int>(setting.contract));
    const at::Tensor x = row({3, 4}, setting.type);
    const at::Tensor plain =
        functional::rms_norm(x, vector({1, 1}, setting.type), 1e-6, setting.contract);
    const at::Tensor scaled =
        functional::rms_norm(x, vector({2, 0.5}, setting.type), 1e-6, setting.contract);
    CHECK(max_abs_difference(plain, row({0.848528, 1.131371}, setting.type)) <= kSixDecimals);
    CHECK(max_abs_difference(scaled, row({1.697056, 0.565685}, setting.type)) <= kSixDecimals);
    CHECK(plain.scalar_type() == setting.type);
  }
}

TEST_CASE("The worked backward example comes out to all its decimals", "[golden]") {
  for (const Setting& setting : kSettings) {
    CAPTURE(text(setting.type), static_cast<int>(setting.contract));
    const at::Tensor x = row({3, 4}, setting.type).requires_grad_();
    const at::Tensor gamma = vector({1, 1}, setting.type).requires_grad_();
    const at::Tensor y = functional::rms_norm(x, gamma, 1e-6, setting.contract);
    const auto gradients = torch::autograd::grad({y}, {x, gamma}, {row({1, 2}, setting.type)});
    CHECK(max_abs_difference(gradients[0], row({-0.090510, 0.067882}, setting.type)) <=
          kSixDecimals);
    // dy * x * rstd of the only row: 1 * 0.848528 and 2 * 1.131371.
    CHECK(max_abs_difference(gradients[1], vector({0.848528, 2.262742}, setting.type)) <=
          2 * kSixDecimals);
  }
}

TEST_CASE("257 ones are divided by 257 and not by the width of a block", "[golden]") {
  for (const Setting& setting : kSettings) {
    for (const std::int64_t cols : {1, 31, 255, 256, 257, 511, 512, 513, 4096}) {
      CAPTURE(text(setting.type), static_cast<int>(setting.contract), cols);
      const at::Tensor x = at::ones({2, cols}, options(setting.type));
      const at::Tensor y =
          functional::rms_norm(x, at::ones({cols}, options(setting.type)), 1e-6, setting.contract);
      CHECK(max_abs_difference(y, at::full_like(y, 0.9999995)) <= kSevenDecimals);
    }
  }
}

TEST_CASE("eps stands inside the root and is added to the mean", "[golden]") {
  const at::Tensor x = row({1, 1}, at::kDouble), gamma = vector({1, 1}, at::kDouble);
  // 1 / sqrt(1 + 3) and, for zeros, a finite rstd of 1 / sqrt(eps).
  CHECK(max_abs_difference(functional::rms_norm(x, gamma, 3.0), row({0.5, 0.5}, at::kDouble)) <=
        1e-15);
  CHECK(max_abs_difference(functional::rms_norm(x * 0, gamma, 3.0), row({0, 0}, at::kDouble)) == 0);
}

TEST_CASE("Without an eps it is 1e-6", "[golden]") {
  const at::Tensor x = random({3, 8}, at::kFloat) * 1e-3, gamma = random({8}, at::kFloat);
  CHECK(same_bits(functional::rms_norm(x, gamma), functional::rms_norm(x, gamma, 1e-6)));
  CHECK(same_bits(functional::rms_norm(x, {8}, gamma), functional::rms_norm(x, gamma, 1e-6)));
}

}  // namespace
}  // namespace rmsnorm::test
