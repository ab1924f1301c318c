#pragma once

#include <ATen/core/Tensor.h>

#include <vector>

#include "check/inputs.hpp"

namespace rmsnorm::bench {

/// x, dy and gamma of a case as tensors that libtorch differentiates, in the layout of the case:
/// two dims, or three where rows have two strides.
struct CallTensors {
  std::vector<at::Tensor> x,
      dy;            ///< equal copies beyond the first, which lies where the case put it
  at::Tensor gamma;  ///< may be undefined
};

/// `copies` beyond 1 are made of contiguous tensors only. All but dy require gradients when
/// `differentiable`.
CallTensors call_tensors(const CaseInputs& inputs, std::int64_t copies, bool differentiable);

/// [rows, cols] of NaN.
at::Tensor poisoned(at::IntArrayRef sizes, at::ScalarType type, const at::Device& device);

}  // namespace rmsnorm::bench
