#pragma once

#include <cstdint>
#include <cuda/annotated_ptr>
#include <type_traits>

#include "kernels/cuda/dtype.cuh"

// 16 bytes at a time: the widest access of a thread, and what it takes to keep enough loads in
// flight. Values stay packed in registers and are widened where they are used: half the registers
// of the widened form.

namespace rmsnorm::kernels::cuda {

/// Where vectors of a row begin: all at 16-byte boundaries; those that lie in the frame, while the
/// row itself starts anywhere; or anywhere.
enum class Start { aligned, in_frame, anywhere };

/// Elements of T in 16 bytes.
template <class T>
constexpr int kPack = 16 / static_cast<int>(sizeof(T));

__device__ __forceinline__ void widen_pack(const uint4& packed, float (&values)[4], const float*) {
  values[0] = __uint_as_float(packed.x);
  values[1] = __uint_as_float(packed.y);
  values[2] = __uint_as_float(packed.z);
  values[3] = __uint_as_float(packed.w);
}

__device__ __forceinline__ void widen_pack(const uint4& packed, float (&values)[8],
                                           const __nv_bfloat16*) {
  const std::uint32_t words[4] = {packed.x, packed.y, packed.z, packed.w};
#pragma unroll
  for (int i = 0; i < 4; ++i) {
    values[2 * i] = __uint_as_float(words[i] << 16);
    values[2 * i + 1] = __uint_as_float(words[i] & 0xFFFF0000u);
  }
}

__device__ __forceinline__ void widen_pack(const uint4& packed, float (&values)[8], const __half*) {
  const std::uint32_t words[4] = {packed.x, packed.y, packed.z, packed.w};
#pragma unroll
  for (int i = 0; i < 4; ++i) {
    const float2 pair = __half22float2(*reinterpret_cast<const __half2*>(&words[i]));
    values[2 * i] = pair.x;
    values[2 * i + 1] = pair.y;
  }
}

/// The elements of T in `packed` as floats.
template <class T>
__device__ __forceinline__ void widen_pack(const uint4& packed, float (&values)[kPack<T>]) {
  widen_pack(packed, values, static_cast<const T*>(nullptr));
}

__device__ __forceinline__ uint4 narrow_pack(const float (&values)[4], const float*) {
  return {__float_as_uint(values[0]), __float_as_uint(values[1]), __float_as_uint(values[2]),
          __float_as_uint(values[3])};
}

__device__ __forceinline__ uint4 narrow_pack(const float (&values)[8], const __nv_bfloat16*) {
  std::uint32_t words[4];
#pragma unroll
  for (int i = 0; i < 4; ++i) {
    const __nv_bfloat162 pair = __floats2bfloat162_rn(values[2 * i], values[2 * i + 1]);
    words[i] = *reinterpret_cast<const std::uint32_t*>(&pair);
  }
  return {words[0], words[1], words[2], words[3]};
}

__device__ __forceinline__ uint4 narrow_pack(const float (&values)[8], const __half*) {
  std::uint32_t words[4];
#pragma unroll
  for (int i = 0; i < 4; ++i) {
    const __half2 pair = __floats2half2_rn(values[2 * i], values[2 * i + 1]);
    words[i] = *reinterpret_cast<const std::uint32_t*>(&pair);
  }
  return {words[0], words[1], words[2], words[3]};
}

/// Floats rounded to T and packed.
template <class T>
__device__ __forceinline__ uint4 narrow_pack(const float (&values)[kPack<T>]) {
  return narrow_pack(values, static_cast<const T*>(nullptr));
}

/// `pointer`; where kKeep, L2 gives up last what is loaded through it.
template <bool kKeep, class T>
__device__ __forceinline__ const T* kept(const T* pointer) {
  if constexpr (!kKeep) return pointer;
  return ::cuda::associate_access_property(pointer, ::cuda::access_property::persisting{});
}

/// gamma for the kPack<T> columns of one vector of x: in G, packed; ones where there is no gamma.
template <class T, class G>
struct GammaPack {
  static constexpr int kVectors = kPack<T> / kPack<G>;
  uint4 packed[kVectors];

  __device__ __forceinline__ void load(const G* gamma, std::int64_t vector) {
    if (gamma == nullptr) {
      float ones[kPack<G>];
#pragma unroll
      for (float& one : ones) one = 1.0f;
#pragma unroll
      for (int i = 0; i < kVectors; ++i) packed[i] = narrow_pack<G>(ones);
      return;
    }
    const uint4* source = reinterpret_cast<const uint4*>(gamma) + vector * kVectors;
#pragma unroll
    for (int i = 0; i < kVectors; ++i) packed[i] = __ldg(source + i);
  }

  __device__ __forceinline__ void widen(float (&values)[kPack<T>]) const {
#pragma unroll
    for (int i = 0; i < kVectors; ++i) {
      float part[kPack<G>];
      widen_pack<G>(packed[i], part);
#pragma unroll
      for (int e = 0; e < kPack<G>; ++e) values[i * kPack<G> + e] = part[e];
    }
  }

  /// Keeps the packed form in the registers: without it the compiler widens gamma once, outside the
  /// loop over rows, and holds twice the registers.
  __device__ __forceinline__ void pin() {
#pragma unroll
    for (uint4& v : packed) asm volatile("" : "+r"(v.x), "+r"(v.y), "+r"(v.z), "+r"(v.w));
  }
};

__device__ __forceinline__ void pin(uint4& v) {
  asm volatile("" : "+r"(v.x), "+r"(v.y), "+r"(v.z), "+r"(v.w));
}

/// The W elements that begin `head` elements after the start of `low`, and go on in `high`. `head`
/// is the same in nearly all lanes of a warp, so that the branches cost little, and nothing is
/// indexed at run time.
template <class T>
__device__ __forceinline__ uint4 joined(const uint4& low, const uint4& high, int head) {
  std::uint32_t words[8] = {low.x, low.y, low.z, low.w, high.x, high.y, high.z, high.w};
  const int head_words = head * static_cast<int>(sizeof(T)) / 4;
  if (head_words & 2) {
#pragma unroll
    for (int i = 0; i < 6; ++i) words[i] = words[i + 2];
  }
  if (head_words & 1) {
#pragma unroll
    for (int i = 0; i < 5; ++i) words[i] = words[i + 1];
  }
  if (sizeof(T) == 2 && head % 2 == 1) {
#pragma unroll
    for (int i = 0; i < 4; ++i) words[i] = __funnelshift_r(words[i], words[i + 1], 16);
  }
  return {words[0], words[1], words[2], words[3]};
}

/// The elements that begin kHead elements after the start of `low`, and go on in `high`.
template <class T, int kHead>
__device__ __forceinline__ uint4 joined_at(const uint4& low, const uint4& high) {
  constexpr int kWord = kHead * static_cast<int>(sizeof(T)) / 4;
  constexpr bool kOdd = sizeof(T) == 2 && kHead % 2 == 1;
  const std::uint32_t words[9] = {low.x, low.y, low.z, low.w, high.x, high.y, high.z, high.w, 0};
  std::uint32_t out[4];
#pragma unroll
  for (int i = 0; i < 4; ++i) {
    out[i] = kOdd ? __funnelshift_r(words[kWord + i], words[kWord + i + 1], 16) : words[kWord + i];
  }
  return {out[0], out[1], out[2], out[3]};
}

/// joined for V vectors and a head that the whole warp has: one branch, behind which the words are
/// where they are wanted, for five selections and a shift by a number each.
template <class T, int V>
__device__ __forceinline__ void join(uint4 (&low)[V], const uint4 (&high)[V], int head) {
  const auto shift = [&](auto constant_head) {
#pragma unroll
    for (int j = 0; j < V; ++j)
      low[j] = joined_at<T, decltype(constant_head)::value>(low[j], high[j]);
  };
  using std::integral_constant;
  switch (head) {
    case 0:
      return;
    case 1:
      return shift(integral_constant<int, 1>{});
    case 2:
      return shift(integral_constant<int, 2>{});
    case 3:
      return shift(integral_constant<int, 3>{});
    default:
      break;
  }
  if constexpr (sizeof(T) == 2) {
    switch (head) {
      case 4:
        return shift(integral_constant<int, 4>{});
      case 5:
        return shift(integral_constant<int, 5>{});
      case 6:
        return shift(integral_constant<int, 6>{});
      default:
        return shift(integral_constant<int, 7>{});
    }
  }
}

/// Of the vector of elements from `from` on those in [begin, end), which are all that may be read;
/// zeros in the rest.
template <class T>
__device__ __forceinline__ uint4 elements_between(const T* from, int begin, int end) {
  constexpr int kPerWord = kPack<T> / 4;
  std::uint32_t words[4] = {};
#pragma unroll
  for (int e = 0; e < kPack<T>; ++e) {
    if (e < begin || e >= end) continue;
    if constexpr (kPerWord == 2) {
      const auto bits = static_cast<std::uint32_t>(reinterpret_cast<const std::uint16_t*>(from)[e]);
      words[e / 2] |= bits << (16 * (e % 2));
    } else {
      words[e] = reinterpret_cast<const std::uint32_t*>(from)[e];
    }
  }
  return {words[0], words[1], words[2], words[3]};
}

/// Stores those elements of a vector that lie in [begin, end).
template <class T>
__device__ __forceinline__ void store_elements_of(const uint4& vector, T* to, int begin, int end) {
  float values[kPack<T>];
  widen_pack<T>(vector, values);
#pragma unroll
  for (int e = 0; e < kPack<T>; ++e) {
    if (e >= begin && e < end) narrow(values[e], to[e]);
  }
}

/// `to` is at a 16-byte boundary.
template <int W>
__device__ __forceinline__ void store_floats(float* to, const float (&values)[W]) {
  static_assert(W % 4 == 0);
#pragma unroll
  for (int e = 0; e < W; e += 4) {
    *reinterpret_cast<float4*>(to + e) =
        make_float4(values[e], values[e + 1], values[e + 2], values[e + 3]);
  }
}

/// A power of two of neighbouring lanes of a warp, by its exponent: dividing by a number that the
/// compiler does not know takes fifty instructions.
struct LaneGroup {
  int bits;

  __host__ __device__ int lanes() const { return 1 << bits; }
  __device__ __forceinline__ int lane(int thread) const { return thread & (lanes() - 1); }
  template <class I>
  __device__ __forceinline__ I group(I thread) const {
    return thread >> bits;
  }
};

/// Of a power of two.
__host__ __device__ constexpr LaneGroup lane_group(int lanes) {
  int bits = 0;
  while (1 << bits < lanes) ++bits;
  return {bits};
}

/// The sum of `value` over the lanes of a group, in every lane.
__device__ __forceinline__ float lanes_sum(float value, LaneGroup group = {5}) {
#pragma unroll
  for (int bit = 4; bit >= 0; --bit) {
    if (bit < group.bits) value += __shfl_xor_sync(0xFFFFFFFFu, value, 1 << bit);
  }
  return value;
}

constexpr int kMaxWarps = 16;  // that work on one row in a block

/// The sum of kMaxWarps sums in shared memory, the same in every thread; those of absent warps are
/// zeros. Wide reads side by side: a loop over the warps takes as long as the rest of a short row.
__device__ __forceinline__ float sum_of_warps(const float* sums) {
  float total = 0;
#pragma unroll
  for (int i = 0; i < kMaxWarps / 4; ++i) {
    const float4 four = reinterpret_cast<const float4*>(sums)[i];
    total += (four.x + four.y) + (four.z + four.w);
  }
  return total;
}

}  // namespace rmsnorm::kernels::cuda
