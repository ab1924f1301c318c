#pragma once

#include <immintrin.h>

#include <cstdint>

#include "kernels/cpu/dtype.hpp"

// Vectors of AVX-512 F, BW, DQ and VL. vector_generic.hpp says what each function is.

namespace rmsnorm::kernels::cpu::avx512 {

using F32 = __m512;
using F64 = __m512d;
constexpr int kVectorBytes = 64;
constexpr int kAccumulators = 4;

struct All {};
struct First {
  std::int64_t lanes;
};

inline F32 broadcast(float value) {
  return _mm512_set1_ps(value);
}
inline F64 broadcast(double value) {
  return _mm512_set1_pd(value);
}
inline F32 fma(F32 a, F32 b, F32 c) {
  return _mm512_fmadd_ps(a, b, c);
}
inline F64 fma(F64 a, F64 b, F64 c) {
  return _mm512_fmadd_pd(a, b, c);
}

inline float sum_lanes(F32 v) {
  const __m256 v8 = _mm256_add_ps(_mm512_castps512_ps256(v), _mm512_extractf32x8_ps(v, 1));
  const __m128 v4 = _mm_add_ps(_mm256_castps256_ps128(v8), _mm256_extractf128_ps(v8, 1));
  const __m128 v2 = _mm_add_ps(v4, _mm_movehl_ps(v4, v4));
  return _mm_cvtss_f32(_mm_add_ss(v2, _mm_movehdup_ps(v2)));
}
inline double sum_lanes(F64 v) {
  const __m256d v4 = _mm256_add_pd(_mm512_castpd512_pd256(v), _mm512_extractf64x4_pd(v, 1));
  const __m128d v2 = _mm_add_pd(_mm256_castpd256_pd128(v4), _mm256_extractf128_pd(v4, 1));
  return _mm_cvtsd_f64(_mm_add_sd(v2, _mm_unpackhi_pd(v2, v2)));
}

inline __mmask16 mask_of(First first) {
  return static_cast<__mmask16>((1u << first.lanes) - 1u);
}
inline __mmask8 mask8_of(First first) {
  return static_cast<__mmask8>((1u << first.lanes) - 1u);
}

inline F32 widen(const Half*, __m256i bits) {
  return _mm512_cvtph_ps(bits);
}
// Between 16 and 32 bits with one permutation, as shifts and narrowing conversions share few ports.
inline F32 widen(const Bfloat16*, __m256i bits) {
  const __m512i upper_halves =
      _mm512_set_epi32(15 << 16, 14 << 16, 13 << 16, 12 << 16, 11 << 16, 10 << 16, 9 << 16, 8 << 16,
                       7 << 16, 6 << 16, 5 << 16, 4 << 16, 3 << 16, 2 << 16, 1 << 16, 0);
  return _mm512_castsi512_ps(
      _mm512_maskz_permutexvar_epi16(0xAAAAAAAA, upper_halves, _mm512_castsi256_si512(bits)));
}
inline __m256i narrow(const Half*, F32 v) {
  return _mm512_cvtps_ph(v, _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC);
}
// Not VCVTNEPS2BF16: it writes zero for denormals, and with a test for those it gained a tenth.
inline __m256i narrow(const Bfloat16*, F32 v) {
  const __m512i odd_words =
      _mm512_set_epi32(0, 0, 0, 0, 0, 0, 0, 0, 31 << 16 | 29, 27 << 16 | 25, 23 << 16 | 21,
                       19 << 16 | 17, 15 << 16 | 13, 11 << 16 | 9, 7 << 16 | 5, 3 << 16 | 1);
  const __m512i bits = _mm512_castps_si512(v);
  const __mmask16 odd = _mm512_test_epi32_mask(bits, _mm512_set1_epi32(0x10000));
  const __mmask16 nan = _mm512_cmp_ps_mask(v, v, _CMP_UNORD_Q);
  __m512i rounded = _mm512_add_epi32(bits, _mm512_set1_epi32(0x7FFF));
  rounded = _mm512_mask_sub_epi32(rounded, odd, rounded, _mm512_set1_epi32(-1));
  rounded = _mm512_mask_mov_epi32(rounded, nan, _mm512_set1_epi32(0x7FC00000));
  return _mm512_castsi512_si256(_mm512_permutexvar_epi16(odd_words, rounded));
}

inline F64 load(const double* p, All) {
  return _mm512_loadu_pd(p);
}
inline F64 load(const double* p, First first) {
  return _mm512_maskz_loadu_pd(mask8_of(first), p);
}
inline F32 load(const float* p, All) {
  return _mm512_loadu_ps(p);
}
inline F32 load(const float* p, First first) {
  return _mm512_maskz_loadu_ps(mask_of(first), p);
}
template <class Half16>
inline F32 load(const Half16* p, All) {
  return widen(p, _mm256_loadu_si256(reinterpret_cast<const __m256i*>(p)));
}
template <class Half16>
inline F32 load(const Half16* p, First first) {
  return widen(p, _mm256_maskz_loadu_epi16(mask_of(first), p));
}

inline void store(double* p, F64 v, All) {
  _mm512_storeu_pd(p, v);
}
inline void store(double* p, F64 v, First first) {
  _mm512_mask_storeu_pd(p, mask8_of(first), v);
}
inline void store(float* p, F32 v, All) {
  _mm512_storeu_ps(p, v);
}
inline void store(float* p, F32 v, First first) {
  _mm512_mask_storeu_ps(p, mask_of(first), v);
}
template <class Half16>
inline void store(Half16* p, F32 v, All) {
  _mm256_storeu_si256(reinterpret_cast<__m256i*>(p), narrow(p, v));
}
template <class Half16>
inline void store(Half16* p, F32 v, First first) {
  _mm256_mask_storeu_epi16(p, mask_of(first), narrow(p, v));
}

template <class T, class Vector, class Lanes>
inline void stream(T* p, Vector v, Lanes lanes) {
  store(p, v, lanes);
}
inline void stream(double* p, F64 v, All) {
  _mm512_stream_pd(p, v);
}
inline void stream(float* p, F32 v, All) {
  _mm512_stream_ps(p, v);
}
inline void stream(Half* p, F32 v, All) {
  _mm256_stream_si256(reinterpret_cast<__m256i*>(p), narrow(p, v));
}
inline void stream(Bfloat16* p, F32 v, All) {
  _mm256_stream_si256(reinterpret_cast<__m256i*>(p), narrow(p, v));
}
inline void end_stream() {
  _mm_sfence();
}

}  // namespace rmsnorm::kernels::cpu::avx512
