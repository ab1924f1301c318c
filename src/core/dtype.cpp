#include "core/dtype.hpp"

#include <array>
#include <limits>

namespace rmsnorm {
namespace {

struct Format {
  Dtype dtype;
  std::string_view name;
  std::int64_t bytes;
  double unit_roundoff, smallest_subnormal, largest_finite;
};

// IEEE 754 binary64, binary32, binary16 and bfloat16; indexed by the values of Dtype.
constexpr std::array<Format, 4> formats{{
    {Dtype::float64, "float64", 8, 0x1p-53, std::numeric_limits<double>::denorm_min(),
     std::numeric_limits<double>::max()},
    {Dtype::float32, "float32", 4, 0x1p-24, 0x1p-149, 0x1.fffffep+127},
    {Dtype::float16, "float16", 2, 0x1p-11, 0x1p-24, 65504.0},
    {Dtype::bfloat16, "bfloat16", 2, 0x1p-8, 0x1p-133, 0x1.fep+127},
}};

const Format& format(Dtype dtype) {
  return formats.at(static_cast<std::size_t>(dtype));
}

}  // namespace

std::string_view name(Dtype dtype) {
  return format(dtype).name;
}

std::optional<Dtype> parse_dtype(std::string_view text) {
  for (const Format& candidate : formats) {
    if (candidate.name == text) return candidate.dtype;
  }
  return std::nullopt;
}

std::int64_t size_bytes(Dtype dtype) {
  return format(dtype).bytes;
}

double unit_roundoff(Dtype dtype) {
  return format(dtype).unit_roundoff;
}

double smallest_subnormal(Dtype dtype) {
  return format(dtype).smallest_subnormal;
}

double largest_finite(Dtype dtype) {
  return format(dtype).largest_finite;
}

Dtype accumulation_dtype(Dtype dtype) {
  return dtype == Dtype::float64 ? Dtype::float64 : Dtype::float32;
}

}  // namespace rmsnorm
