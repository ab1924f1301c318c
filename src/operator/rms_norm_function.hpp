#pragma once

#include <ATen/ATen.h>
#include <torch/csrc/autograd/custom_function.h>

#include <optional>

#include "core/contract.hpp"
#include "kernels/common/fault.hpp"
#include "operator/autograd.hpp"
#include "operator/counters.hpp"
#include "operator/execution.hpp"
#include "operator/tensors.hpp"
#include "rmsnorm/errors.hpp"

// The autograd function, with its faults as a compile-time parameter: autograd.cpp instantiates it
// without one.

namespace rmsnorm {

using torch::autograd::AutogradContext;
using torch::autograd::variable_list;

/// What a backward needs beside tensors. Held by the graph node as an opaque integer pair.
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

template <kernels::Fault F>
struct RmsNormFunction : torch::autograd::Function<RmsNormFunction<F>> {
  // An absent gamma must be an empty optional: libtorch asks every Tensor argument for its device.
  static at::Tensor forward(AutogradContext* ctx, const at::Tensor& x,
                            const std::optional<at::Tensor>& given_gamma,
                            const CallSettings& call) {
    const at::Tensor gamma = given_gamma.value_or(at::Tensor());
    ForwardResult result = run_forward(*call.table, x, gamma, call.normalized_dims, call.eps, true);
    if constexpr (F != kernels::Fault::calls_not_counted) count_forward();
    // x and gamma themselves, not aliases: autograd then notices when they are modified before the
    // backward.
    ctx->save_for_backward({F == kernels::Fault::saved_x_alias ? x.variable_data() : x,
                            F == kernels::Fault::saved_gamma_alias ? gamma.variable_data() : gamma,
                            result.rstd});
    ctx->saved_data["table"] = reinterpret_cast<std::int64_t>(call.table);
    ctx->saved_data["normalized_dims"] = call.normalized_dims;
    ctx->saved_data["eps"] = call.eps;
    ctx->saved_data["contract"] = static_cast<std::int64_t>(call.contract);
    ctx->set_materialize_grads(false);
    return result.y;
  }

  static variable_list backward(AutogradContext* ctx, const variable_list& grads) {
    // One entry for each argument of forward: x, gamma, call.
    variable_list result(3);
    at::Tensor dy = grads[0];
    if (!dy.defined()) return result;
    const bool want_dx = ctx->needs_input_grad(0);
    const variable_list saved = ctx->get_saved_variables();
    const at::Tensor &x = saved[0], &gamma = saved[1], &rstd = saved[2];
    const bool want_dgamma =
        gamma.defined() && (F == kernels::Fault::dgamma_when_frozen || ctx->needs_input_grad(1));
    const CallSettings call{
        reinterpret_cast<const rmsnorm_implementation*>(ctx->saved_data["table"].toInt()),
        ctx->saved_data["normalized_dims"].toInt(), ctx->saved_data["eps"].toDouble(),
        static_cast<Contract>(ctx->saved_data["contract"].toInt())};

    BackwardResult gradients;
    if (at::GradMode::is_enabled()) {
      if (call.contract == Contract::minimum) {
        throw ContractError(
            "rms_norm backward: create_graph must be false under the minimum contract; got true; "
            "use Contract::full "
            "for second derivatives");
      }
      require_backward(call.contract, "rms_norm backward", describe(x), describe(dy));
      gradients = backward_as_tensor_operations<F>(x, gamma, dy, rstd, call, want_dx, want_dgamma);
    } else {
      if (call.contract == Contract::minimum && !dy.is_contiguous()) {
        dy = dy.contiguous();
        count_copy();
      }
      require_backward(call.contract, "rms_norm backward", describe(x), describe(dy));
      gradients = run_backward(*call.table, x, dy, gamma, rstd, call.normalized_dims, call.eps,
                               want_dx, want_dgamma);
      if constexpr (F != kernels::Fault::calls_not_counted) count_backward();
    }
    result[0] = gradients.dx;
    if constexpr (F != kernels::Fault::eps_gradient_for_gamma) result[1] = gradients.dgamma;
    return result;
  }
};

/// rms_norm_with.
template <kernels::Fault F>
at::Tensor rms_norm_with_fault(const rmsnorm_implementation& table, const at::Tensor& x,
                               const at::Tensor& gamma, at::IntArrayRef normalized_shape,
                               double eps, Contract contract) {
  const TensorInfo gamma_info = describe(gamma);
  require_forward(contract, "rms_norm", describe(x), gamma.defined() ? &gamma_info : nullptr,
                  {normalized_shape.data(), normalized_shape.size()}, eps);
  const CallSettings call{&table, static_cast<std::int64_t>(normalized_shape.size()), eps,
                          contract};
  const bool differentiable = F != kernels::Fault::no_graph && at::GradMode::is_enabled() &&
                              (x.requires_grad() || (gamma.defined() && gamma.requires_grad()));
  if (differentiable) {
    return RmsNormFunction<F>::apply(x, gamma.defined() ? std::optional(gamma) : std::nullopt,
                                     call);
  }
  const at::Tensor y = run_forward(table, x, gamma, call.normalized_dims, eps, false).y;
  count_forward();
  return y;
}

}  // namespace rmsnorm
