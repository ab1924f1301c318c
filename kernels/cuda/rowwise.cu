#include "kernels/cuda/rowwise.cuh"

#include "kernels/implementations.h"

namespace rmsnorm::kernels::cuda {
namespace {

std::int32_t forward(const rmsnorm_forward_args* args) {
  return dispatch_dtypes<Types>(*args, [&](auto x, auto gamma) -> std::int32_t {
    return launch_rowwise_forward<decltype(x), decltype(gamma)>(*args);
  });
}

std::int32_t backward(const rmsnorm_backward_args* args) {
  if (args->workspace_bytes < row_partials_bytes(*args)) return RMSNORM_WORKSPACE;
  return dispatch_dtypes<Types>(*args, [&](auto x, auto gamma) -> std::int32_t {
    return launch_rowwise_backward<decltype(x), decltype(gamma)>(*args);
  });
}

std::size_t backward_workspace_bytes(const rmsnorm_backward_args* args) {
  return row_partials_bytes(*args);
}

const char* error_text(std::int32_t status) {
  return cudaGetErrorString(static_cast<cudaError_t>(status));
}

const rmsnorm_implementation kTable = {
    RMSNORM_ABI_VERSION,
    RMSNORM_CUDA,
    "rowwise",
    "one row per block, [rows, cols] partials for dgamma, a second kernel by column",
    dtype_refusal<rmsnorm_forward_args>,
    dtype_refusal<rmsnorm_backward_args>,
    nullptr,
    backward_workspace_bytes,
    forward,
    backward,
    error_text,
};

}  // namespace
}  // namespace rmsnorm::kernels::cuda

const rmsnorm_implementation* rmsnorm_rowwise_cuda(void) {
  return &rmsnorm::kernels::cuda::kTable;
}
