#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <optional>

#include "rmsnorm/contract.hpp"
#include "rmsnorm/errors.hpp"

namespace rmsnorm::functional {

/// y = x / sqrt(mean(x^2) + eps) * gamma, the mean over the last dimension.
///
/// x: [..., N]; gamma: [N]. Result: x's shape and dtype, contiguous, a new tensor. Differentiable
/// in x and gamma; eps is not differentiated. Gradients: dx = r*u - x*r^3*mean(u*x) with u =
/// dy*gamma, r the saved inverse RMS; dgamma = sum over rows of dy*x*r, accumulated in float32
/// (float64 for float64 x). Guarantees: the bits of a row of y depend on that row, N, dtype and
/// alignment, not on the other rows; gradients are bitwise equal from run to run on one device;
/// inputs and dy are never written. Runs on the current stream of x's device, leaves the current
/// device as it was, does not synchronise. Throws ContractError for what `contract` refuses,
/// CudaError when a launch fails, UnavailableError for CUDA tensors in a build without CUDA
/// kernels. Never falls back to another implementation. Source: Zhang and Sennrich, "Root Mean
/// Square Layer Normalization", 2019.
at::Tensor rms_norm(const at::Tensor& x, const at::Tensor& gamma, double eps = 1e-6,
                    Contract contract = Contract::full);

/// The same over the trailing `normalized_shape` dims of x, which gamma has too, or no gamma at all
/// (nothing is multiplied). Argument order of torch::nn::functional::layer_norm. Contract::full.
at::Tensor rms_norm(const at::Tensor& x, at::IntArrayRef normalized_shape,
                    const std::optional<at::Tensor>& gamma = std::nullopt, double eps = 1e-6);

}  // namespace rmsnorm::functional
