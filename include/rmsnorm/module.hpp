#pragma once

#include <torch/nn/cloneable.h>
#include <torch/nn/pimpl.h>

#include <cstdint>
#include <ostream>
#include <utility>
#include <vector>

#include "rmsnorm/contract.hpp"

namespace rmsnorm {

/// Options of RMSNorm, set as libtorch's are:
/// RMSNormOptions({256}).eps(1e-6).elementwise_affine(false).
struct RMSNormOptions {
  explicit RMSNormOptions(std::vector<std::int64_t> normalized_shape)
      : normalized_shape_(std::move(normalized_shape)) {}

  /// Trailing dims of the input that are normalized, and the shape of the weight.
  TORCH_ARG(std::vector<std::int64_t>, normalized_shape);
  /// Added to the mean of squares. Must be finite and > 0.
  TORCH_ARG(double, eps) = 1e-6;
  /// Whether there is a weight (gamma), ones at the start. Without it nothing is multiplied.
  TORCH_ARG(bool, elementwise_affine) = true;
  /// Contract::minimum restricts calls to the tutorial's scope; it needs one normalized dim and a
  /// weight.
  TORCH_ARG(Contract, contract) = Contract::full;
};

/// y = x / sqrt(mean(x^2) + eps) * weight over the trailing dims, as functional::rms_norm.
///
/// State key `weight`, as Python's torch.nn.RMSNorm has, so a checkpoint maps one to one. Without a
/// weight there is no parameter and no entry in an archive.
class RMSNormImpl : public torch::nn::Cloneable<RMSNormImpl> {
 public:
  explicit RMSNormImpl(std::vector<std::int64_t> normalized_shape)
      : RMSNormImpl(RMSNormOptions(std::move(normalized_shape))) {}
  /// Throws ContractError for an empty or non-positive normalized_shape or a bad eps.
  explicit RMSNormImpl(RMSNormOptions options);

  void reset() override;
  /// Fills the weight with ones.
  void reset_parameters();
  void pretty_print(std::ostream& stream) const override;

  torch::Tensor forward(const torch::Tensor& x);

  RMSNormOptions options;
  torch::Tensor weight;  ///< [normalized_shape]; undefined without elementwise_affine
};

TORCH_MODULE(RMSNorm);

}  // namespace rmsnorm
