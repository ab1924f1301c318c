#pragma once

#include "kernels/cuda/hopper.cuh"
#include "kernels/cuda/policy.hpp"
#include "kernels/cuda/tuned_backward.cuh"

// Backward of rows of a few kilobytes and more, sm_90 and later: three passes over memory (read x,
// read dy, write dx) and nothing else that grows with the rows.
//
// A block stays on its SM and walks over rows. One warp only issues bulk copies of x and dy into a
// ring of stages in shared memory; groups of warps take the rows in turn: dot product, one barrier,
// dx; their share of dgamma stays in float32 registers until the end, when the block writes one
// partial row.
//
// Two things decide the speed. Bytes in flight: 64 KB and more per SM, by the ring. And pace: SMs
// near the memory run ahead, finish early and leave the rest to the far half, 18 to 24 of 107 us at
// 16384 x 4096; so the issuing warp waits while its block is `pace` rows ahead of the mean of all.
// Results do not depend on it.

namespace rmsnorm::kernels::cuda {

static __device__ unsigned ring_pace_count;  // rows issued by all blocks of the running backward

struct RingParams {
  int groups, group_threads, stages, cluster;
  std::int64_t slice;        ///< vectors of a row per block of a cluster
  std::uint32_t part_bytes;  ///< of a row in a stage; as much again for dy
  bool together;             ///< the rows of a stage are one piece of memory and come in one copy
  float pace;
};

constexpr int kRingMaxGroups = 16;
constexpr int kRingMaxCluster = 16;
constexpr int kRingMaxWarps = 16;  // of a group
constexpr int kExchanges = 6;      // turns of a cluster that may be under way at once

/// The start of a ring block's shared memory; the stages follow, at a multiple of 128 bytes.
struct RingHeader {
  std::uint64_t full[kMaxRingSlots], empty[kMaxRingSlots], exchanged[kExchanges];
  union {
    float group_sums[kRingMaxGroups][2][kRingMaxWarps];
    float cluster_sums[kExchanges][kRingMaxCluster][kRingMaxWarps];
  };
};
static_assert(sizeof(RingHeader) <= kRingHeaderBytes);

__device__ __forceinline__ unsigned char* ring_start(unsigned char* shared) {
  const std::uintptr_t end = reinterpret_cast<std::uintptr_t>(shared) + sizeof(RingHeader);
  return reinterpret_cast<unsigned char*>((end + 127) / 128 * 128);
}

/// Holds the issuing warp back while its block is more than `pace` rows ahead of the mean of all
/// blocks. Bounded: where not all blocks are resident, waiting would never help, and after one
/// time-out the block stops waiting at all. The answer about the others takes as long as a stage:
/// it is asked for at one stage and used at the next.
class Pacer {
 public:
  __device__ Pacer(float pace, int rows_per_stage)
      : pace_(pace), rows_per_stage_(static_cast<unsigned>(rows_per_stage)), active_(pace > 0) {}

  __device__ __forceinline__ void before_stage(int issued_stages) {
    if (!active_) return;
    const float issued_rows =
        static_cast<float>(issued_stages) * static_cast<float>(rows_per_stage_);
    const float behind = (issued_rows - pace_) * static_cast<float>(gridDim.x);
    int tries = 0;
#pragma unroll 1
    while (static_cast<float>(seen_) < behind) {
      if (++tries > 64) {
        active_ = false;
        return;
      }
      if (tries > 1) __nanosleep(100);
      seen_ = read();
    }
    asm volatile("red.relaxed.gpu.global.add.u32 [%0], %1;" ::"l"(&ring_pace_count),
                 "r"(rows_per_stage_)
                 : "memory");
    seen_ = read();
  }

 private:
  static __device__ __forceinline__ unsigned read() {
    unsigned count;
    asm volatile("ld.relaxed.gpu.global.u32 %0, [%1];" : "=r"(count) : "l"(&ring_pace_count));
    return count;
  }

  float pace_;
  unsigned rows_per_stage_;
  bool active_;
  unsigned seen_ = 0;
};

/// The sum of a group's warps, the same in every thread; slots beyond its warps are zero.
__device__ __forceinline__ float sum_of_warps(const float* sums) {
  float total = 0;
#pragma unroll
  for (int i = 0; i < kRingMaxWarps / 4; ++i) {
    const float4 four = reinterpret_cast<const float4*>(sums)[i];
    total += (four.x + four.y) + (four.z + four.w);
  }
  return total;
}

/// The sum of all warps of a cluster of up to 16 blocks: each lane adds some, a shuffle the rest.
__device__ __forceinline__ float sum_of_cluster(const float* sums, int cluster) {
  const int lane = static_cast<int>(threadIdx.x) % 32;
  float total = 0;
  for (int i = lane; i < cluster * kRingMaxWarps / 4; i += 32) {
    const float4 four = reinterpret_cast<const float4*>(sums)[i];
    total += (four.x + four.y) + (four.z + four.w);
  }
  return lanes_sum(total);
}

/// The groups' sums of dgamma, added in the order of the groups, as the block's partial row. `fold`
/// is the ring's memory, which nothing uses any more. `columns(j)` is the first column of a
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
  __syncthreads();
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
    if constexpr (W % 4 == 0) {
#pragma unroll
      for (int e = 0; e < W; e += 4) {
        *reinterpret_cast<float4*>(partial + column + e) =
            make_float4(sums[j][e], sums[j][e + 1], sums[j][e + 2], sums[j][e + 3]);
      }
    } else {
#pragma unroll
      for (int e = 0; e < W; ++e) partial[column + e] = sums[j][e];
    }
  }
}

/// What every thread of a ring block prepares: barriers, and zeros where sums of absent warps would
/// be.
template <bool kCluster>
__device__ __forceinline__ void prepare_ring(RingHeader& header, int slots, unsigned full_arrivals,
                                             unsigned empty_arrivals) {
  float* sums = &header.cluster_sums[0][0][0];
  for (int i = static_cast<int>(threadIdx.x); i < kExchanges * kRingMaxCluster * kRingMaxWarps;
       i += static_cast<int>(blockDim.x)) {
    sums[i] = 0;
  }
  if (threadIdx.x == 0) {
    for (int s = 0; s < slots; ++s) {
      barrier_init(shared_address(&header.full[s]), full_arrivals);
      barrier_init(shared_address(&header.empty[s]), empty_arrivals);
    }
    for (auto& barrier : header.exchanged) barrier_init(shared_address(&barrier), 1);
    asm volatile("fence.mbarrier_init.release.cluster;" ::: "memory");
    asm volatile("fence.proxy.async.shared::cta;" ::: "memory");
  }
  if constexpr (kCluster) {
    cluster_barrier();
  } else {
    __syncthreads();
  }
}

/// The part of a row that a thread works on, in a stage of the ring.
template <class T, class G, int V, bool kExact, Fault F>
struct RingSlice {
  static constexpr int W = kPack<T>;
  int thread, threads, vectors;  ///< vectors: of the block's slice

  __device__ __forceinline__ int vector(int j) const { return thread + j * threads; }
  __device__ __forceinline__ bool has(int j) const { return kExact || vector(j) < vectors; }

  /// This thread's share of sum(dy * gamma * x); leaves x and dy packed.
  __device__ __forceinline__ float dot(const uint4* x_stage, const uint4* dy_stage,
                                       GammaPack<T, G> (&scale)[V], uint4 (&x)[V], uint4 (&dy)[V],
                                       std::int64_t first_vector,
                                       const BackwardParams<T>& p) const {
    float sum = 0;
#pragma unroll
    for (int j = 0; j < V; ++j) {
      if (!has(j)) continue;
      x[j] = x_stage[vector(j)];
      dy[j] = dy_stage[vector(j)];
      float xs[W], dys[W], factors[W];
      scale[j].pin();
      widen_pack<T>(x[j], xs);
      widen_pack<T>(dy[j], dys);
      scale[j].widen(factors);
      sum += dot_elements<F>(xs, dys, factors, (first_vector + vector(j)) * W, p);
    }
    return sum;
  }

  /// Writes dx of the slice (unless nullptr) and adds its share of dgamma to `sums`.
  __device__ __forceinline__ void write(const uint4 (&x)[V], const uint4 (&dy)[V],
                                        GammaPack<T, G> (&scale)[V], int j, float rstd,
                                        float projection, T* dx, float (&sums)[V][W],
                                        std::int64_t row, const BackwardParams<T>& p) const {
    float xs[W], dys[W], factors[W], out[W];
    scale[j].pin();
    widen_pack<T>(x[j], xs);
    widen_pack<T>(dy[j], dys);
    scale[j].widen(factors);
    backward_elements<F>(xs, dys, factors, rstd, projection, out, sums[j], row, p);
    const uint4 packed = narrow_pack<T>(out);
    if (dx != nullptr) *(reinterpret_cast<uint4*>(dx) + vector(j)) = packed;
  }
};

/// Where a block's rows lie in the tensor and in the ring. A stage holds x of a row for every
/// group, then dy. Short rows of a dense tensor come together: neighbouring rows, one copy, one
/// barrier for all groups, since a copy of less than 4 KB costs as much as one of 4. Other rows are
/// dealt out one by one over the blocks.
struct RingLayout {
  int groups, group;
  std::uint32_t part_bytes;
  bool together;
  std::int64_t first_row, row_step;  ///< of a group; the step is from turn to turn

  __device__ RingLayout(const RingParams& ring, std::int64_t block, std::int64_t blocks, int group_)
      : groups(ring.groups),
        group(group_),
        part_bytes(ring.part_bytes),
        together(ring.together),
        first_row(ring.together ? block * ring.groups + group_ : block + group_ * blocks),
        row_step(blocks * ring.groups) {}
  __device__ __forceinline__ unsigned slot(int stage) const {
    return static_cast<unsigned>(stage * groups + (together ? 0 : group)) * 8;
  }
  __device__ __forceinline__ unsigned x(int stage) const {
    return part_bytes * static_cast<unsigned>(2 * groups * stage + group);
  }
  __device__ __forceinline__ unsigned dy(int stage) const {
    return part_bytes * static_cast<unsigned>(2 * groups * stage + groups + group);
  }
};

/// Walks over rows first, first + step, ... of a tensor: one addition a row where rows lie in one
/// level.
template <class T>
class RowCursor {
 public:
  __device__ RowCursor(const RowAddress<T>& rows, std::int64_t first, std::int64_t step,
                       std::int64_t offset)
      : rows_(rows), at_(rows(first) + offset), row_(first), step_(step), offset_(offset) {}
  __device__ __forceinline__ const T* get() const { return at_; }
  __device__ __forceinline__ void next() {
    row_ += step_;
    at_ = rows_.inner_rows == 0 ? at_ + step_ * rows_.stride : rows_(row_) + offset_;
  }

 private:
  const RowAddress<T>& rows_;
  const T* at_;
  std::int64_t row_, step_, offset_;
};

/// The warp that fills the ring. Each group has a lane that copies its rows, side by side, so that
/// the loop costs once for all groups; rows that come together are copied by the first lane.
template <class T>
__device__ __forceinline__ void issue_rows(const BackwardParams<T>& p, const RingParams& ring,
                                           RingHeader& header, unsigned char* stages,
                                           std::int64_t block, std::int64_t blocks,
                                           std::int64_t first_element, unsigned bytes) {
  const int lane = static_cast<int>(threadIdx.x) % 32;
  const RingLayout layout(ring, block, blocks, lane);
  const std::int64_t left =
      p.rows - (ring.together ? block * ring.groups : block);  // from the first row on
  const int turns = left > 0 ? static_cast<int>((left + layout.row_step - 1) / layout.row_step) : 0;
  const bool copies = lane < (ring.together ? 1 : ring.groups) && layout.first_row < p.rows;
  Pacer pacer(ring.pace, ring.groups);
  const std::int64_t start = copies ? layout.first_row : 0;
  RowCursor<T> x(p.x, start, layout.row_step, first_element),
      dy(p.dy, start, layout.row_step, first_element);
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
      const unsigned size =
          ring.together
              ? bytes * static_cast<unsigned>(min(std::int64_t{ring.groups}, p.rows - row))
              : bytes;
      if (turn >= ring.stages) barrier_wait(empty + slot, parity);
      barrier_arrive_expect(full + slot, 2 * size);
      if (size > 0) {
        bulk_copy(to + layout.x(stage), x.get(), size, full + slot);
        bulk_copy(to + layout.dy(stage), dy.get(), size, full + slot);
      }
      x.next();
      dy.next();
    }
    __syncwarp();
    if (++stage == ring.stages) {
      stage = 0;
      parity ^= 1;
    }
  }
}

/// Rows of whole vectors at 16-byte boundaries. Block: groups * group_threads threads and one warp
/// that issues the copies. kReread: x and dy are read from shared memory twice, for rows whose
/// packed halves do not fit the registers beside gamma and the sums.
template <class T, class G, int V, bool kReread, bool kExact, bool kOneWarp, Fault F>
__global__ void __launch_bounds__(kExact || kOneWarp ? 512 : 544, 1)
    backward_ring_kernel(BackwardParams<T> p, const G* __restrict__ gamma, RingParams ring) {
#if __CUDA_ARCH__ >= 900  // the policy never chooses it below
  constexpr int W = kPack<T>;
  extern __shared__ __align__(128) unsigned char shared[];
  RingHeader& header = *reinterpret_cast<RingHeader*>(shared);
  unsigned char* stages = ring_start(shared);
  const BarrierAddress full = shared_address(header.full), empty = shared_address(header.empty);
  const int consumers = ring.groups * ring.group_threads;
  const int group = static_cast<int>(threadIdx.x) / ring.group_threads;
  const RingSlice<T, G, V, kExact, F> slice{static_cast<int>(threadIdx.x) % ring.group_threads,
                                            ring.group_threads, static_cast<int>(p.cols / W)};
  const RingLayout layout(ring, blockIdx.x, gridDim.x, group);

  allow_next_kernel();
  prepare_ring<false>(header, ring.stages * ring.groups, 1,
                      (ring.together ? ring.groups : 1) * (kReread ? ring.group_threads / 32 : 1));
  wait_for_previous_kernel();

  float sums[V][W] = {};
  if (static_cast<int>(threadIdx.x) >= consumers) {
    issue_rows(p, ring, header, stages, blockIdx.x, gridDim.x, 0,
               static_cast<unsigned>(slice.vectors) * 16);
    __syncwarp();
  } else {
    GammaPack<T, G> scale[V];
#pragma unroll
    for (int j = 0; j < V; ++j) {
      if (slice.has(j)) scale[j].load(gamma, slice.vector(j));
    }
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
      const uint4* x_stage = reinterpret_cast<const uint4*>(stages + layout.x(stage));
      const uint4* dy_stage = reinterpret_cast<const uint4*>(stages + layout.dy(stage));
      barrier_wait(full + slot, parity);

      uint4 x[V], dy[V];
      const float dot = lanes_sum(slice.dot(x_stage, dy_stage, scale, x, dy, 0, p));
      float* group_sums =
          header.group_sums[group][turn];  // two, so that one barrier per row is enough
      if constexpr (kOneWarp) {
        __syncwarp();  // all lanes have read the stage
      } else {
        if (slice.thread % 32 == 0) group_sums[slice.thread / 32] = dot;
        group_barrier(group, ring.group_threads);
      }
      if (!kReread && slice.thread == 0) barrier_arrive(empty + slot);
      const float total = kOneWarp ? dot : sum_of_warps(group_sums);
      const float projection = projection_factor<F>(rstd, total * rstd * p.inverse_cols);
      T* dx = p.dx == nullptr ? nullptr : p.dx + row_offset<F>(row, p.cols);
#pragma unroll
      for (int j = 0; j < V; ++j) {
        if (!slice.has(j)) continue;
        if constexpr (kReread) {
          // Not kept in registers across the barrier: the compiler must not see that these are the
          // same loads.
          asm volatile("" ::: "memory");
          x[j] = x_stage[slice.vector(j)];
          dy[j] = dy_stage[slice.vector(j)];
        } else {
          pin(x[j]);
          pin(dy[j]);
        }
        slice.write(x, dy, scale, j, rstd, projection, dx, sums, row, p);
      }
      if constexpr (kReread) {
        __syncwarp();
        if (slice.thread % 32 == 0) barrier_arrive(empty + slot);
      }
      if (++stage == ring.stages) {
        stage = 0;
        parity ^= 1;
      }
    }
  }
  __syncthreads();
  if (p.partials == nullptr) return;
  write_partial_row(
      sums, reinterpret_cast<float*>(stages), group, ring.groups, slice.thread, ring.group_threads,
      p.partials + std::int64_t{blockIdx.x} * p.pitch,
      [&](int j) -> std::int64_t { return slice.has(j) ? std::int64_t{slice.vector(j)} * W : -1; });
#endif
}

/// A row spread over the blocks of a cluster, which exchange their dots through each other's shared
/// memory. The exchange takes about a microsecond and is hidden: dots run kAhead rows before the dx
/// that needs them. Those rows stay in the ring and are read twice.
template <class T, class G, int V, unsigned kAhead, Fault F>
__global__ void __launch_bounds__(544, 1)
    backward_ring_cluster_kernel(BackwardParams<T> p, const G* __restrict__ gamma,
                                 RingParams ring) {
#if __CUDA_ARCH__ >= 900  // the policy never chooses it below
  constexpr int W = kPack<T>, kThreads = 512;
  // A block may be kAhead + 1 turns ahead of another, which may be reading sums kAhead turns old.
  static_assert(2 * kAhead + 2 <= kExchanges);
  extern __shared__ __align__(128) unsigned char shared[];
  RingHeader& header = *reinterpret_cast<RingHeader*>(shared);
  unsigned char* stages = ring_start(shared);
  const BarrierAddress full = shared_address(header.full), empty = shared_address(header.empty);
  const BarrierAddress exchanged = shared_address(header.exchanged);
  const unsigned rank = cluster_rank();
  const std::int64_t first_vector = rank * ring.slice;
  const std::int64_t row_vectors = p.cols / W;
  const RingSlice<T, G, V, false, F> slice{
      static_cast<int>(threadIdx.x) % kThreads, kThreads,
      static_cast<int>(max(std::int64_t{0}, min(ring.slice, row_vectors - first_vector)))};
  const std::int64_t first_row = blockIdx.x / ring.cluster, row_step = gridDim.x / ring.cluster;
  constexpr int kWarps = kThreads / 32;

  allow_next_kernel();
  prepare_ring<true>(header, ring.stages, 1, kWarps);
  wait_for_previous_kernel();

  float sums[V][W] = {};
  const bool consumer = static_cast<int>(threadIdx.x) < kThreads;
  if (!consumer) {
    issue_rows(p, ring, header, stages, first_row, row_step, first_vector * W,
               static_cast<unsigned>(slice.vectors) * 16);
    __syncwarp();
  } else {
    GammaPack<T, G> scale[V];
#pragma unroll
    for (int j = 0; j < V; ++j) {
      if (slice.has(j)) scale[j].load(gamma, first_vector + slice.vector(j));
    }
    const int lane = slice.thread % 32;
    int stage = 0, write_stage = 0;
    unsigned parity = 0, turn = 0;
    float rstds[kAhead + 1] = {},
                         next_rstd = first_row < p.rows ? saved_rstd_of<F>(p, first_row) : 0.0f;
    uint4 x[V], dy[V];
    // kAhead turns more than rows: the last only write.
#pragma unroll 1
    for (std::int64_t row = first_row; row < p.rows + kAhead * row_step; row += row_step, ++turn) {
#pragma unroll
      for (unsigned i = kAhead; i > 0; --i) rstds[i] = rstds[i - 1];
      if (row < p.rows) {
        rstds[0] = next_rstd;
        if (row + row_step < p.rows) next_rstd = saved_rstd_of<F>(p, row + row_step);
        const unsigned char* part = stages + std::size_t{2} * ring.part_bytes * stage;
        barrier_wait(full + static_cast<unsigned>(stage) * 8, parity);
        const float dot = lanes_sum(slice.dot(
            reinterpret_cast<const uint4*>(part),
            reinterpret_cast<const uint4*>(part + ring.part_bytes), scale, x, dy, first_vector, p));
        // Every warp leaves its sum with every block; the barrier of this turn counts the bytes
        // that come.
        const unsigned slot = turn % kExchanges;
        if (slice.thread == 0) {
          barrier_arrive_expect(exchanged + slot * 8,
                                static_cast<unsigned>(ring.cluster * kWarps) * 4);
        }
        if (lane < ring.cluster) {
          store_remote(dot, shared_address(&header.cluster_sums[slot][rank][slice.thread / 32]),
                       exchanged + slot * 8, static_cast<unsigned>(lane));
        }
      }
      if (turn >= kAhead) {
        const float write_rstd = rstds[kAhead];
        const unsigned slot = (turn - kAhead) % kExchanges;
        barrier_wait_cluster(exchanged + slot * 8, ((turn - kAhead) / kExchanges) & 1);
        const float total = sum_of_cluster(&header.cluster_sums[slot][0][0], ring.cluster);
        const float projection =
            projection_factor<F>(write_rstd, total * write_rstd * p.inverse_cols);
        const unsigned char* part = stages + std::size_t{2} * ring.part_bytes * write_stage;
        const uint4* x_stage = reinterpret_cast<const uint4*>(part);
        const uint4* dy_stage = reinterpret_cast<const uint4*>(part + ring.part_bytes);
        T* dx = p.dx == nullptr
                    ? nullptr
                    : p.dx + row_offset<F>(row - kAhead * row_step, p.cols) + first_vector * W;
#pragma unroll
        for (int j = 0; j < V; ++j) {
          if (!slice.has(j)) continue;
          asm volatile("" ::: "memory");
          x[j] = x_stage[slice.vector(j)];
          dy[j] = dy_stage[slice.vector(j)];
          // Asked for with a fault alone; to the product, the number would be one more in the loop.
          const std::int64_t asked_row = kIsInGradients<F> ? row - kAhead * row_step : 0;
          slice.write(x, dy, scale, j, write_rstd, projection, dx, sums, asked_row, p);
        }
        __syncwarp();
        if (lane == 0) barrier_arrive(empty + static_cast<unsigned>(write_stage) * 8);
        if (++write_stage == ring.stages) write_stage = 0;
      }
      if (++stage == ring.stages) {
        stage = 0;
        parity ^= 1;
      }
    }
  }
  __syncthreads();
  if (p.partials != nullptr) {
    write_partial_row(sums, reinterpret_cast<float*>(stages), consumer ? 0 : 1, 1, slice.thread,
                      kThreads, p.partials + first_row * p.pitch, [&](int j) -> std::int64_t {
                        return slice.has(j) ? (first_vector + slice.vector(j)) * W : -1;
                      });
  }
  cluster_barrier();  // no block leaves while another may still store into its memory
#endif
}

/// Rows that start at any element. The copies take windows of whole 16-byte pieces around a row,
/// rounded to 128 bytes where the neighbours' bytes may be read, and threads pick single elements
/// out of shared memory: element thread + i * group_threads, so that neighbouring threads read
/// neighbouring elements whatever the row's start. Where a window would leave the tensor, the first
/// and last elements come one by one.
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

/// `low` and `high` bound what may be read, rounded inwards to 16 bytes.
__device__ __forceinline__ Window window_around(std::uintptr_t first, std::uintptr_t last,
                                                std::uintptr_t low, std::uintptr_t high) {
  const std::uintptr_t base = first & ~std::uintptr_t{127};
  const std::uintptr_t from = max(base, low),
                       until = min((last + 127) & ~std::uintptr_t{127}, high);
  return {from, until > from ? static_cast<unsigned>(until - from) : 0,
          static_cast<unsigned>(from - base)};
}

/// The elements of a row that its window leaves out: at most 15 bytes at the tensor's two ends.
template <class T>
__device__ __noinline__ void copy_edges(unsigned char* part, const T* row, std::int64_t cols,
                                        const Window& window) {
  const auto first = reinterpret_cast<std::uintptr_t>(row);
  const std::uintptr_t base = first & ~std::uintptr_t{127};
  for (int i = 0; i < 16; ++i) {
    const std::int64_t column = i < 8 ? i : cols - 16 + i;
    const std::uintptr_t address = first + column * sizeof(T);
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
  const auto up = [](const T* pointer) {
    return (reinterpret_cast<std::uintptr_t>(pointer) + 15) & ~std::uintptr_t{15};
  };
  const auto down = [](const T* pointer) {
    return reinterpret_cast<std::uintptr_t>(pointer) & ~std::uintptr_t{15};
  };
  const std::uintptr_t x_low = up(windows.x_begin), x_high = down(windows.x_end);
  const std::uintptr_t dy_low = up(windows.dy_begin), dy_high = down(windows.dy_end);
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
      const Window x_window = window_around(x_first, x_first + row_bytes, x_low, x_high);
      const Window dy_window = window_around(dy_first, dy_first + row_bytes, dy_low, dy_high);
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
      x.next();
      dy.next();
    }
    __syncwarp();
    if (++stage == ring.stages) {
      stage = 0;
      parity ^= 1;
    }
  }
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
  prepare_ring<false>(header, ring.stages * ring.groups, 1, 1);
  wait_for_previous_kernel();

  float sums[E][1] = {};
  const int group = static_cast<int>(threadIdx.x) / kThreads;
  const int thread = static_cast<int>(threadIdx.x) % kThreads;

  if (static_cast<int>(threadIdx.x) >= consumers) {
    issue_windows(p, ring, windows, header, stages);
    __syncwarp();
  } else {
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
        if constexpr (kIsInDot<F>) {
          const float xv[1] = {widen(x_value)}, dyv[1] = {widen(dy_value)};
          const float factor[1] = {scale.get(i)};
          dot += dot_elements<F>(xv, dyv, factor, column, p);
        } else {
          dot += widen(dy_value) * scale.get(i) * widen(x_value);
        }
      }
      dot = lanes_sum(dot);
      float* group_sums = header.group_sums[group][turn];
      if (thread % 32 == 0) group_sums[thread / 32] = dot;
      group_barrier(group, kThreads);
      if (thread == 0) barrier_arrive(empty + slot);
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
  }
  __syncthreads();
  if (p.partials == nullptr) return;
  write_partial_row(sums, reinterpret_cast<float*>(stages), group, ring.groups, thread, kThreads,
                    p.partials + std::int64_t{blockIdx.x} * p.pitch, [&](int i) -> std::int64_t {
                      const int column = thread + i * kThreads;
                      return column < p.pitch ? column : -1;
                    });
#endif
}

}  // namespace rmsnorm::kernels::cuda
