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

/// Takes the copies of the inputs in turn.
Call autograd_call(Forward forward, Pass pass, const CallSetting& setting) {
  return Call([forward = std::move(forward), pass,
               tensors = call_tensors(setting.inputs, setting.buffers, true),
               turn = std::size_t{0}]() mutable {
    const at::Tensor& x = tensors.x[turn];
    const at::Tensor& dy = tensors.dy[turn];
    turn = (turn + 1) % tensors.x.size();
    Outputs outputs;
    outputs.y = forward(x, tensors.gamma);
    if (pass == Pass::forward) return outputs;
    variable_list inputs{x};
    if (tensors.gamma.defined()) inputs.push_back(tensors.gamma);
    variable_list gradients = torch::autograd::grad({outputs.y}, inputs, {dy});
    outputs.dx = std::move(gradients[0]);
    if (tensors.gamma.defined()) outputs.dgamma = std::move(gradients[1]);
    return outputs;
  });
}

std::optional<at::Tensor> optional(const at::Tensor& tensor) {
  return tensor.defined() ? std::optional(tensor) : std::nullopt;
}

}  // namespace

Call complete_call(const Subject& subject, Pass pass, const CallSetting& setting) {
  const double eps = setting.eps;
  const std::int64_t cols = setting.problem.cols;
  if (subject.name == "reference") {
    return autograd_call(
        [eps](const at::Tensor& x, const at::Tensor& gamma) {
          return reference::forward(x, gamma, eps);
        },
        pass, setting);
  }
  if (subject.name == "aten") {
    return autograd_call(
        [eps, cols](const at::Tensor& x, const at::Tensor& gamma) {
          return at::rms_norm(x, {cols}, optional(gamma), eps);
        },
        pass, setting);
  }
  return autograd_call(
      [eps, cols, table = subject.table, contract = setting.contract](const at::Tensor& x,
                                                                      const at::Tensor& gamma) {
        return rms_norm_with(*table, x, gamma, {&cols, 1}, eps, contract);
      },
      pass, setting);
}

Call empty_call(Pass pass, const CallSetting& setting) {
  return autograd_call(
      [eps = setting.eps](const at::Tensor& x, const at::Tensor& gamma) {
        return EmptyFunction::apply(x, optional(gamma), eps);
      },
      pass, setting);
}

Call complete_copy(Pass pass, const CallSetting& setting) {
  const auto& table = copy_table(setting.device.is_cuda() ? RMSNORM_CUDA : RMSNORM_CPU);
  return Call([&table, pass, eps = setting.eps,
               tensors = call_tensors(setting.inputs, setting.buffers, false),
               unused_rstd = at::empty({1}, at::TensorOptions().device(setting.device)),
               turn = std::size_t{0}]() mutable {
    const at::Tensor& x = tensors.x[turn];
    const at::Tensor& dy = tensors.dy[turn];
    turn = (turn + 1) % tensors.x.size();
    Outputs outputs;
    outputs.y = run_forward(table, x, tensors.gamma, 1, eps, false).y;
    if (pass == Pass::forward) return outputs;
    outputs.dx = run_backward(table, x, dy, tensors.gamma, unused_rstd, 1, eps, true,
                              tensors.gamma.defined())
                     .dx;
    return outputs;
  });
}

}  // namespace rmsnorm::bench
