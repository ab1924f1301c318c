#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <string>
#include <vector>

#include "core/dtype.hpp"

namespace rmsnorm {

/// Memory between guard bytes, filled with a byte pattern that is NaN in every dtype: what a call
/// leaves unwritten, or reads past its input, shows up as NaN in the result.
class GuardedBuffer {
 public:
  /// `bytes` at `misalignment` bytes past a 256-byte boundary.
  GuardedBuffer(std::int64_t bytes, const at::Device& device, std::int64_t misalignment = 0);

  void* data() const;
  /// The bytes between the guards as a tensor of a dtype and shape.
  at::Tensor view(Dtype dtype, at::IntArrayRef sizes) const;
  at::Tensor view(Dtype dtype, at::IntArrayRef sizes, at::IntArrayRef strides) const;

  /// Fills everything between the guards with the pattern again.
  void poison();

  /// Where a guard byte was changed, as a phrase ("12 bytes behind the end"); empty when all are as
  /// they were.
  std::string damage() const;

 private:
  at::Tensor bytes_;  // uint8
  std::int64_t begin_, size_;
};

/// Equal in dtype, shape and every bit, NaN and signed zeros included. Takes a part at a time, so
/// that tensors which fill the memory, whatever their strides, need no second copy of themselves.
bool same_bits(const at::Tensor& a, const at::Tensor& b);

}  // namespace rmsnorm
