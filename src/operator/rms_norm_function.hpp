#pragma once

#include <ATen/ATen.h>
#include <ATen/core/LegacyTypeDispatch.h>
#include <torch/csrc/autograd/function.h>
#include <torch/csrc/autograd/functions/utils.h>
#include <torch/csrc/autograd/saved_variable.h>

#include <memory>
#include <mutex>
#include <string>
#include <utility>

#include "core/contract.hpp"
#include "kernels/common/fault.hpp"
#include "operator/autograd.hpp"
#include "operator/counters.hpp"
#include "operator/execution.hpp"
#include "operator/tensors.hpp"
#include "rmsnorm/errors.hpp"

// The autograd function, with its faults as a compile-time parameter: autograd.cpp instantiates it
// without one. A node of the graph as libtorch's own operators have one, not a
// torch::autograd::Function, which keeps settings in a map of strings and wraps inputs and outputs
// generically, in every call.

namespace rmsnorm {

using torch::autograd::SavedVariable;
using torch::autograd::variable_list;

/// What a backward needs beside tensors.
struct CallSettings {
  const rmsnorm_implementation* table;
  std::int64_t normalized_dims;
  double eps;
  Contract contract;
};

/// dx and dgamma as tensor operations, for a backward that will be differentiated. rstd is computed
/// anew from x: the saved one is a constant to autograd, and the second derivative would silently
/// lack its share.
template <kernels::Fault F>
BackwardResult backward_as_tensor_operations(const at::Tensor& x, const at::Tensor& gamma,
                                             const at::Tensor& dy, const at::Tensor& saved_rstd,
                                             const CallSettings& call, bool want_dx,
                                             bool want_dgamma) {
  const at::ScalarType wide = x.scalar_type() == at::kDouble ? at::kDouble : at::kFloat;
  std::vector<std::int64_t> columns, rows;
  for (std::int64_t dim = 0; dim < x.dim(); ++dim) {
    (dim < x.dim() - call.normalized_dims ? rows : columns).push_back(dim);
  }
  const at::Tensor xw = x.to(wide);
  at::Tensor rstd = at::rsqrt(xw.square().mean(columns, true) + call.eps);
  if constexpr (F == kernels::Fault::rstd_constant) rstd = saved_rstd.view(rstd.sizes());
  const at::Tensor x_hat = xw * rstd;
  const at::Tensor dyw = dy.to(wide);
  BackwardResult result;
  if (want_dx) {
    const at::Tensor u = gamma.defined() ? dyw * gamma.to(wide) : dyw;
    result.dx = (rstd * (u - x_hat * (u * x_hat).mean(columns, true))).to(x.scalar_type());
  }
  if (want_dgamma) {
    const at::Tensor products = dyw * x_hat;
    result.dgamma = (rows.empty() ? products : products.sum(rows)).to(gamma.scalar_type());
  }
  return result;
}

/// The node that y hangs on; its next edges are those of x and gamma.
template <kernels::Fault F>
class RmsNormBackward final : public torch::autograd::Node {
 public:
  // x and gamma themselves, not aliases: autograd then notices when they are modified before the
  // backward.
  RmsNormBackward(const at::Tensor& x, const at::Tensor& gamma, const at::Tensor& rstd,
                  const CallSettings& call)
      : torch::autograd::Node(torch::autograd::collect_next_edges(x, gamma)),
        x_(F == kernels::Fault::saved_x_alias ? x.variable_data() : x, false),
        gamma_(F == kernels::Fault::saved_gamma_alias ? gamma.variable_data() : gamma, false),
        rstd_(rstd, false),
        call_(call) {}

  std::string name() const override { return "RmsNormBackward"; }

  void release_variables() override {
    const std::lock_guard<std::mutex> lock(mutex_);
    x_.reset_data();
    gamma_.reset_data();
    rstd_.reset_data();
  }

  /// {dy} to {dx, dgamma}.
  variable_list apply(variable_list&& grads) override {
    // Another thread may go through the same graph.
    const std::lock_guard<std::mutex> lock(mutex_);
    variable_list result(2);
    at::Tensor dy = std::move(grads[0]);
    if (!dy.defined()) return result;
    const at::Tensor x = x_.unpack(), gamma = gamma_.unpack(), rstd = rstd_.unpack();
    const bool want_dx = task_should_compute_output(0);
    const bool want_dgamma = gamma.defined() && (F == kernels::Fault::dgamma_when_frozen ||
                                                 task_should_compute_output(1));

    BackwardResult gradients;
    if (at::GradMode::is_enabled()) {
      if (call_.contract == Contract::minimum) {
        throw ContractError(
            "rms_norm backward: create_graph must be false under the minimum contract; got true; "
            "use Contract::full "
            "for second derivatives");
      }
      require_backward(call_.contract, "rms_norm backward", describe(x), describe(dy));
      gradients = backward_as_tensor_operations<F>(x, gamma, dy, rstd, call_, want_dx, want_dgamma);
    } else {
      if (call_.contract == Contract::minimum && !dy.is_contiguous()) {
        dy = dy.contiguous();
        count_copy();
      }
      require_backward(call_.contract, "rms_norm backward", describe(x), describe(dy));
      gradients = run_backward(*call_.table, x, dy, gamma, rstd, call_.normalized_dims, call_.eps,
                               want_dx, want_dgamma);
      if constexpr (F != kernels::Fault::calls_not_counted) count_backward();
    }
    result[0] = std::move(gradients.dx);
    if constexpr (F != kernels::Fault::eps_gradient_for_gamma)
      result[1] = std::move(gradients.dgamma);
    return result;
  }

 private:
  SavedVariable x_, gamma_, rstd_;
  const CallSettings call_;
};

/// y, on a node of the graph.
template <kernels::Fault F>
at::Tensor differentiable_forward(const at::Tensor& x, const at::Tensor& gamma,
                                  const CallSettings& call) {
  ForwardResult result;
  {
    const at::AutoDispatchBelowADInplaceOrView no_graph;
    result = run_forward(*call.table, x, gamma, call.normalized_dims, call.eps, true);
  }
  if constexpr (F != kernels::Fault::calls_not_counted) count_forward();
  const std::shared_ptr<RmsNormBackward<F>> node(
      new RmsNormBackward<F>(x, gamma, result.rstd, call), torch::autograd::deleteNode);
  torch::autograd::set_history(result.y, node);
  return result.y;
}

/// rms_norm_with.
template <kernels::Fault F>
at::Tensor rms_norm_with_fault(const rmsnorm_implementation& table, const at::Tensor& x,
                               const at::Tensor& gamma, at::IntArrayRef normalized_shape,
                               double eps, Contract contract) {
  const TensorInfo gamma_info = describe(gamma);
  require_forward(contract, "rms_norm", describe(x), gamma.defined() ? &gamma_info : nullptr,
                  {normalized_shape.data(), normalized_shape.size()}, eps);
  if (torch::autograd::isFwGradDefined(x) || torch::autograd::isFwGradDefined(gamma)) {
    throw ContractError(
        "rms_norm: x and gamma must not carry a tangent, since there is no forward-mode "
        "derivative; got one; use the backward, or torch::rms_norm");
  }
  const CallSettings call{&table, static_cast<std::int64_t>(normalized_shape.size()), eps,
                          contract};
  const bool differentiable = F != kernels::Fault::no_graph && at::GradMode::is_enabled() &&
                              (x.requires_grad() || (gamma.defined() && gamma.requires_grad()));
  if (differentiable) return differentiable_forward<F>(x, gamma, call);
  const at::Tensor y = run_forward(table, x, gamma, call.normalized_dims, eps, false).y;
  count_forward();
  return y;
}

}  // namespace rmsnorm
