#pragma once

#include "kernels/cuda/tuned_ring_shifted.cuh"

// Backward of rows that start anywhere and are too long for one block: backward_ring_cluster_kernel
// in the frame of backward_ring_shifted_kernel. The blocks of a cluster share out the vectors of a
// row's frame.
//
// Steps of a multiple of the shift's period, as one block has them, would leave a third to half of
// the clusters idle where few are resident. So rows are ordered by their place in the period, all
// rows of one shift before those of the next, and a cluster takes an equal part of that sequence:
// rows of one shift, of two, rarely of three. Where the shift changes, gamma is moved again and
// dgamma's sums go to a further partial row.

namespace rmsnorm::kernels::cuda {

/// Neighbours in a cluster's sequence of rows that have one shift: rows first, first + period, ...
struct ShiftedRun {
  std::int64_t first_row, rows;
  std::int64_t partial_row;  ///< where its sums of dgamma go
  bool leaves_gap;           ///< the partial row before is nobody's
};

/// Walks over the runs of a cluster. Each step in the sequence of (cluster, place in the period)
/// raises one of the two, so that their sum names a partial row; a step that raises both leaves one
/// out.
class ShiftedRuns {
 public:
  __device__ ShiftedRuns(std::int64_t rows, int period_bits, unsigned cluster, unsigned clusters)
      : rows_(rows),
        at_(rows * cluster / clusters),
        end_(rows * (cluster + 1) / clusters),
        cluster_(cluster),
        period_bits_(period_bits) {}

  __device__ __forceinline__ bool next(ShiftedRun& run) {
    while (at_ < end_) {
      const std::int64_t count = (rows_ - place_ + (1 << period_bits_) - 1) >> period_bits_;
      const std::int64_t from = at_ - place_begin_;
      if (from < count) {
        run.rows = min(end_ - at_, count - from);
        run.first_row = place_ + (from << period_bits_);
        run.partial_row = cluster_ + place_;
        run.leaves_gap = from == 0 && place_ > 0 && is_first_;
        is_first_ = false;
        at_ += run.rows;
        return true;
      }
      place_begin_ += count;
      ++place_;
    }
    return false;
  }

 private:
  std::int64_t rows_, at_, end_;
  std::int64_t place_begin_ = 0;  // of the sequence, where the rows of place_ start
  unsigned cluster_;
  int period_bits_, place_ = 0;
  bool is_first_ = true;
};

/// A block's slice of the frame of a row.
template <class T>
struct FrameSlice {
  std::int64_t first_vector, slice;

  /// Vectors of the slice of a row whose frame begins `shift` elements before it.
  __device__ __forceinline__ int vectors(std::int64_t cols, int shift) const {
    const std::int64_t frame = (cols + shift + kPack<T> - 1) / kPack<T>;
    return static_cast<int>(max(std::int64_t{0}, min(slice, frame - first_vector)));
  }
};

/// issue_windows for slices: the elements of a row that lie in the block's slice.
template <class T>
__device__ __forceinline__ void issue_slices(const BackwardParams<T>& p, const RingParams& ring,
                                             const Extents<T>& extents, int period_bits,
                                             const FrameSlice<T>& slice, RingHeader& header,
                                             unsigned char* stages) {
  const Readable x_bytes(extents.x), dy_bytes(extents.dy);
  const BarrierAddress full = shared_address(header.full), empty = shared_address(header.empty);
  const std::uint32_t to = shared_address(stages);
  const unsigned clusters = gridDim.x / ring.cluster;
  Pacer pacer(ring.pace, 1);
  ShiftedRuns runs(p.rows, period_bits, blockIdx.x / ring.cluster, clusters);
  ShiftedRun run;
  int turn = 0, stage = 0;
  unsigned parity = 1;  // of the round before: the first round finds every slot empty
#pragma unroll 1
  while (runs.next(run)) {
    const std::int64_t step = std::int64_t{1} << period_bits;
    const int shift = frame_shift(p, run.first_row);
    const std::int64_t begin = max(std::int64_t{0}, slice.first_vector * kPack<T> - shift);
    const std::int64_t end =
        min(p.cols, (slice.first_vector + slice.vectors(p.cols, shift)) * kPack<T> - shift);
    const std::int64_t bytes = max(std::int64_t{0}, end - begin) * sizeof(T);
    RowCursor<T> x(p.x, run.first_row, step, begin), dy(p.dy, run.first_row, step, begin);
#pragma unroll 1
    for (std::int64_t i = 0; i < run.rows; ++i, ++turn) {
      pacer.before_stage(turn);
      const unsigned slot = static_cast<unsigned>(stage) * 8;
      const auto x_first = reinterpret_cast<std::uintptr_t>(x.get()),
                 dy_first = reinterpret_cast<std::uintptr_t>(dy.get());
      Window x_window{x_first, 0, 0}, dy_window{dy_first, 0, 0};
      if (bytes > 0) {
        x_window = window_around(x_first, x_first + bytes, x_bytes);
        dy_window = window_around(dy_first, dy_first + bytes, dy_bytes);
      }
      const unsigned x_part = 2 * ring.part_bytes * static_cast<unsigned>(stage),
                     dy_part = x_part + ring.part_bytes;
      if (turn >= ring.stages) barrier_wait(empty + slot, parity);
      const auto fill_edges = [&](unsigned part, const T* first, const Window& window) {
        const auto address = reinterpret_cast<std::uintptr_t>(first);
        if (window.from <= address && address + bytes <= window.from + window.bytes) return;
        copy_edges(stages + part, first, bytes / std::int64_t{sizeof(T)}, window);
      };
      fill_edges(x_part, x.get(), x_window);
      fill_edges(dy_part, dy.get(), dy_window);
      barrier_arrive_expect(full + slot, x_window.bytes + dy_window.bytes);
      const auto copy = [&](unsigned part, const Window& window) {
        if (window.bytes == 0) return;
        bulk_copy(to + part + window.offset, reinterpret_cast<const void*>(window.from),
                  window.bytes, full + slot, normal_priority());
      };
      copy(x_part, x_window);
      copy(dy_part, dy_window);
      x.next(run.first_row + (i + 1) * step);
      dy.next(run.first_row + (i + 1) * step);
      if (++stage == ring.stages) {
        stage = 0;
        parity ^= 1;
      }
    }
  }
  pacer.finish();
}

/// sum_of_cluster without its loop, which the compiler unrolls far beyond the two turns that there
/// are at most.
__device__ __forceinline__ float sum_of_slices(const float* sums, int cluster) {
  const int lane = static_cast<int>(threadIdx.x) % 32;
  float total = 0;
#pragma unroll
  for (int i = 0; i < kRingMaxCluster * kMaxWarps / 4; i += 32) {
    if (lane + i >= cluster * kMaxWarps / 4) continue;
    const float4 four = reinterpret_cast<const float4*>(sums)[lane + i];
    total += (four.x + four.y) + (four.z + four.w);
  }
  return lanes_sum(total);
}

/// A row spread over the blocks of a cluster as in backward_ring_cluster_kernel, in the frame of
/// the row as in backward_ring_shifted_kernel.
template <class T, class G, int V, bool kJoined, Fault F>
__global__ void __launch_bounds__(kShiftedThreads + 32, 1)
    backward_ring_shifted_cluster_kernel(BackwardParams<T> p, const G* __restrict__ gamma,
                                         RingParams ring, Extents<T> extents, int period_bits) {
#if __CUDA_ARCH__ >= 900  // the policy never chooses it below
  constexpr int W = kPack<T>, kThreads = kShiftedThreads, kWarps = kThreads / 32;
  // A block may be two turns ahead of another, which may be reading the sums of the turn before.
  static_assert(kExchanges >= 4);
  extern __shared__ __align__(128) unsigned char shared[];
  RingHeader& header = *reinterpret_cast<RingHeader*>(shared);
  unsigned char* stages = ring_start(shared);
  float* fold = reinterpret_cast<float*>(stages + std::size_t{2} * ring.part_bytes * ring.stages);
  const BarrierAddress full = shared_address(header.full), empty = shared_address(header.empty);
  const BarrierAddress exchanged = shared_address(header.exchanged);
  const unsigned rank = cluster_rank();
  const FrameSlice<T> slice{rank * ring.slice, ring.slice};
  const int cols = static_cast<int>(p.cols);

  allow_next_kernel();
  prepare_ring<true>(header, ring.stages, 1, kWarps);
  wait_for_previous_kernel();

  const int thread = static_cast<int>(threadIdx.x);
  if (thread >= kThreads) {
    if (thread == kThreads) issue_slices(p, ring, extents, period_bits, slice, header, stages);
    __syncwarp();
  } else {
    const int lane = thread % 32;
    int stage = 0, write_stage = 0;
    unsigned parity = 0, turn = 0, write_turn = 0;
    ShiftedRuns runs(p.rows, period_bits, blockIdx.x / ring.cluster, gridDim.x / ring.cluster);
    ShiftedRun run;
#pragma unroll 1
    while (runs.next(run)) {
      const int shift = frame_shift(p, run.first_row);
      const int vectors = slice.vectors(p.cols, shift);
      const int first_column = static_cast<int>(slice.first_vector) * W - shift;
      const auto has = [&](int j) { return thread + j * kThreads < vectors; };
      const auto column = [&](int j) { return first_column + (thread + j * kThreads) * W; };
      GammaPack<T, G> scale[V];
      float sums[V][W] = {};
#pragma unroll
      for (int j = 0; j < V; ++j) {
        if (has(j)) scale[j] = load_gamma_at<T, G>(gamma, column(j), cols);
      }
      // Where the slice lies in its part of a stage: as far past 128 bytes as in memory.
      const std::int64_t step = std::int64_t{1} << period_bits;
      const auto start_of = [&](const T* at) {
        return static_cast<unsigned>(reinterpret_cast<std::uintptr_t>(at)) +
               static_cast<unsigned>(first_column) * static_cast<unsigned>(sizeof(T));
      };
      unsigned x_at = start_of(p.x(run.first_row)), dy_at = start_of(p.dy(run.first_row));
      const unsigned x_step = static_cast<unsigned>(step * p.x.stride * sizeof(T)),
                     dy_step = static_cast<unsigned>(step * p.dy.stride * sizeof(T));
      // Windows begin at the row, or at the slice where it begins behind that.
      const int window_column = max(first_column, 0);
      const auto joined_frame = [&](const unsigned char* part, const T* row_start) {
        return JoinedFrame<T>(part, row_start + window_column, window_column - first_column,
                              thread);
      };
      float rstd = 0, next_rstd = saved_rstd_of<F>(p, run.first_row);
      std::int64_t row = run.first_row;  // of the dot
      const std::int64_t end = run.first_row + run.rows * step;
      // One turn more than rows: the last only writes. The ring goes on filling meanwhile.
#pragma unroll 1
      for (; row < end + step; row += step, x_at += x_step, dy_at += dy_step) {
        const float write_rstd = rstd;
        if (row < end) {
          rstd = next_rstd;
          if (row + step < end) next_rstd = saved_rstd_of<F>(p, row + step);
          const unsigned char* part = stages + std::size_t{2} * ring.part_bytes * stage;
          const uint4* x_frame = reinterpret_cast<const uint4*>(part + (x_at & 112)) + thread;
          const uint4* dy_frame =
              reinterpret_cast<const uint4*>(part + ring.part_bytes + (dy_at & 112)) + thread;
          barrier_wait(full + static_cast<unsigned>(stage) * 8, parity);
          // Loads first, as many as fit the registers: the branches below would make each wait for
          // the sum before.
          constexpr int kAtOnce = V <= 3 ? V : V == 4 ? 2 : 1;
          uint4 x[V], dy[V];
          float dot = 0;
#pragma unroll
          for (int j = 0; j < V; ++j) {
            if (j % kAtOnce == 0) {
              asm volatile("" ::: "memory");
#pragma unroll
              for (int k = j; k < V && k < j + kAtOnce; ++k) {
                x[k] = dy[k] = {0, 0, 0, 0};
                if constexpr (kJoined) continue;
                if (has(k)) x[k] = x_frame[k * kThreads];
                if (has(k)) dy[k] = dy_frame[k * kThreads];
              }
              if constexpr (kJoined) {
                uint4 xs[kAtOnce], dys[kAtOnce];
                joined_frame(part, p.x(row)).load(xs, j, kThreads, has);
                joined_frame(part + ring.part_bytes, p.dy(row)).load(dys, j, kThreads, has);
#pragma unroll
                for (int i = 0; i < kAtOnce; ++i) {
                  x[j + i] = xs[i];
                  dy[j + i] = dys[i];
                }
              }
            }
            if (!has(j)) continue;
            const int begin = column(j);
            if (begin < 0 || begin + W > cols) {
              keep_elements<T>(x[j], -begin, cols - begin);
              keep_elements<T>(dy[j], -begin, cols - begin);
            }
            add_vector<F>(x[j], dy[j], scale[j], rstd, dot, sums[j], row, begin, p);
          }
          dot = lanes_sum(dot);
          send_to_cluster(dot, ring, kWarps, header, exchanged, turn, rank, thread, lane);
          ++turn;
          if (++stage == ring.stages) {
            stage = 0;
            parity ^= 1;
          }
        }
        const std::int64_t write_row = row - step;
        if (write_row < run.first_row) continue;
        const unsigned slot = write_turn % kExchanges;
        barrier_wait_cluster(exchanged + slot * 8, (write_turn / kExchanges) & 1);
        const float total = sum_of_slices(&header.cluster_sums[slot][0][0], ring.cluster);
        const float projection =
            projection_factor<F>(write_rstd, total * write_rstd * p.inverse_cols);
        const unsigned char* part = stages + std::size_t{2} * ring.part_bytes * write_stage;
        const uint4* x_frame =
            reinterpret_cast<const uint4*>(part + ((x_at - x_step) & 112)) + thread;
        const uint4* dy_frame =
            reinterpret_cast<const uint4*>(part + ring.part_bytes + ((dy_at - dy_step) & 112)) +
            thread;
        T* dx = p.dx == nullptr ? nullptr : p.dx + row_offset<F>(write_row, p.cols);
#pragma unroll
        for (int j = 0; j < V; ++j) {
          if (!has(j) || dx == nullptr) continue;
          // The neighbours' elements at the row's ends may stay: dx does not keep them.
          asm volatile("" ::: "memory");
          uint4 x[1], dy[1];
          if constexpr (kJoined) {
            joined_frame(part, p.x(write_row)).load(x, j, kThreads, has);
            joined_frame(part + ring.part_bytes, p.dy(write_row)).load(dy, j, kThreads, has);
          } else {
            x[0] = x_frame[j * kThreads];
            dy[0] = dy_frame[j * kThreads];
          }
          const uint4 packed = dx_vector<F, T>(x[0], dy[0], scale[j], write_rstd, projection);
          const int begin = column(j);
          if (begin >= 0 && begin + W <= cols) {
            *reinterpret_cast<uint4*>(dx + begin) = packed;
          } else {
            store_elements_of<T>(packed, dx + begin, -begin, cols - begin);
          }
        }
        __syncwarp();
        if (lane == 0) barrier_arrive(empty + static_cast<unsigned>(write_stage) * 8);
        if (++write_stage == ring.stages) write_stage = 0;
        ++write_turn;
      }
      if (p.partials == nullptr) continue;
      // By way of shared memory, so that neighbouring threads write neighbouring columns wherever
      // the frame begins.
      float* partial = p.partials + run.partial_row * p.pitch;
#pragma unroll
      for (int j = 0; j < V; ++j) {
        group_barrier(0, kThreads);
        store_floats(fold + thread * W, sums[j]);
        group_barrier(0, kThreads);
        const int from = first_column + j * kThreads * W;
        const int until = min(cols, first_column + vectors * W) - from;
#pragma unroll 1
        for (int i = thread; i < min(until, kThreads * W); i += kThreads) {
          if (from + i < 0) continue;
          partial[from + i] = fold[i];
          if (run.leaves_gap) partial[from + i - p.pitch] = 0;
        }
      }
      // What fills up the pitch is read as well.
      if (rank == 0 && thread < static_cast<int>(p.pitch) - cols) {
        partial[cols + thread] = 0;
        if (run.leaves_gap) partial[cols + thread - p.pitch] = 0;
      }
    }
  }
  cluster_barrier();  // no block leaves while another may still store into its memory
#endif
}

}  // namespace rmsnorm::kernels::cuda
