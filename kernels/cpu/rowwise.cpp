#include "kernels/cpu/rowwise.hpp"

#include "kernels/implementations.h"

namespace rmsnorm::kernels::cpu {
namespace {

std::int32_t forward(const rmsnorm_forward_args* args) {
  return dispatch_dtypes<Types>(*args, [&](auto x, auto gamma) {
    return rowwise_forward<decltype(x), decltype(gamma)>(*args);
  });
}

std::int32_t backward(const rmsnorm_backward_args* args) {
  return dispatch_dtypes<Types>(*args, [&](auto x, auto gamma) {
    return rowwise_backward<decltype(x), decltype(gamma)>(*args);
  });
}

std::size_t backward_workspace_bytes(const rmsnorm_backward_args* args) {
  return row_partials_bytes(*args);
}

const rmsnorm_implementation kTable = {
    .abi_version = RMSNORM_ABI_VERSION,
    .device_type = RMSNORM_CPU,
    .name = "rowwise",
    .summary = "one row at a time, [rows, cols] partials for dgamma, a second pass by column",
    .forward_refusal = dtype_refusal<rmsnorm_forward_args>,
    .backward_refusal = dtype_refusal<rmsnorm_backward_args>,
    .forward_workspace_bytes = nullptr,
    .backward_workspace_bytes = backward_workspace_bytes,
    .forward = forward,
    .backward = backward,
    .error_text = nullptr,
};

}  // namespace
}  // namespace rmsnorm::kernels::cpu

const rmsnorm_implementation* rmsnorm_rowwise_cpu(void) {
  return &rmsnorm::kernels::cpu::kTable;
}
