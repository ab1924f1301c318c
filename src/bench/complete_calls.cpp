#include <ATen/ops/empty.h>
#include <ATen/ops/rms_norm.h>
#include <torch/csrc/autograd/autograd.h>
#include <torch/csrc/autograd/custom_function.h>

#include "bench/calls.hpp"
#include "bench/tensors.hpp"
#include "bench/timer.hpp"
#include "operator/autograd.hpp"
#include "operator/execution.hpp"
#include "reference/reference.hpp"

namespace rmsnorm::bench {
namespace {

using torch::autograd::AutogradContext;
using torch::autograd::variable_list;
using Forward = std::function<at::Tensor(const at::Tensor& x, const at::Tensor& gamma)>;

at::Tensor empty_of(const at::Tensor& tensor) {
  return at::empty(tensor.sizes(), tensor.options().memory_format(at::MemoryFormat::Contiguous));
}

struct EmptyFunction : torch::autograd::Function<EmptyFunction> {
  // An absent gamma must be an empty optional: libtorch asks every Tensor argument for its device.
  static at::Tensor forward(AutogradContext* ctx, const at::Tensor& x,
                            const std::optional<at::Tensor>& gamma, double) {
    at::Tensor y = empty_of(x);
    const at::ScalarType wide = x.scalar_type() == at::kDouble ? at::kDouble : at::kFloat;
    const at::Tensor rstd = at::empty({x.numel() / x.size(-1)}, x.options().dtype(wide));
    ctx->save_for_backward({x, gamma.value_or(at::Tensor()), rstd});
    ctx->set_materialize_grads(false);
    return y;
  }

  static variable_list backward(AutogradContext* ctx, const variable_list&) {
    const variable_list saved = ctx->get_saved_variables();
    variable_list result(3);  // one entry for each argument of forward
    result[0] = empty_of(saved[0]);
    if (saved[1].defined()) result[1] = empty_of(saved[1]);
    return result;
  }
};

Call autograd_call(Forward forward, Pass pass, std::shared_ptr<InputsInTurn> inputs) {
  return Call([forward = std::move(forward), pass, inputs = std::move(inputs)] {
    const auto [x, dy, gamma] = inputs->next();
    Outputs outputs;
    outputs.y = forward(x, gamma);
    if (pass == Pass::forward) return outputs;
    variable_list leaves{x};
    if (gamma.defined()) leaves.push_back(gamma);
    variable_list gradients = torch::autograd::grad({outputs.y}, leaves, {dy});
    outputs.dx = std::move(gradients[0]);
    if (gamma.defined()) outputs.dgamma = std::move(gradients[1]);
    return outputs;
  });
}

std::optional<at::Tensor> optional(const at::Tensor& tensor) {
  return tensor.defined() ? std::optional(tensor) : std::nullopt;
}

}  // namespace

Call complete_call(const Subject& subject, Pass pass, const CallSetting& setting,
                   std::shared_ptr<InputsInTurn> inputs) {
  const double eps = setting.eps;
  const std::int64_t cols = setting.problem.cols;
  if (subject.name == "reference") {
    return autograd_call(
        [eps](const at::Tensor& x, const at::Tensor& gamma) {
          return reference::forward(x, gamma, eps);
        },
        pass, std::move(inputs));
  }
  if (subject.name == "aten") {
    return autograd_call(
        [eps, cols](const at::Tensor& x, const at::Tensor& gamma) {
          return at::rms_norm(x, {cols}, optional(gamma), eps);
        },
        pass, std::move(inputs));
  }
  return autograd_call(
      [eps, cols, table = subject.table, contract = setting.contract](const at::Tensor& x,
                                                                      const at::Tensor& gamma) {
        return rms_norm_with(*table, x, gamma, {&cols, 1}, eps, contract);
      },
      pass, std::move(inputs));
}

Call empty_call(Pass pass, const CallSetting& setting, std::shared_ptr<InputsInTurn> inputs) {
  return autograd_call(
      [eps = setting.eps](const at::Tensor& x, const at::Tensor& gamma) {
        return EmptyFunction::apply(x, optional(gamma), eps);
      },
      pass, std::move(inputs));
}

Call complete_copy(Pass pass, const CallSetting& setting, std::shared_ptr<InputsInTurn> inputs) {
  const auto& table = copy_table(setting.device.is_cuda() ? RMSNORM_CUDA : RMSNORM_CPU);
  return Call([&table, pass, eps = setting.eps, inputs = std::move(inputs),
               unused_rstd = at::empty({1}, at::TensorOptions().device(setting.device))] {
    const auto [x, dy, gamma] = inputs->next();
    Outputs outputs;
    outputs.y = run_forward(table, x, gamma, 1, eps, false).y;
    if (pass == Pass::forward) return outputs;
    outputs.dx = run_backward(table, x, dy, gamma, unused_rstd, 1, eps, true, gamma.defined()).dx;
    return outputs;
  });
}

}  // namespace rmsnorm::bench
