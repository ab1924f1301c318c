#pragma once

#include "kernels/common/arguments.hpp"
#include "kernels/cuda/vector.cuh"

namespace rmsnorm::kernels::cuda {

/// How a thread reads and writes W neighbouring elements of T: as one 16-byte vector, or one
/// element.
template <class T, int W>
struct Access {
  static_assert(W == kPack<T>);
  using Packed = uint4;
  /// Streams past L1: worth 1 of 18 us at 131072 x 128, where a row is a few hundred bytes.
  static __device__ __forceinline__ Packed load_streaming(const T* from) {
    Packed v;
    asm volatile("ld.global.L1::no_allocate.v4.u32 {%0,%1,%2,%3}, [%4];"
                 : "=r"(v.x), "=r"(v.y), "=r"(v.z), "=r"(v.w)
                 : "l"(from));
    return v;
  }
  static __device__ __forceinline__ Packed load(const T* from) {
    return *reinterpret_cast<const uint4*>(from);
  }
  static __device__ __forceinline__ Packed zero() { return {0, 0, 0, 0}; }
  static __device__ __forceinline__ void widen(const Packed& packed, float (&values)[W]) {
    widen_pack<T>(packed, values);
  }
  static __device__ __forceinline__ void store(const float (&values)[W], T* to) {
    *reinterpret_cast<uint4*>(to) = narrow_pack<T>(values);
  }
};

template <class T>
struct Access<T, 1> {
  using A = accumulation_t<T>;
  using Packed = T;
  static __device__ __forceinline__ Packed load_streaming(const T* from) { return *from; }
  static __device__ __forceinline__ Packed load(const T* from) { return *from; }
  static __device__ __forceinline__ Packed zero() { return constant<T>(0.0f); }
  static __device__ __forceinline__ void widen(const Packed& packed, A (&values)[1]) {
    values[0] = cuda::widen(packed);
  }
  static __device__ __forceinline__ void store(const A (&values)[1], T* to) {
    narrow(values[0], *to);
  }
};

/// W neighbouring elements of gamma as sums are kept, ones where there is none.
template <class T, class G, int W>
__device__ __forceinline__ void load_gamma(const G* gamma, std::int64_t column,
                                           accumulation_t<T> (&values)[W]) {
  if constexpr (W == 1) {
    values[0] = gamma == nullptr ? accumulation_t<T>(1) : accumulation_t<T>(widen(gamma[column]));
  } else {
    GammaPack<T, G> pack;
    pack.load(gamma, column / W);
    pack.widen(values);
  }
}

/// Rows in one level where they can be: a 64-bit division per row costs as much as the row's
/// arithmetic in a short row.
template <class T>
struct RowAddress {
  const T* data;
  std::int64_t stride, inner_rows, outer_stride;

  RowAddress(const rmsnorm_rows& rows, std::int64_t count)
      : data(static_cast<const T*>(rows.data)),
        stride(rows.inner_stride),
        inner_rows(rows.inner_rows),
        outer_stride(rows.outer_stride) {
    const bool one_level =
        rows.inner_rows >= count || rows.outer_stride == rows.inner_rows * rows.inner_stride;
    if (one_level) inner_rows = 0;
  }

  __device__ __forceinline__ const T* operator()(std::int64_t row) const {
    if (inner_rows == 0) return data + row * stride;
    return data + (row / inner_rows) * outer_stride + (row % inner_rows) * stride;
  }
};

/// Waits until the kernels before this one have finished and their results can be read
/// (programmatic launch, sm_90).
__device__ __forceinline__ void wait_for_previous_kernel() {
#if __CUDA_ARCH__ >= 900
  asm volatile("griddepcontrol.wait;" ::: "memory");
#endif
}

/// Lets the next kernel start its prologue now; it waits itself before it touches memory.
__device__ __forceinline__ void allow_next_kernel() {
#if __CUDA_ARCH__ >= 900
  asm volatile("griddepcontrol.launch_dependents;");
#endif
}

}  // namespace rmsnorm::kernels::cuda
