#pragma once

#include <ATen/core/Tensor.h>

#include <functional>

#include "core/comparison.hpp"
#include "rmsnorm/contract.hpp"
#include "rmsnorm/implementation.h"

namespace rmsnorm {

/// An operator with gradients over a table, as rms_norm_with.
using Operator = std::function<at::Tensor(const rmsnorm_implementation& table, const at::Tensor& x,
                                          const at::Tensor& gamma, at::IntArrayRef normalized_shape,
                                          double eps, Contract contract)>;

/// Judges what lies between the kernels and a training loop, in float64 over a right table: both
/// gradients of a rank 3 input and an expanded dy, one count for each call, no kernel work for a
/// gradient that nobody wants, an error when a saved tensor was modified in place, and second
/// derivatives. `compared` counts the properties looked at. An exception where there should be none
/// is State::error.
ComparisonResult check_autograd(const Operator& norm, const rmsnorm_implementation& table,
                                const at::Device& device, double eps);

}  // namespace rmsnorm
