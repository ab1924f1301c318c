#pragma once

#include <ATen/ATen.h>

#include <cstdint>
#include <string>
#include <vector>

#include "core/comparison.hpp"
#include "core/dtype.hpp"
#include "operator/tensors.hpp"
#include "reference/reference.hpp"
#include "support/device.hpp"

namespace rmsnorm::test {

inline at::TensorOptions options(at::ScalarType type) {
  return at::TensorOptions().dtype(type).device(test_device());
}

inline at::Tensor random(at::IntArrayRef sizes, at::ScalarType type, std::uint64_t seed = 1) {
  at::Generator generator = at::globalContext().defaultGenerator(at::Device(at::kCPU)).clone();
  generator.set_current_seed(seed);
  return at::randn(sizes, generator, at::kDouble).to(options(type));
}

/// One row of given numbers, [1, n].
inline at::Tensor row(const std::vector<double>& values, at::ScalarType type) {
  return at::tensor(values, at::kDouble).unsqueeze(0).to(options(type));
}
inline at::Tensor vector(const std::vector<double>& values, at::ScalarType type) {
  return at::tensor(values, at::kDouble).to(options(type));
}

/// Equal bit for bit, NaN and signed zeros included.
inline bool same_bits(const at::Tensor& a, const at::Tensor& b) {
  if (a.scalar_type() != b.scalar_type() || a.sizes() != b.sizes()) return false;
  if (a.numel() == 0) return true;
  const auto bytes = [](const at::Tensor& t) {
    return t.detach().contiguous().view(-1).view(at::kByte);
  };
  return at::equal(bytes(a), bytes(b));
}

inline double max_abs_difference(const at::Tensor& got, const at::Tensor& want) {
  const at::Tensor g = got.detach().cpu().to(at::kDouble), w = want.detach().cpu().to(at::kDouble);
  return (g - w).abs().max().item<double>();
}

/// Largest error over what rounding may leave: the result's own rounding and the sums' error, both
/// relative to the magnitude of the terms, and half a denormal. At most 1 for right results; NaN
/// gives infinity.
inline double used_of_rounding(const at::Tensor& got, const reference::Expected& expected,
                               std::int64_t terms) {
  if (got.numel() == 0) return 0;
  const at::ScalarType type = got.scalar_type();
  const auto dtype = static_cast<Dtype>(to_rmsnorm_dtype(type));
  const auto wide = accumulation_dtype(dtype);
  // Sums, and beside them at most eight single roundings in the accumulation dtype.
  const double relative =
      unit_roundoff(dtype) + accumulation_bound(dtype, terms) + 8 * unit_roundoff(wide) + 1e-15;
  const at::Tensor bound =
      expected.magnitude.to(at::kDouble) * relative + smallest_subnormal(dtype);
  const at::Tensor error =
      (got.detach().to(at::kDouble).reshape(expected.want.sizes()) - expected.want).abs();
  const double used = (error / bound).max().item<double>();
  return used == used ? used : 1e300;
}

inline std::string text(at::ScalarType type) {
  return std::string(c10::toString(type));
}

/// The dtypes of the contract `full`.
inline const std::vector<at::ScalarType>& all_types() {
  static const std::vector<at::ScalarType> types{at::kDouble, at::kFloat, at::kHalf, at::kBFloat16};
  return types;
}

}  // namespace rmsnorm::test
