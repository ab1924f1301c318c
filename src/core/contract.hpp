#pragma once

#include <cstdint>
#include <span>
#include <string>

#include "rmsnorm/contract.hpp"
#include "rmsnorm/errors.hpp"

namespace rmsnorm {

/// What the contract needs to know of a tensor, whatever library it comes from. Views only.
struct TensorInfo {
  bool defined = false;
  std::span<const std::int64_t> sizes, strides;
  std::int32_t dtype = -1;        ///< rmsnorm_dtype, or -1 for any other
  const char* dtype_name = "";    ///< for messages
  std::int32_t device_type = -1;  ///< rmsnorm_device_type, or -1 for any other
  std::int32_t device_index = -1;
  bool dense_storage = true;  ///< strided layout, neither sparse nor quantised nor nested
};

/// The limits of Contract::minimum.
inline constexpr std::int64_t kMinimumMaxCols = 4096;
inline constexpr std::int64_t kMinimumMaxScratchBytes = std::int64_t{64} << 20;

/// Throws ContractError unless a forward of x [..., normalized_shape] and gamma [normalized_shape]
/// (nullptr: none) meets `contract`. `where` opens the message, e.g. "rms_norm". Writes nothing,
/// allocates nothing when all is well.
void require_forward(Contract contract, const char* where, const TensorInfo& x,
                     const TensorInfo* gamma, std::span<const std::int64_t> normalized_shape,
                     double eps);

/// Throws ContractError unless dy fits x: its shape, dtype and device; contiguous too under
/// Contract::minimum.
void require_backward(Contract contract, const char* where, const TensorInfo& x,
                      const TensorInfo& dy);

/// `[2, 3]`.
std::string shape_text(std::span<const std::int64_t> sizes);

}  // namespace rmsnorm
