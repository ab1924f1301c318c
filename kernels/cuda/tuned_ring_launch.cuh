#pragma once

#include "kernels/cuda/tuned_launch.cuh"
#include "kernels/cuda/tuned_ring_elements.cuh"
#include "kernels/cuda/tuned_ring_shifted_cluster.cuh"
#include "kernels/cuda/tuned_ring_vectors.cuh"

namespace rmsnorm::kernels::cuda {

template <class T>
ElementWindows<T> windows_of(const rmsnorm_backward_args& args) {
  const Extent<T> x(args.x, args.rows, args.cols), dy(args.dy, args.rows, args.cols);
  return {x.begin, x.end, dy.begin, dy.end};
}

/// The ring as its kernels take it: of those for single elements a mutant has the longest rows'
/// alone.
template <Fault K>
BackwardPlan ring_with_kernels(BackwardPlan plan) {
  if (!has_all_kernels(K) && plan.elements) {
    plan.groups = 1;
    plan.group_threads = kElementThreads;
    plan.vectors = 32;
  }
  return plan;
}

template <class T, class G, Fault F>
cudaError_t launch_ring(const rmsnorm_backward_args& args, const BackwardPlan& planned,
                        const Problem& problem, const TunedContext& context,
                        const BackwardParams<T>& p) {
  constexpr Fault K = kernel_fault(F);
  const BackwardPlan plan = ring_with_kernels<K>(planned);
  const std::size_t limit = context.device.shared_bytes;
  const G* gamma = static_cast<const G*>(args.gamma);
  Launch launch = launch_of(context, plan.blocks, plan.groups * plan.group_threads + 32);
  launch.shared_bytes = ring_shared_bytes(problem, plan);
  launch.cluster = plan.cluster;
  RingParams ring{plan.groups, plan.group_threads, plan.stages, plan.cluster, 0, 0, plan.pace};
  if (!context.aligned) {
    ring.part_bytes = ring_part_bytes(problem, plan);
    const ElementWindows<T> windows = windows_of<T>(args);
    if (plan.cluster > 1) {
      ring.slice = slice_vectors(problem, plan.cluster);
      int period_bits = 0;
      while (1 << period_bits < shift_period(problem)) ++period_bits;
      const auto run = [&](auto v) {
        return launch_kernel<backward_ring_shifted_cluster_kernel<T, G, v(), K>>(
            launch, limit, p, gamma, ring, windows, period_bits);
      };
      if constexpr (sizeof(G) > sizeof(T)) {
        return with_share<K, 3, 4>(plan.vectors, run);
      } else {
        return with_share<K, 3, 4, 5>(plan.vectors, run);
      }
    }
    if (!plan.elements) {
      return with_share<K, 2, 3, 4>(plan.vectors, [&](auto v) {
        return launch_kernel<backward_ring_shifted_kernel<T, G, v(), K>>(launch, limit, p, gamma,
                                                                         ring, windows);
      });
    }
    const auto run = [&](auto elements, auto threads) {
      return launch_kernel<backward_ring_elements_kernel<T, G, elements(), threads(), K>>(
          launch, limit, p, gamma, ring, windows);
    };
    using std::integral_constant;
    if constexpr (has_all_kernels(K)) {
      switch (plan.vectors * 1000 + plan.group_threads) {
        case 8128:
          return run(integral_constant<int, 8>{}, integral_constant<int, 128>{});
        case 10224:
          return run(integral_constant<int, 10>{}, integral_constant<int, 224>{});
        case 20224:
          return run(integral_constant<int, 20>{}, integral_constant<int, 224>{});
        case 20480:
          return run(integral_constant<int, 20>{}, integral_constant<int, kElementThreads>{});
        default:
          break;
      }
    }
    return run(integral_constant<int, 32>{}, integral_constant<int, kElementThreads>{});
  }
  ring.part_bytes = ring_part_bytes(problem, plan);
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
