#pragma once

#include <cstdint>

namespace rmsnorm::kernels::cuda {

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

}  // namespace rmsnorm::kernels::cuda
