#pragma once

#include <cstdint>
#include <cstring>

#include "kernels/cpu/dtype.hpp"

// The vectors that the loops of tuned_rows.hpp are written in, for any processor: 16 bytes, which
// the compiler maps to SSE2 or NEON. The other vector_*.hpp have the same functions. +, - and * are
// the compiler's own on all of them.

namespace rmsnorm::kernels::cpu::generic {

typedef float F32 __attribute__((vector_size(16)));
typedef double F64 __attribute__((vector_size(16)));
typedef std::uint32_t U32 __attribute__((vector_size(16)));
typedef std::uint16_t U16 __attribute__((vector_size(8)));
constexpr int kVectorBytes = 16;
constexpr int kAccumulators = 8;  // independent sums that hide the latency of an addition

/// Which lanes a load or store touches; a load gives zero in the others.
struct All {};
struct First {
  std::int64_t lanes;  ///< in [1, lanes of the vector)
};

inline F32 broadcast(float value) {
  return F32{value, value, value, value};
}
inline F64 broadcast(double value) {
  return F64{value, value};
}

/// a * b + c, in one rounding where the processor can.
inline F32 fma(F32 a, F32 b, F32 c) {
  return a * b + c;
}
inline F64 fma(F64 a, F64 b, F64 c) {
  return a * b + c;
}

/// The sum of the lanes, halves upon halves.
inline float sum_lanes(F32 v) {
  return (v[0] + v[2]) + (v[1] + v[3]);
}
inline double sum_lanes(F64 v) {
  return v[0] + v[1];
}

inline U32 select(U32 mask, U32 yes, U32 no) {
  return (mask & yes) | (~mask & no);
}
inline U32 bits_of(F32 v) {
  return reinterpret_cast<U32>(v);
}
inline F32 float_of(U32 v) {
  return reinterpret_cast<F32>(v);
}

// The conversions of dtype.hpp, four at a time.
inline F32 widen(const Bfloat16*, U16 bits) {
  return float_of(__builtin_convertvector(bits, U32) << 16);
}
inline F32 widen(const Half*, U16 bits) {
  const U32 wide = __builtin_convertvector(bits, U32);
  const U32 sign = (wide & 0x8000u) << 16;
  const U32 magnitude = (wide & 0x7FFFu) << 13;
  const U32 exponent = magnitude & 0x0F800000u;
  const U32 denormal = bits_of(float_of(magnitude + 0x38800000u) - 6.103515625e-05f);  // 2^-14
  const U32 is_denormal = reinterpret_cast<U32>(exponent == 0u);
  const U32 is_special = reinterpret_cast<U32>(exponent == 0x0F800000u);
  const U32 finite = select(is_denormal, denormal, magnitude + 0x38000000u);
  return float_of(sign | select(is_special, magnitude + 0x70000000u, finite));
}
inline U16 narrow(const Bfloat16*, F32 v) {
  const U32 bits = bits_of(v);
  const U32 rounded = (bits + 0x7FFFu + ((bits >> 16) & 1u)) >> 16;
  const U32 nan = reinterpret_cast<U32>(v != v);
  return __builtin_convertvector(select(nan, U32{} + 0x7FC0u, rounded), U16);
}
inline U16 narrow(const Half*, F32 v) {
  const U32 bits = bits_of(v);
  const U32 sign = (bits >> 16) & 0x8000u;
  const U32 magnitude = bits & 0x7FFFFFFFu;
  const U32 denormal = bits_of(float_of(magnitude) + 0.5f) - 0x3F000000u;
  const U32 normal = (magnitude - 0x38000000u + 0x0FFFu + ((magnitude >> 13) & 1u)) >> 13;
  const U32 finite = select(reinterpret_cast<U32>(magnitude < 0x38800000u), denormal, normal);
  const U32 large = select(reinterpret_cast<U32>(v != v), U32{} + 0x7E00u, U32{} + 0x7C00u);
  const U32 is_large = reinterpret_cast<U32>(magnitude >= 0x47800000u);
  return __builtin_convertvector(sign | select(is_large, large, finite), U16);
}

inline F64 load(const double* p, All) {
  F64 v;
  std::memcpy(&v, p, sizeof v);
  return v;
}
inline F32 load(const float* p, All) {
  F32 v;
  std::memcpy(&v, p, sizeof v);
  return v;
}
template <class Half16>
inline F32 load(const Half16* p, All) {
  U16 bits;
  std::memcpy(&bits, p, sizeof bits);
  return widen(p, bits);
}
template <class T>
inline auto load(const T* p, First first) {
  T padded[sizeof(T) == 8 ? 2 : 4] = {};
  for (std::int64_t i = 0; i < first.lanes; ++i) padded[i] = p[i];
  return load(padded, All{});
}

inline void store(double* p, F64 v, All) {
  std::memcpy(p, &v, sizeof v);
}
inline void store(float* p, F32 v, All) {
  std::memcpy(p, &v, sizeof v);
}
template <class Half16>
inline void store(Half16* p, F32 v, All) {
  const U16 bits = narrow(p, v);
  std::memcpy(p, &bits, sizeof bits);
}
template <class T, class Vector>
inline void store(T* p, Vector v, First first) {
  T padded[sizeof(T) == 8 ? 2 : 4];
  store(padded, v, All{});
  for (std::int64_t i = 0; i < first.lanes; ++i) p[i] = padded[i];
}

/// store() past the caches where the processor can; p is a multiple of the vector. end_stream()
/// before another thread reads.
template <class T, class Vector, class Lanes>
inline void stream(T* p, Vector v, Lanes lanes) {
  store(p, v, lanes);
}
inline void end_stream() {}

}  // namespace rmsnorm::kernels::cpu::generic
