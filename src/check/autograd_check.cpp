#include "check/autograd_check.hpp"

#include <ATen/ATen.h>
#include <c10/core/GradMode.h>
#include <torch/csrc/autograd/autograd.h>

#include "core/files.hpp"
#include "reference/gradcheck.hpp"
#include "reference/reference.hpp"
#include "rmsnorm/counters.hpp"

namespace rmsnorm {
namespace {

using reference::kGradcheckBound;
using reference::worst_relative_error;
using torch::autograd::grad;

constexpr double kFirstDerivativeBound = 1e-10;  // float64 sums of a few dozen terms

/// A table that notes which gradients its backward was asked for.
struct Spied {
  static inline bool dx_wanted = false, dgamma_wanted = false;  // set by the engine's thread

  static std::int32_t backward(const rmsnorm_backward_args* args) {
    dx_wanted = args->dx != nullptr;
    dgamma_wanted = args->dgamma != nullptr;
    return original(args);
  }
  static inline std::int32_t (*original)(const rmsnorm_backward_args*) = nullptr;
};

class AutogradCheck {
 public:
  AutogradCheck(const Operator& norm, const rmsnorm_implementation& table, const at::Device& device,
                double eps)
      : norm_(norm),
        table_(table),
        eps_(eps),
        options_(at::TensorOptions().dtype(at::kDouble).device(device)) {
    x_ = values({2, 3, kCols}, 0.37);
    gamma_ = values({kCols}, 0.91);
    dy_ = values({2, 3, kCols}, 0.53) + 0.5 * x_;
  }

  ComparisonResult run() {
    try {
      if (requires_graph()) {
        gradients();
        expanded_gradient();
        counts();
        unwanted_gradients();
        modified_in_place();
        if (result_.reason.empty()) second_derivative();  // of gradients that are there and right
      }
      result_.state = result_.reason.empty() ? State::passed : State::failed;
    } catch (const std::exception& error) {
      result_.state = State::error;
      result_.reason = first_line(error.what());
    }
    return result_;
  }

 private:
  static constexpr std::int64_t kCols = 33;

  /// Fixed numbers without a pattern in rows or columns; x and gamma need not be random here.
  at::Tensor values(at::IntArrayRef sizes, double step) const {
    std::int64_t count = 1;
    for (const std::int64_t size : sizes) count *= size;
    return (at::arange(count, options_).mul(step * step * 17).sin() + 0.1).view(sizes);
  }
  at::Tensor leaf(const at::Tensor& tensor, bool wanted = true) const {
    return tensor.clone().requires_grad_(wanted);
  }
  at::Tensor apply(const at::Tensor& x, const at::Tensor& gamma) const {
    return norm_(table_, x, gamma, {kCols}, eps_, Contract::full);
  }
  void require(bool holds, const std::string& otherwise) {
    ++result_.compared;
    if (holds) return;
    ++result_.mismatched;
    result_.reason += (result_.reason.empty() ? "" : "; ") + otherwise;
  }

  bool requires_graph() {
    const bool holds = apply(leaf(x_), leaf(gamma_)).requires_grad();
    require(holds, "y has no graph although x and gamma require gradients");
    return holds;
  }

  void require_gradients(const at::Tensor& x, const at::Tensor& gamma, const at::Tensor& dy,
                         const std::string& which) {
    const reference::Gradients want = reference::closed_form_backward(
        x.detach().view({-1, kCols}), gamma.detach(), dy.reshape({-1, kCols}), eps_);
    const auto near = [&](const at::Tensor& got, const at::Tensor& wanted) {
      return got.defined() && got.numel() == wanted.numel() &&
             worst_relative_error(got.view(wanted.sizes()), wanted) <= kFirstDerivativeBound;
    };
    require(near(x.grad(), want.dx), "the gradient of x is missing or wrong" + which);
    require(near(gamma.grad(), want.dgamma), "the gradient of gamma is missing or wrong" + which);
  }

  void gradients() {
    const at::Tensor x = leaf(x_), gamma = leaf(gamma_);
    apply(x, gamma).backward(dy_);
    require_gradients(x, gamma, dy_, "");
  }

  void expanded_gradient() {
    const at::Tensor x = leaf(x_), gamma = leaf(gamma_);
    apply(x, gamma).sum().backward();
    require_gradients(x, gamma, at::ones_like(x_), " for an expanded dy");
  }

  void counts() {
    const CallCounts before = call_counts();
    const at::Tensor y = apply(leaf(x_), leaf(gamma_));
    require(call_counts().forward == before.forward + 1, "a forward was not counted once");
    y.backward(dy_);
    require(call_counts().backward == before.backward + 1, "a backward was not counted once");
  }

  void unwanted_gradients() {
    for (const bool dx : {true, false}) {
      rmsnorm_implementation spied = table_;
      Spied::original = table_.backward;
      spied.backward = Spied::backward;
      const at::Tensor x = leaf(x_, dx), gamma = leaf(gamma_, !dx);
      norm_(spied, x, gamma, {kCols}, eps_, Contract::full).backward(dy_);
      require(Spied::dx_wanted == dx,
              "dx was computed though x is constant, or not though it is not");
      require(Spied::dgamma_wanted == !dx,
              "dgamma was computed though gamma is frozen, or not though it is not");
    }
  }

  void modified_in_place() {
    for (const bool change_x : {true, false}) {
      const at::Tensor x = leaf(x_), gamma = leaf(gamma_);
      const at::Tensor y = apply(x, gamma);
      {
        const c10::NoGradGuard no_grad;
        (change_x ? x : gamma).add_(1);
      }
      bool noticed = false;
      try {
        y.backward(dy_);
      } catch (const c10::Error&) {
        noticed = true;
      }
      require(noticed, std::string(change_x ? "x" : "gamma") +
                           " was modified between forward and backward, and no error came");
    }
  }

  /// Of the gradients in a direction, against their finite differences.
  void second_derivative() {
    const at::Tensor x = x_.narrow(1, 0, 1).contiguous(), dy = dy_.narrow(1, 0, 1).contiguous();
    const auto directional = [&](const at::Tensor& at_x, const at::Tensor& at_gamma, bool graph) {
      const auto first = grad({apply(at_x, at_gamma)}, {at_x, at_gamma}, {dy}, true, graph);
      return (first[0] * dy).sum() + (first[1] * gamma_).sum();
    };
    const at::Tensor at_x = leaf(x), at_gamma = leaf(gamma_);
    const auto got =
        grad({directional(at_x, at_gamma, true)}, {at_x, at_gamma}, {}, c10::nullopt, false, true);
    const auto want = reference::finite_differences(
        [&](const std::vector<at::Tensor>& inputs) {
          return directional(leaf(inputs[0]), leaf(inputs[1]), false).item<double>();
        },
        {x, gamma_});
    require(got[0].defined() && worst_relative_error(got[0], want[0]) <= kGradcheckBound,
            "the second derivative by x is wrong");
    require(got[1].defined() && worst_relative_error(got[1], want[1]) <= kGradcheckBound,
            "the second derivative by gamma is wrong");
  }

  const Operator& norm_;
  const rmsnorm_implementation& table_;
  double eps_;
  at::TensorOptions options_;
  at::Tensor x_, gamma_, dy_;
  ComparisonResult result_;
};

}  // namespace

ComparisonResult check_autograd(const Operator& norm, const rmsnorm_implementation& table,
                                const at::Device& device, double eps) {
  return AutogradCheck(norm, table, device, eps).run();
}

}  // namespace rmsnorm
