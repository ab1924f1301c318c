#include "operator/execution.hpp"

#include <ATen/ATen.h>
#include <c10/core/DeviceGuard.h>

#include "operator/counters.hpp"
#include "operator/device.hpp"
#include "operator/huge_pages.hpp"
#include "operator/kernels.hpp"
#include "operator/streams.hpp"
#include "operator/tensors.hpp"

namespace rmsnorm {
namespace {

std::int64_t product(at::IntArrayRef sizes, std::int64_t begin, std::int64_t end) {
  std::int64_t result = 1;
  for (std::int64_t dim = begin; dim < end; ++dim) result *= sizes[dim];
  return result;
}

/// Uninitialised and dense.
at::Tensor empty(at::IntArrayRef sizes, at::ScalarType type, const at::Device& device) {
  if (device.is_cuda()) return empty_on_cuda(sizes, type, device);
  return at::empty(sizes, at::TensorOptions().dtype(type).device(device));
}

at::Tensor empty_workspace(std::size_t bytes, const at::Device& device) {
  if (bytes == 0) return {};
  return empty({static_cast<std::int64_t>(bytes)}, at::kByte, device);
}

/// A dense tensor of x's shape and dtype.
at::Tensor empty_like_rows(const at::Tensor& x) {
  at::Tensor result = empty(x.sizes(), x.scalar_type(), x.device());
  if (x.is_cpu()) use_huge_pages(result.mutable_data_ptr(), result.nbytes());
  return result;
}

at::Tensor contiguous_gamma(const at::Tensor& gamma) {
  if (!gamma.defined() || gamma.is_contiguous()) return gamma;
  count_copy();
  return gamma.contiguous();
}

/// The fields that both passes have.
template <class Args>
void fill_common(Args& args, const at::Tensor& x, const at::Tensor& gamma,
                 std::int64_t normalized_dims, double eps, at::Tensor& x_holder) {
  const std::int64_t leading = x.dim() - normalized_dims;
  args.rows = product(x.sizes(), 0, leading);
  args.cols = product(x.sizes(), leading, x.dim());
  args.x = rows_or_copy(x, normalized_dims, x_holder);
  args.gamma = gamma.defined() ? gamma.const_data_ptr() : nullptr;
  args.gamma_dtype = gamma.defined() ? to_rmsnorm_dtype(gamma.scalar_type()) : RMSNORM_NO_DTYPE;
  args.eps = eps;
  args.stream = current_stream(x.device());
  args.executor = x.is_cpu() ? &cpu_executor() : nullptr;
}

void require_taken(const rmsnorm_implementation& table, const char* call, const char* refusal) {
  if (refusal != nullptr)
    throw ContractError(std::string(call) + " (" + table.name + "): " + refusal);
}

at::ScalarType rstd_type(const at::Tensor& x) {
  return x.scalar_type() == at::kDouble ? at::kDouble : at::kFloat;
}

}  // namespace

ForwardResult run_forward(const rmsnorm_implementation& table, const at::Tensor& x,
                          const at::Tensor& gamma, std::int64_t normalized_dims, double eps,
                          bool want_rstd) {
  const c10::OptionalDeviceGuard guard(x.is_cuda() ? std::optional(x.device()) : std::nullopt);
  at::Tensor x_holder;
  const at::Tensor gamma_dense = contiguous_gamma(gamma);
  rmsnorm_forward_args args{};
  fill_common(args, x, gamma_dense, normalized_dims, eps, x_holder);
  if (table.forward_refusal != nullptr)
    require_taken(table, "rms_norm forward", table.forward_refusal(&args));

  ForwardResult result;
  result.y = empty_like_rows(x);
  if (want_rstd) result.rstd = empty({args.rows}, rstd_type(x), x.device());
  args.y = result.y.mutable_data_ptr();
  args.rstd = want_rstd ? result.rstd.mutable_data_ptr() : nullptr;
  if (table.forward_workspace_bytes != nullptr)
    args.workspace_bytes = table.forward_workspace_bytes(&args);
  const at::Tensor workspace = empty_workspace(args.workspace_bytes, x.device());
  args.workspace = workspace.defined() ? workspace.mutable_data_ptr() : nullptr;
  require_ok(table, "rms_norm forward", table.forward(&args));
  return result;
}

BackwardResult run_backward(const rmsnorm_implementation& table, const at::Tensor& x,
                            const at::Tensor& dy, const at::Tensor& gamma, const at::Tensor& rstd,
                            std::int64_t normalized_dims, double eps, bool want_dx,
                            bool want_dgamma) {
  const c10::OptionalDeviceGuard guard(x.is_cuda() ? std::optional(x.device()) : std::nullopt);
  at::Tensor x_holder, dy_holder;
  const at::Tensor gamma_dense = contiguous_gamma(gamma);
  rmsnorm_backward_args args{};
  fill_common(args, x, gamma_dense, normalized_dims, eps, x_holder);
  args.dy = rows_or_copy(dy, normalized_dims, dy_holder);
  args.rstd = rstd.const_data_ptr();
  if (table.backward_refusal != nullptr)
    require_taken(table, "rms_norm backward", table.backward_refusal(&args));

  BackwardResult result;
  if (want_dx) result.dx = empty_like_rows(x);
  if (want_dgamma) result.dgamma = empty(gamma.sizes(), gamma.scalar_type(), gamma.device());
  args.dx = want_dx ? result.dx.mutable_data_ptr() : nullptr;
  args.dgamma = want_dgamma ? result.dgamma.mutable_data_ptr() : nullptr;
  if (table.backward_workspace_bytes != nullptr)
    args.workspace_bytes = table.backward_workspace_bytes(&args);
  const at::Tensor workspace = empty_workspace(args.workspace_bytes, x.device());
  args.workspace = workspace.defined() ? workspace.mutable_data_ptr() : nullptr;
  require_ok(table, "rms_norm backward", table.backward(&args));
  return result;
}

}  // namespace rmsnorm
