#pragma once

#include "kernels/cuda/tuned_forward_steps.cuh"

// The forward of short rows that start anywhere and are no shorter than a vector: those are in
// tuned_tiny.cuh, and the backward is in tuned_frame.cuh. The rows of a tile are dense neighbours
// that begin at a 16-byte boundary together, so that a block moves them in and out of shared memory
// by whole vectors and works on single elements there. Single elements from global memory took 2 to
// 8 times as long as a copy.

namespace rmsnorm::kernels::cuda {

constexpr int kTileThreads = 256;

/// The bytes between a tile and what follows it in shared memory are a multiple of 16.
template <class T>
__device__ __forceinline__ int padded_elements(int elements) {
  return (elements + kPack<T> - 1) / kPack<T> * kPack<T>;
}

/// `elements` from one place to another, both at a 16-byte boundary; one of them is global memory.
template <class T>
__device__ __forceinline__ void move_tile(T* to, const T* from, int elements) {
  const int vectors = elements / kPack<T>;
  const int thread = static_cast<int>(threadIdx.x);
#pragma unroll 4
  for (int i = thread; i < vectors; i += kTileThreads)
    reinterpret_cast<uint4*>(to)[i] = reinterpret_cast<const uint4*>(from)[i];
  const int rest = vectors * kPack<T> + thread;
  if (rest < elements) to[rest] = from[rest];
}

/// gamma as floats, ones where there is none.
template <class G>
__device__ __forceinline__ void widen_gamma(float* to, const G* gamma, int cols) {
  for (int c = static_cast<int>(threadIdx.x); c < cols; c += kTileThreads)
    to[c] = gamma == nullptr ? 1.0f : widen(gamma[c]);
}

/// 2^kBits lanes per row, eight elements of it each: known here, so that a lane's places are
/// constants.
template <int kBits>
struct TileLanes {
  static constexpr LaneGroup kGroup{kBits};
  static constexpr int kElements = 8;
};

/// A block per tile. Shared memory: the tile, then gamma as floats. kInPlace: rows that are not
/// dense, or not at a 16-byte boundary together, are read and written where they lie, in the same
/// order: the bits of a row are those that it has in a tile.
template <class T, class G, class Lanes, bool kInPlace, Fault F>
__global__ void __launch_bounds__(kTileThreads)
    forward_tile_kernel(ForwardParams<T> p, const G* __restrict__ gamma, int tile_rows) {
  constexpr LaneGroup kGroup = Lanes::kGroup;
  constexpr int E = Lanes::kElements, kLanes = 1 << kGroup.bits;
  extern __shared__ __align__(128) unsigned char shared[];
  allow_next_kernel();
  const int cols = static_cast<int>(p.cols);
  T* const tile = reinterpret_cast<T*>(shared);
  float* const factors = reinterpret_cast<float*>(tile + padded_elements<T>(tile_rows * cols));
  const std::int64_t first_row = std::int64_t{blockIdx.x} * tile_rows;
  const int rows = static_cast<int>(min(std::int64_t{tile_rows}, p.rows - first_row));
  const int thread = static_cast<int>(threadIdx.x), lane = thread % kLanes;
  wait_for_previous_kernel();
  if constexpr (!kInPlace) move_tile(tile, p.x(first_row), rows * cols);
  widen_gamma(factors, gamma, cols);
  __syncthreads();
  // Whole warps stay in the loop for the shuffles.
#pragma unroll 1
  for (int row = thread / kLanes; row - thread % 32 / kLanes < rows; row += kTileThreads / kLanes) {
    const int left = row < rows ? cols - lane : 0;
    const std::int64_t m = first_row + (row < rows ? row : 0);
    const T* const from = (kInPlace ? p.x(m) : tile + row * cols) + lane;
    T* const to = (kInPlace ? p.y + row_offset<F>(m, p.cols) : tile + row * cols) + lane;
    float x[E];
    float sum = 0;
#pragma unroll
    for (int e = 0; e < E; ++e) {
      x[e] = e * kLanes < left ? widen(from[e * kLanes]) : 0.0f;
      sum = add_squares<F>(sum, {x[e]}, lane + e * kLanes, p);
    }
    const float rstd = inverse_rms<F>(lanes_sum(sum, kGroup), p);
#pragma unroll
    for (int e = 0; e < E; ++e) {
      if (e * kLanes >= left) continue;
      store_elements<F>({x[e]}, {factors[lane + e * kLanes]}, rstd, to + e * kLanes, m,
                        lane + e * kLanes, p);
    }
    if (lane == 0 && row < rows && p.rstd != nullptr) keep_rstd<F>(p, m, rstd);
  }
  if constexpr (!kInPlace) {
    __syncthreads();
    move_tile(p.y + row_offset<F>(first_row, p.cols), tile, rows * cols);
  }
}

}  // namespace rmsnorm::kernels::cuda
