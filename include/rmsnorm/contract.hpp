#pragma once

namespace rmsnorm {

/// What a call may be given; everything else is refused with a ContractError before anything is
/// written.
enum class Contract {
  /// x 2-D contiguous; gamma 1-D contiguous of N elements; both float32 or both float16, on one
  /// device; eps finite
  /// and > 0; 1 <= N <= 4096; M*N*4 bytes <= 64 MiB.
  minimum,
  /// Any rank >= 1 and any number of trailing normalized dims; M >= 0, N >= 1, 64-bit sizes;
  /// float64, float32,
  /// float16, bfloat16; gamma of x's dtype, or float32 with 16-bit x, or absent; any strides and
  /// storage offsets.
  full,
};

}  // namespace rmsnorm
