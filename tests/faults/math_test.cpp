#include <c10/core/GradMode.h>

#include <cmath>
#include <limits>

#include "faults/support.hpp"
#include "rmsnorm/module.hpp"

// MATH, EPS, PREC and DTYPE: the numbers.

namespace rmsnorm::test {
namespace {

constexpr at::ScalarType k16Bits[] = {at::kHalf, at::kBFloat16};

TEST_CASE("B044 dx has gamma in both terms exactly once", "[math]") {
  for (const at::ScalarType type : {at::kFloat, at::kDouble}) {
    const at::Tensor x = row({1, 2, -2, 4}, type), gamma = vector({.5, 1, 2, -1}, type),
                     dy = row({1, -1, .5, 2}, type);
    for (const rmsnorm_implementation* table : kernels()) {
      const Results got = run(*table, x, gamma, dy, 1e-5);
      constexpr double kPrinted = 1e-5;  // the worked numbers have five decimals
      CHECK(max_abs_difference(got.y, row({.2, .8, -1.6, -1.6}, type)) <= kPrinted);
      CHECK(max_abs_difference(got.dx, row({.384, -.032, .032, -.064}, type)) <= kPrinted);
      CHECK(max_abs_difference(got.dgamma, vector({.4, -.8, -.4, 3.2}, type)) <= kPrinted);
    }
  }
}

TEST_CASE("B045 eps stands inside one root, beside the mean", "[math]") {
  const at::Tensor gamma = at::ones({33}, options(at::kFloat));
  const at::Tensor x = at::full({2, 33}, 1e-3, options(at::kFloat));
  for (const rmsnorm_implementation* table : kernels()) {
    const at::Tensor y = run(*table, x, gamma, x, 1e-5).y;
    CHECK(max_abs_difference(y, at::full_like(y, 0.3015113)) <= 1e-6);
  }
  Config config = fault_config();
  config.epsilon = 1e-5;
  for (const Dtype dtype : kDtypes) {
    check_passes(Operation::forward,
                 {12, 257, dtype, Layout::contiguous, GammaKind::same, InputKind::special}, config);
  }
}

TEST_CASE("B016 eps is 1e-6 for every dtype unless it is given", "[math]") {
  CHECK(RMSNormOptions({8}).eps() == 1e-6);
  CHECK(Config{}.epsilon == 1e-6);
  for (const at::ScalarType type : all_types()) {
    CAPTURE(text(type));
    const at::Tensor x = random({4, 32}, type) * 0.058 * 0.01, gamma = random({32}, type, 2);
    CHECK(same_bits(functional::rms_norm(x, gamma), functional::rms_norm(x, gamma, 1e-6)));
    CHECK(same_bits(functional::rms_norm(x, {32}, gamma),
                    functional::rms_norm(x, {32}, gamma, 1e-6)));
    // libtorch's default is another: the machine epsilon of float64, or of float32.
    const double eps = type == at::kDouble ? std::numeric_limits<double>::epsilon()
                                           : std::numeric_limits<float>::epsilon();
    const at::Tensor theirs = at::rms_norm(x, {32}, gamma, c10::nullopt);
    const reference::Expected want = reference::expected_y(x, gamma, eps);
    CHECK(used_of_rounding(functional::rms_norm(x, gamma, eps), want, 32) <= 1);
    // Its CPU path rounds each step to 16 bits.
    if (type == at::kDouble || type == at::kFloat) CHECK(used_of_rounding(theirs, want, 32) <= 1);
  }
}

TEST_CASE("B018 x and gamma of two dtypes are right or refused, never misread", "[math]") {
  for (const at::ScalarType x_type : all_types()) {
    for (const at::ScalarType gamma_type : all_types()) {
      const at::Tensor x = random({5, 33}, x_type), gamma = random({33}, gamma_type, 2);
      const bool taken =
          x_type == gamma_type || (gamma_type == at::kFloat && x.element_size() == 2);
      CAPTURE(text(x_type), text(gamma_type));
      if (taken) {
        check_kernels(x, gamma, random({5, 33}, x_type, 3));
      } else {
        CHECK_THROWS_WITH(functional::rms_norm(x, gamma),
                          contains_text("gamma must have x's dtype"));
      }
    }
  }
}

TEST_CASE("B019 dgamma of many rows is summed in float32 and rounded once", "[math]") {
  for (const at::ScalarType type : k16Bits) {
    for (const std::int64_t cols : {128, 256}) {
      const at::Tensor x = random({32768, cols}, type), gamma = random({cols}, type, 2),
                       dy = random({32768, cols}, type, 3) + 0.5 * x;
      const at::Tensor want = reference::expected_dgamma(x, dy, 1e-6).want;
      for (const rmsnorm_implementation* table : kernels()) {
        const at::Tensor got = run(*table, x, gamma, dy).dgamma.to(at::kDouble);
        CAPTURE(text(type), cols, table->name);
        CHECK(((got - want).abs() / want.abs()).max().item<double>() <= 1.0 / 256);
      }
    }
  }
}

TEST_CASE("B048 squares of large float16 values do not overflow", "[math]") {
  for (const double scale : {256.0, 1000.0, 30000.0}) {
    for (const std::int64_t cols : {1, 2, 8, 33, 256, 257, 4096}) {
      at::Tensor x = random({3, cols}, at::kHalf).sign() * scale;
      x[1].mul_(0.5);
      CAPTURE(scale, cols);
      check_kernels(x, random({cols}, at::kHalf, 2), random({3, cols}, at::kHalf, 3));
      const Results got =
          run(*kernels()[1], x, at::ones({cols}, options(at::kHalf)), at::ones_like(x));
      CHECK(at::isfinite(got.y).all().item<bool>());
      CHECK(at::isfinite(got.dx).all().item<bool>());
    }
  }
}

TEST_CASE("B050 the saved statistic is float32, or float64 for float64", "[math]") {
  for (const at::ScalarType type : all_types()) {
    const at::Tensor x = random({12, 257}, type) * 1e-4;  // rstd near 1e3
    check_kernels(x, random({257}, type, 2), random({12, 257}, type, 3));
  }
  // What the forward leaves is held to the rounding of its own dtype, not of x's.
  for (const Dtype dtype : kDtypes) {
    check_passes(Operation::forward,
                 {12, 257, dtype, Layout::contiguous, GammaKind::same, InputKind::scaled});
  }
}

TEST_CASE("B059 float64 is computed in float64 throughout", "[math]") {
  for (const std::int64_t cols : {7, 257, 1024, 4099}) {
    const at::Tensor x = random({5, cols}, at::kDouble), gamma = random({cols}, at::kDouble, 2),
                     dy = random({5, cols}, at::kDouble, 3);
    for (const rmsnorm_implementation* table : kernels()) {
      const Results got = run(*table, x, gamma, dy);
      const auto worst = [](const at::Tensor& a, const reference::Expected& want) {
        return ((a - want.want).abs() / want.magnitude.clamp_min(1e-30)).max().item<double>();
      };
      CAPTURE(cols, table->name);
      CHECK(worst(got.y, reference::expected_y(x, gamma, 1e-6)) < 1e-13);
      CHECK(worst(got.dx, reference::expected_dx(x, gamma, dy, 1e-6)) < 1e-12);
      CHECK(worst(got.dgamma, reference::expected_dgamma(x, dy, 1e-6)) < 1e-12);
    }
  }
}

TEST_CASE("B076 eps of zero or less is refused, and a zero row gives dy*gamma/sqrt(eps)",
          "[math]") {
  at::Tensor x = random({5, 33}, at::kFloat);
  x[2].zero_();
  const at::Tensor gamma = random({33}, at::kFloat, 2), dy = random({5, 33}, at::kFloat, 3);
  for (const double eps : {0.0, -1e-6, std::nan(""), std::numeric_limits<double>::infinity()}) {
    CHECK_THROWS_WITH(functional::rms_norm(x, gamma, eps), contains_text("eps must be"));
  }
  for (const rmsnorm_implementation* table : kernels()) {
    const Results got = run(*table, x, gamma, dy, 1e-5);
    check_against_oracle(got, x, gamma, dy, 1e-5);
    CHECK(got.y[2].eq(0).all().item<bool>());
    CHECK(max_abs_difference(got.dx[2], dy[2] * gamma * 316.22776) <= 1e-3);
    at::Tensor others = at::cat({x.narrow(0, 0, 2), x.narrow(0, 3, 2)}),
               others_dy = at::cat({dy.narrow(0, 0, 2), dy.narrow(0, 3, 2)});
    CHECK(max_abs_difference(got.dgamma, run(*table, others, gamma, others_dy, 1e-5).dgamma) <=
          1e-5);
  }
}

TEST_CASE("B077 zeros in gamma give finite gradients: nothing is divided by it", "[math]") {
  for (const at::ScalarType type : all_types()) {
    const at::Tensor x = random({9, 65}, type), dy = random({9, 65}, type, 3);
    at::Tensor gamma = random({65}, type, 2);
    for (const std::int64_t zero : {0, 33, 64}) gamma[zero].zero_();
    check_kernels(x, gamma, dy);
    check_kernels(x, at::zeros_like(gamma), dy);
    const Results got = run(*kernels()[1], x, at::zeros_like(gamma), dy);
    CHECK(got.dx.eq(0).all().item<bool>());
    CHECK(got.dgamma.ne(0).any().item<bool>());
  }
}

TEST_CASE("B099 y is rounded once, after gamma, and has x's dtype", "[math]") {
  const at::Tensor x = random({8, 4096}, at::kBFloat16), dy = random({8, 4096}, at::kBFloat16, 3);
  const at::Tensor wide = x.to(at::kDouble);
  const at::Tensor x_hat = wide * at::rsqrt(wide.square().mean(-1, true) + 1e-6);
  for (const at::ScalarType gamma_type : {at::kBFloat16, at::kFloat}) {
    const at::Tensor gamma = random({4096}, gamma_type, 2), gamma_wide = gamma.to(at::kDouble);
    const at::Tensor once = (x_hat * gamma_wide).to(at::kBFloat16);
    const at::Tensor twice =
        (x_hat.to(at::kBFloat16).to(at::kDouble) * gamma_wide).to(at::kBFloat16);
    for (const rmsnorm_implementation* table : kernels()) {
      const at::Tensor y = run(*table, x, gamma, dy).y;
      CHECK(y.scalar_type() == at::kBFloat16);
      const auto differing = [&](const at::Tensor& other) {
        return y.ne(other).to(at::kDouble).mean().item<double>();
      };
      CHECK(differing(once) < 1e-3);  // sums in float32 end on the other side of a rare tie
      CHECK(differing(twice) > 0.05);
    }
  }
}

TEST_CASE("B103 strong cancellation leaves the worked gradient", "[math]") {
  for (const at::ScalarType type : {at::kFloat, at::kDouble}) {
    const at::Tensor x = row({1, 0, 0, 0}, type), gamma = at::ones({4}, options(type));
    for (const rmsnorm_implementation* table : kernels()) {
      const Results got = run(*table, x, gamma, x, 1e-4);
      CHECK(max_abs_difference(got.dx, row({0.00079952, 0, 0, 0}, type)) <= 1e-6);
      CHECK(max_abs_difference(got.dgamma, vector({1.9996, 0, 0, 0}, type)) <= 1e-5);
    }
  }
}

TEST_CASE("B107 a 16-bit dgamma is nearer to float64 than 16-bit tensor operations are", "[math]") {
  const at::Tensor x = random({4096, 512}, at::kBFloat16), gamma = random({512}, at::kBFloat16, 2),
                   dy = random({4096, 512}, at::kBFloat16, 3);
  const at::Tensor want = reference::expected_dgamma(x, dy, 1e-6).want;
  const at::Tensor composite = (dy * (x * at::rsqrt(x.square().mean(-1, true) + 1e-6))).sum(0);
  const at::Tensor their_error = (composite.to(at::kDouble) - want).abs();
  for (const rmsnorm_implementation* table : kernels()) {
    const at::Tensor error = (run(*table, x, gamma, dy).dgamma.to(at::kDouble) - want).abs();
    CAPTURE(table->name);
    CHECK(error.le(their_error).to(at::kDouble).mean().item<double>() >= 0.99);
  }
}

TEST_CASE("B117 padding rows of zeros stay finite and leave dgamma alone", "[math]") {
  for (const auto& [eps, factor] : {std::pair{1e-5, 316.22776}, {1e-12, 1e6}}) {
    at::Tensor x = random({40, 65}, at::kFloat);
    x.slice(0, 0, 40, 10).zero_();
    const at::Tensor gamma = random({65}, at::kFloat, 2), dy = random({40, 65}, at::kFloat, 3);
    at::Tensor dy_elsewhere = dy.clone();
    dy_elsewhere.slice(0, 0, 40, 10).fill_(1000);
    for (const rmsnorm_implementation* table : kernels()) {
      const Results got = run(*table, x, gamma, dy, eps);
      check_against_oracle(got, x, gamma, dy, eps);
      CHECK(max_abs_difference(got.dx[10] / (dy[10] * gamma * factor), at::ones({65})) <= 1e-5);
      // Whatever comes back into a row of zeros.
      CHECK(same_bits(run(*table, x, gamma, dy_elsewhere, eps).dgamma, got.dgamma));
    }
  }
}

}  // namespace
}  // namespace rmsnorm::test
