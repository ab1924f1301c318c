#pragma once

#include <immintrin.h>

#include <cstdint>

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

inline float sum_lanes(F32 v) {
  const __m128 v4 = _mm_add_ps(_mm256_castps256_ps128(v), _mm256_extractf128_ps(v, 1));
  const __m128 v2 = _mm_add_ps(v4, _mm_movehl_ps(v4, v4));
  return _mm_cvtss_f32(_mm_add_ss(v2, _mm_movehdup_ps(v2)));
}
inline double sum_lanes(F64 v) {
  const __m128d v2 = _mm_add_pd(_mm256_castpd256_pd128(v), _mm256_extractf128_pd(v, 1));
  return _mm_cvtsd_f64(_mm_add_sd(v2, _mm_unpackhi_pd(v2, v2)));
}

inline __m256i mask_of(First first) {
  return _mm256_cmpgt_epi32(_mm256_set1_epi32(static_cast<int>(first.lanes)),
                            _mm256_setr_epi32(0, 1, 2, 3, 4, 5, 6, 7));
}
inline __m256i mask64_of(First first) {
  return _mm256_cmpgt_epi64(_mm256_set1_epi64x(first.lanes), _mm256_setr_epi64x(0, 1, 2, 3));
}

inline F32 widen(const Half*, __m128i bits) {
  return _mm256_cvtph_ps(bits);
}
inline F32 widen(const Bfloat16*, __m128i bits) {
  return _mm256_castsi256_ps(_mm256_slli_epi32(_mm256_cvtepu16_epi32(bits), 16));
}
inline __m128i narrow(const Half*, F32 v) {
  return _mm256_cvtps_ph(v, _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC);
}
inline __m128i narrow(const Bfloat16*, F32 v) {
  const __m256i bits = _mm256_castps_si256(v);
  const __m256i odd = _mm256_and_si256(_mm256_srli_epi32(bits, 16), _mm256_set1_epi32(1));
  const __m256i rounded = _mm256_add_epi32(bits, _mm256_add_epi32(odd, _mm256_set1_epi32(0x7FFF)));
  const __m256i nan = _mm256_castps_si256(_mm256_cmp_ps(v, v, _CMP_UNORD_Q));
  const __m256i wide =
      _mm256_blendv_epi8(_mm256_srli_epi32(rounded, 16), _mm256_set1_epi32(0x7FC0), nan);
  return _mm_packus_epi32(_mm256_castsi256_si128(wide), _mm256_extracti128_si256(wide, 1));
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
template <class Half16>
inline F32 load(const Half16* p, All) {
  return widen(p, _mm_loadu_si128(reinterpret_cast<const __m128i*>(p)));
}
template <class Half16>
inline F32 load(const Half16* p, First first) {
  alignas(16) Half16 padded[8] = {};
  for (std::int64_t i = 0; i < first.lanes; ++i) padded[i] = p[i];
  return load(padded, All{});
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
template <class Half16>
inline void store(Half16* p, F32 v, All) {
  _mm_storeu_si128(reinterpret_cast<__m128i*>(p), narrow(p, v));
}
template <class Half16>
inline void store(Half16* p, F32 v, First first) {
  alignas(16) Half16 padded[8];
  store(padded, v, All{});
  for (std::int64_t i = 0; i < first.lanes; ++i) p[i] = padded[i];
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
  _mm_stream_si128(reinterpret_cast<__m128i*>(p), narrow(p, v));
}
inline void stream(Bfloat16* p, F32 v, All) {
  _mm_stream_si128(reinterpret_cast<__m128i*>(p), narrow(p, v));
}
inline void end_stream() {
  _mm_sfence();
}

}  // namespace rmsnorm::kernels::cpu::avx2
