#pragma once

#include <immintrin.h>

#include <cstdint>
#include <type_traits>

#include "kernels/cpu/dtype.hpp"

// Vectors of AVX2, FMA and F16C. vector_generic.hpp says what each function is.

namespace rmsnorm::kernels::cpu::avx2 {

using F32 = __m256;
using F64 = __m256d;
constexpr int kVectorBytes = 32;
constexpr int kAccumulators = 8;  // as many lanes in all as with AVX-512, and so the same bits

struct All {};
struct First {
  std::int64_t lanes;
};

/// 16 columns of bfloat16: those of even number and those of odd. A shift and a mask make them of a
/// load, and a shift and a blend turn them back, where vectors of neighbours take a permutation
/// each.
struct Pair {
  F32 even, odd;
};
inline Pair operator+(Pair a, Pair b) {
  return {a.even + b.even, a.odd + b.odd};
}
inline Pair operator*(Pair a, Pair b) {
  return {a.even * b.even, a.odd * b.odd};
}
inline Pair operator-(Pair a) {
  return {-a.even, -a.odd};
}

inline F32 broadcast(float value) {
  return _mm256_set1_ps(value);
}
inline F64 broadcast(double value) {
  return _mm256_set1_pd(value);
}
inline F32 fma(F32 a, F32 b, F32 c) {
  return _mm256_fmadd_ps(a, b, c);
}
inline F64 fma(F64 a, F64 b, F64 c) {
  return _mm256_fmadd_pd(a, b, c);
}
inline Pair fma(Pair a, Pair b, Pair c) {
  return {fma(a.even, b.even, c.even), fma(a.odd, b.odd, c.odd)};
}

inline float sum_lanes(F32 v) {
  const __m128 v4 = _mm_add_ps(_mm256_castps256_ps128(v), _mm256_extractf128_ps(v, 1));
  const __m128 v2 = _mm_add_ps(v4, _mm_movehl_ps(v4, v4));
  return _mm_cvtss_f32(_mm_add_ss(v2, _mm_movehdup_ps(v2)));
}
inline double sum_lanes(F64 v) {
  const __m128d v2 = _mm_add_pd(_mm256_castpd256_pd128(v), _mm256_extractf128_pd(v, 1));
  return _mm_cvtsd_f64(_mm_add_sd(v2, _mm_unpackhi_pd(v2, v2)));
}

inline float sum_lanes(Pair v) {
  return sum_lanes(v.even + v.odd);
}

inline __m256i mask_of(First first) {
  return _mm256_cmpgt_epi32(_mm256_set1_epi32(static_cast<int>(first.lanes)),
                            _mm256_setr_epi32(0, 1, 2, 3, 4, 5, 6, 7));
}
inline __m256i mask64_of(First first) {
  return _mm256_cmpgt_epi64(_mm256_set1_epi64x(first.lanes), _mm256_setr_epi64x(0, 1, 2, 3));
}

/// Fewer than 16 numbers, which a loop over them would take one by one.
template <class T>
inline void copy_few(T* to, const T* from, std::int64_t count) {
  const auto copy = [&](auto numbers) __attribute__((always_inline)) {
    if ((count & numbers()) == 0) return;
    __builtin_memcpy(to, from, numbers() * sizeof(T));
    to += numbers();
    from += numbers();
  };
  copy(std::integral_constant<int, 8>());
  copy(std::integral_constant<int, 4>());
  copy(std::integral_constant<int, 2>());
  copy(std::integral_constant<int, 1>());
}

inline F64 load(const double* p, All) {
  return _mm256_loadu_pd(p);
}
inline F64 load(const double* p, First first) {
  return _mm256_maskload_pd(p, mask64_of(first));
}
inline F32 load(const float* p, All) {
  return _mm256_loadu_ps(p);
}
inline F32 load(const float* p, First first) {
  return _mm256_maskload_ps(p, mask_of(first));
}
inline F32 load(const Half* p, All) {
  return _mm256_cvtph_ps(_mm_loadu_si128(reinterpret_cast<const __m128i*>(p)));
}
inline Pair load(const Bfloat16* p, All) {
  const __m256i bits = _mm256_loadu_si256(reinterpret_cast<const __m256i*>(p));
  return {_mm256_castsi256_ps(_mm256_slli_epi32(bits, 16)),
          _mm256_castsi256_ps(_mm256_and_si256(bits, _mm256_set1_epi32(-0x10000)))};
}
template <class Half16>
inline auto load(const Half16* p, First first) {
  alignas(32) Half16 padded[sizeof(load(p, All{})) / sizeof(float)] = {};
  copy_few(padded, p, first.lanes);
  return load(padded, All{});
}

/// v with one NaN for all of them, whose lower half is zero.
inline F32 quiet(F32 v) {
  return _mm256_blendv_ps(v, _mm256_set1_ps(__builtin_nanf("")), _mm256_cmp_ps(v, v, _CMP_UNORD_Q));
}
/// 16 neighbours in the order of a pair.
inline Pair load_pair(const float* p, All) {
  const F32 a = quiet(_mm256_loadu_ps(p)), b = quiet(_mm256_loadu_ps(p + 8));
  const auto in_order = [](F32 v) {
    return _mm256_castpd_ps(_mm256_permute4x64_pd(_mm256_castps_pd(v), 0xD8));
  };
  return {in_order(_mm256_shuffle_ps(a, b, 0x88)), in_order(_mm256_shuffle_ps(a, b, 0xDD))};
}
inline Pair load_pair(const float* p, First first) {
  alignas(32) float padded[16] = {};
  copy_few(padded, p, first.lanes);
  return load_pair(padded, All{});
}

inline void store(double* p, F64 v, All) {
  _mm256_storeu_pd(p, v);
}
inline void store(double* p, F64 v, First first) {
  _mm256_maskstore_pd(p, mask64_of(first), v);
}
inline void store(float* p, F32 v, All) {
  _mm256_storeu_ps(p, v);
}
inline void store(float* p, F32 v, First first) {
  _mm256_maskstore_ps(p, mask_of(first), v);
}
inline __m128i narrow(F32 v) {
  return _mm256_cvtps_ph(v, _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC);
}
/// To nearest, ties to even, in words: the upper halves, and one more where the lower half is above
/// the middle, or on it with an odd upper half. A NaN must have a lower half of zero, which then
/// stays: those of bfloat16 and of the processor have it; quiet() sees to a float32 gamma,
/// quiet_number() to rstd.
inline __m256i narrow(Pair v) {
  const __m256i even = _mm256_castps_si256(v.even), odd = _mm256_castps_si256(v.odd);
  const __m256i upper = _mm256_blend_epi16(_mm256_srli_epi32(even, 16), odd, 0xAA);
  const __m256i lower = _mm256_blend_epi16(even, _mm256_slli_epi32(odd, 16), 0xAA);
  const __m256i is_odd = _mm256_and_si256(upper, _mm256_set1_epi16(1));
  const __m256i least = _mm256_sub_epi16(_mm256_set1_epi16(-0x7FFF), is_odd);  // 0x8001 - is_odd
  const __m256i up = _mm256_cmpeq_epi16(_mm256_max_epu16(lower, least), lower);
  return _mm256_sub_epi16(upper, up);
}
inline void store(Half* p, F32 v, All) {
  _mm_storeu_si128(reinterpret_cast<__m128i*>(p), narrow(v));
}
inline void store(Bfloat16* p, Pair v, All) {
  _mm256_storeu_si256(reinterpret_cast<__m256i*>(p), narrow(v));
}
inline void store(float* p, Pair v, All) {
  const F32 a = _mm256_unpacklo_ps(v.even, v.odd), b = _mm256_unpackhi_ps(v.even, v.odd);
  _mm256_storeu_ps(p, _mm256_permute2f128_ps(a, b, 0x20));
  _mm256_storeu_ps(p + 8, _mm256_permute2f128_ps(a, b, 0x31));
}
template <class T, class Vector>
inline void store(T* p, Vector v, First first) {
  alignas(32) T padded[sizeof v / sizeof(float)];
  store(padded, v, All{});
  copy_few(p, padded, first.lanes);
}

template <class T, class Vector, class Lanes>
inline void stream(T* p, Vector v, Lanes lanes) {
  store(p, v, lanes);
}
inline void stream(double* p, F64 v, All) {
  _mm256_stream_pd(p, v);
}
inline void stream(float* p, F32 v, All) {
  _mm256_stream_ps(p, v);
}
inline void stream(Half* p, F32 v, All) {
  _mm_stream_si128(reinterpret_cast<__m128i*>(p), narrow(v));
}
inline void stream(Bfloat16* p, Pair v, All) {
  _mm256_stream_si256(reinterpret_cast<__m256i*>(p), narrow(v));
}
inline void end_stream() {
  _mm_sfence();
}

}  // namespace rmsnorm::kernels::cpu::avx2
