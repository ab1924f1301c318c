#pragma once

#include "kernels/cuda/tuned_forward_steps.cuh"
#include "kernels/cuda/tuned_frame.cuh"

// Forward of short rows that start anywhere, a vector long or longer. Dense ones go by tiles of
// whole periods, as in tuned_frame.cuh; the others are read where they lie, some lanes of a warp
// per row. Both sum up a row by its pieces, which are what it has of each 16 bytes of memory, and
// both in the same order: the bits of a row depend on how far past a 16-byte boundary it starts,
// but not on what is around it.

namespace rmsnorm::kernels::cuda {

constexpr int kSlotsAtOnce = 4;  // that a lane reads before it adds them up

/// The tiles of a tensor: `whole` of V * `part_rows` rows each, and perhaps one of fewer.
struct FrameTiles {
  int part_rows, whole, all;
};

/// A block per tile of V parts, each of whole periods: a thread has the same vector of all parts,
/// so that what it knows about one holds for the others too. `row_lanes` lanes for the sum of one
/// row of every part. Persistent: the factors of gamma are loaded once. Shared memory: the stages
/// of the threads' rings; rstd of each row and of none behind; the sums of the rows' pieces, that
/// of vector v for row r in slot v + r.
template <class T, class G, Fault F>
__global__ void __launch_bounds__(kForwardFrameShape.threads, kForwardFrameShape.blocks)
    forward_frame_kernel(ForwardParams<T> p, const G* __restrict__ gamma, FrameTiles tiles,
                         LaneGroup row_lanes) {
  constexpr int W = kPack<T>, V = kForwardFrameVectors, S = kForwardFrameShape.stages;
  extern __shared__ __align__(128) unsigned char shared[];
  allow_next_kernel();
  const int thread = static_cast<int>(threadIdx.x), threads = static_cast<int>(blockDim.x);
  const int cols = static_cast<int>(p.cols), part_rows = tiles.part_rows;
  const int part_vectors = part_rows * cols / W, part_slots = part_vectors + part_rows;
  uint4* const ring = reinterpret_cast<uint4*>(shared);
  float* const rstds = reinterpret_cast<float*>(ring + S * V * threads);
  float* const slots = rstds + V * part_rows + 1;
  const bool has = thread < part_vectors;
  const int step = static_cast<int>(gridDim.x);
  int tile = static_cast<int>(blockIdx.x), next_tile = tile;
  const auto first_row = [&](int of_tile) { return std::int64_t{of_tile} * (V * part_rows); };
  // How many elements a tile that is not whole has of this thread's vector in part j.
  const auto elements_inside = [&](int of_tile, int j) {
    const int elements = static_cast<int>(p.rows - first_row(of_tile)) * cols;
    return min(max(elements - (thread + j * part_vectors) * W, 0), W);
  };
  // Where this thread's first vector lies in the tile that is copied next, and in y in the one at
  // work.
  const T* next = p.x.data + first_row(tile) * p.cols + thread * W;
  T* y = p.y + row_offset<F>(first_row(tile), p.cols) + thread * W;
  // `at`: this thread's first place in a stage. What lies behind the tensor's end keeps what it
  // was: nothing is made of it.
  const auto copy_next = [&](uint4* at) {
    if (next_tile < tiles.whole) {
      if (has) {
#pragma unroll
        for (int j = 0; j < V; ++j)
          copy_vector(at + j * threads, reinterpret_cast<const uint4*>(next) + j * part_vectors);
      }
    } else if (next_tile < tiles.all && has) {
#pragma unroll 1
      for (int j = 0; j < V; ++j) {
        const int inside = elements_inside(next_tile, j);
        if (inside == 0) break;
        copy_first(at + j * threads, next + j * part_vectors * W,
                   inside * static_cast<int>(sizeof(T)));
      }
    }
    end_copies();
    next_tile += step;
    next += first_row(step) * p.cols;
  };
  wait_for_previous_kernel();
#pragma unroll 1
  for (int s = 0; s < S; ++s) copy_next(ring + s * V * threads + thread);

  FrameVector of;
  of.row = thread * W / cols;
  of.split = min(W, (of.row + 1) * cols - thread * W);
  of.pin();
  const int column = thread * W - of.row * cols;
  GammaPack<T, G> scale;
  if (has) load_gamma_around(scale, gamma, column, cols);
  // The row of each part that this thread helps to sum, and its slots.
  const int lane = row_lanes.lane(thread), sum_row = row_lanes.group(thread);
  const bool sums_row = sum_row < part_rows;
  const int slot_begin = sum_row * cols / W + sum_row + lane;
  const int slot_end = sums_row ? ((sum_row + 1) * cols - 1) / W + sum_row + 1 : slot_begin;
  // Whole warps take part for the shuffles.
  const bool warp_sums = row_lanes.group(thread / 32 * 32) < part_rows;
  int stage = 0;
#pragma unroll 1
  for (; tile < tiles.all; tile += step) {
    uint4* const at = ring + stage + thread;
    float x[V][W];
    wait_for_copies<S - 1>();
    if (has) {
#pragma unroll
      for (int j = 0; j < V; ++j) widen_pack<T>(at[j * threads], x[j]);
      float lead[V] = {}, trail[V] = {};
#pragma unroll
      for (int e = 0; e < W; ++e) {
        // Not a product with zero: a row's NaN or infinity must not reach its neighbour.
        if (of.leads(e)) {
#pragma unroll
          for (int j = 0; j < V; ++j)
            lead[j] = add_fused_square<F>(lead[j], x[j][e], column + e, p);
        } else {
#pragma unroll
          for (int j = 0; j < V; ++j)
            trail[j] = add_fused_square<F>(trail[j], x[j][e], e - of.split, p);
        }
      }
      float* const slot = slots + thread + of.row;
#pragma unroll
      for (int j = 0; j < V; ++j) {
        slot[j * part_slots] = lead[j];
        if (of.split < W) slot[j * part_slots + 1] = trail[j];
      }
    }
    copy_next(at);
    __syncthreads();
    if (warp_sums) {
      float sum[V] = {};
#pragma unroll 1
      for (int begin = slot_begin; begin < slot_end; begin += kSlotsAtOnce * row_lanes.lanes()) {
        float pieces[kSlotsAtOnce][V];
#pragma unroll
        for (int i = 0; i < kSlotsAtOnce; ++i) {
          const int slot = begin + i * row_lanes.lanes();
#pragma unroll
          for (int j = 0; j < V; ++j)
            pieces[i][j] = slot < slot_end ? slots[slot + j * part_slots] : 0.0f;
        }
#pragma unroll
        for (int i = 0; i < kSlotsAtOnce; ++i) {
#pragma unroll
          for (int j = 0; j < V; ++j) sum[j] += pieces[i][j];
        }
      }
#pragma unroll
      for (int j = 0; j < V; ++j) {
        const float total = row_lanes.bits == 0 ? sum[j] : lanes_sum(sum[j], row_lanes);
        const float rstd = inverse_rms<F>(total, p);
        if (lane != 0 || !sums_row) continue;
        rstds[j * part_rows + sum_row] = rstd;
        const std::int64_t row = first_row(tile) + j * part_rows + sum_row;
        if (p.rstd != nullptr && row < p.rows) keep_rstd<F>(p, row, rstd);
      }
    }
    __syncthreads();
    if (has) {
      scale.pin();
      float factors[W];
      scale.widen(factors);
#pragma unroll
      for (int j = 0; j < V; ++j) {
        // Behind the last row of the tile there is a place, but nothing is made of what is in it.
        const float* const rstd = rstds + j * part_rows + of.row;
        const float lead = rstd[0], trail = rstd[1];
        const std::int64_t row = first_row(tile) + j * part_rows + of.row;
        float out[W];
#pragma unroll
        for (int e = 0; e < W; ++e) {
          out[e] = of.leads(e) ? y_of<F>(x[j][e], factors[e], lead, row, column + e, p)
                               : y_of<F>(x[j][e], factors[e], trail, row + 1, e - of.split, p);
        }
        T* const to = y + j * part_vectors * W;
        if (tile < tiles.whole && F != Fault::tail_not_stored) {
          *reinterpret_cast<uint4*>(to) = narrow_pack<T>(out);
          continue;
        }
        const int inside = tile < tiles.whole ? W : elements_inside(tile, j);
#pragma unroll
        for (int e = 0; e < W; ++e) {
          if (e >= inside) continue;
          if constexpr (F == Fault::tail_not_stored) {
            if ((of.leads(e) ? column + e : e - of.split) >= stored_cols<F>(p.cols)) continue;
          }
          narrow(out[e], to[e]);
        }
      }
    }
    y += row_offset<F>(first_row(step), p.cols);
    stage += V * threads;
    if (stage == S * V * threads) stage = 0;
  }
}

constexpr int kFrameRowsThreads = 256;

/// Rows that are not dense, or not at a 16-byte boundary together, where they lie. `piece_lanes`
/// lanes per row, a piece each, and where a warp is one short, one of them two; `row_lanes`: the
/// lanes that sum up a row in forward_frame_kernel.
template <class T, class G, Fault F>
__global__ void __launch_bounds__(kFrameRowsThreads)
    forward_frame_rows_kernel(ForwardParams<T> p, const G* __restrict__ gamma,
                              LaneGroup piece_lanes, LaneGroup row_lanes) {
  constexpr int W = kPack<T>, kPieces = 2;
  allow_next_kernel();
  const int thread = static_cast<int>(threadIdx.x), lane = piece_lanes.lane(thread);
  const int cols = static_cast<int>(p.cols);
  const std::int64_t row =
      std::int64_t{blockIdx.x} * piece_lanes.group(kFrameRowsThreads) + piece_lanes.group(thread);
  const bool has_row = row < p.rows;
  wait_for_previous_kernel();
  const T* const x = p.x(has_row ? row : 0);
  const int past = static_cast<int>(reinterpret_cast<std::uintptr_t>(x) / sizeof(T) % W);
  // Of the first element of a piece; the first piece begins before its row.
  const auto column_of = [&](int j) { return (lane + j * piece_lanes.lanes()) * W - past; };
  const auto has_piece = [&](int j) { return has_row && column_of(j) < cols; };
  const auto is_whole = [&](int column) { return column >= 0 && column + W <= cols; };
  float values[kPieces][W], squares[kPieces] = {};
  GammaPack<T, G> scale[kPieces];
#pragma unroll
  for (int j = 0; j < kPieces; ++j) {
    if (!has_piece(j)) continue;
    const int column = column_of(j);
    if (is_whole(column)) {
      widen_pack<T>(*reinterpret_cast<const uint4*>(x + column), values[j]);
    } else {
#pragma unroll
      for (int e = 0; e < W; ++e)
        values[j][e] = column + e >= 0 && column + e < cols ? widen(x[column + e]) : 0.0f;
    }
    load_gamma_around(scale[j], gamma, column < 0 ? column + cols : column, cols);
  }
#pragma unroll
  for (int j = 0; j < kPieces; ++j) {
    if (!has_piece(j)) continue;
#pragma unroll
    for (int e = 0; e < W; ++e) {
      // Zeros outside the row: they leave the sum's bits as they are.
      squares[j] = add_fused_square<F>(squares[j], values[j][e], column_of(j) + e, p);
    }
  }
  // Each lane adds up what lane `row_lanes.lane(lane)` of a tile's row does; the pieces that a row
  // does not have are zeros.
  float sum = 0;
  const int source = thread % 32 / piece_lanes.lanes() * piece_lanes.lanes() + row_lanes.lane(lane);
#pragma unroll
  for (int j = 0; j < kPieces; ++j) {
    if (j * piece_lanes.lanes() * W >= cols + W - 1) continue;
    for (int ahead = 0; ahead < piece_lanes.lanes(); ahead += row_lanes.lanes())
      sum += __shfl_sync(0xFFFFFFFFu, squares[j], source + ahead);
  }
  const float rstd = inverse_rms<F>(lanes_sum(sum, row_lanes), p);
  if (!has_row) return;
  T* const y = p.y + row_offset<F>(row, p.cols);
#pragma unroll
  for (int j = 0; j < kPieces; ++j) {
    if (!has_piece(j)) continue;
    const int column = column_of(j);
    float factors[W];
    scale[j].widen(factors);
    if (is_whole(column) && reinterpret_cast<std::uintptr_t>(y + column) % 16 == 0) {
      store_elements<F>(values[j], factors, rstd, y + column, row, column, p);
      continue;
    }
#pragma unroll
    for (int e = 0; e < W; ++e) {
      const int c = column + e;
      if (c >= 0 && c < cols)
        store_elements<F>({values[j][e]}, {factors[e]}, rstd, y + c, row, c, p);
    }
  }
  if (lane == 0 && p.rstd != nullptr) keep_rstd<F>(p, row, rstd);
}

}  // namespace rmsnorm::kernels::cuda
