#pragma once

#include <numeric>

#include "kernels/cuda/policy.hpp"
#include "kernels/cuda/tuned_forward_steps.cuh"
#include "kernels/cuda/tuned_thread_ring.cuh"

// Rows shorter than a vector. A few of them, a period, are together a whole number of vectors, and
// where rows are dense a thread takes periods: which element of which row lies where in its vectors
// is known to the compiler, and a row's sum needs no other thread. 32 periods side by side are the
// tile of a warp, moved by whole vectors side by side; where a period is several vectors they
// change hands in shared memory, since a thread's own, taken from global memory one by one, would
// be half sectors. Anything else takes a thread per row and single elements: rows behind the last
// tile, and rows that are not dense.

namespace rmsnorm::kernels::cuda {

/// The fewest rows of C elements that are whole vectors.
template <class T, int C>
struct Period {
  static constexpr int kRows = kPack<T> / std::gcd(kPack<T>, C);
  static constexpr int kVectors = C / std::gcd(kPack<T>, C);
  static constexpr int kTileRows = 32 * kRows, kTileVectors = 32 * kVectors;
  static_assert(kRows == 2 || kRows == 4 || kRows == 8);
};

/// The longest rows, in elements.
template <class T>
constexpr int kTinyCols = kPack<T> - 1;

template <int V>
constexpr TinyShape kTinyShape = tiny_shape(V);

/// gamma as floats, ones where there is none and zeros behind the row.
template <class G, int E>
__device__ __forceinline__ void load_gamma_of_row(float (&factors)[E], const G* gamma, int cols) {
#pragma unroll
  for (int e = 0; e < E; ++e)
    factors[e] = e >= cols ? 0.0f : gamma == nullptr ? 1.0f : widen(gamma[e]);
}

/// A row of `cols` <= E elements as floats, zeros behind it: they leave a chain of sums as it is.
template <class T, int E>
__device__ __forceinline__ void load_row(float (&values)[E], const T* from, int cols) {
#pragma unroll
  for (int e = 0; e < E; ++e) values[e] = e < cols ? widen(from[e]) : 0.0f;
}

/// The forward of a row by one thread, where the row lies. The bits are those of a row in a period.
template <Fault F, class T, int E>
__device__ __forceinline__ void forward_row(const ForwardParams<T>& p, const float (&factors)[E],
                                            std::int64_t row, int cols) {
  float x[E];
  load_row(x, p.x(row), cols);
  const float rstd = inverse_rms<F>(add_squares<F>(0.0f, x, 0, p), p);
  T* const y = p.y + row_offset<F>(row, p.cols);
#pragma unroll
  for (int e = 0; e < E; ++e) {
    if (e < cols) store_elements<F>({x[e]}, {factors[e]}, rstd, y + e, row, e, p);
  }
  if (p.rstd != nullptr) keep_rstd<F>(p, row, rstd);
}

/// R neighbouring floats of every lane of a warp, one lane's behind another's from `to` on. Of
/// eight, two lanes exchange half: each writes two vectors, and together they fill a sector at a
/// time.
template <int R>
__device__ __forceinline__ void store_by_lanes(float* to, const float (&values)[R], int lane) {
  if constexpr (R == 2) {
    reinterpret_cast<float2*>(to)[lane] = make_float2(values[0], values[1]);
  } else if constexpr (R == 4) {
    reinterpret_cast<float4*>(to)[lane] = make_float4(values[0], values[1], values[2], values[3]);
  } else {
    const bool odd = lane % 2 == 1;
    float first[4], second[4];
#pragma unroll
    for (int i = 0; i < 4; ++i) {
      const float other = __shfl_xor_sync(0xFFFFFFFFu, odd ? values[i] : values[i + 4], 1);
      first[i] = odd ? other : values[i];
      second[i] = odd ? values[i + 4] : other;
    }
    float4* const at = reinterpret_cast<float4*>(to) + 2 * lane - (odd ? 1 : 0);
    at[0] = make_float4(first[0], first[1], first[2], first[3]);
    at[2] = make_float4(second[0], second[1], second[2], second[3]);
  }
}

template <int R>
__device__ __forceinline__ void load_floats(float (&values)[R], const float* from) {
  if constexpr (R == 2) {
    const float2 two = *reinterpret_cast<const float2*>(from);
    values[0] = two.x;
    values[1] = two.y;
  } else {
#pragma unroll
    for (int i = 0; i < R; i += 4)
      widen_pack<float>(*reinterpret_cast<const uint4*>(from + i),
                        reinterpret_cast<float(&)[4]>(values[i]));
  }
}

/// Whether the last element of a vector of a period is one of row `row`.
template <class T, int C>
__device__ __forceinline__ constexpr bool ends_in_row(int vector, int row) {
  return (vector + 1) * kPack<T> <= (row + 1) * C && (vector + 1) * kPack<T> > row * C;
}

/// Vector `vector` of the elements of a period, rounded to T.
template <class T, int N>
__device__ __forceinline__ uint4 narrow_vector(const float (&elements)[N], int vector) {
  float values[kPack<T>];
#pragma unroll
  for (int e = 0; e < kPack<T>; ++e) values[e] = elements[vector * kPack<T> + e];
  return narrow_pack<T>(values);
}

constexpr int kTinyForwardThreads = 256;

/// Tiles of a warp: one 16-byte load per thread leaves too few in flight.
template <class T, int C>
constexpr int kTinyTiles = Period<T, C>::kVectors == 1 ? 2 : 1;
template <class T, int C>
constexpr int kTinyBlockRows = kTinyForwardThreads / 32 * kTinyTiles<T, C>* Period<T, C>::kTileRows;

/// Dense rows of C elements, x, y and rstd at 16-byte boundaries. Blocks of whole tiles first; the
/// others take what rows are left, a thread each. It answers to no fault of the end of a row, which
/// is none of a vector here: the mutants have forward_tiny_rows_kernel.
template <class T, class G, int C, Fault F>
__global__ void __launch_bounds__(kTinyForwardThreads)
    forward_tiny_kernel(ForwardParams<T> p, const G* __restrict__ gamma) {
  using Rows = Period<T, C>;
  constexpr int W = kPack<T>, R = Rows::kRows, V = Rows::kVectors, K = kTinyTiles<T, C>;
  __shared__ uint4 staged[V == 1 ? 1 : kTinyForwardThreads * V];
  allow_next_kernel();
  const int thread = static_cast<int>(threadIdx.x), lane = thread % 32, warp = thread / 32;
  const std::int64_t whole_blocks = p.rows / kTinyBlockRows<T, C>;
  wait_for_previous_kernel();
  float factors[C];
  if (blockIdx.x >= whole_blocks) {
    const std::int64_t row = whole_blocks * kTinyBlockRows<T, C> +
                             (blockIdx.x - whole_blocks) * kTinyForwardThreads + thread;
    load_gamma_of_row(factors, gamma, C);
    if (row < p.rows) forward_row<F>(p, factors, row, C);
    return;
  }
  const std::int64_t first_tile =
      (std::int64_t{blockIdx.x} * (kTinyForwardThreads / 32) + warp) * K;
  const T* const from = p.x.data + (first_tile * Rows::kTileVectors + lane) * W;
  uint4 packed[K][V];
#pragma unroll
  for (int k = 0; k < K; ++k) {
#pragma unroll
    for (int j = 0; j < V; ++j)
      packed[k][j] = Access<T, W>::load_streaming(from + (k * V + j) * 32 * W);
  }
  load_gamma_of_row(factors, gamma, C);
  uint4* const shared = staged + (V == 1 ? 0 : warp * Rows::kTileVectors);
#pragma unroll
  for (int k = 0; k < K; ++k) {
    const std::int64_t first_row = (first_tile + k) * Rows::kTileRows;
    T* const y = p.y + row_offset<F>(first_row, C);
    float x[V * W], out[V * W], rstds[R];
    if constexpr (V > 1) {
#pragma unroll
      for (int j = 0; j < V; ++j) shared[j * 32 + lane] = packed[k][j];
      __syncwarp();
#pragma unroll
      for (int j = 0; j < V; ++j) packed[k][j] = shared[lane * V + j];
    }
#pragma unroll
    for (int j = 0; j < V; ++j)
      widen_pack<T>(packed[k][j], reinterpret_cast<float(&)[W]>(x[j * W]));
#pragma unroll
    for (int r = 0; r < R; ++r) {
      float values[C], scaled[C];
#pragma unroll
      for (int e = 0; e < C; ++e) values[e] = x[r * C + e];
      const float rstd = inverse_rms<F>(add_squares<F>(0.0f, values, 0, p), p);
      rstds[r] = saved_rstd<F>(rstd, RoundTo<T>{});
      y_elements<F>(values, factors, rstd, scaled, first_row + lane * R + r, 0, p);
#pragma unroll
      for (int e = 0; e < C; ++e) out[r * C + e] = scaled[e];
#pragma unroll
      for (int j = 0; j < V; ++j) {
        if (!ends_in_row<T, C>(j, r)) continue;
        if constexpr (V == 1) {
          reinterpret_cast<uint4*>(y)[lane] = narrow_vector<T>(out, j);
        } else {
          shared[lane * V + j] = narrow_vector<T>(out, j);
        }
      }
    }
    if constexpr (V > 1) {
      __syncwarp();
#pragma unroll
      for (int j = 0; j < V; ++j)
        reinterpret_cast<uint4*>(y)[j * 32 + lane] = shared[j * 32 + lane];
    }
    if (p.rstd != nullptr) store_by_lanes(p.rstd + first_row, rstds, lane);
  }
}

/// Rows of any layout.
template <class T, class G, Fault F>
__global__ void __launch_bounds__(kTinyForwardThreads)
    forward_tiny_rows_kernel(ForwardParams<T> p, const G* __restrict__ gamma) {
  allow_next_kernel();
  const std::int64_t row = std::int64_t{blockIdx.x} * kTinyForwardThreads + threadIdx.x;
  const int cols = static_cast<int>(p.cols);
  wait_for_previous_kernel();
  if (row >= p.rows) return;
  float factors[kTinyCols<T>];
  load_gamma_of_row(factors, gamma, cols);
  forward_row<F>(p, factors, row, cols);
}

/// What a row in registers adds to dgamma, and its dx.
template <Fault F, class T, int E>
__device__ __forceinline__ void backward_of_row(const float (&x)[E], const float (&dy)[E],
                                                const float (&factors)[E], float rstd,
                                                float (&dx)[E], float (&sums)[E], std::int64_t row,
                                                const BackwardParams<T>& p) {
  const float dot = dot_elements<F>(x, dy, factors, 0, p);
  const float projection = projection_factor<F>(rstd, dot * rstd * p.inverse_cols);
  backward_elements<F>(x, dy, factors, rstd, projection, dx, sums, row, p);
}

/// The backward of a row by one thread, where the row lies.
template <Fault F, class T, int E>
__device__ __forceinline__ void backward_row(const BackwardParams<T>& p, const float (&factors)[E],
                                             float (&sums)[E], std::int64_t row, int cols) {
  float x[E], dy[E], dx[E];
  load_row(x, p.x(row), cols);
  load_row(dy, p.dy(row), cols);
  backward_of_row<F>(x, dy, factors, saved_rstd_of<F>(p, row), dx, sums, row, p);
  if (p.dx == nullptr) return;
  T* const to = p.dx + row_offset<F>(row, p.cols);
#pragma unroll
  for (int e = 0; e < E; ++e) {
    if (e < cols) narrow(dx[e], to[e]);
  }
}

/// The sums of a block's threads as its partial row: the lanes of a warp by shuffles, then the
/// warps one by one. `fold`: shared memory, E floats for every warp.
template <class T, int E>
__device__ __forceinline__ void store_partial(const float (&sums)[E], int cols, float* fold,
                                              const BackwardParams<T>& p) {
  const int thread = static_cast<int>(threadIdx.x), warps = static_cast<int>(blockDim.x) / 32;
#pragma unroll
  for (int e = 0; e < E; ++e) {
    const float sum = lanes_sum(sums[e]);
    if (thread % 32 == 0) fold[thread / 32 * E + e] = sum;
  }
  __syncthreads();
  const int pitch = static_cast<int>(p.pitch);
  if (thread >= pitch) return;
  float total = 0;
  for (int w = 0; thread < cols && w < warps; ++w) total += fold[w * E + thread];
  p.partials[std::int64_t{blockIdx.x} * pitch + thread] = total;
}

/// Dense rows of C elements, x, dy, dx and rstd at 16-byte boundaries. Persistent: each warp has a
/// ring of tiles of its own; dgamma's sums stay in registers, one partial row per block.
template <class T, class G, int C, Fault F>
__global__ void __launch_bounds__(kTinyShape<Period<T, C>::kVectors>.threads,
                                  kTinyShape<Period<T, C>::kVectors>.blocks)
    backward_tiny_kernel(BackwardParams<T> p, const G* __restrict__ gamma) {
  using Rows = Period<T, C>;
  constexpr int W = kPack<T>, R = Rows::kRows, V = Rows::kVectors;
  constexpr int S = kTinyShape<V>.stages, kTile = Rows::kTileVectors;
  // x (then dx), dy, rstd.
  constexpr int kRstdVectors = Rows::kTileRows / 4, kStage = 2 * kTile + kRstdVectors;
  extern __shared__ __align__(128) unsigned char shared[];
  allow_next_kernel();
  const int thread = static_cast<int>(threadIdx.x), lane = thread % 32;
  const int warps = static_cast<int>(blockDim.x) / 32;
  uint4* const ring = reinterpret_cast<uint4*>(shared) + thread / 32 * S * kStage;
  const std::int64_t tiles = p.rows / Rows::kTileRows, step = std::int64_t{gridDim.x} * warps;
  std::int64_t tile = std::int64_t{blockIdx.x} * warps + thread / 32, next = tile;
  const auto copy_next = [&](uint4* stage) {
    if (next < tiles) {
      const uint4* const x = reinterpret_cast<const uint4*>(p.x.data) + next * kTile + lane;
      const uint4* const dy = reinterpret_cast<const uint4*>(p.dy.data) + next * kTile + lane;
      const uint4* const rstd = reinterpret_cast<const uint4*>(p.rstd) + next * kRstdVectors + lane;
#pragma unroll
      for (int j = 0; j < V; ++j) {
        copy_vector(stage + j * 32 + lane, x + j * 32);
        copy_vector(stage + kTile + j * 32 + lane, dy + j * 32);
      }
#pragma unroll
      for (int j = 0; j * 32 < kRstdVectors; ++j) {
        if (j * 32 + lane < kRstdVectors)
          copy_vector(stage + 2 * kTile + j * 32 + lane, rstd + j * 32);
      }
    }
    end_copies();
    next += step;
  };
  wait_for_previous_kernel();
#pragma unroll
  for (int s = 0; s < S; ++s) copy_next(ring + s * kStage);
  float factors[C], sums[C] = {};
  load_gamma_of_row(factors, gamma, C);
  int stage = 0;
#pragma unroll 1
  for (; tile < tiles; tile += step) {
    uint4* const at = ring + stage;
    uint4* const own = at + lane * V;
    const std::int64_t first_row = tile * Rows::kTileRows;
    uint4* const to = p.dx == nullptr
                          ? nullptr
                          : reinterpret_cast<uint4*>(p.dx + row_offset<F>(first_row, C)) + lane;
    wait_for_copies<S - 1>();
    __syncwarp();
    float x[V * W], dy[V * W], out[V * W], rstds[R];
    load_floats(rstds, reinterpret_cast<const float*>(at + 2 * kTile) + lane * R);
#pragma unroll
    for (int j = 0; j < V; ++j) {
      widen_pack<T>(own[j], reinterpret_cast<float(&)[W]>(x[j * W]));
      widen_pack<T>(own[kTile + j], reinterpret_cast<float(&)[W]>(dy[j * W]));
    }
#pragma unroll
    for (int r = 0; r < R; ++r) {
      float xs[C], dys[C], dx[C];
#pragma unroll
      for (int e = 0; e < C; ++e) {
        xs[e] = x[r * C + e];
        dys[e] = dy[r * C + e];
      }
      backward_of_row<F>(xs, dys, factors, rstds[r], dx, sums, first_row + lane * R + r, p);
#pragma unroll
      for (int e = 0; e < C; ++e) out[r * C + e] = dx[e];
#pragma unroll
      for (int j = 0; j < V; ++j) {
        if (!ends_in_row<T, C>(j, r)) continue;
        if constexpr (V == 1) {
          if (to != nullptr) *to = narrow_vector<T>(out, j);
        } else {
          own[j] = narrow_vector<T>(out, j);
        }
      }
    }
    // Of the stage, each lane has read what others copied, and written what others store.
    __syncwarp();
    if constexpr (V > 1) {
      if (to != nullptr) {
#pragma unroll
        for (int j = 0; j < V; ++j) to[j * 32] = at[j * 32 + lane];
      }
    }
    copy_next(at);
    stage = stage == (S - 1) * kStage ? 0 : stage + kStage;
  }
  wait_for_copies<0>();
  // Less than a tile is left: a row for a thread of the grid, where there are enough.
#pragma unroll 1
  for (std::int64_t row = tiles * Rows::kTileRows + std::int64_t{blockIdx.x} * blockDim.x + thread;
       row < p.rows; row += std::int64_t{gridDim.x} * blockDim.x)
    backward_row<F>(p, factors, sums, row, C);
  if (p.partials == nullptr) return;
  __syncthreads();  // the sums go where the rings were
  store_partial(sums, C, reinterpret_cast<float*>(shared), p);
}

/// Rows of any layout: where rstd starts at no 16-byte boundary, and for the mutants.
template <class T, class G, Fault F>
__global__ void __launch_bounds__(256)
    backward_tiny_rows_kernel(BackwardParams<T> p, const G* __restrict__ gamma) {
  constexpr int E = kTinyCols<T>;
  __shared__ float fold[kMaxWarps * E];
  allow_next_kernel();
  const int cols = static_cast<int>(p.cols);
  wait_for_previous_kernel();
  float factors[E], sums[E] = {};
  load_gamma_of_row(factors, gamma, cols);
#pragma unroll 1
  for (std::int64_t row = std::int64_t{blockIdx.x} * blockDim.x + threadIdx.x; row < p.rows;
       row += std::int64_t{gridDim.x} * blockDim.x)
    backward_row<F>(p, factors, sums, row, cols);
  if (p.partials != nullptr) store_partial(sums, cols, fold, p);
}

}  // namespace rmsnorm::kernels::cuda
