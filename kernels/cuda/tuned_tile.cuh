#pragma once

#include "kernels/cuda/tuned_backward_steps.cuh"
#include "kernels/cuda/tuned_forward_steps.cuh"

// Short rows that start anywhere: the forward, and the backward of rows shorter than a vector (that
// of the others is in tuned_frame.cuh). The rows of a tile are dense neighbours that begin at a
// 16-byte boundary together, so that a block moves them in and out of shared memory by whole
// vectors and works on single elements there. Single elements from global memory took 2 to 8 times
// as long as a copy.

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

/// A thread per row, of up to kPack<T> elements. Persistent: dgamma's sums stay in registers, one
/// partial row per block. Shared memory: x of the tile, dy (then dx), gamma as floats; at the end
/// the sums.
template <class T, class G, Fault F>
__global__ void __launch_bounds__(kTileThreads, 4)
    backward_tile_kernel(BackwardParams<T> p, const G* __restrict__ gamma, int tile_rows) {
  constexpr int E = kPack<T>;
  extern __shared__ __align__(128) unsigned char shared[];
  allow_next_kernel();
  const int cols = static_cast<int>(p.cols);
  const int padded = padded_elements<T>(tile_rows * cols);
  T* const x_tile = reinterpret_cast<T*>(shared);
  T* const dy_tile = x_tile + padded;
  float* const factors = reinterpret_cast<float*>(dy_tile + padded);
  const int thread = static_cast<int>(threadIdx.x);
  wait_for_previous_kernel();
  widen_gamma(factors, gamma, cols);
  float sums[E][1] = {};
  const std::int64_t step = std::int64_t{gridDim.x} * tile_rows;
#pragma unroll 1
  for (std::int64_t first_row = std::int64_t{blockIdx.x} * tile_rows; first_row < p.rows;
       first_row += step) {
    const int rows = static_cast<int>(min(std::int64_t{tile_rows}, p.rows - first_row));
    move_tile(x_tile, p.x(first_row), rows * cols);
    move_tile(dy_tile, p.dy(first_row), rows * cols);
    __syncthreads();
#pragma unroll 1
    for (int row = thread; row < rows; row += kTileThreads) {
      const T* const x_at = x_tile + row * cols;
      T* const dy_at = dy_tile + row * cols;
      const float rstd = saved_rstd_of<F>(p, first_row + row);
      float x[E][1], dy[E][1];
      float dot = 0;
#pragma unroll
      for (int e = 0; e < E; ++e) {
        const bool inside = e < cols;
        x[e][0] = inside ? widen(x_at[e]) : 0.0f;
        dy[e][0] = inside ? widen(dy_at[e]) : 0.0f;
        const float factor[1] = {inside ? factors[e] : 0.0f};
        dot += dot_elements<F>(x[e], dy[e], factor, e, p);
      }
      const float projection = projection_factor<F>(rstd, dot * rstd * p.inverse_cols);
#pragma unroll
      for (int e = 0; e < E; ++e) {
        if (e >= cols) continue;
        const float factor[1] = {factors[e]};
        float dx[1];
        backward_elements<F>(x[e], dy[e], factor, rstd, projection, dx, sums[e], first_row + row,
                             p);
        narrow(dx[0], dy_at[e]);
      }
    }
    __syncthreads();
    if (p.dx != nullptr) move_tile(p.dx + row_offset<F>(first_row, p.cols), dy_tile, rows * cols);
    __syncthreads();
  }
  if (p.partials == nullptr) return;
  // The lanes of a warp by shuffles, then the warps; nothing uses the tiles any more.
  float* const fold = reinterpret_cast<float*>(shared);
#pragma unroll
  for (int e = 0; e < E; ++e) {
    const float sum = lanes_sum(sums[e][0]);
    if (thread % 32 == 0 && e < cols) fold[thread / 32 * cols + e] = sum;
  }
  __syncthreads();
  float* const partial = p.partials + std::int64_t{blockIdx.x} * p.pitch;
  for (int c = thread; c < static_cast<int>(p.pitch); c += kTileThreads) {
    float total = 0;
    for (int w = 0; c < cols && w < kTileThreads / 32; ++w) total += fold[w * cols + c];
    partial[c] = total;
  }
}

}  // namespace rmsnorm::kernels::cuda
