#include <torch/csrc/autograd/autograd.h>

#include <cmath>
#include <limits>

#include "rmsnorm/functional.hpp"
#include "support/catch.hpp"
#include "support/tensors.hpp"

namespace rmsnorm::test {
namespace {

constexpr double kNan = std::numeric_limits<double>::quiet_NaN();
constexpr double kInf = std::numeric_limits<double>::infinity();

struct Gradients {
  at::Tensor y, dx, dgamma;
};

Gradients run(const at::Tensor& x, const at::Tensor& gamma, const at::Tensor& dy) {
  const at::Tensor leaf = x.detach().requires_grad_(), weight = gamma.detach().requires_grad_();
  const at::Tensor y = functional::rms_norm(leaf, weight);
  const auto gradients = torch::autograd::grad({y}, {leaf, weight}, {dy});
  return {y.detach(), gradients[0], gradients[1]};
}

TEST_CASE("A NaN or an infinity stays in its row", "[special]") {
  for (const at::ScalarType type : all_types()) {
    for (const double bad : {kNan, kInf, -kInf}) {
      for (const std::int64_t cols : {1, 33, 257}) {
        CAPTURE(text(type), bad, cols);
        const at::Tensor x = random({5, cols}, type), gamma = random({cols}, type, 2),
                         dy = random({5, cols}, type, 3);
        at::Tensor broken = x.clone();
        broken[2][cols / 2].fill_(bad);
        const Gradients want = run(x, gamma, dy), got = run(broken, gamma, dy);
        for (const std::int64_t m : {0, 1, 3, 4}) {
          CHECK(same_bits(got.y[m], want.y[m]));
          CHECK(same_bits(got.dx[m], want.dx[m]));
        }
        // A NaN spoils its row; an infinity makes rstd 0, so only its own place is 0 * inf.
        const auto nans = at::isnan(got.y[2]).sum().item<std::int64_t>();
        CHECK(nans == (std::isnan(bad) ? cols : 1));
        CHECK(std::isnan(got.y[2][cols / 2].item<double>()));
        if (std::isnan(bad)) CHECK(at::isnan(got.dx[2]).all().item<bool>());
        // dgamma sums over rows: it cannot hide it.
        CHECK(std::isnan(got.dgamma[cols / 2].item<double>()));
      }
    }
  }
}

TEST_CASE("A NaN in gamma or dy reaches what depends on it, and nothing else", "[special]") {
  const at::Tensor x = random({4, 33}, at::kFloat), gamma = random({33}, at::kFloat, 2),
                   dy = random({4, 33}, at::kFloat, 3);
  at::Tensor bad_gamma = gamma.clone(), bad_dy = dy.clone();
  bad_gamma[7].fill_(kNan);
  bad_dy[1][7].fill_(kNan);
  const Gradients want = run(x, gamma, dy);
  const Gradients by_gamma = run(x, bad_gamma, dy), by_dy = run(x, gamma, bad_dy);
  CHECK(at::isnan(by_gamma.y).sum().item<std::int64_t>() == 4);
  CHECK(at::isnan(by_gamma.y.select(1, 7)).all().item<bool>());
  CHECK(same_bits(by_gamma.dgamma, want.dgamma));
  CHECK(same_bits(by_dy.y, want.y));
  CHECK(at::isnan(by_dy.dx[1]).all().item<bool>());
  CHECK(same_bits(by_dy.dx[0], want.dx[0]));
  CHECK(at::isnan(by_dy.dgamma).sum().item<std::int64_t>() == 1);
}

TEST_CASE("A row of zeros gives zeros and a finite gradient of dy * gamma / sqrt(eps)",
          "[special]") {
  for (const at::ScalarType type : all_types()) {
    CAPTURE(text(type));
    const at::Tensor zeros = at::zeros({3, 33}, options(type)), gamma = random({33}, type, 2),
                     dy = random({3, 33}, type, 3) * 0.1;
    const Gradients got = run(zeros, gamma, dy);
    CHECK(got.y.eq(0).all().item<bool>());
    CHECK(got.dgamma.eq(0).all().item<bool>());
    CHECK(used_of_rounding(got.dx, reference::expected_dx(zeros, gamma, dy, 1e-6), 33) <= 1);
  }
}

TEST_CASE("The largest float16 does not overflow the sum of squares", "[special]") {
  for (const std::int64_t cols : {1, 257, 4096}) {
    const at::Tensor x = at::full({2, cols}, 65504.0, options(at::kHalf));
    const at::Tensor gamma = at::ones({cols}, options(at::kHalf)),
                     dy = random({2, cols}, at::kHalf);
    const Gradients got = run(x, gamma, dy);
    CHECK(max_abs_difference(got.y, at::ones_like(got.y)) == 0);
    CHECK(at::isfinite(got.dx).all().item<bool>());
    CHECK(used_of_rounding(got.dgamma, reference::expected_dgamma(x, dy, 1e-6), cols + 2) <= 1);
  }
}

TEST_CASE("A y beyond the largest float16 is infinite and has gamma's sign", "[special]") {
  const at::Tensor x = row({0, 0, 0, 0, 0, 0, 0, 1000}, at::kHalf);  // y = sqrt(8) * gamma
  const at::Tensor gamma = vector({1, 1, 1, 1, 1, 1, 1, -60000}, at::kHalf);
  const at::Tensor y = functional::rms_norm(x, gamma);
  CHECK(y[0][7].item<double>() == -kInf);
  CHECK(y.narrow(1, 0, 7).eq(0).all().item<bool>());
}

TEST_CASE("Denormal inputs count and denormal results are kept", "[special]") {
  const double smallest = 5.9604644775390625e-08;  // of float16
  const at::Tensor x = at::full({2, 33}, smallest, options(at::kHalf));
  const at::Tensor y = functional::rms_norm(x, at::ones({33}, options(at::kHalf)));
  CHECK(used_of_rounding(y, reference::expected_y(x, at::ones({33}, options(at::kHalf)), 1e-6),
                         33) <= 1);
  CHECK(y.gt(0).all().item<bool>());
  // 1e-3 * gamma of 2^-20 rounds to a float16 denormal, not to zero.
  const at::Tensor small = functional::rms_norm(
      at::ones({1, 8}, options(at::kHalf)), at::full({8}, 9.5367431640625e-07, options(at::kHalf)));
  CHECK(small.eq(9.5367431640625e-07).all().item<bool>());
  const at::Tensor tiny = at::full({1, 8}, 1e-40, options(at::kFloat));
  CHECK(functional::rms_norm(tiny, at::ones({8}, options(at::kFloat))).gt(0).all().item<bool>());
}

TEST_CASE("Rows of any scale meet the oracle", "[special]") {
  for (const at::ScalarType type : all_types()) {
    const double largest = type == at::kHalf ? 1e4 : 1e15;
    for (const double scale : {1e-7, 1e-3, 1.0, 1e3, largest}) {
      CAPTURE(text(type), scale);
      const at::Tensor x = (random({9, 257}, at::kDouble) * scale).to(options(type));
      const at::Tensor gamma = random({257}, type, 2), dy = random({9, 257}, type, 3);
      const Gradients got = run(x, gamma, dy);
      CHECK(used_of_rounding(got.y, reference::expected_y(x, gamma, 1e-6), 257) <= 1);
      CHECK(used_of_rounding(got.dx, reference::expected_dx(x, gamma, dy, 1e-6), 257) <= 1);
      CHECK(used_of_rounding(got.dgamma, reference::expected_dgamma(x, dy, 1e-6), 257 + 9) <= 1);
    }
  }
}

}  // namespace
}  // namespace rmsnorm::test
