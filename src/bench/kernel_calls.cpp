#include <ATen/ops/_fused_rms_norm.h>
#include <ATen/ops/_fused_rms_norm_backward.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/rms_norm.h>
#include <c10/core/GradMode.h>
#include <torch/csrc/autograd/autograd.h>

#include <memory>

#include "bench/calls.hpp"
#include "bench/tensors.hpp"
#include "operator/kernels.hpp"
#include "operator/streams.hpp"
#include "operator/tensors.hpp"
#include "reference/reference.hpp"
#include "rmsnorm/errors.hpp"

namespace rmsnorm::bench {
namespace {

/// The buffers and arguments of a table's calls.
class TableCalls {
 public:
  TableCalls(const Subject& subject, const CallSetting& setting)
      : subject_(subject), device_(setting.device) {
    const Case& problem = setting.problem;
    const at::ScalarType type = to_scalar_type(problem.dtype);
    const at::IntArrayRef rows(problem.rows);
    rstd_ = poisoned(rows, to_scalar_type(accumulation_dtype(problem.dtype)), device_);
    setting.inputs.describe(forward_);
    outputs_.y = poisoned({problem.rows, problem.cols}, type, device_);
    forward_.y = outputs_.y.mutable_data_ptr();
    forward_.rstd = rstd_.mutable_data_ptr();
    prepare(forward_, setting.eps, forward_workspace_, subject.table->forward_refusal,
            subject.table->forward_workspace_bytes);
  }

  void prepare_backward(const CallSetting& setting) {
    const Case& problem = setting.problem;
    run_forward();
    setting.inputs.describe(backward_);
    outputs_ = {
        .y = {},
        .dx = poisoned({problem.rows, problem.cols}, to_scalar_type(problem.dtype), device_),
        .dgamma = {}};
    if (const at::Tensor gamma = setting.inputs.gamma(); gamma.defined()) {
      outputs_.dgamma = poisoned(gamma.sizes(), gamma.scalar_type(), device_);
      backward_.dgamma = outputs_.dgamma.mutable_data_ptr();
    }
    backward_.rstd = rstd_.const_data_ptr();
    backward_.dx = outputs_.dx.mutable_data_ptr();
    prepare(backward_, setting.eps, backward_workspace_, subject_.table->backward_refusal,
            subject_.table->backward_workspace_bytes);
  }

  const Outputs& run_forward() {
    bind(forward_);
    require_ok(*subject_.table, "benchmark forward", subject_.table->forward(&forward_));
    return outputs_;
  }

  const Outputs& run_backward() {
    bind(backward_);
    require_ok(*subject_.table, "benchmark backward", subject_.table->backward(&backward_));
    return outputs_;
  }

 private:
  template <class Args>
  void prepare(Args& args, double eps, at::Tensor& workspace, const char* (*refusal)(const Args*),
               std::size_t (*workspace_bytes)(const Args*)) {
    args.eps = eps;
    bind(args);
    if (const char* reason = refusal == nullptr ? nullptr : refusal(&args)) {
      throw ContractError("benchmark (" + subject_.name + "): " + reason);
    }
    args.workspace_bytes = workspace_bytes == nullptr ? 0 : workspace_bytes(&args);
    workspace = poisoned({static_cast<std::int64_t>(args.workspace_bytes)}, at::kByte, device_);
    args.workspace = workspace.mutable_data_ptr();
  }

  /// What belongs to the moment of the call: the stream may be one that is being captured.
  template <class Args>
  void bind(Args& args) {
    args.stream = current_stream(device_);
    args.executor = device_.is_cpu() ? &cpu_executor() : nullptr;
  }

  Subject subject_;
  at::Device device_;
  rmsnorm_forward_args forward_{};
  rmsnorm_backward_args backward_{};
  Outputs outputs_;
  at::Tensor rstd_, forward_workspace_, backward_workspace_;
};

Call table_call(const Subject& subject, Pass pass, const CallSetting& setting) {
  const auto calls = std::make_shared<TableCalls>(subject, setting);
  if (pass == Pass::forward) return Call([calls] { return calls->run_forward(); });
  calls->prepare_backward(setting);
  return Call([calls] { return calls->run_backward(); });
}

std::optional<at::Tensor> optional(const at::Tensor& tensor) {
  return tensor.defined() ? std::optional(tensor) : std::nullopt;
}

/// The backward of a graph that is recorded once and kept. libtorch runs a backward on the stream
/// of its forward, so the recording is made anew when the current stream has become another.
template <class Forward>
Call recorded_backward(const CallSetting& setting, Forward forward) {
  struct Recording {
    CallTensors tensors;
    at::Tensor y;
    void* stream = nullptr;
  };
  auto recording = std::make_shared<Recording>();
  recording->tensors = call_tensors(setting.inputs, 1, true);
  return Call([recording, forward, device = setting.device] {
    const CallTensors& tensors = recording->tensors;
    if (void* const stream = current_stream(device);
        !recording->y.defined() || stream != recording->stream) {
      const c10::AutoGradMode grad_mode(true);
      recording->y = forward(tensors.x[0], tensors.gamma);
      recording->stream = stream;
    }
    torch::autograd::variable_list inputs{tensors.x[0]};
    if (tensors.gamma.defined()) inputs.push_back(tensors.gamma);
    const auto gradients =
        torch::autograd::grad({recording->y}, inputs, {tensors.dy[0]}, /*retain_graph=*/true);
    return Outputs{
        .y = {}, .dx = gradients[0], .dgamma = inputs.size() > 1 ? gradients[1] : at::Tensor()};
  });
}

template <class Forward>
Call unrecorded_forward(const CallSetting& setting, Forward forward) {
  return Call([tensors = call_tensors(setting.inputs, 1, false), forward] {
    const c10::NoGradGuard no_grad;
    return Outputs{.y = forward(tensors.x[0], tensors.gamma), .dx = {}, .dgamma = {}};
  });
}

/// libtorch's fused backward, which only CUDA has.
Call fused_backward(const CallSetting& setting) {
  const c10::NoGradGuard no_grad;
  const CallTensors tensors = call_tensors(setting.inputs, 1, false);
  const std::int64_t cols = setting.problem.cols;
  const at::Tensor rstd =
      std::get<1>(at::_fused_rms_norm(tensors.x[0], {cols}, optional(tensors.gamma), setting.eps));
  return Call([tensors, rstd, cols] {
    const c10::NoGradGuard inner_no_grad;
    auto [dx, dgamma] =
        at::_fused_rms_norm_backward(tensors.dy[0], tensors.x[0], {cols}, rstd,
                                     optional(tensors.gamma), {true, tensors.gamma.defined()});
    return Outputs{.y = {}, .dx = std::move(dx), .dgamma = std::move(dgamma)};
  });
}

}  // namespace

Call kernel_call(const Subject& subject, Pass pass, const CallSetting& setting) {
  const double eps = setting.eps;
  const std::int64_t cols = setting.problem.cols;
  const auto with = [&](auto forward) {
    return pass == Pass::forward ? unrecorded_forward(setting, forward)
                                 : recorded_backward(setting, forward);
  };
  if (subject.name == "reference") {
    return with([eps](const at::Tensor& x, const at::Tensor& gamma) {
      return reference::forward(x, gamma, eps);
    });
  }
  if (subject.name == "aten") {
    if (pass == Pass::backward && setting.device.is_cuda()) return fused_backward(setting);
    return with([eps, cols](const at::Tensor& x, const at::Tensor& gamma) {
      return at::rms_norm(x, {cols}, optional(gamma), eps);
    });
  }
  return table_call(subject, pass, setting);
}

}  // namespace rmsnorm::bench
