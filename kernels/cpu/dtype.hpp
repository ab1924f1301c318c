#pragma once

#include <bit>
#include <cstdint>
#include <limits>

namespace rmsnorm::kernels::cpu {

/// IEEE binary16 as stored. The conversions are branch-free, so that the compiler vectorises loops
/// over them.
struct Half {
  std::uint16_t bits;
};

/// bfloat16 as stored: the upper half of a float32.
struct Bfloat16 {
  std::uint16_t bits;
};

struct Types {
  using float64 = double;
  using float32 = float;
  using float16 = Half;
  using bfloat16 = Bfloat16;
};

/// The type that sums over T are kept in.
template <class T>
struct Accumulation {
  using type = float;
};
template <>
struct Accumulation<double> {
  using type = double;
};
template <class T>
using accumulation_t = typename Accumulation<T>::type;

inline double widen(double value) {
  return value;
}
inline float widen(float value) {
  return value;
}
inline float widen(Bfloat16 value) {
  return std::bit_cast<float>(static_cast<std::uint32_t>(value.bits) << 16);
}

/// Normal numbers by moving the exponent's bias; denormals by letting a float subtraction normalise
/// them.
inline float widen(Half value) {
  const std::uint32_t sign = static_cast<std::uint32_t>(value.bits & 0x8000u) << 16;
  const std::uint32_t magnitude = static_cast<std::uint32_t>(value.bits & 0x7FFFu) << 13;
  const std::uint32_t exponent = magnitude & 0x0F800000u;
  const std::uint32_t normal = magnitude + 0x38000000u;
  const std::uint32_t special = magnitude + 0x70000000u;
  const float denormal = std::bit_cast<float>(magnitude + 0x38800000u) - 6.103515625e-05f;  // 2^-14
  const std::uint32_t finite = exponent == 0 ? std::bit_cast<std::uint32_t>(denormal) : normal;
  return std::bit_cast<float>(sign | (exponent == 0x0F800000u ? special : finite));
}

inline void narrow(double value, double& to) {
  to = value;
}
inline void narrow(float value, float& to) {
  to = value;
}

/// To nearest, ties to even; NaN stays NaN.
inline void narrow(float value, Bfloat16& to) {
  const std::uint32_t bits = std::bit_cast<std::uint32_t>(value);
  const std::uint32_t rounded = (bits + 0x7FFFu + ((bits >> 16) & 1u)) >> 16;
  const bool nan = (bits & 0x7FFFFFFFu) > 0x7F800000u;
  to.bits = static_cast<std::uint16_t>(nan ? 0x7FC0u : rounded);
}

/// To nearest, ties to even; above 65519 to infinity; NaN stays NaN.
inline void narrow(float value, Half& to) {
  const std::uint32_t bits = std::bit_cast<std::uint32_t>(value);
  const std::uint32_t sign = (bits >> 16) & 0x8000u;
  const std::uint32_t magnitude = bits & 0x7FFFFFFFu;
  // Adding 1/2 puts the last denormal bit of binary16 at the last bit of a float32: the hardware
  // rounds there.
  const std::uint32_t denormal =
      std::bit_cast<std::uint32_t>(std::bit_cast<float>(magnitude) + 0.5f) - 0x3F000000u;
  const std::uint32_t normal = (magnitude - 0x38000000u + 0x0FFFu + ((magnitude >> 13) & 1u)) >> 13;
  const std::uint32_t finite = magnitude < 0x38800000u ? denormal : normal;
  const std::uint32_t large = magnitude > 0x7F800000u ? 0x7E00u : 0x7C00u;
  to.bits = static_cast<std::uint16_t>(sign | (magnitude >= 0x47800000u ? large : finite));
}

/// Rounds a number of the accumulation type to T and back.
template <class T>
struct RoundTo {
  accumulation_t<T> operator()(accumulation_t<T> value) const {
    T rounded;
    narrow(value, rounded);
    return widen(rounded);
  }
};

/// The distance of 1 from the next number of T.
template <class T>
constexpr accumulation_t<T> kSpacingAtOne = std::numeric_limits<T>::epsilon();
template <>
inline constexpr float kSpacingAtOne<Half> = 0x1p-10f;
template <>
inline constexpr float kSpacingAtOne<Bfloat16> = 0x1p-7f;

}  // namespace rmsnorm::kernels::cpu
