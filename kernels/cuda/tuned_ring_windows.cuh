#pragma once

#include "kernels/cuda/tuned_backward_steps.cuh"
#include "kernels/cuda/tuned_ring.cuh"

// A ring for rows that start at any element. The copies take windows of whole 16-byte pieces around
// a row, rounded to 128 bytes where the neighbours' bytes may be read. Where a window would leave
// the tensor, the first and last elements come one by one.

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

/// All elements of both tensors.
template <class T>
struct Extents {
  Extent<T> x, dy;
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
  __device__ __forceinline__ explicit Readable(const Extent<T>& extent)
      : low((reinterpret_cast<std::uintptr_t>(extent.begin) + 15) & ~std::uintptr_t{15}),
        high(reinterpret_cast<std::uintptr_t>(extent.end) & ~std::uintptr_t{15}) {}
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
                                              const Extents<T>& extents, RingHeader& header,
                                              unsigned char* stages) {
  const int lane = static_cast<int>(threadIdx.x) % 32;
  const RingLayout layout(ring, blockIdx.x, gridDim.x, lane);
  const std::int64_t left = p.rows - std::int64_t{blockIdx.x};  // from the first row on
  const int turns = left > 0 ? static_cast<int>((left + layout.row_step - 1) / layout.row_step) : 0;
  const bool copies = lane < ring.groups && layout.first_row < p.rows;
  Pacer pacer(ring.pace, ring.groups);
  const std::int64_t start = copies ? layout.first_row : 0;
  RowCursor<T> x(p.x, start, layout.row_step, 0), dy(p.dy, start, layout.row_step, 0);
  const Readable x_bytes(extents.x), dy_bytes(extents.dy);
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
                  window.bytes, full + slot, normal_priority());
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

}  // namespace rmsnorm::kernels::cuda
