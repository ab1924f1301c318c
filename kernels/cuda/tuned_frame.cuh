#pragma once

#include "kernels/cuda/policy.hpp"
#include "kernels/cuda/tuned_thread_ring.cuh"

// Backward of short dense rows that start anywhere. kPack<T> / gcd(kPack<T>, cols) rows together
// are a whole number of vectors, and so is a tile of several such periods: every tile starts at the
// same column, so that what a thread knows about its vectors of a tile - which row they begin in,
// how many elements belong to it, the factors of gamma, the columns of its sums - holds for the
// whole kernel. Elements stay in registers; single ones out of shared memory took 1.8 to 2.45 times
// as long as a copy.

namespace rmsnorm::kernels::cuda {

template <int V>
constexpr FrameShape kFrameShape = frame_shape(V);

/// What a vector of a tile is made of: `split` elements of row `row` of the tile, and then those
/// that row + 1 starts with. Two rows at most, since a row is no shorter than a vector.
struct FrameVector {
  int row, split;

  /// Keeps both in registers: without it the compiler computes them anew for every tile.
  __device__ __forceinline__ void pin() { asm volatile("" : "+r"(row), "+r"(split)); }
  /// Whether element e is of the first row; the first one always is.
  __device__ __forceinline__ bool leads(int e) const { return e == 0 || e < split; }
};

/// gamma of the columns from `column` on, and from the first one again where the row ends.
template <class T, class G>
__device__ __forceinline__ void load_gamma_around(GammaPack<T, G>& pack, const G* gamma, int column,
                                                  int cols) {
  if (gamma == nullptr) {
    pack.load(nullptr, 0);
    return;
  }
  alignas(16) G values[kPack<T>];
#pragma unroll
  for (int e = 0; e < kPack<T>; ++e) {
    const int c = column + e;
    values[e] = gamma[c < cols ? c : c - cols];
  }
#pragma unroll
  for (int i = 0; i < GammaPack<T, G>::kVectors; ++i)
    pack.packed[i] = reinterpret_cast<const uint4*>(values)[i];
}

/// A block per tile of `tile_rows` rows, `row_lanes` lanes for the sum of one. Persistent: dgamma's
/// sums stay in registers, one partial row per block. Shared memory: the stages of the threads'
/// rings; rstd and the projection of each row; the rows' parts of sum(dy * gamma * x), that of
/// vector v for row r in slot v + r, so that those of a row are neighbours and no two share a slot.
template <class T, class G, int V, Fault F>
__global__ void __launch_bounds__(kFrameShape<V>.threads, kFrameShape<V>.blocks)
    backward_frame_kernel(BackwardParams<T> p, const G* __restrict__ gamma, int tile_rows,
                          LaneGroup row_lanes) {
  constexpr int W = kPack<T>, S = kFrameShape<V>.stages;
  // x and dy of one vector stay widened until its dx is made, so that the next copies start sooner;
  // more would take too many registers, and are read again.
  constexpr bool kHolds = V == 1;
  extern __shared__ __align__(128) unsigned char shared[];
  allow_next_kernel();
  const int thread = static_cast<int>(threadIdx.x), threads = static_cast<int>(blockDim.x);
  const int cols = static_cast<int>(p.cols), tile_vectors = tile_rows * cols / W;
  uint4* const ring = reinterpret_cast<uint4*>(shared);
  float2* const row_factors = reinterpret_cast<float2*>(ring + 2 * S * tile_vectors);
  float* const slots = reinterpret_cast<float*>(row_factors + tile_rows + 1);
  const auto vector = [&](int j) { return thread + j * threads; };
  const auto has = [&](int j) { return vector(j) < tile_vectors; };
  FrameVector of[V];
#pragma unroll
  for (int j = 0; j < V; ++j) {
    const int element = vector(j) * W;
    of[j].row = element / cols;
    of[j].split = min(W, (of[j].row + 1) * cols - element);
    of[j].pin();
  }
  // The row that this thread helps to sum, and its slots.
  const int lane = row_lanes.lane(thread), sum_row = row_lanes.group(thread);
  const bool sums_row = sum_row < tile_rows;
  const int slot_begin = sum_row * cols / W + sum_row + lane;
  const int slot_end = sums_row ? ((sum_row + 1) * cols - 1) / W + sum_row + 1 : slot_begin;
  // Whole warps take part for the shuffles.
  const bool warp_sums = row_lanes.group(thread / 32 * 32) < tile_rows;
  wait_for_previous_kernel();

  GammaPack<T, G> scale[V];
#pragma unroll
  for (int j = 0; j < V; ++j) {
    if (has(j)) load_gamma_around(scale[j], gamma, vector(j) * W - of[j].row * cols, cols);
  }
  float sums[V][W] = {};
  const std::int64_t step = std::int64_t{gridDim.x} * tile_rows;
  std::int64_t first = std::int64_t{blockIdx.x} * tile_rows, next = first;
  // Of this thread's first element of the tile that is copied next.
  std::int64_t next_element = first * p.cols + thread * W;
  // `at`: this thread's first place in a stage.
  const auto copy_next = [&](uint4* at) {
    if (next + tile_rows <= p.rows) {
      const auto* const x = reinterpret_cast<const uint4*>(p.x.data + next_element);
      const auto* const dy = reinterpret_cast<const uint4*>(p.dy.data + next_element);
#pragma unroll
      for (int j = 0; j < V; ++j) {
        if (!has(j)) continue;
        copy_vector(at + j * threads, x + j * threads);
        copy_vector(at + tile_vectors + j * threads, dy + j * threads);
      }
    } else if (next < p.rows) {
      // The last tile, which may end inside a vector.
      const int elements = static_cast<int>(p.rows - next) * cols;
#pragma unroll 1
      for (int v = thread; v < tile_vectors; v += threads) {
        const int inside = min(max(elements - v * W, 0), W);
        const std::int64_t from = inside > 0 ? next * p.cols + v * W : 0;
        uint4* const to = at + (v - thread);
        copy_first(to, p.x.data + from, inside * static_cast<int>(sizeof(T)));
        copy_first(to + tile_vectors, p.dy.data + from, inside * static_cast<int>(sizeof(T)));
      }
    }
    end_copies();
    next += step;
    next_element += step * p.cols;
  };
#pragma unroll 1
  for (int s = 0; s < S; ++s) copy_next(ring + s * 2 * tile_vectors + thread);
  const auto rstd_from = [&](std::int64_t row) {
    return sums_row && row + sum_row < p.rows ? saved_rstd_of<F>(p, row + sum_row) : 0.0f;
  };
  float next_rstd = rstd_from(first);
  int stage = 0;
#pragma unroll 1
  for (; first < p.rows; first += step) {
    uint4* const at = ring + stage + thread;
    float xs[V][W], dys[V][W], factors[V][W];
    const auto widen = [&](int j) {
      widen_pack<T>(at[j * threads], xs[j]);
      widen_pack<T>(at[tile_vectors + j * threads], dys[j]);
    };
    const auto widen_gamma = [&](int j) {
      scale[j].pin();
      scale[j].widen(factors[j]);
    };
    wait_for_copies<S - 1>();
#pragma unroll
    for (int j = 0; j < V; ++j) {
      if (!has(j)) continue;
      widen(j);
      widen_gamma(j);
      const int column = vector(j) * W - of[j].row * cols;
      float lead = 0, trail = 0;
#pragma unroll
      for (int e = 0; e < W; ++e) {
        // Not a product with zero: a row's NaN or infinity must not reach its neighbour.
        if (of[j].leads(e)) {
          lead = add_to_dot<F>(lead, xs[j][e], dys[j][e], factors[j][e], column + e, p);
        } else {
          trail = add_to_dot<F>(trail, xs[j][e], dys[j][e], factors[j][e], e - of[j].split, p);
        }
      }
      float* const slot = slots + vector(j) + of[j].row;
      slot[0] = lead;
      if (of[j].split < W) slot[1] = trail;
    }
    if constexpr (kHolds) copy_next(at);
    __syncthreads();
    if (warp_sums) {
      const float rstd = next_rstd;
      next_rstd = rstd_from(first + step);
      float dot = 0;
#pragma unroll 4
      for (int slot = slot_begin; slot < slot_end; slot += row_lanes.lanes()) dot += slots[slot];
      dot = lanes_sum(dot, row_lanes);
      if (lane == 0 && sums_row) {
        row_factors[sum_row] =
            make_float2(rstd, projection_factor<F>(rstd, dot * rstd * p.inverse_cols));
      }
    }
    __syncthreads();
    // Elements of dx that the tile stores, and where this thread's first ones go; pinned, or each
    // vector would compute both anew.
    int stored =
        p.dx == nullptr ? 0 : static_cast<int>(min(p.rows - first, std::int64_t{tile_rows})) * cols;
    T* dx = p.dx + (p.dx == nullptr ? 0 : row_offset<F>(first, p.cols) + thread * W);
    asm volatile("" : "+r"(stored), "+l"(dx));
#pragma unroll
    for (int j = 0; j < V; ++j) {
      if (!has(j)) continue;
      if constexpr (!kHolds) widen(j);
      widen_gamma(j);
      // Behind the last row of the tile there is a place, but nothing is made of what is in it.
      const float2 lead = row_factors[of[j].row], trail = row_factors[of[j].row + 1];
      const std::int64_t row = first + of[j].row;
      float out[W];
#pragma unroll
      for (int e = 0; e < W; ++e) {
        const bool leads = of[j].leads(e);
        const float x[1] = {xs[j][e]}, dy[1] = {dys[j][e]}, factor[1] = {factors[j][e]};
        float one_dx[1], sum[1] = {sums[j][e]};
        backward_elements<F>(x, dy, factor, leads ? lead.x : trail.x, leads ? lead.y : trail.y,
                             one_dx, sum, leads ? row : row + 1, p);
        out[e] = one_dx[0];
        sums[j][e] = sum[0];
      }
      T* const to = dx + j * threads * W;
      const int inside = stored - vector(j) * W;
      if (inside >= W) {
        *reinterpret_cast<uint4*>(to) = narrow_pack<T>(out);
      } else {
#pragma unroll
        for (int e = 0; e < W; ++e) {
          if (e < inside) narrow(out[e], to[e]);
        }
      }
    }
    if constexpr (!kHolds) copy_next(at);
    stage += 2 * tile_vectors;
    if (stage == S * 2 * tile_vectors) stage = 0;
  }
  wait_for_copies<0>();
  if (p.partials == nullptr) return;
  // The sums as a tile of floats where the ring was; then by columns, by lanes of a warp where
  // there are fewer columns than threads.
  __syncthreads();
  float* const fold = reinterpret_cast<float*>(shared);
#pragma unroll
  for (int j = 0; j < V; ++j) {
    if (!has(j)) continue;
    store_floats(fold + vector(j) * W, sums[j]);
  }
  __syncthreads();
  const int pitch = static_cast<int>(p.pitch);
  LaneGroup fold_lanes{0};
  while (fold_lanes.bits < 5 && 2 * pitch * fold_lanes.lanes() <= threads) ++fold_lanes.bits;
  const int first_lane = fold_lanes.lane(thread), ahead = fold_lanes.group(thread % 32);
  for (int c = fold_lanes.group(thread); c - ahead < pitch; c += fold_lanes.group(threads)) {
    float total = 0;
    if (c < cols) {
      for (int r = first_lane; r < tile_rows; r += fold_lanes.lanes()) total += fold[r * cols + c];
    }
    total = lanes_sum(total, fold_lanes);
    if (first_lane == 0 && c < pitch) p.partials[std::int64_t{blockIdx.x} * pitch + c] = total;
  }
}

}  // namespace rmsnorm::kernels::cuda
