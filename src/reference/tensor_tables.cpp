#include "reference/tensor_tables.hpp"

#include <ATen/ATen.h>
#include <c10/core/GradMode.h>
#include <torch/csrc/autograd/autograd.h>
#include <torch/csrc/autograd/variable.h>

#include <exception>
#include <string>

#include "core/dtype.hpp"
#include "core/files.hpp"
#include "kernels/common/arguments.hpp"
#include "operator/tensors.hpp"
#include "reference/reference.hpp"

namespace rmsnorm {
namespace {

constexpr std::int32_t kLibtorchError = 1;
thread_local std::string libtorch_error;

const char* error_text(std::int32_t) {
  return libtorch_error.c_str();
}

/// Exceptions must not cross the C seam.
template <class Body>
std::int32_t guarded(Body body) {
  try {
    body();
    return RMSNORM_OK;
  } catch (const std::exception& error) {
    libtorch_error = first_line(error.what());
    return kLibtorchError;
  }
}

at::TensorOptions options(std::int32_t dtype, at::DeviceType device) {
  return at::TensorOptions().dtype(to_scalar_type(static_cast<Dtype>(dtype))).device(device);
}

template <at::DeviceType device>
at::Tensor view(const rmsnorm_rows& rows, std::int64_t count, std::int64_t cols) {
  const std::int64_t inner = std::min(rows.inner_rows, std::max<std::int64_t>(count, 1));
  // libtorch takes a pointer it may write through; nothing here writes to inputs.
  return at::from_blob(const_cast<void*>(rows.data), {count / inner, inner, cols},
                       {rows.outer_stride, rows.inner_stride, 1}, options(rows.dtype, device))
      .flatten(0, 1);
}

template <at::DeviceType device>
at::Tensor view(const void* data, at::IntArrayRef sizes, std::int32_t dtype) {
  if (data == nullptr) return {};
  return at::from_blob(const_cast<void*>(data), sizes, options(dtype, device));
}

std::int32_t rstd_dtype(std::int32_t x_dtype) {
  return x_dtype == RMSNORM_FLOAT64 ? RMSNORM_FLOAT64 : RMSNORM_FLOAT32;
}

template <at::DeviceType device>
void store(const at::Tensor& values, void* data, at::IntArrayRef sizes, std::int32_t dtype) {
  if (data == nullptr) return;
  view<device>(data, sizes, dtype).copy_(values.reshape(sizes));
}

std::optional<at::Tensor> optional(const at::Tensor& tensor) {
  return tensor.defined() ? std::optional(tensor) : std::nullopt;
}

template <at::DeviceType device>
std::int32_t reference_forward(const rmsnorm_forward_args* args) {
  return guarded([&] {
    const c10::NoGradGuard no_grad;
    const at::Tensor x = view<device>(args->x, args->rows, args->cols);
    const at::Tensor gamma = view<device>(args->gamma, {args->cols}, args->gamma_dtype);
    store<device>(reference::forward(x, gamma, args->eps), args->y, {args->rows, args->cols},
                  args->x.dtype);
    const at::Tensor wide =
        x.to(to_scalar_type(accumulation_dtype(static_cast<Dtype>(args->x.dtype))));
    store<device>(at::rsqrt(wide.square().mean(-1) + args->eps), args->rstd, {args->rows},
                  rstd_dtype(args->x.dtype));
  });
}

/// dx and dgamma by libtorch's autograd through `forward`.
template <at::DeviceType device, class Forward>
void autograd_backward(const rmsnorm_backward_args& args, Forward forward) {
  const c10::AutoGradMode grad_mode(true);
  const at::Tensor x =
      view<device>(args.x, args.rows, args.cols).detach().requires_grad_(args.dx != nullptr);
  at::Tensor gamma = view<device>(args.gamma, {args.cols}, args.gamma_dtype);
  if (gamma.defined()) gamma = gamma.detach().requires_grad_(args.dgamma != nullptr);
  torch::autograd::variable_list inputs;
  if (args.dx != nullptr) inputs.push_back(x);
  if (args.dgamma != nullptr) inputs.push_back(gamma);
  if (inputs.empty()) return;
  const auto gradients = torch::autograd::grad({forward(x, gamma)}, inputs,
                                               {view<device>(args.dy, args.rows, args.cols)});
  const c10::NoGradGuard no_grad;
  if (args.dx != nullptr)
    store<device>(gradients.front(), args.dx, {args.rows, args.cols}, args.x.dtype);
  if (args.dgamma != nullptr)
    store<device>(gradients.back(), args.dgamma, {args.cols}, args.gamma_dtype);
}

template <at::DeviceType device>
std::int32_t reference_backward(const rmsnorm_backward_args* args) {
  return guarded([&] {
    autograd_backward<device>(*args, [&](const at::Tensor& x, const at::Tensor& gamma) {
      return reference::forward(x, gamma, args->eps);
    });
  });
}

template <at::DeviceType device>
std::int32_t aten_forward(const rmsnorm_forward_args* args) {
  return guarded([&] {
    const c10::NoGradGuard no_grad;
    const at::Tensor gamma = view<device>(args->gamma, {args->cols}, args->gamma_dtype);
    const auto [y, rstd] = at::_fused_rms_norm(view<device>(args->x, args->rows, args->cols),
                                               {args->cols}, optional(gamma), args->eps);
    store<device>(y, args->y, {args->rows, args->cols}, args->x.dtype);
    store<device>(rstd, args->rstd, {args->rows}, rstd_dtype(args->x.dtype));
  });
}

template <at::DeviceType device>
std::int32_t aten_backward(const rmsnorm_backward_args* args) {
  return guarded([&] {
    if constexpr (device == at::kCPU) {
      autograd_backward<device>(*args, [&](const at::Tensor& x, const at::Tensor& gamma) {
        return at::rms_norm(x, {args->cols}, optional(gamma), args->eps);
      });
    } else {
      const c10::NoGradGuard no_grad;
      const at::Tensor gamma = view<device>(args->gamma, {args->cols}, args->gamma_dtype);
      const at::Tensor rstd = view<device>(args->rstd, {args->rows, 1}, rstd_dtype(args->x.dtype));
      const auto [dx, dgamma] = at::_fused_rms_norm_backward(
          view<device>(args->dy, args->rows, args->cols),
          view<device>(args->x, args->rows, args->cols), {args->cols}, rstd, optional(gamma),
          {args->dx != nullptr, args->dgamma != nullptr});
      store<device>(dx, args->dx, {args->rows, args->cols}, args->x.dtype);
      store<device>(dgamma, args->dgamma, {args->cols}, args->gamma_dtype);
    }
  });
}

template <class Args>
const char* aten_refusal(const Args* args) {
  if (args->gamma_dtype != args->x.dtype && args->gamma_dtype != RMSNORM_NO_DTYPE) {
    return "libtorch's fused operation takes gamma of x's dtype only";
  }
  return nullptr;
}

template <at::DeviceType device>
constexpr std::int32_t kDeviceType = device == at::kCPU ? RMSNORM_CPU : RMSNORM_CUDA;

template <at::DeviceType device>
const rmsnorm_implementation kReference = {
    .abi_version = RMSNORM_ABI_VERSION,
    .device_type = kDeviceType<device>,
    .name = "reference",
    .summary =
        "tensor operations in float32 (float64 for float64 x), backward by libtorch's autograd",
    .forward_refusal = kernels::dtype_refusal<rmsnorm_forward_args>,
    .backward_refusal = kernels::dtype_refusal<rmsnorm_backward_args>,
    .forward_workspace_bytes = nullptr,
    .backward_workspace_bytes = nullptr,
    .forward = reference_forward<device>,
    .backward = reference_backward<device>,
    .error_text = error_text,
};

template <at::DeviceType device>
const rmsnorm_implementation kAten = {
    .abi_version = RMSNORM_ABI_VERSION,
    .device_type = kDeviceType<device>,
    .name = "aten",
    .summary = device == at::kCPU ? "libtorch's rms_norm, a chain of tensor operations on the CPU"
                                  : "libtorch's fused rms_norm and its fused backward",
    .forward_refusal = aten_refusal<rmsnorm_forward_args>,
    .backward_refusal = aten_refusal<rmsnorm_backward_args>,
    .forward_workspace_bytes = nullptr,
    .backward_workspace_bytes = nullptr,
    .forward = aten_forward<device>,
    .backward = aten_backward<device>,
    .error_text = error_text,
};

}  // namespace

const rmsnorm_implementation* find_tensor_table(std::string_view name, std::int32_t device_type) {
  const bool cuda = device_type == RMSNORM_CUDA;
  if (name == "reference") return cuda ? &kReference<at::kCUDA> : &kReference<at::kCPU>;
  if (name == "aten") return cuda ? &kAten<at::kCUDA> : &kAten<at::kCPU>;
  return nullptr;
}

}  // namespace rmsnorm
