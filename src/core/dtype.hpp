#pragma once

#include <cstdint>
#include <optional>
#include <string_view>

#include "rmsnorm/implementation.h"

namespace rmsnorm {

enum class Dtype : std::int32_t {
  float64 = RMSNORM_FLOAT64,
  float32 = RMSNORM_FLOAT32,
  float16 = RMSNORM_FLOAT16,
  bfloat16 = RMSNORM_BFLOAT16,
};

std::string_view name(Dtype dtype);
std::optional<Dtype> parse_dtype(std::string_view text);
std::int64_t size_bytes(Dtype dtype);

/// The largest relative error of rounding a real number to `dtype`, half the spacing at 1.
double unit_roundoff(Dtype dtype);
/// The spacing of the denormals of `dtype`.
double smallest_subnormal(Dtype dtype);
double largest_finite(Dtype dtype);

/// The dtype that sums over elements of `dtype` are kept in: float64 for float64, else float32.
Dtype accumulation_dtype(Dtype dtype);

}  // namespace rmsnorm
