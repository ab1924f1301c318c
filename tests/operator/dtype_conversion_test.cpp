#include "kernels/cpu/dtype.hpp"

#include <c10/util/BFloat16.h>
#include <c10/util/Half.h>

#include <cmath>
#include <limits>

#include "support/catch.hpp"

// The branch-free conversions of the CPU kernels against libtorch's.

namespace rmsnorm::kernels::cpu {
namespace {

std::uint16_t bits_of(c10::Half value) {
  return value.x;
}
std::uint16_t bits_of(c10::BFloat16 value) {
  return value.x;
}

template <class Ours>
std::uint16_t narrowed(float value) {
  Ours result{};
  narrow(value, result);
  return result.bits;
}

/// Whether both conversions agree: the same bits, or both a NaN.
template <class Ours, class Theirs>
bool agree(float value) {
  const std::uint16_t ours = narrowed<Ours>(value);
  const Theirs theirs(value);
  if (std::isnan(value)) return std::isnan(widen(Ours{ours})) && std::isnan(float(theirs));
  return ours == bits_of(theirs);
}

template <class Ours, class Theirs>
int wrong_widenings() {
  int wrong = 0;
  for (std::uint32_t pattern = 0; pattern <= 0xFFFF; ++pattern) {
    const auto bits = static_cast<std::uint16_t>(pattern);
    const float ours = widen(Ours{bits}), theirs = Theirs(bits, Theirs::from_bits());
    const bool nan = std::isnan(ours) && std::isnan(theirs);
    wrong += !nan && std::bit_cast<std::uint32_t>(ours) != std::bit_cast<std::uint32_t>(theirs);
    // There and back: every number of the narrow type is kept.
    wrong += !nan && narrowed<Ours>(ours) != bits;
  }
  return wrong;
}

TEST_CASE("All 65536 patterns widen as in libtorch and narrow back to themselves", "[conversion]") {
  CHECK(wrong_widenings<Half, c10::Half>() == 0);
  CHECK(wrong_widenings<Bfloat16, c10::BFloat16>() == 0);
}

template <class Ours, class Theirs>
int wrong_roundings() {
  constexpr std::uint64_t kStep = 251;  // coprime to powers of two: all low bits come up
  int wrong = 0;
  for (std::uint64_t pattern = 0; pattern <= 0xFFFFFFFFu; pattern += kStep) {
    wrong += !agree<Ours, Theirs>(std::bit_cast<float>(static_cast<std::uint32_t>(pattern)));
  }
  return wrong;
}

TEST_CASE("Floats of every exponent round as in libtorch", "[conversion]") {
  CHECK(wrong_roundings<Half, c10::Half>() == 0);
  CHECK(wrong_roundings<Bfloat16, c10::BFloat16>() == 0);
}

/// Around every tie between neighbours of the narrow type: below, at and above it.
template <class Ours, class Theirs>
int wrong_ties() {
  int wrong = 0;
  for (std::uint32_t pattern = 0; pattern < 0xFFFF; ++pattern) {
    const float low = widen(Ours{static_cast<std::uint16_t>(pattern)});
    const float high = widen(Ours{static_cast<std::uint16_t>(pattern + 1)});
    if (!std::isfinite(low) || !std::isfinite(high)) continue;
    const float tie = low / 2 + high / 2;
    for (const float value : {std::nextafter(tie, -INFINITY), tie, std::nextafter(tie, INFINITY)}) {
      wrong += !agree<Ours, Theirs>(value);
    }
  }
  return wrong;
}

TEST_CASE("Ties go to even", "[conversion]") {
  CHECK((wrong_ties<Half, c10::Half>()) == 0);
  CHECK((wrong_ties<Bfloat16, c10::BFloat16>()) == 0);
  CHECK(narrowed<Half>(2049) == 0x6800);  // between 2048 and 2050
  CHECK(narrowed<Half>(2051) == 0x6802);
}

TEST_CASE("float16 overflows from 65520 on and underflows below half a denormal", "[conversion]") {
  CHECK(narrowed<Half>(65504) == 0x7BFF);
  CHECK(narrowed<Half>(std::nextafter(65520.0f, 0.0f)) == 0x7BFF);
  CHECK(narrowed<Half>(65520) == 0x7C00);
  CHECK(narrowed<Half>(-65520) == 0xFC00);
  CHECK(narrowed<Half>(std::numeric_limits<float>::max()) == 0x7C00);
  CHECK(narrowed<Half>(INFINITY) == 0x7C00);
  CHECK(std::isnan(widen(Half{narrowed<Half>(NAN)})));
  const float half_denormal = std::ldexp(1.0f, -25);
  CHECK(narrowed<Half>(half_denormal) == 0);  // a tie, to even
  CHECK(narrowed<Half>(std::nextafter(half_denormal, 1.0f)) == 1);
  CHECK(narrowed<Half>(-half_denormal) == 0x8000);  // the sign of zero stays
}

TEST_CASE("bfloat16 rounds its largest to infinity, and no NaN to anything else", "[conversion]") {
  CHECK(narrowed<Bfloat16>(std::numeric_limits<float>::max()) == 0x7F80);
  CHECK(narrowed<Bfloat16>(-INFINITY) == 0xFF80);
  // A NaN whose upper half alone would be an infinity.
  const float low_nan = std::bit_cast<float>(0x7F800001u);
  CHECK(std::isnan(widen(Bfloat16{narrowed<Bfloat16>(low_nan)})));
  CHECK(std::isnan(widen(Half{narrowed<Half>(low_nan)})));
  CHECK(std::isnan(widen(Bfloat16{narrowed<Bfloat16>(std::bit_cast<float>(0xFFFFFFFFu))})));
}

}  // namespace
}  // namespace rmsnorm::kernels::cpu
