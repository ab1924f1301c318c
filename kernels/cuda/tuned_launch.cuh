#pragma once

#include <algorithm>

#include "kernels/common/tuned_faults.hpp"
#include "kernels/cuda/launch.cuh"
#include "kernels/cuda/policy.hpp"
#include "kernels/cuda/rowwise.cuh"
#include "kernels/cuda/tuned.hpp"
#include "kernels/cuda/vector.cuh"

// From a plan to a launch: one template per path, instantiated for a pair of dtypes by the
// tuned_*.cu files. What tuned_forward_launch.cuh, tuned_ring_launch.cuh and
// tuned_backward_launch.cuh share.

namespace rmsnorm::kernels::cuda {

inline Launch launch_of(const TunedContext& context, std::int64_t blocks, int threads) {
  Launch launch;
  launch.blocks = static_cast<unsigned>(blocks < kMaxGrid ? blocks : kMaxGrid);
  launch.threads = static_cast<unsigned>(threads);
  launch.programmatic = context.device.compute_capability >= 90;
  launch.stream = context.stream;
  launch.device = context.device_index;
  return launch;
}

/// `needed` bytes of shared memory, or as many as keep every SM to its share of the blocks: those
/// that start while the kernel before still holds some SMs would crowd the others.
inline std::size_t share_of_sm(const Launch& launch, const TunedContext& context,
                               std::size_t needed) {
  const std::size_t per_sm = (launch.blocks + context.device.sms - 1) / context.device.sms;
  return per_sm > 1 ? std::max(needed, context.device.shared_bytes / per_sm - 1024) : needed;
}

/// Calls run(std::integral_constant<int, V>) for the V that equals `value`.
template <int... kValues, class Run>
cudaError_t with_constant(int value, Run run) {
  cudaError_t status = cudaErrorInvalidValue;
  static_cast<void>(
      ((value == kValues && (status = run(std::integral_constant<int, kValues>{}), true)) || ...));
  return status;
}

/// with_constant where there are all kernels; else the last value, the largest, for any.
template <Fault F, int... kValues, class Run>
cudaError_t with_share(int value, Run run) {
  if constexpr (has_all_kernels(F)) return with_constant<kValues...>(value, run);
  constexpr int values[] = {kValues...};
  return run(std::integral_constant<int, values[sizeof...(kValues) - 1]>{});
}

/// Calls run(std::integral_constant<Start, ...>{}) for the rows of a problem; where not all kernels
/// are there, the last for any.
template <Fault F, class Run>
cudaError_t with_start(const Problem& problem, Run run) {
  if constexpr (has_all_kernels(F)) {
    if (problem.aligned) return run(std::integral_constant<Start, Start::aligned>{});
    if (problem.one_shift) return run(std::integral_constant<Start, Start::in_frame>{});
  }
  return run(std::integral_constant<Start, Start::anywhere>{});
}

/// with_constant for the columns of a row shorter than a vector.
template <class T, class Run>
cudaError_t with_tiny_cols(std::int64_t cols, Run run) {
  if constexpr (kPack<T> == 8) {
    return with_constant<1, 2, 3, 4, 5, 6, 7>(static_cast<int>(cols), run);
  } else {
    return with_constant<1, 2, 3>(static_cast<int>(cols), run);
  }
}

inline bool is_aligned_to_vector(const void* pointer) {
  return reinterpret_cast<std::uintptr_t>(pointer) % 16 == 0;
}

/// The fault that the kernels are compiled with: none of theirs where it is the host's.
constexpr Fault kernel_fault(Fault fault) {
  return is_on_the_host(fault) ? Fault::control : fault;
}

}  // namespace rmsnorm::kernels::cuda
