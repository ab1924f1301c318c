#pragma once

#include <ATen/core/Tensor.h>

#include <cstddef>
#include <cstdint>
#include <utility>
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

/// Equal copies of x and dy that complete calls take in turn, so that a cache does not serve them
/// what it would not serve a program.
class InputsInTurn {
 public:
  explicit InputsInTurn(CallTensors tensors) : tensors_(std::move(tensors)) {}

  struct Inputs {
    const at::Tensor &x, &dy, &gamma;
  };
  Inputs next() {
    const std::size_t turn = turn_;
    turn_ = (turn_ + 1) % tensors_.x.size();
    return {tensors_.x[turn], tensors_.dy[turn], tensors_.gamma};
  }

 private:
  CallTensors tensors_;
  std::size_t turn_ = 0;
};

/// [rows, cols] of NaN.
at::Tensor poisoned(at::IntArrayRef sizes, at::ScalarType type, const at::Device& device);

}  // namespace rmsnorm::bench
