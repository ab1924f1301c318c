#pragma once

#include <cstdint>

// The instructions of sm_90 that the kernels use by name: barriers that count bytes, bulk copies,
// clusters. Called only from code that is compiled for sm_90 and later.

namespace rmsnorm::kernels::cuda {

__device__ __forceinline__ std::uint32_t shared_address(const void* pointer) {
  return static_cast<std::uint32_t>(__cvta_generic_to_shared(pointer));
}

// Barriers are named by their address in shared memory: converting a pointer costs more than the
// instruction itself, so callers convert once.
using BarrierAddress = std::uint32_t;

__device__ __forceinline__ void barrier_init(BarrierAddress barrier, unsigned arrivals) {
  asm volatile("mbarrier.init.shared::cta.b64 [%0], %1;" ::"r"(barrier), "r"(arrivals) : "memory");
}

__device__ __forceinline__ void barrier_arrive(BarrierAddress barrier) {
  asm volatile("mbarrier.arrive.shared::cta.b64 _, [%0];" ::"r"(barrier) : "memory");
}

__device__ __forceinline__ void barrier_arrive_expect(BarrierAddress barrier, unsigned bytes) {
  asm volatile("mbarrier.arrive.expect_tx.shared::cta.b64 _, [%0], %1;" ::"r"(barrier), "r"(bytes)
               : "memory");
}

__device__ __forceinline__ void barrier_wait(BarrierAddress barrier, unsigned parity) {
  asm volatile(
      "{\n"
      ".reg .pred done;\n"
      "WAIT_%=:\n"
      "mbarrier.try_wait.parity.acquire.cta.shared::cta.b64 done, [%0], %1, 1000000;\n"
      "@!done bra WAIT_%=;\n"
      "}\n" ::"r"(barrier),
      "r"(parity)
      : "memory");
}

/// For what other blocks of the cluster have stored.
__device__ __forceinline__ void barrier_wait_cluster(BarrierAddress barrier, unsigned parity) {
  asm volatile(
      "{\n"
      ".reg .pred done;\n"
      "WAIT_%=:\n"
      "mbarrier.try_wait.parity.acquire.cluster.shared::cta.b64 done, [%0], %1, 1000000;\n"
      "@!done bra WAIT_%=;\n"
      "}\n" ::"r"(barrier),
      "r"(parity)
      : "memory");
}

/// How readily L2 gives up the lines that a load brings in: an operand of that load.
struct L2Priority {
  std::uint64_t policy;
};

/// That of every access which names none.
__device__ __forceinline__ L2Priority normal_priority() {
  L2Priority priority;
  asm volatile("createpolicy.fractional.L2::evict_normal.b64 %0, 1.0;" : "=l"(priority.policy));
  return priority;
}

/// Given up after all others.
__device__ __forceinline__ L2Priority last_priority() {
  L2Priority priority;
  asm volatile("createpolicy.fractional.L2::evict_last.b64 %0, 1.0;" : "=l"(priority.policy));
  return priority;
}

/// Copies `bytes` (a multiple of 16, both addresses too) into this block's shared memory; completes
/// on the barrier.
__device__ __forceinline__ void bulk_copy(std::uint32_t to, const void* from, unsigned bytes,
                                          BarrierAddress barrier, L2Priority priority) {
  asm volatile(
      "cp.async.bulk.shared::cta.global.mbarrier::complete_tx::bytes.L2::cache_hint "
      "[%0], [%1], %2, [%3], %4;" ::"r"(to),
      "l"(from), "r"(bytes), "r"(barrier), "l"(priority.policy)
      : "memory");
}

/// A barrier of the `threads` threads of one group.
__device__ __forceinline__ void group_barrier(int group, int threads) {
  asm volatile("bar.sync %0, %1;" ::"r"(group + 1), "r"(threads) : "memory");
}

/// A barrier of the `threads` threads of all groups: the warp that issues copies is not one of
/// them.
__device__ __forceinline__ void groups_barrier(int threads) {
  asm volatile("bar.sync 0, %0;" ::"r"(threads) : "memory");
}

__device__ __forceinline__ unsigned cluster_rank() {
  unsigned rank;
  asm volatile("mov.u32 %0, %%cluster_ctarank;" : "=r"(rank));
  return rank;
}

__device__ __forceinline__ void cluster_barrier() {
  asm volatile("barrier.cluster.arrive.release.aligned;\nbarrier.cluster.wait.acquire.aligned;" ::
                   : "memory");
}

/// Stores a float into the same place (an address in shared memory) of another block of the
/// cluster, counted by that block's barrier.
__device__ __forceinline__ void store_remote(float value, std::uint32_t place,
                                             BarrierAddress barrier, unsigned rank) {
  asm volatile(
      "{\n"
      ".reg .b32 to, bar;\n"
      "mapa.shared::cluster.u32 to, %1, %3;\n"
      "mapa.shared::cluster.u32 bar, %2, %3;\n"
      "st.async.shared::cluster.mbarrier::complete_tx::bytes.b32 [to], %0, [bar];\n"
      "}\n" ::"r"(__float_as_uint(value)),
      "r"(place), "r"(barrier), "r"(rank)
      : "memory");
}

}  // namespace rmsnorm::kernels::cuda
