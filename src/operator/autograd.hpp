#pragma once

#include <ATen/core/Tensor.h>

#include "rmsnorm/contract.hpp"
#include "rmsnorm/implementation.h"

namespace rmsnorm {

/// rms_norm with its gradients through a given table: what functional::rms_norm does with the
/// default one, and what the benchmark and the trainer do with any. gamma may be undefined under
/// Contract::full. Checks the contract, counts in call_counts(). Under Contract::full a backward
/// that is itself recorded (create_graph) runs as tensor operations, which libtorch differentiates
/// again; under Contract::minimum it is refused.
at::Tensor rms_norm_with(const rmsnorm_implementation& table, const at::Tensor& x,
                         const at::Tensor& gamma, at::IntArrayRef normalized_shape, double eps,
                         Contract contract);

}  // namespace rmsnorm
