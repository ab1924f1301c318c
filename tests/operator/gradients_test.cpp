#include <c10/core/GradMode.h>
#include <torch/csrc/autograd/autograd.h>
#include <torch/csrc/autograd/custom_function.h>
#include <torch/csrc/autograd/forward_grad.h>

#include "operator/autograd.hpp"
#include "operator/kernels.hpp"
#include "reference/gradcheck.hpp"
#include "rmsnorm/counters.hpp"
#include "rmsnorm/functional.hpp"
#include "support/matchers.hpp"
#include "support/tensors.hpp"

namespace rmsnorm::test {
namespace {

using reference::finite_differences;
using reference::kGradcheckBound;
using reference::worst_relative_error;
using Tensors = std::vector<at::Tensor>;

std::int32_t device_type() {
  return test_device().is_cuda() ? RMSNORM_CUDA : RMSNORM_CPU;
}

at::Tensor scalar_product(const at::Tensor& a, const at::Tensor& b) {
  return (a * b).sum();
}

TEST_CASE("float64 gradients agree with finite differences", "[gradients]") {
  // Not one column: dx is then the difference of two equal terms, and a relative error says
  // nothing.
  const std::pair<std::int64_t, std::int64_t> shapes[] = {{1, 2}, {3, 5}, {2, 33}, {5, 16}};
  for (const auto& [rows, cols] : shapes) {
    CAPTURE(rows, cols);
    const at::Tensor x = random({rows, cols}, at::kDouble).requires_grad_();
    const at::Tensor gamma = random({cols}, at::kDouble, 2).requires_grad_();
    const at::Tensor dy = random({rows, cols}, at::kDouble, 3) + 0.5 * x.detach();
    const auto got = torch::autograd::grad({functional::rms_norm(x, gamma)}, {x, gamma}, {dy});
    const auto loss = [&](const Tensors& at) {
      const c10::NoGradGuard no_grad;
      const at::Tensor y = functional::rms_norm(at[0].to(test_device()), at[1].to(test_device()));
      return scalar_product(y, dy).item<double>();
    };
    const Tensors want = finite_differences(loss, {x.detach().cpu(), gamma.detach().cpu()});
    CHECK(worst_relative_error(got[0], want[0]) <= kGradcheckBound);
    CHECK(worst_relative_error(got[1], want[1]) <= kGradcheckBound);
  }
}

/// The first gradients as differentiable tensors.
Tensors first_gradients(const at::Tensor& x, const at::Tensor& gamma, const at::Tensor& dy) {
  return torch::autograd::grad({functional::rms_norm(x, gamma)}, {x, gamma}, {dy}, true, true);
}

TEST_CASE("Second derivatives agree with finite differences of the first", "[gradients]") {
  const at::Tensor x = random({3, 7}, at::kDouble).requires_grad_();
  const at::Tensor gamma = random({7}, at::kDouble, 2).requires_grad_();
  const at::Tensor dy = random({3, 7}, at::kDouble, 3).requires_grad_();
  const at::Tensor v = random({3, 7}, at::kDouble, 4), w = random({7}, at::kDouble, 5);
  const Tensors first = first_gradients(x, gamma, dy);
  const auto got = torch::autograd::grad(
      {scalar_product(first[0], v) + scalar_product(first[1], w)}, {x, gamma, dy});
  const auto loss = [&](const Tensors& at) {
    const at::Tensor x1 = at[0].to(test_device()).detach().requires_grad_(),
                     gamma1 = at[1].to(test_device()).detach().requires_grad_();
    const auto gradients = torch::autograd::grad({functional::rms_norm(x1, gamma1)}, {x1, gamma1},
                                                 {at[2].to(test_device())});
    return (scalar_product(gradients[0], v) + scalar_product(gradients[1], w)).item<double>();
  };
  const Tensors want =
      finite_differences(loss, {x.detach().cpu(), gamma.detach().cpu(), dy.detach().cpu()});
  for (std::size_t i = 0; i < want.size(); ++i) {
    CAPTURE(i);
    CHECK(worst_relative_error(got[i], want[i]) <= kGradcheckBound);
  }
}

TEST_CASE("First gradients are the same with and without a graph of them", "[gradients]") {
  const at::Tensor x = random({5, 33}, at::kDouble).requires_grad_();
  const at::Tensor gamma = random({33}, at::kDouble, 2).requires_grad_();
  const at::Tensor dy = random({5, 33}, at::kDouble, 3);
  const Tensors recorded = first_gradients(x, gamma, dy);
  const auto plain = torch::autograd::grad({functional::rms_norm(x, gamma)}, {x, gamma}, {dy});
  constexpr double kTwoDerivations = 1e-12;
  CHECK(worst_relative_error(recorded[0], plain[0]) <= kTwoDerivations);
  CHECK(worst_relative_error(recorded[1], plain[1]) <= kTwoDerivations);
}

TEST_CASE("minimum refuses a graph of its backward", "[gradients]") {
  const at::Tensor x = random({3, 8}, at::kFloat).requires_grad_();
  const at::Tensor y = functional::rms_norm(x, random({8}, at::kFloat, 2), 1e-6, Contract::minimum);
  reset_call_counts();
  CHECK_THROWS_WITH(torch::autograd::grad({y.sum()}, {x}, {}, true, true),
                    contains_text("create_graph must be false under the minimum contract"));
  CHECK(call_counts().backward == 0);
  CHECK(torch::autograd::grad({y.sum()}, {x})[0].defined());
}

// ---- what is asked for is what is computed ----

/// What the last backward through kRecording was asked for.
struct Recorded {
  int backwards = 0;
  bool dx = false, dgamma = false, rstd = false;
  std::size_t workspace_bytes = 0;
};
Recorded recorded;

const rmsnorm_implementation& recording_table() {
  static const rmsnorm_implementation table = [] {
    rmsnorm_implementation copy = default_kernels(device_type());
    copy.forward = [](const rmsnorm_forward_args* args) {
      recorded.rstd = args->rstd != nullptr;
      return default_kernels(device_type()).forward(args);
    };
    copy.backward = [](const rmsnorm_backward_args* args) {
      ++recorded.backwards;
      recorded.dx = args->dx != nullptr;
      recorded.dgamma = args->dgamma != nullptr;
      recorded.workspace_bytes = args->workspace_bytes;
      return default_kernels(device_type()).backward(args);
    };
    return copy;
  }();
  return table;
}

TEST_CASE("Only the gradients that are required are computed", "[gradients]") {
  for (const Contract contract : {Contract::minimum, Contract::full}) {
    for (const bool x_required : {false, true}) {
      for (const bool gamma_required : {false, true}) {
        CAPTURE(static_cast<int>(contract), x_required, gamma_required);
        recorded = {};
        const at::Tensor x = random({3, 8}, at::kFloat).requires_grad_(x_required);
        const at::Tensor gamma = random({8}, at::kFloat, 2).requires_grad_(gamma_required);
        const at::Tensor y = rms_norm_with(recording_table(), x, gamma, {8}, 1e-6, contract);
        CHECK(y.requires_grad() == (x_required || gamma_required));
        CHECK(recorded.rstd == y.requires_grad());
        if (!y.requires_grad()) continue;
        y.sum().backward();
        CHECK(recorded.backwards == 1);
        CHECK(recorded.dx == x_required);
        CHECK(recorded.dgamma == gamma_required);
        CHECK(x.grad().defined() == x_required);
        CHECK(gamma.grad().defined() == gamma_required);
        // A frozen gamma costs no scratch either.
        if (!gamma_required) CHECK(recorded.workspace_bytes == 0);
      }
    }
  }
}

TEST_CASE("One gradient is right whether or not the other is wanted", "[gradients]") {
  const at::Tensor x = random({9, 65}, at::kFloat), gamma = random({65}, at::kFloat, 2),
                   dy = random({9, 65}, at::kFloat, 3);
  for (const bool x_required : {false, true}) {
    const at::Tensor leaf = x.detach().requires_grad_(x_required);
    const at::Tensor weight = gamma.detach().requires_grad_(!x_required);
    functional::rms_norm(leaf, weight).backward(dy);
    const double used =
        x_required
            ? used_of_rounding(leaf.grad(), reference::expected_dx(x, gamma, dy, 1e-6), 65)
            : used_of_rounding(weight.grad(), reference::expected_dgamma(x, dy, 1e-6), 65 + 9);
    CHECK(used <= 1);
  }
}

/// A node that passes no gradient on.
struct Blocking : torch::autograd::Function<Blocking> {
  static at::Tensor forward(torch::autograd::AutogradContext*, const at::Tensor& x) {
    return x * 2;
  }
  static torch::autograd::variable_list backward(torch::autograd::AutogradContext*,
                                                 const torch::autograd::variable_list&) {
    return {at::Tensor()};
  }
};

TEST_CASE("dgamma of very many rows is summed in float32 from end to end", "[gradients]") {
  const std::int64_t rows = 131072, cols = 128;
  const at::Tensor x = random({rows, cols}, at::kBFloat16);
  const at::Tensor dy = random({rows, cols}, at::kBFloat16, 2);
  const at::Tensor wide = x.to(at::kDouble);
  const at::Tensor rstd = (wide.square().mean(1, true) + 1e-6).rsqrt();
  const at::Tensor want = (dy.to(at::kDouble) * wide * rstd).sum(0);
  // The first bound is what one rounding to bfloat16 leaves, the second what float32 sums do.
  for (const auto& [type, bound] : {std::pair(at::kBFloat16, 3e-3), std::pair(at::kFloat, 1e-5)}) {
    const at::Tensor gamma = random({cols}, type, 3).requires_grad_();
    const at::Tensor dgamma =
        torch::autograd::grad({functional::rms_norm(x, gamma)}, {gamma}, {dy})[0];
    const at::Tensor error = dgamma.to(at::kDouble) - want;
    CAPTURE(text(type));
    CHECK((error.norm() / want.norm()).item<double>() <= bound);
  }
}

TEST_CASE("A tangent is refused, not dropped", "[gradients]") {
  const std::uint64_t level = torch::autograd::ForwardADLevel::get_next_idx();
  for (const bool differentiable : {false, true}) {
    CAPTURE(differentiable);
    const at::Tensor x = random({3, 5}, at::kFloat), gamma = random({5}, at::kFloat, 2);
    x.requires_grad_(differentiable);
    const auto dual = [&](const at::Tensor& tensor) {
      return at::_make_dual(tensor, at::ones_like(tensor), static_cast<std::int64_t>(level));
    };
    CHECK_THROWS_WITH(functional::rms_norm(dual(x), gamma), contains_text("carry a tangent"));
    CHECK_THROWS_WITH(functional::rms_norm(x, dual(gamma)), contains_text("carry a tangent"));
  }
  torch::autograd::ForwardADLevel::release_idx(level);
}

TEST_CASE("Where no gradient comes in, none goes out and nothing is computed", "[gradients]") {
  const at::Tensor x = random({3, 8}, at::kFloat).requires_grad_();
  const at::Tensor gamma = random({8}, at::kFloat, 2).requires_grad_();
  const at::Tensor blocked = Blocking::apply(functional::rms_norm(x, gamma));
  reset_call_counts();
  blocked.sum().backward();
  CHECK_FALSE(x.grad().defined());
  CHECK_FALSE(gamma.grad().defined());
  CHECK(call_counts().backward == 0);
}

TEST_CASE("eps has no gradient and the counters count passes", "[gradients]") {
  reset_call_counts();
  const at::Tensor x = random({3, 8}, at::kFloat).requires_grad_();
  const at::Tensor gamma = random({8}, at::kFloat, 2);
  for (int i = 0; i < 3; ++i) functional::rms_norm(x, gamma).sum().backward();
  {
    const c10::NoGradGuard no_grad;
    static_cast<void>(functional::rms_norm(x, gamma));
  }
  CHECK(call_counts().forward == 4);
  CHECK(call_counts().backward == 3);
  reset_call_counts();
  CHECK(call_counts().forward == 0);
  CHECK(call_counts().backward == 0);
  CHECK(call_counts().copies == 0);
}

TEST_CASE("What a table refuses or fails at becomes an error that names it", "[gradients]") {
  const at::Tensor x = random({3, 8}, at::kFloat), gamma = random({8}, at::kFloat, 2);
  const auto call = [&](const rmsnorm_implementation& table) {
    return rms_norm_with(table, x, gamma, {8}, 1e-6, Contract::full);
  };
  rmsnorm_implementation table = default_kernels(device_type());
  table.name = "stub";
  table.forward_refusal = [](const rmsnorm_forward_args*) { return "takes nothing"; };
  CHECK_THROWS_AS(call(table), ContractError);
  CHECK_THROWS_WITH(call(table), contains_text("stub") && contains_text("takes nothing"));
  table.forward_refusal = nullptr;
  table.forward = [](const rmsnorm_forward_args*) -> std::int32_t { return 700; };
  table.error_text = [](std::int32_t) { return "out of luck"; };
  CHECK_THROWS_AS(call(table), CudaError);
  CHECK_THROWS_WITH(call(table), contains_text("700") && contains_text("out of luck"));
  table.forward = [](const rmsnorm_forward_args*) -> std::int32_t { return RMSNORM_UNSUPPORTED; };
  CHECK_THROWS_AS(call(table), ContractError);
  table.forward = [](const rmsnorm_forward_args*) -> std::int32_t { return RMSNORM_WORKSPACE; };
  CHECK_THROWS_AS(call(table), std::logic_error);
}

}  // namespace
}  // namespace rmsnorm::test
