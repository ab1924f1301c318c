#pragma once

#include <cstdint>

#include "kernels/common/steps.hpp"

namespace rmsnorm::kernels {

/// Quotients by a number known before the kernel starts, for a multiplication and a shift: a 64-bit
/// division takes a GPU a hundred instructions. Granlund and Montgomery, PLDI 1994.
class Divisor {
 public:
  /// Divides nothing: of a place that needs no division.
  Divisor() = default;

  /// `divisor` in [2, 2^62].
  explicit Divisor(std::int64_t divisor) {
    while ((std::int64_t{1} << bits_) < divisor) ++bits_;
    __extension__ using Wide = unsigned __int128;
    factor_ =
        static_cast<std::uint64_t>((Wide{1} << (63 + bits_)) / static_cast<Wide>(divisor)) + 1;
  }

  /// value / divisor, exactly, for 0 <= value < 2^63.
  RMSNORM_STEP std::int64_t quotient(std::int64_t value) const {
#ifdef __CUDA_ARCH__
    const std::uint64_t high = __umul64hi(static_cast<std::uint64_t>(value), factor_);
#else
    __extension__ using Wide = unsigned __int128;
    const auto high = static_cast<std::uint64_t>(
        static_cast<Wide>(static_cast<std::uint64_t>(value)) * factor_ >> 64);
#endif
    return static_cast<std::int64_t>(high >> (bits_ - 1));
  }

 private:
  std::uint64_t factor_ = 0;  // 2^(63 + bits) / divisor, rounded up
  int bits_ = 0;              // of divisor - 1
};

}  // namespace rmsnorm::kernels
