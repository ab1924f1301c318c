#pragma once

#include "kernels/cuda/tuned_launch.cuh"
#include "kernels/cuda/tuned_ring_shifted_cluster.cuh"
#include "kernels/cuda/tuned_ring_vectors.cuh"
#include "kernels/cuda/tuned_ring_windows.cuh"

namespace rmsnorm::kernels::cuda {

template <class T>
Extents<T> extents_of(const rmsnorm_backward_args& args) {
  return {{args.x, args.rows, args.cols}, {args.dy, args.rows, args.cols}};
}

/// The kernels for rows that start anywhere. A mutant has those that join, for all of them.
template <class T, class G, bool kJoined, Fault K>
cudaError_t launch_shifted(const Launch& launch, std::size_t limit, const BackwardPlan& plan,
                           const Problem& problem, const BackwardParams<T>& p, const G* gamma,
                           RingParams ring, const Extents<T>& extents) {
  if (plan.cluster == 1) {
    return with_share<K, 2, 3, 4>(plan.vectors, [&](auto v) {
      return launch_kernel<backward_ring_shifted_kernel<T, G, v(), kJoined, K>>(
          launch, limit, p, gamma, ring, extents);
    });
  }
  ring.slice = slice_vectors(problem, plan.cluster);
  int period_bits = 0;
  while (1 << period_bits < shift_period(problem)) ++period_bits;
  const auto run = [&](auto v) {
    return launch_kernel<backward_ring_shifted_cluster_kernel<T, G, v(), kJoined, K>>(
        launch, limit, p, gamma, ring, extents, period_bits);
  };
  if constexpr (sizeof(G) > sizeof(T)) {
    return with_share<K, 3, 4>(plan.vectors, run);
  } else {
    return with_share<K, 3, 4, 5>(plan.vectors, run);
  }
}

template <class T, class G, Fault F>
cudaError_t launch_ring(const rmsnorm_backward_args& args, const BackwardPlan& plan,
                        const Problem& problem, const TunedContext& context,
                        const BackwardParams<T>& p) {
  constexpr Fault K = kernel_fault(F);
  const std::size_t limit = context.device.shared_bytes;
  const G* gamma = static_cast<const G*>(args.gamma);
  Launch launch = launch_of(context, plan.blocks, plan.groups * plan.group_threads + 32);
  launch.shared_bytes = ring_shared_bytes(problem, plan);
  launch.cluster = plan.cluster;
  RingParams ring{
      plan.groups, plan.group_threads, plan.stages, plan.cluster, 0, ring_part_bytes(problem, plan),
      plan.pace};
  if (!problem.aligned) {
    const Extents<T> extents = extents_of<T>(args);
    if constexpr (has_all_kernels(K)) {
      if (problem.one_shift) {
        return launch_shifted<T, G, false, K>(launch, limit, plan, problem, p, gamma, ring,
                                              extents);
      }
    }
    return launch_shifted<T, G, true, K>(launch, limit, plan, problem, p, gamma, ring, extents);
  }
  ring.slice = ring.part_bytes / 16;
  if (plan.cluster > 1) {
    if constexpr (has_all_kernels(K)) {
      if (plan.vectors == 2) {
        return launch_kernel<backward_ring_cluster_kernel<T, G, 2, 2, K>>(launch, limit, p, gamma,
                                                                          ring);
      }
    }
    return launch_kernel<backward_ring_cluster_kernel<T, G, 4, 1, K>>(launch, limit, p, gamma,
                                                                      ring);
  }
  return launch_kernel<backward_ring_kernel<T, G, K>>(launch, limit, p, gamma, ring);
}

}  // namespace rmsnorm::kernels::cuda
