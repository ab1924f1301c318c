#pragma once

#include "kernels/cuda/tuned_ring.cuh"

// Backward by a ring, rows that start at any element. The copies take windows of whole 16-byte
// pieces around a row, rounded to 128 bytes where the neighbours' bytes may be read, and threads
// pick single elements out of shared memory: element thread + i * group_threads, so that
// neighbouring threads read neighbouring elements whatever the row's start. Where a window would
// leave the tensor, the first and last elements come one by one.

namespace rmsnorm::kernels::cuda {

/// Where a block's rows lie in the tensor and in the ring: dealt out one by one over the groups of
/// all blocks. A stage holds x of a row for every group, then dy.
struct RingLayout {
  int groups, group;
  std::uint32_t part_bytes;
  std::int64_t first_row, row_step;  ///< of a group; the step is from turn to turn

  __device__ RingLayout(const RingParams& ring, std::int64_t block, std::int64_t blocks, int group_)
      : groups(ring.groups),
        group(group_),
        part_bytes(ring.part_bytes),
        first_row(block + group_ * blocks),
        row_step(blocks * ring.groups) {}
  __device__ __forceinline__ unsigned slot(int stage) const {
    return static_cast<unsigned>(stage * groups + group) * 8;
  }
  __device__ __forceinline__ unsigned x(int stage) const {
    return part_bytes * static_cast<unsigned>(2 * groups * stage + group);
  }
  __device__ __forceinline__ unsigned dy(int stage) const {
    return part_bytes * static_cast<unsigned>(2 * groups * stage + groups + group);
  }
};

template <class T>
struct ElementWindows {
  const T *x_begin, *x_end, *dy_begin,
      *dy_end;  ///< all that may be read: first row's start to last row's end
};

/// The bytes around a row that come in one bulk copy, and where in its part of a stage they go.
struct Window {
  std::uintptr_t from;
  unsigned bytes, offset;
};

/// What may be read, in whole 16 bytes.
struct Readable {
  std::uintptr_t low, high;

  template <class T>
  __device__ __forceinline__ Readable(const T* begin, const T* end)
      : low((reinterpret_cast<std::uintptr_t>(begin) + 15) & ~std::uintptr_t{15}),
        high(reinterpret_cast<std::uintptr_t>(end) & ~std::uintptr_t{15}) {}
};

__device__ __forceinline__ Window window_around(std::uintptr_t first, std::uintptr_t last,
                                                const Readable& readable) {
  const std::uintptr_t base = first & ~std::uintptr_t{127};
  const std::uintptr_t from = max(base, readable.low),
                       until = min((last + 127) & ~std::uintptr_t{127}, readable.high);
  return {from, until > from ? static_cast<unsigned>(until - from) : 0,
          static_cast<unsigned>(from - base)};
}

/// The elements of a row, or of `cols` of its columns, that its window leaves out: at most 15 bytes
/// at the tensor's two ends.
template <class T>
__device__ __noinline__ void copy_edges(unsigned char* part, const T* row, std::int64_t cols,
                                        const Window& window) {
  const auto first = reinterpret_cast<std::uintptr_t>(row);
  const std::uintptr_t base = first & ~std::uintptr_t{127};
  for (int i = 0; i < 16; ++i) {
    const std::int64_t column = i < 8 ? i : cols - 16 + i;
    const std::uintptr_t address = first + column * sizeof(T);
    if (column < 0 || column >= cols) continue;
    if (address >= window.from && address < window.from + window.bytes) continue;
    *reinterpret_cast<T*>(part + (address - base)) = row[column];
  }
}

/// issue_rows for rows that start anywhere.
template <class T>
__device__ __forceinline__ void issue_windows(const BackwardParams<T>& p, const RingParams& ring,
                                              const ElementWindows<T>& windows, RingHeader& header,
                                              unsigned char* stages) {
  const int lane = static_cast<int>(threadIdx.x) % 32;
  const RingLayout layout(ring, blockIdx.x, gridDim.x, lane);
  const std::int64_t left = p.rows - std::int64_t{blockIdx.x};  // from the first row on
  const int turns = left > 0 ? static_cast<int>((left + layout.row_step - 1) / layout.row_step) : 0;
  const bool copies = lane < ring.groups && layout.first_row < p.rows;
  Pacer pacer(ring.pace, ring.groups);
  const std::int64_t start = copies ? layout.first_row : 0;
  RowCursor<T> x(p.x, start, layout.row_step, 0), dy(p.dy, start, layout.row_step, 0);
  const Readable x_bytes(windows.x_begin, windows.x_end),
      dy_bytes(windows.dy_begin, windows.dy_end);
  const std::uintptr_t row_bytes = p.cols * sizeof(T);
  const BarrierAddress full = shared_address(header.full), empty = shared_address(header.empty);
  const std::uint32_t to = shared_address(stages);
  std::int64_t row = layout.first_row;
  int stage = 0;
  unsigned parity = 1;  // of the round before: the first round finds every slot empty
#pragma unroll 1
  for (int turn = 0; turn < turns; ++turn, row += layout.row_step) {
    if (lane == 0) pacer.before_stage(turn);
    __syncwarp();
    if (copies && row < p.rows) {
      const unsigned slot = layout.slot(stage);
      const auto x_first = reinterpret_cast<std::uintptr_t>(x.get()),
                 dy_first = reinterpret_cast<std::uintptr_t>(dy.get());
      const Window x_window = window_around(x_first, x_first + row_bytes, x_bytes);
      const Window dy_window = window_around(dy_first, dy_first + row_bytes, dy_bytes);
      const auto covers = [&](const Window& window, std::uintptr_t first) {
        return window.from <= first && first + row_bytes <= window.from + window.bytes;
      };
      if (turn >= ring.stages) barrier_wait(empty + slot, parity);
      if (!covers(x_window, x_first))
        copy_edges(stages + layout.x(stage), x.get(), p.cols, x_window);
      if (!covers(dy_window, dy_first))
        copy_edges(stages + layout.dy(stage), dy.get(), p.cols, dy_window);
      barrier_arrive_expect(full + slot, x_window.bytes + dy_window.bytes);
      const auto copy = [&](unsigned to_part, const Window& window) {
        if (window.bytes == 0) return;
        bulk_copy(to + to_part + window.offset, reinterpret_cast<const void*>(window.from),
                  window.bytes, full + slot);
      };
      copy(layout.x(stage), x_window);
      copy(layout.dy(stage), dy_window);
      x.next(row + layout.row_step);
      dy.next(row + layout.row_step);
    }
    __syncwarp();
    if (++stage == ring.stages) {
      stage = 0;
      parity ^= 1;
    }
  }
  if (lane == 0) pacer.finish();
}

/// E elements of T in as few registers as they fit: two 16-bit ones share one.
template <class T, int E>
struct Elements {
  static constexpr int kPerWord = 4 / static_cast<int>(sizeof(T));
  std::uint32_t words[(E + kPerWord - 1) / kPerWord];

  __device__ __forceinline__ void set(int i, T value) {
    if constexpr (kPerWord == 1) {
      words[i] = __float_as_uint(widen(value));
    } else {
      const std::uint32_t bits = *reinterpret_cast<const std::uint16_t*>(&value);
      words[i / 2] = i % 2 == 0 ? bits : words[i / 2] | bits << 16;
    }
  }
  __device__ __forceinline__ float get(int i) const {
    if constexpr (kPerWord == 1) {
      return __uint_as_float(words[i]);
    } else {
      const auto bits = static_cast<std::uint16_t>(i % 2 == 0 ? words[i / 2] : words[i / 2] >> 16);
      return widen(*reinterpret_cast<const T*>(&bits));
    }
  }
  /// Keeps the packed form in the registers, as GammaPack::pin.
  __device__ __forceinline__ void pin() {
#pragma unroll
    for (std::uint32_t& word : words) asm volatile("" : "+r"(word));
  }
};

/// kThreads per row, known here so that the columns of a thread are constants and not 32 registers.
template <class T, class G, int E, int kThreads, Fault F>
__global__ void __launch_bounds__(512, 1)
    backward_ring_elements_kernel(BackwardParams<T> p, const G* __restrict__ gamma, RingParams ring,
                                  ElementWindows<T> windows) {
#if __CUDA_ARCH__ >= 900  // the policy never chooses it below
  extern __shared__ __align__(128) unsigned char shared[];
  RingHeader& header = *reinterpret_cast<RingHeader*>(shared);
  unsigned char* stages = ring_start(shared);
  const BarrierAddress full = shared_address(header.full), empty = shared_address(header.empty);
  const int consumers = ring.groups * kThreads;
  const int cols = static_cast<int>(p.cols);

  allow_next_kernel();
  prepare_ring<false>(header, ring.stages * ring.groups, 1, kThreads / 32);
  wait_for_previous_kernel();

  float sums[E][1] = {};
  const int group = static_cast<int>(threadIdx.x) / kThreads;
  const int thread = static_cast<int>(threadIdx.x) % kThreads;

  if (static_cast<int>(threadIdx.x) >= consumers) {
    issue_windows(p, ring, windows, header, stages);
    return;
  }
  Elements<G, E> scale;
#pragma unroll
  for (int i = 0; i < E; ++i) {
    const int column = thread + i * kThreads;
    scale.set(i, column >= cols     ? constant<G>(0.0f)
                 : gamma == nullptr ? constant<G>(1.0f)
                                    : gamma[column]);
  }
  const RingLayout layout(ring, blockIdx.x, gridDim.x, group);
  const std::int64_t group_step = layout.row_step;
  std::int64_t row = layout.first_row;
  float next_rstd = row < p.rows ? saved_rstd_of<F>(p, row) : 0.0f;
  int stage = 0;
  unsigned parity = 0, turn = 0;
#pragma unroll 1
  for (; row < p.rows; row += group_step, turn ^= 1) {
    const float rstd = next_rstd;
    if (row + group_step < p.rows) next_rstd = saved_rstd_of<F>(p, row + group_step);
    const unsigned slot = layout.slot(stage);
    const T* x_stage = reinterpret_cast<const T*>(
        stages + layout.x(stage) + (reinterpret_cast<std::uintptr_t>(p.x(row)) & 127));
    const T* dy_stage = reinterpret_cast<const T*>(
        stages + layout.dy(stage) + (reinterpret_cast<std::uintptr_t>(p.dy(row)) & 127));
    barrier_wait(full + slot, parity);

    Elements<T, E> x, dy;
    float dot = 0;
    scale.pin();
#pragma unroll
    for (int i = 0; i < E; ++i) {
      // A few loads at a time: the compiler would hoist them all and spill.
      if (i % 8 == 0) asm volatile("" ::: "memory");
      const int column = thread + i * kThreads;
      const T x_value = column < cols ? x_stage[column] : constant<T>(0.0f);
      const T dy_value = column < cols ? dy_stage[column] : constant<T>(0.0f);
      x.set(i, x_value);
      dy.set(i, dy_value);
      dot = add_to_dot<F>(dot, widen(x_value), widen(dy_value), scale.get(i), column, p);
    }
    dot = lanes_sum(dot);
    __syncwarp();  // all lanes have read the stage
    if (thread % 32 == 0) barrier_arrive(empty + slot);
    float* group_sums = header.group_sums[group][turn];
    if (thread % 32 == 0) group_sums[thread / 32] = dot;
    group_barrier(group, kThreads);
    const float projection =
        projection_factor<F>(rstd, sum_of_warps(group_sums) * rstd * p.inverse_cols);
    x.pin();
    dy.pin();
    scale.pin();
#pragma unroll
    for (int i = 0; i < E; ++i) {
      if (i % 8 == 0) asm volatile("" ::: "memory");
      const int column = thread + i * kThreads;
      if (column >= cols) continue;
      const float xv[1] = {x.get(i)}, dyv[1] = {dy.get(i)};
      const float factor[1] = {scale.get(i)};
      float out[1];
      backward_elements<F>(xv, dyv, factor, rstd, projection, out, sums[i], row, p);
      if (p.dx != nullptr) narrow(out[0], p.dx[row_offset<F>(row, p.cols) + column]);
    }
    if (++stage == ring.stages) {
      stage = 0;
      parity ^= 1;
    }
  }
  if (p.partials == nullptr) return;
  groups_barrier(consumers);  // nothing uses the ring's memory any more
  write_partial_row(sums, reinterpret_cast<float*>(stages), group, ring.groups, thread, kThreads,
                    p.partials + std::int64_t{blockIdx.x} * p.pitch, [&](int i) -> std::int64_t {
                      const int column = thread + i * kThreads;
                      return column < p.pitch ? column : -1;
                    });
#endif
}

}  // namespace rmsnorm::kernels::cuda
