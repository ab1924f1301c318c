#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <stdexcept>

namespace rmsnorm {

/// A case needs more memory than there is: it is skipped, with this as the reason.
class MemoryShortage : public std::runtime_error {
 public:
  using std::runtime_error::runtime_error;
};

/// Bytes that tensors on a device may still take. CUDA: what is free once libtorch's cache is
/// emptied, which this does. CPU: what the system, and the control group that the process is in,
/// have left.
std::int64_t available_bytes(const at::Device& device);

/// Throws MemoryShortage where `bytes` more on a device would not fit. Small amounts are taken for
/// granted, so that thousands of small cases ask nobody.
void require_memory(std::int64_t bytes, const at::Device& device);

}  // namespace rmsnorm
