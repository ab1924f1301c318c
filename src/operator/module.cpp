#include "rmsnorm/module.hpp"

#include <ATen/ATen.h>

#include <cmath>

#include "core/contract.hpp"
#include "operator/autograd.hpp"
#include "operator/kernels.hpp"

namespace rmsnorm {

RMSNormImpl::RMSNormImpl(RMSNormOptions options_) : options(std::move(options_)) {
  reset();
}

void RMSNormImpl::reset() {
  const std::vector<std::int64_t>& shape = options.normalized_shape();
  const bool positive =
      std::all_of(shape.begin(), shape.end(), [](std::int64_t size) { return size > 0; });
  if (shape.empty() || !positive) {
    throw ContractError("RMSNorm: normalized_shape must have at least 1 dim, each > 0; got " +
                        shape_text(shape));
  }
  if (!std::isfinite(options.eps()) || options.eps() <= 0) {
    throw ContractError("RMSNorm: eps must be finite and > 0; got " +
                        std::to_string(options.eps()));
  }
  if (options.contract() == Contract::minimum &&
      (shape.size() != 1 || !options.elementwise_affine())) {
    throw ContractError(
        "RMSNorm: the minimum contract must have 1 normalized dim and a weight; got shape " +
        shape_text(shape) + (options.elementwise_affine() ? "" : " without a weight"));
  }
  if (!options.elementwise_affine()) return;
  weight = register_parameter("weight", at::ones(shape));
}

void RMSNormImpl::reset_parameters() {
  if (!weight.defined()) return;
  const c10::NoGradGuard no_grad;
  weight.fill_(1);
}

void RMSNormImpl::pretty_print(std::ostream& stream) const {
  stream << std::boolalpha << "rmsnorm::RMSNorm(" << shape_text(options.normalized_shape())
         << ", eps=" << options.eps() << ", elementwise_affine=" << options.elementwise_affine()
         << ")";
}

torch::Tensor RMSNormImpl::forward(const torch::Tensor& x) {
  const rmsnorm_implementation& table =
      default_kernels(x.defined() && x.is_cuda() ? RMSNORM_CUDA : RMSNORM_CPU);
  return rms_norm_with(table, x, weight, options.normalized_shape(), options.eps(),
                       options.contract());
}

}  // namespace rmsnorm
