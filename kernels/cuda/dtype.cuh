#pragma once

#include <cuda_bf16.h>
#include <cuda_fp16.h>

#include <limits>

namespace rmsnorm::kernels::cuda {

struct Types {
  using float64 = double;
  using float32 = float;
  using float16 = __half;
  using bfloat16 = __nv_bfloat16;
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

// Explicit conversions only: libtorch's flags switch the operators of the 16-bit types off.
__device__ __forceinline__ double widen(double value) {
  return value;
}
__device__ __forceinline__ float widen(float value) {
  return value;
}
__device__ __forceinline__ float widen(__half value) {
  return __half2float(value);
}
__device__ __forceinline__ float widen(__nv_bfloat16 value) {
  return __bfloat162float(value);
}

__device__ __forceinline__ void narrow(double value, double& to) {
  to = value;
}
__device__ __forceinline__ void narrow(float value, float& to) {
  to = value;
}
__device__ __forceinline__ void narrow(float value, __half& to) {
  to = __float2half_rn(value);
}
__device__ __forceinline__ void narrow(float value, __nv_bfloat16& to) {
  to = __float2bfloat16_rn(value);
}

/// A number that T holds exactly.
template <class T>
__device__ __forceinline__ T constant(float value) {
  T result;
  narrow(value, result);
  return result;
}

/// Rounds a number of the accumulation type to T and back.
template <class T>
struct RoundTo {
  __device__ __forceinline__ accumulation_t<T> operator()(accumulation_t<T> value) const {
    T rounded;
    narrow(value, rounded);
    return widen(rounded);
  }
};

/// The distance of 1 from the next number of T.
template <class T>
struct SpacingAtOne {
  static constexpr accumulation_t<T> value = std::numeric_limits<T>::epsilon();
};
template <>
struct SpacingAtOne<__half> {
  static constexpr float value = 0x1p-10f;
};
template <>
struct SpacingAtOne<__nv_bfloat16> {
  static constexpr float value = 0x1p-7f;
};

}  // namespace rmsnorm::kernels::cuda
