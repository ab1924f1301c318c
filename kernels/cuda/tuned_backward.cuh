#pragma once

#include "kernels/cuda/tuned_backward_steps.cuh"

// Backward without a ring: short rows by lanes of a warp, and the split kernel for tiny problems
// and all that no other path takes. The ring is in tuned_ring.cuh, the sum of the partial rows in
// finalize.cuh.

namespace rmsnorm::kernels::cuda {

constexpr int kLanesBlock = 256;

/// The groups' sums of dgamma, added in the order of the groups, as the block's partial row. `fold`
/// is shared memory that nothing else uses any more. `columns(j)` is the first column of a
/// thread's j-th access, or -1 outside the row.
template <int V, int W, class Columns>
__device__ __forceinline__ void write_partial_row(float (&sums)[V][W], float* fold, int group,
                                                  int groups, int thread, int threads,
                                                  float* partial, Columns columns) {
  if (group > 0 && group < groups) {
    float* mine = fold + std::int64_t{group - 1} * threads * V * W;
#pragma unroll
    for (int j = 0; j < V; ++j) {
#pragma unroll
      for (int e = 0; e < W; ++e) mine[(j * W + e) * threads + thread] = sums[j][e];
    }
  }
  groups_barrier(groups * threads);
  if (group != 0) return;
#pragma unroll
  for (int j = 0; j < V; ++j) {
    for (int g = 1; g < groups; ++g) {
      const float* other = fold + std::int64_t{g - 1} * threads * V * W;
#pragma unroll
      for (int e = 0; e < W; ++e) sums[j][e] += other[(j * W + e) * threads + thread];
    }
    const std::int64_t column = columns(j);
    if (column < 0) continue;
    store_floats(partial + column, sums[j]);
  }
}

/// Some lanes of a warp per row, V single elements each, U rows at once to keep loads in flight.
/// Persistent: dgamma's sums stay in registers, a lane group of the block at the end, one
/// partial row per block.
template <class T, class G, int V, int U, Fault F>
__global__ void __launch_bounds__(kLanesBlock, 2)
    backward_lanes_kernel(BackwardParams<T> p, const G* __restrict__ gamma, LaneGroup lane_group) {
  using A = Access<T, 1>;
  __shared__ float fold[kLanesBlock / 32][32 * V];
  allow_next_kernel();
  const int lanes = lane_group.lanes(), lane = lane_group.lane(static_cast<int>(threadIdx.x));
  const std::int64_t groups = lane_group.group(std::int64_t{gridDim.x} * kLanesBlock);
  const std::int64_t group = lane_group.group(std::int64_t{blockIdx.x} * kLanesBlock + threadIdx.x);
  const std::int64_t warp_group = lane_group.group(static_cast<int>(threadIdx.x) % 32);
  wait_for_previous_kernel();

  LaneGamma<T, G, 1> scale[V];
  float sums[V][1] = {};
#pragma unroll
  for (int j = 0; j < V; ++j) {
    const std::int64_t column = lane + j * lanes;
    scale[j].load(gamma, column, column < p.cols);
  }
  // The next U rows are on their way while these are at work. Whole warps stay in the loop for the
  // shuffles; a lane group past the end only lends its lanes.
  typename A::Packed x[U][V], dy[U][V], next_x[U][V], next_dy[U][V];
  float rstd[U], next_rstd[U];
  const auto load = [&](std::int64_t base) {
#pragma unroll
    for (int u = 0; u < U; ++u) {
      const std::int64_t row = base + warp_group + u * groups;
      const bool valid = row < p.rows;
      const T* x_row = p.x(valid ? row : 0);
      const T* dy_row = p.dy(valid ? row : 0);
      next_rstd[u] = valid ? saved_rstd_of<F>(p, row) : 0.0f;
#pragma unroll
      for (int j = 0; j < V; ++j) {
        const int column = lane + j * lanes;
        const bool inside = valid && column < p.cols;
        next_x[u][j] = inside ? A::load_streaming(x_row + column) : A::zero();
        next_dy[u][j] = inside ? A::load_streaming(dy_row + column) : A::zero();
      }
    }
  };
  std::int64_t base = group - warp_group;
  load(base);
#pragma unroll 1
  for (; base < p.rows; base += U * groups) {
#pragma unroll
    for (int u = 0; u < U; ++u) {
      rstd[u] = next_rstd[u];
#pragma unroll
      for (int j = 0; j < V; ++j) {
        x[u][j] = next_x[u][j];
        dy[u][j] = next_dy[u][j];
      }
    }
    load(base + U * groups);
#pragma unroll
    for (int u = 0; u < U; ++u) {
      const std::int64_t row = base + warp_group + u * groups;
      float dot = 0;
#pragma unroll
      for (int j = 0; j < V; ++j) {
        float xs[1], dys[1], factors[1];
        A::widen(x[u][j], xs);
        A::widen(dy[u][j], dys);
        scale[j].widen(factors);
        dot += dot_elements<F>(xs, dys, factors, lane + j * lanes, p);
      }
      const float projection =
          projection_factor<F>(rstd[u], lanes_sum(dot, lane_group) * rstd[u] * p.inverse_cols);
#pragma unroll
      for (int j = 0; j < V; ++j) {
        const int column = lane + j * lanes;
        float xs[1], dys[1], factors[1], dx[1];
        A::widen(x[u][j], xs);
        A::widen(dy[u][j], dys);
        scale[j].widen(factors);
        backward_elements<F>(xs, dys, factors, rstd[u], projection, dx, sums[j], row, p);
        if (p.dx != nullptr && row < p.rows && column < p.cols)
          A::store(dx, p.dx + row_offset<F>(row, p.cols) + column);
      }
    }
  }
  if (p.partials == nullptr) return;
#pragma unroll
  for (int j = 0; j < V; ++j) {
    for (int offset = lanes; offset < 32; offset *= 2)
      sums[j][0] += __shfl_xor_sync(0xFFFFFFFFu, sums[j][0], offset);
  }
  const int warp = static_cast<int>(threadIdx.x) / 32,
            warp_lane = static_cast<int>(threadIdx.x) % 32;
  if (warp_lane < lanes) {
#pragma unroll
    for (int j = 0; j < V; ++j) fold[warp][warp_lane + j * lanes] = sums[j][0];
  }
  __syncthreads();
  for (std::int64_t column = threadIdx.x; column < p.pitch; column += kLanesBlock) {
    float total = 0;
    if (column < p.cols) {
#pragma unroll
      for (int w = 0; w < kLanesBlock / 32; ++w) total += fold[w][column];
    }
    p.partials[std::int64_t{blockIdx.x} * p.pitch + column] = total;
  }
}

constexpr int kSplitThreads = 256;
constexpr int kSplitHeld = 4;  // accesses of a row that a thread keeps between the dot and dx

/// The sum over the block, in every thread. One barrier: the next call must be of the other turn.
template <class A>
__device__ __forceinline__ A split_block_sum(A value, int turn) {
  constexpr int kWarps = kSplitThreads / 32;
  __shared__ alignas(16) A warp_sums[2][kWarps];
#pragma unroll
  for (int offset = 16; offset > 0; offset /= 2)
    value += __shfl_xor_sync(0xFFFFFFFFu, value, offset);
  if (threadIdx.x % 32 == 0) warp_sums[turn][threadIdx.x / 32] = value;
  __syncthreads();
  A total = A(0);
#pragma unroll
  for (int w = 0; w < kWarps; ++w) total += warp_sums[turn][w];
  return total;
}

template <class T, class G, int W, Fault F>
__device__ void split_dx_row(const BackwardParams<T>& p, const G* gamma, std::int64_t row,
                             int turn) {
  using AccessT = Access<T, W>;
  using A = accumulation_t<T>;
  const T* x = p.x(row);
  const T* dy = p.dy(row);
  const A rstd = saved_rstd_of<F>(p, row);
  const std::int64_t step = std::int64_t{kSplitThreads} * W, first = std::int64_t{threadIdx.x} * W;
  typename AccessT::Packed x_held[kSplitHeld], dy_held[kSplitHeld];
  LaneGamma<T, G, W> held[kSplitHeld];
  A dot = A(0);
#pragma unroll
  for (int j = 0; j < kSplitHeld; ++j) {
    const std::int64_t column = first + j * step;
    x_held[j] = column < p.cols ? AccessT::load(x + column) : AccessT::zero();
    dy_held[j] = column < p.cols ? AccessT::load(dy + column) : AccessT::zero();
    held[j].load(gamma, column, column < p.cols);
  }
  const auto add_dot = [&](const auto& x_packed, const auto& dy_packed, auto& scale,
                           std::int64_t column) {
    A xs[W], dys[W], factors[W];
    AccessT::widen(x_packed, xs);
    AccessT::widen(dy_packed, dys);
    scale.widen(factors);
    dot += dot_elements<F>(xs, dys, factors, column, p);
  };
  const auto gamma_at = [&](std::int64_t column) {
    LaneGamma<T, G, W> scale;
    scale.load(gamma, column, true);
    return scale;
  };
#pragma unroll
  for (int j = 0; j < kSplitHeld; ++j) {
    if (first + j * step < p.cols) add_dot(x_held[j], dy_held[j], held[j], first + j * step);
  }
#pragma unroll 1
  for (std::int64_t column = first + kSplitHeld * step; column < p.cols; column += step) {
    auto scale = gamma_at(column);
    add_dot(AccessT::load(x + column), AccessT::load(dy + column), scale, column);
  }
  const A projection =
      projection_factor<F>(rstd, split_block_sum(dot, turn) * rstd * p.inverse_cols);
  T* dx = p.dx + row_offset<F>(row, p.cols);
  const auto write = [&](const auto& x_packed, const auto& dy_packed, auto& scale,
                         std::int64_t column) {
    A xs[W], dys[W], factors[W], out[W];
    AccessT::widen(x_packed, xs);
    AccessT::widen(dy_packed, dys);
    scale.widen(factors);
    dx_elements<F>(xs, dys, factors, rstd, projection, out);
    AccessT::store(out, dx + column);
  };
#pragma unroll
  for (int j = 0; j < kSplitHeld; ++j) {
    if (first + j * step < p.cols) write(x_held[j], dy_held[j], held[j], first + j * step);
  }
#pragma unroll 1
  for (std::int64_t column = first + kSplitHeld * step; column < p.cols; column += step) {
    auto scale = gamma_at(column);
    write(AccessT::load(x + column), AccessT::load(dy + column), scale, column);
  }
}

/// What rows [begin, end) add to dgamma in the columns of this block, into `out` (dgamma itself, or
/// a partial row).
template <class T, class G, int W, Fault F, class Out>
__device__ void split_dgamma_columns(const BackwardParams<T>& p, std::int64_t first_access,
                                     LaneGroup columns, std::int64_t begin, std::int64_t end,
                                     std::int64_t width, Out* out) {
  using AccessT = Access<T, W>;
  using A = accumulation_t<T>;
  constexpr int kUnroll = W > 1 ? 2 : 4;
  __shared__ A fold[kSplitThreads / 32][32 * W];
  const int thread = static_cast<int>(threadIdx.x);
  const int slots = columns.group(kSplitThreads), slot = columns.group(thread);
  const int place = columns.lane(thread);
  const std::int64_t column = (first_access + place) * W;
  A sums[W] = {};
  if (column < p.cols) {
#pragma unroll 1
    for (std::int64_t base = begin + slot; base < end; base += std::int64_t{kUnroll} * slots) {
      typename AccessT::Packed x[kUnroll], dy[kUnroll];
      A rstd[kUnroll];
#pragma unroll
      for (int u = 0; u < kUnroll; ++u) {
        const std::int64_t row = base + std::int64_t{u} * slots;
        const bool valid = row < end;
        x[u] = valid ? AccessT::load(p.x(row) + column) : AccessT::zero();
        dy[u] = valid ? AccessT::load(p.dy(row) + column) : AccessT::zero();
        rstd[u] = valid ? saved_rstd_of<F>(p, row) : A(0);
      }
#pragma unroll
      for (int u = 0; u < kUnroll; ++u) {
        A xs[W], dys[W];
        AccessT::widen(x[u], xs);
        AccessT::widen(dy[u], dys);
#pragma unroll
        for (int e = 0; e < W; ++e) {
          sums[e] =
              add_to_dgamma<F>(sums[e], xs[e], dys[e], rstd[u], base + std::int64_t{u} * slots, p);
        }
      }
    }
  }
  // Slots of a warp first, by shuffles; then the warps, through shared memory.
#pragma unroll
  for (int e = 0; e < W; ++e) {
#pragma unroll
    for (int bit = 0; bit < 5; ++bit) {
      if (bit >= columns.bits) sums[e] += __shfl_xor_sync(0xFFFFFFFFu, sums[e], 1 << bit);
    }
  }
  if (thread % 32 < columns.lanes()) {
#pragma unroll
    for (int e = 0; e < W; ++e) fold[thread / 32][place * W + e] = sums[e];
  }
  __syncthreads();
  static_assert(32 * W <= kSplitThreads, "a thread for every column");
  const std::int64_t target = first_access * W + thread;
  if (thread >= columns.lanes() * W || target >= width) return;
  A total = A(0);
#pragma unroll
  for (int w = 0; w < kSplitThreads / 32; ++w) total += fold[w][thread];
  if constexpr (F == Fault::dgamma_accumulated) {
    if (p.partials == nullptr) total += widen(out[target]);
  }
  narrow(total, out[target]);
}

/// One launch, two kinds of block that need nothing from each other: the first `row_blocks` compute
/// dx row by row, the rest dgamma by columns, both from x, dy and the saved rstd; the second reader
/// finds them in L2. No scratch and no second kernel while one chunk of rows is enough.
template <class T, class G, int W, Fault F>
__global__ void __launch_bounds__(kSplitThreads)
    backward_split_kernel(BackwardParams<T> p, const G* __restrict__ gamma, G* __restrict__ dgamma,
                          int row_blocks, LaneGroup columns, int chunks, std::int64_t chunk_rows) {
  allow_next_kernel();
  wait_for_previous_kernel();
  if (static_cast<int>(blockIdx.x) < row_blocks) {
    int turn = 0;
    for (std::int64_t row = blockIdx.x; row < p.rows; row += row_blocks, turn ^= 1)
      split_dx_row<T, G, W, F>(p, gamma, row, turn);
    return;
  }
  const unsigned index = blockIdx.x - static_cast<unsigned>(row_blocks);
  if (p.partials == nullptr) {
    split_dgamma_columns<T, G, W, F>(p, std::int64_t{index} << columns.bits, columns, 0, p.rows,
                                     p.cols, dgamma);
    return;
  }
  const unsigned chunk = index % static_cast<unsigned>(chunks);
  const std::int64_t first_access = std::int64_t{index / static_cast<unsigned>(chunks)}
                                    << columns.bits;
  const std::int64_t begin = chunk * chunk_rows, end = min(begin + chunk_rows, p.rows);
  split_dgamma_columns<T, G, W, F>(p, first_access, columns, begin, end, p.pitch,
                                   p.partials + chunk * p.pitch);
}

}  // namespace rmsnorm::kernels::cuda
