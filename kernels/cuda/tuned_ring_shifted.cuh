#pragma once

#include "kernels/cuda/tuned_ring_windows.cuh"

// Backward of rows that start anywhere, in whole vectors: those of a frame that begins at the
// 16-byte boundary before a row of dx, `shift` elements before the row. The shift is the same for
// all rows of a group: with odd cols it repeats every 8 (or 4) rows, and blocks * groups is a
// multiple of that. gamma is moved into the frame once, dgamma's sums stay in it until the end. The
// two vectors at the ends of the frame also hold elements of the neighbour rows, which count as
// zeros and are not written.
//
// Rows of x and dy that start as far past a boundary as those of dx lie in the same frame. Others
// (kJoined) do not: each of their vectors is joined from two in shared memory.

namespace rmsnorm::kernels::cuda {

/// Zeros for the elements of a vector outside [begin, end).
template <class T>
__device__ __forceinline__ void keep_elements(uint4& vector, int begin, int end) {
  constexpr int kPerWord = kPack<T> / 4;
  std::uint32_t* const words[4] = {&vector.x, &vector.y, &vector.z, &vector.w};
#pragma unroll
  for (int i = 0; i < 4; ++i) {
    std::uint32_t kept = 0;
#pragma unroll
    for (int e = 0; e < kPerWord; ++e) {
      const int element = i * kPerWord + e;
      const std::uint32_t bits = kPerWord == 1 ? 0xFFFFFFFFu : 0xFFFFu << (16 * e);
      if (element >= begin && element < end) kept |= bits;
    }
    *words[i] &= kept;
  }
}

/// gamma of the columns [column, column + W), ones where there is none; zeros outside the row,
/// which meet zeros and must not be NaN.
template <class T, class G>
__device__ __forceinline__ GammaPack<T, G> load_gamma_at(const G* gamma, int column, int cols) {
  constexpr int W = kPack<T>;
  GammaPack<T, G> pack;
#pragma unroll
  for (int v = 0; v < GammaPack<T, G>::kVectors; ++v) {
    float values[kPack<G>];
#pragma unroll
    for (int e = 0; e < kPack<G>; ++e) {
      const int c = column + v * kPack<G> + e;
      values[e] = c < 0 || c >= cols ? 0.0f : gamma == nullptr ? 1.0f : widen(gamma[c]);
    }
    pack.packed[v] = narrow_pack<G>(values);  // exact: they were of type G
  }
  static_assert(W == kPack<G> * GammaPack<T, G>::kVectors);
  return pack;
}

/// Elements between the start of the frame of a row and the row. Where nobody wants dx, the frame
/// is that of rows which follow x's first one without gaps.
template <class T>
__device__ __forceinline__ int frame_shift(const BackwardParams<T>& p, std::int64_t row) {
  const T* const first = (p.dx != nullptr ? p.dx : p.x.data) + row * p.cols;
  return static_cast<int>(reinterpret_cast<std::uintptr_t>(first) / sizeof(T) % kPack<T>);
}

/// A row's frame in a part of a stage whose windows begin elsewhere.
template <class T>
class JoinedFrame {
 public:
  /// `first` lies in the part as far past 128 bytes as in memory, `before` elements behind the
  /// frame's start.
  __device__ __forceinline__ JoinedFrame(const unsigned char* part, const T* first, int before,
                                         int thread) {
    const int at = static_cast<int>(reinterpret_cast<std::uintptr_t>(first) & 127) -
                   before * static_cast<int>(sizeof(T));
    past_ = (at & 15) / static_cast<int>(sizeof(T));
    from_ = reinterpret_cast<const uint4*>(part + (at & ~15)) + thread;
    // Before the part is nothing of the row.
    first_ = at < 0 && thread == 0 ? 1 : 0;
  }
  /// Vectors j, j + 1, ... of the thread, `step` vectors apart, as far as it has() them.
  template <int kCount, class Has>
  __device__ __forceinline__ void load(uint4 (&to)[kCount], int j, int step, const Has& has) const {
    uint4 high[kCount];
#pragma unroll
    for (int i = 0; i < kCount; ++i) {
      if (has(j + i)) to[i] = from_[j + i == 0 ? first_ : (j + i) * step];
    }
    if (past_ == 0) return;
#pragma unroll
    for (int i = 0; i < kCount; ++i) {
      if (has(j + i)) high[i] = from_[(j + i) * step + 1];
    }
    if constexpr (kCount == 1) {
      to[0] = joined<T>(to[0], high[0], past_);
    } else {
      join<T>(to, high, past_);
    }
  }

 private:
  const uint4* from_;
  int past_, first_;
};

/// More than four vectors per thread would spill: longer rows go to clusters.
template <class T, class G, int V, bool kJoined, Fault F>
__global__ void __launch_bounds__(512, 1)
    backward_ring_shifted_kernel(BackwardParams<T> p, const G* __restrict__ gamma, RingParams ring,
                                 Extents<T> extents) {
#if __CUDA_ARCH__ >= 900  // the policy never chooses it below
  constexpr int W = kPack<T>;
  extern __shared__ __align__(128) unsigned char shared[];
  RingHeader& header = *reinterpret_cast<RingHeader*>(shared);
  unsigned char* stages = ring_start(shared);
  const BarrierAddress full = shared_address(header.full), empty = shared_address(header.empty);
  const int consumers = ring.groups * ring.group_threads;
  const int cols = static_cast<int>(p.cols);

  allow_next_kernel();
  prepare_ring<false>(header, ring.stages * ring.groups, 1, ring.group_threads / 32);
  wait_for_previous_kernel();

  const int group = static_cast<int>(threadIdx.x) / ring.group_threads;
  const int thread = static_cast<int>(threadIdx.x) % ring.group_threads;
  const RingLayout layout(ring, blockIdx.x, gridDim.x, group);
  std::int64_t row = layout.first_row;
  const int shift = frame_shift(p, row < p.rows ? row : 0);
  float sums[V][W] = {};
  if (static_cast<int>(threadIdx.x) >= consumers) {
    issue_windows(p, ring, extents, header, stages);
    return;
  }
  const auto column = [&](int j) { return (thread + j * ring.group_threads) * W - shift; };
  GammaPack<T, G> scale[V];
#pragma unroll
  for (int j = 0; j < V; ++j) scale[j] = load_gamma_at<T, G>(gamma, column(j), cols);
  // Where a row's frame lies in its part of a stage: as far past 128 bytes as in memory.
  const auto address_of = [&](const RowAddress<T>& rows) {
    return static_cast<unsigned>(reinterpret_cast<std::uintptr_t>(rows(row < p.rows ? row : 0)));
  };
  unsigned x_at = address_of(p.x), dy_at = address_of(p.dy);
  const unsigned x_step = static_cast<unsigned>(layout.row_step * p.x.stride * sizeof(T)),
                 dy_step = static_cast<unsigned>(layout.row_step * p.dy.stride * sizeof(T));
  float next_rstd = row < p.rows ? saved_rstd_of<F>(p, row) : 0.0f;
  int stage = 0;
  unsigned parity = 0, turn = 0;
#pragma unroll 1
  for (; row < p.rows; row += layout.row_step, turn ^= 1) {
    const float rstd = next_rstd;
    if (row + layout.row_step < p.rows) next_rstd = saved_rstd_of<F>(p, row + layout.row_step);
    const unsigned slot = layout.slot(stage);
    const unsigned char* const x_part = stages + layout.x(stage);
    const unsigned char* const dy_part = stages + layout.dy(stage);
    const uint4* x_frame = reinterpret_cast<const uint4*>(x_part + (x_at & 112)) + thread;
    const uint4* dy_frame = reinterpret_cast<const uint4*>(dy_part + (dy_at & 112)) + thread;
    x_at += x_step;
    dy_at += dy_step;
    barrier_wait(full + slot, parity);

    uint4 x[V], dy[V];
    float dot = 0;
#pragma unroll
    for (int j = 0; j < V; ++j) {
      if constexpr (kJoined) {
        constexpr int kAtOnce = V <= 3 ? V : 1;  // two of four spill
        const auto has = [&](int k) { return column(k) < cols; };
        if (j % kAtOnce == 0) {
          asm volatile("" ::: "memory");
          uint4 xs[kAtOnce], dys[kAtOnce];
          JoinedFrame<T>(x_part, p.x(row), shift, thread).load(xs, j, ring.group_threads, has);
          JoinedFrame<T>(dy_part, p.dy(row), shift, thread).load(dys, j, ring.group_threads, has);
#pragma unroll
          for (int i = 0; i < kAtOnce; ++i) {
            x[j + i] = xs[i];
            dy[j + i] = dys[i];
          }
        }
      }
      const int begin = column(j);
      if (begin >= cols) continue;
      if constexpr (!kJoined) {
        x[j] = x_frame[j * ring.group_threads];
        dy[j] = dy_frame[j * ring.group_threads];
      }
      if (begin < 0 || begin + W > cols) {
        keep_elements<T>(x[j], -begin, cols - begin);
        keep_elements<T>(dy[j], -begin, cols - begin);
      }
      add_vector<F>(x[j], dy[j], scale[j], rstd, dot, sums[j], row, begin, p);
    }
    dot = lanes_sum(dot);
    __syncwarp();  // all lanes have read the stage
    if (thread % 32 == 0) barrier_arrive(empty + slot);
    float* group_sums =
        header.group_sums[group][turn];  // two, so that one barrier per row is enough
    const bool one_warp = ring.group_threads == 32;
    if (!one_warp) {
      if (thread % 32 == 0) group_sums[thread / 32] = dot;
      group_barrier(group, ring.group_threads);
    }
    const float total = one_warp ? dot : sum_of_warps(group_sums);
    const float projection = projection_factor<F>(rstd, total * rstd * p.inverse_cols);
    T* dx = p.dx == nullptr ? nullptr : p.dx + row_offset<F>(row, p.cols);
#pragma unroll
    for (int j = 0; j < V; ++j) {
      const int begin = column(j);
      if (begin >= cols) continue;
      pin(x[j]);
      pin(dy[j]);
      if (dx == nullptr) continue;
      const uint4 packed = dx_vector<F, T>(x[j], dy[j], scale[j], rstd, projection);
      if (begin >= 0 && begin + W <= cols) {
        *reinterpret_cast<uint4*>(dx + begin) = packed;
      } else {
        store_elements_of<T>(packed, dx + begin, -begin, cols - begin);
      }
    }
    if (++stage == ring.stages) {
      stage = 0;
      parity ^= 1;
    }
  }
  if (p.partials == nullptr) return;
  groups_barrier(consumers);  // nothing uses the ring's memory any more
  // Groups may have other shifts, so the sums meet in the row's own columns.
  float* fold = reinterpret_cast<float*>(stages);
#pragma unroll
  for (int j = 0; j < V; ++j) {
#pragma unroll
    for (int e = 0; e < W; ++e) {
      const int c = column(j) + e;
      if (c >= 0 && c < cols) fold[group * p.pitch + c] = sums[j][e];
    }
  }
  groups_barrier(consumers);
  float* partial = p.partials + std::int64_t{blockIdx.x} * p.pitch;
  for (int c = static_cast<int>(threadIdx.x); c < static_cast<int>(p.pitch); c += consumers) {
    float total = 0;
    for (int g = 0; c < cols && g < ring.groups; ++g) total += fold[g * p.pitch + c];
    partial[c] = total;
  }
#endif
}

}  // namespace rmsnorm::kernels::cuda
