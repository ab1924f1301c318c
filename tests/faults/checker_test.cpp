#include <algorithm>
#include <bit>
#include <cmath>
#include <limits>
#include <vector>

#include "faults/support.hpp"
#include "reference/gradcheck.hpp"

// CHECKER: what a check must not let pass, and what it must not complain about. On the CPU, where
// a table can be made wrong by hand.

namespace rmsnorm::test {
namespace {

const rmsnorm_implementation& right() {
  return *find_kernels("tuned", RMSNORM_CPU);
}

/// Float32 results of one call.
struct Written {
  float *y, *dx, *dgamma;
  std::int64_t rows, cols;
};
using Change = void (*)(const Written&);

/// `right`, and then `kChange` on what it wrote.
template <Change kChange>
rmsnorm_implementation changed() {
  rmsnorm_implementation table = right();
  table.forward = [](const rmsnorm_forward_args* args) {
    const std::int32_t status = right().forward(args);
    kChange({static_cast<float*>(args->y), nullptr, nullptr, args->rows, args->cols});
    return status;
  };
  table.backward = [](const rmsnorm_backward_args* args) {
    const std::int32_t status = right().backward(args);
    kChange({nullptr, static_cast<float*>(args->dx), static_cast<float*>(args->dgamma), args->rows,
             args->cols});
    return status;
  };
  return table;
}

/// The last element of each result, by a function of it.
template <class Edit>
void edit_last(const Written& results, Edit edit) {
  if (results.y != nullptr) edit(results.y[results.rows * results.cols - 1]);
  if (results.dx != nullptr) edit(results.dx[results.rows * results.cols - 1]);
  if (results.dgamma != nullptr) edit(results.dgamma[results.cols - 1]);
}

void check_all_fail(const rmsnorm_implementation& table, const Case& problem) {
  for (const Operation operation : kOperations) {
    const ComparisonResult result = check_table(table, operation, problem);
    CAPTURE(command_name(operation), problem.name(), result.reason);
    CHECK(name(result.state) == "failed");
  }
}

void nan_last(const Written& results) {
  edit_last(results, [](float& value) { value = NAN; });
}
void infinity_last(const Written& results) {
  edit_last(results, [](float& value) { value = INFINITY; });
}
void wrong_last(const Written& results) {
  edit_last(results, [](float& value) { value += 0.01F * (1 + std::fabs(value)); });
}
void zero_all(const Written& results) {
  if (results.y != nullptr) std::fill_n(results.y, results.rows * results.cols, 0.0F);
  if (results.dx != nullptr) std::fill_n(results.dx, results.rows * results.cols, 0.0F);
  if (results.dgamma != nullptr) std::fill_n(results.dgamma, results.cols, 0.0F);
}

TEST_CASE("B001 one NaN or infinity in y, dx or dgamma fails its check", "[checker]") {
  for (const Case& problem : {Case{17, 257}, Case{1, 1}, Case{128, 1000}}) {
    check_all_fail(changed<nan_last>(), problem);
    check_all_fail(changed<infinity_last>(), problem);
  }
}

TEST_CASE("B096 one wrong element is a failure that counts and names it", "[checker]") {
  for (const Operation operation : kOperations) {
    const ComparisonResult result = check_table(changed<wrong_last>(), operation, {17, 257});
    CAPTURE(result.reason);
    CHECK(name(result.state) == "failed");
    CHECK(result.mismatched == 1);
    CHECK(result.worst_index == (operation == Operation::gamma ? 257 : 17 * 257) - 1);
    CHECK(result.reason.find("1 of ") == 0);
  }
}

TEST_CASE("B094 results of zeros fail", "[checker]") {
  // A dy that is the same for all rows gives no gradient away either.
  for (const Layout layout : {Layout::contiguous, Layout::expanded_dy}) {
    check_all_fail(changed<zero_all>(), {17, 257, Dtype::float32, layout});
  }
}

/// dx = rstd * (dy*gamma - x * rstd^2 * mean), the mean by a template parameter.
enum class Mean { without_gamma, gamma_twice, none };
template <Mean kMean>
std::int32_t wrong_dx(const rmsnorm_backward_args* args) {
  const std::int32_t status = right().backward(args);
  if (args->dx == nullptr) return status;
  const auto* x = static_cast<const float*>(args->x.data);
  const auto* dy = static_cast<const float*>(args->dy.data);
  const auto* gamma = static_cast<const float*>(args->gamma);
  const std::int64_t cols = args->cols;
  for (std::int64_t m = 0; m < args->rows; ++m, x += cols, dy += cols) {
    const double rstd = static_cast<const float*>(args->rstd)[m];
    double sum = 0;
    for (std::int64_t c = 0; c < cols; ++c) {
      if constexpr (kMean != Mean::none)
        sum += double{dy[c]} * x[c] * (kMean == Mean::gamma_twice ? gamma[c] : 1.0F);
    }
    for (std::int64_t c = 0; c < cols; ++c) {
      const double outer = kMean == Mean::gamma_twice ? gamma[c] : 1.0F;
      static_cast<float*>(args->dx)[m * cols + c] = static_cast<float>(
          rstd * dy[c] * gamma[c] - outer * x[c] * rstd * rstd * rstd * sum / double(cols));
    }
  }
  return status;
}

TEST_CASE("B105 gamma left out of the inner sum, or the sum left out, is caught at any width",
          "[checker]") {
  rmsnorm_implementation table = right();
  for (auto* const backward :
       {&wrong_dx<Mean::without_gamma>, &wrong_dx<Mean::gamma_twice>, &wrong_dx<Mean::none>}) {
    table.backward = backward;
    for (const std::int64_t cols : {1, 2, 3, 257, 4096}) {
      const ComparisonResult result = check_table(table, Operation::backward, {17, cols});
      CAPTURE(cols, result.reason);
      CHECK(name(result.state) == "failed");
    }
    CHECK(name(check_table(table, Operation::gamma, {17, 257}).state) == "passed");
  }
}

TEST_CASE("B020 dgamma of 16 bits is judged by a float64 oracle, and 2 % in one column show",
          "[checker]") {
  const Case problem{2048, 1024, Dtype::bfloat16};
  Config config = fault_config();
  config.tolerance[Dtype::bfloat16] = {.atol = 1e-2, .rtol = 1e-2};
  check_passes(Operation::gamma, problem, config);
  rmsnorm_implementation table = right();
  table.backward = [](const rmsnorm_backward_args* args) {
    const std::int32_t status = right().backward(args);
    if (args->dgamma == nullptr) return status;
    auto* value = static_cast<std::uint16_t*>(args->dgamma) + 512;
    const auto wide = static_cast<std::uint32_t>(*value) << 16;
    *value = static_cast<std::uint16_t>(
        std::bit_cast<std::uint32_t>(std::bit_cast<float>(wide) * 1.02F) >> 16);
    return status;
  };
  CHECK(name(check_table(table, Operation::gamma, problem, config).state) == "failed");
}

TEST_CASE("B057 finite differences are of float64 alone, and separate right from 1 % wrong",
          "[checker]") {
  const auto sum = [](const std::vector<at::Tensor>& inputs) {
    return inputs[0].square().sum().item<double>();
  };
  for (const at::ScalarType type : {at::kFloat, at::kHalf, at::kBFloat16}) {
    CHECK_THROWS_WITH(reference::finite_differences(sum, {at::ones({3}, type)}),
                      contains_text("must be float64"));
  }
  const at::Tensor x = random({3, 33}, at::kDouble), gamma = random({33}, at::kDouble, 2),
                   dy = random({3, 33}, at::kDouble, 3);
  const auto loss = [&](const std::vector<at::Tensor>& inputs) {
    return (functional::rms_norm(inputs[0], gamma) * dy).sum().item<double>();
  };
  const auto want = reference::finite_differences(loss, {x});
  const at::Tensor dx = run(right(), x, gamma, dy).dx;
  CHECK(reference::worst_relative_error(dx, want[0]) < 1e-7);
  CHECK(reference::worst_relative_error(dx * 1.01, want[0]) > reference::kGradcheckBound);
}

}  // namespace
}  // namespace rmsnorm::test
