#pragma once

#include <algorithm>

#include "kernels/common/arguments.hpp"
#include "kernels/common/divisor.hpp"
#include "kernels/cuda/vector.cuh"

namespace rmsnorm::kernels::cuda {

/// How a thread reads and writes W neighbouring elements of T: as one 16-byte vector, or one
/// element.
template <class T, int W>
struct Access {
  static_assert(W == kPack<T>);
  using Packed = uint4;
  /// Streams past L1, for what is read once and by one thread.
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

/// gamma of one access, as few registers as it fits, for the whole kernel.
template <class T, class G, int W>
struct LaneGamma {
  GammaPack<T, G> pack;
  __device__ __forceinline__ void load(const G* gamma, std::int64_t column, bool inside) {
    if (inside) {
      pack.load(gamma, column / W);
    } else {
      for (uint4& v : pack.packed)
        v = {0, 0, 0, 0};  // multiplied with zeros, so it must not be NaN
    }
  }
  __device__ __forceinline__ void widen(float (&values)[W]) {
    pack.pin();
    pack.widen(values);
  }
};
template <class T, class G>
struct LaneGamma<T, G, 1> {
  using A = accumulation_t<T>;
  A value = 0;
  __device__ __forceinline__ void load(const G* gamma, std::int64_t column, bool inside) {
    if (inside) value = gamma == nullptr ? A(1) : static_cast<A>(cuda::widen(gamma[column]));
  }
  __device__ __forceinline__ void widen(A (&values)[1]) { values[0] = value; }
};

/// Where row m starts: at m * stride, and in two levels a jump further for every inner_rows rows.
template <class T>
struct RowAddress {
  const T* data;
  std::int64_t stride, jump = 0;  ///< in elements; no jump: one level
  Divisor inner_rows;

  RowAddress(const rmsnorm_rows& rows, std::int64_t count)
      : data(static_cast<const T*>(rows.data)), stride(rows.inner_stride) {
    if (rows.inner_rows >= count) return;
    if (rows.inner_rows == 1) {
      stride = rows.outer_stride;
      return;
    }
    jump = rows.outer_stride - rows.inner_rows * rows.inner_stride;
    if (jump != 0) inner_rows = Divisor(rows.inner_rows);
  }

  __device__ __forceinline__ const T* operator()(std::int64_t row) const {
    const T* const at = data + row * stride;
    return jump == 0 ? at : at + inner_rows.quotient(row) * jump;
  }
};

/// All elements of a tensor: from its first row's start to its last row's end, in addresses.
template <class T>
struct Extent {
  const T *begin, *end;

  Extent(const rmsnorm_rows& rows, std::int64_t count, std::int64_t cols)
      : begin(static_cast<const T*>(rows.data)) {
    const std::int64_t inner = rows.inner_rows, outer = (count - 1) / inner;
    std::int64_t last = outer * rows.outer_stride + (count - 1) % inner * rows.inner_stride;
    // The last outer index may have fewer rows than the one before.
    if (outer > 0)
      last = std::max(last, (outer - 1) * rows.outer_stride + (inner - 1) * rows.inner_stride);
    end = begin + last + cols;
  }
};

/// Walks over rows of a tensor, from `first` on in steps of `step`: one addition a row where rows
/// lie in one level.
template <class T>
class RowCursor {
 public:
  __device__ RowCursor(const RowAddress<T>& rows, std::int64_t first, std::int64_t step,
                       std::int64_t offset)
      : rows_(rows), at_(rows(first) + offset), elements_(step * rows.stride), offset_(offset) {}
  __device__ __forceinline__ const T* get() const { return at_; }
  /// `row` is the one that comes now: the caller counts them, once for all its cursors.
  __device__ __forceinline__ void next(std::int64_t row) {
    at_ = rows_.jump == 0 ? at_ + elements_ : rows_(row) + offset_;
  }

 private:
  const RowAddress<T>& rows_;
  const T* at_;
  std::int64_t elements_, offset_;
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
