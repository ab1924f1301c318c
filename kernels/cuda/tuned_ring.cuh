#pragma once

#include "kernels/cuda/access.cuh"
#include "kernels/cuda/hopper.cuh"
#include "kernels/cuda/policy.hpp"

// What the kernels with a ring of bulk copies share, sm_90 and later. A block stays on its SM and
// walks over rows; one warp only issues copies into a ring of stages in shared memory, the others
// take the rows as they come.
//
// Two things decide the speed. Bytes in flight: 64 KB and more per SM, by the ring. And pace: SMs
// near the memory run ahead, finish early and leave the rest to the far half, 18 to 24 of 107 us of
// a backward of 16384 x 4096; so the issuing warp waits while its block is `pace` rows ahead of the
// mean of all. Results do not depend on it.

namespace rmsnorm::kernels::cuda {

static __device__ unsigned ring_pace_count;  // rows issued by all blocks of all launches

struct RingParams {
  int groups, group_threads, stages, cluster;
  std::int64_t slice;        ///< vectors of a row per block of a cluster
  std::uint32_t part_bytes;  ///< of a row in a stage; as much again for dy
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

/// By pointer arithmetic alone, which keeps the pointer one into shared memory for the compiler.
__device__ __forceinline__ unsigned char* ring_start(unsigned char* shared) {
  return shared + (sizeof(RingHeader) + 127) / 128 * 128;
}

/// Holds the issuing warp back while its block is more than `pace` rows ahead of the mean of all
/// blocks. Bounded: where not all blocks are resident, waiting would never help, and after one
/// time-out the block stops waiting at all. The answer about the others takes as long as a stage:
/// it is asked for at one stage and used at the next.
///
/// Nobody puts the count back: a launch adds kLaunchCount to it, whatever it issues, and so begins
/// at a multiple of that. Launches that run at the same time share the count; what they lose by it
/// is the pace.
class Pacer {
 public:
  __device__ Pacer(float pace, int rows_per_stage)
      : pace_(pace), rows_per_stage_(static_cast<unsigned>(rows_per_stage)), active_(pace > 0) {
    if (!active_) return;
    left_ = kLaunchCount / gridDim.x + (blockIdx.x == 0 ? kLaunchCount % gridDim.x : 0);
    seen_ = read();
    begin_ = seen_ / kLaunchCount * kLaunchCount;
  }

  __device__ __forceinline__ void before_stage(int issued_stages) {
    if (!active_) return;
    const float issued_rows =
        static_cast<float>(issued_stages) * static_cast<float>(rows_per_stage_);
    const float behind = (issued_rows - pace_) * static_cast<float>(gridDim.x);
    int tries = 0;
#pragma unroll 1
    while (behind > 0 && static_cast<float>(seen_ - begin_) < behind) {
      if (++tries > 64) {
        active_ = false;
        return;
      }
      if (tries > 1) __nanosleep(100);
      seen_ = read();
    }
    add(rows_per_stage_);
    left_ -= rows_per_stage_;
    seen_ = read();
  }

  /// After the last stage.
  __device__ __forceinline__ void finish() {
    if (pace_ > 0) add(left_);
  }

 private:
  /// More than the rows of any launch; a power of two, so that the count may wrap.
  static constexpr unsigned kLaunchCount = 1u << 28;

  static __device__ __forceinline__ unsigned read() {
    unsigned count;
    asm volatile("ld.relaxed.gpu.global.u32 %0, [%1];" : "=r"(count) : "l"(&ring_pace_count));
    return count;
  }
  static __device__ __forceinline__ void add(unsigned rows) {
    asm volatile("red.relaxed.gpu.global.add.u32 [%0], %1;" ::"l"(&ring_pace_count), "r"(rows)
                 : "memory");
  }

  float pace_;
  unsigned rows_per_stage_;
  bool active_;
  unsigned left_ = 0, begin_ = 0, seen_ = 0;
};

/// Leaves a warp's sum of a turn with every block of the cluster, where the barrier of the turn
/// counts the bytes that come: of `warps` warps of each block, the first of them.
__device__ __forceinline__ void send_to_cluster(float sum, const RingParams& ring, int warps,
                                                RingHeader& header, BarrierAddress exchanged,
                                                unsigned turn, unsigned rank, int thread,
                                                int lane) {
  const unsigned slot = turn % kExchanges;
  if (thread == 0)
    barrier_arrive_expect(exchanged + slot * 8, static_cast<unsigned>(ring.cluster * warps) * 4);
  if (lane < ring.cluster) {
    store_remote(sum, shared_address(&header.cluster_sums[slot][rank][thread / 32]),
                 exchanged + slot * 8, static_cast<unsigned>(lane));
  }
}

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

/// The thread that fills a ring with slices of whole vectors, `bytes` each: of rows first_row,
/// first_row + row_step, ... of every tensor, from `first_element` on. A stage holds a part of each
/// tensor, one behind the other.
template <class T, class... Tensors>
__device__ __forceinline__ void issue_rows(const RingParams& ring, RingHeader& header,
                                           unsigned char* stages, std::int64_t rows,
                                           std::int64_t first_row, std::int64_t row_step,
                                           std::int64_t first_element, unsigned bytes,
                                           L2Priority priority, const RowAddress<T>& first,
                                           const Tensors&... others) {
  constexpr int kParts = 1 + sizeof...(others);
  Pacer pacer(ring.pace, 1);
  const std::int64_t start = first_row < rows ? first_row : 0;
  RowCursor<T> cursors[kParts] = {
      RowCursor<T>(first, start, row_step, first_element),
      RowCursor<T>(others, start, row_step, first_element)...,
  };
  const BarrierAddress full = shared_address(header.full), empty = shared_address(header.empty);
  const std::uint32_t to = shared_address(stages);
  int stage = 0, turn = 0;
  unsigned parity = 1;  // of the round before: the first round finds every stage empty
#pragma unroll 1
  for (std::int64_t row = first_row; row < rows; row += row_step, ++turn) {
    pacer.before_stage(turn);
    const unsigned slot = static_cast<unsigned>(stage) * 8;
    if (turn >= ring.stages) barrier_wait(empty + slot, parity);
    barrier_arrive_expect(full + slot, kParts * bytes);
#pragma unroll
    for (int i = 0; i < kParts; ++i) {
      if (bytes > 0) {
        bulk_copy(to + ring.part_bytes * static_cast<unsigned>(kParts * stage + i),
                  cursors[i].get(), bytes, full + slot, priority);
      }
      cursors[i].next(row + row_step);
    }
    if (++stage == ring.stages) {
      stage = 0;
      parity ^= 1;
    }
  }
  pacer.finish();
}

}  // namespace rmsnorm::kernels::cuda
