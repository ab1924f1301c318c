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
constexpr int kExchanges = 6;  // turns of a cluster that may be under way at once

/// The start of a ring block's shared memory; the stages follow, at a multiple of 128 bytes.
struct RingHeader {
  std::uint64_t full[kMaxRingSlots], empty[kMaxRingSlots], exchanged[kExchanges];
  union {
    float group_sums[kRingMaxGroups][2][kMaxWarps];
    float cluster_sums[kExchanges][kRingMaxCluster][kMaxWarps];
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

/// The sum of all warps of a cluster of up to 16 blocks: each lane adds some, a shuffle the rest.
__device__ __forceinline__ float sum_of_cluster(const float* sums, int cluster) {
  const int lane = static_cast<int>(threadIdx.x) % 32;
  float total = 0;
  for (int i = lane; i < cluster * kMaxWarps / 4; i += 32) {
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
  for (int i = static_cast<int>(threadIdx.x); i < kExchanges * kRingMaxCluster * kMaxWarps;
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

}  // namespace rmsnorm::kernels::cuda
