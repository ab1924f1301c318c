#pragma once

#include "kernels/cuda/finalize.cuh"
#include "kernels/cuda/tuned_ring_launch.cuh"

namespace rmsnorm::kernels::cuda {

template <class T, class G, Fault F>
cudaError_t launch_finalize(const rmsnorm_backward_args& args, const BackwardPlan& plan,
                            const TunedContext& context, const accumulation_t<T>* partials) {
  const std::size_t limit = context.device.shared_bytes;
  const std::int64_t pitch = partial_pitch(args.cols);
  if constexpr (std::is_same_v<T, double>) {
    return launch_kernel<finalize_float64_kernel<kernel_fault(F)>>(
        launch_of(context, (args.cols + 127) / 128, 128), limit, partials,
        static_cast<double*>(args.dgamma), plan.partial_rows, pitch, args.cols);
  } else {
    unsigned* pace_count = nullptr;
    if (plan.pace > 0) {
      const cudaError_t status = pace_count_address(context.device_index, pace_count);
      if (status != cudaSuccess) return status;
    }
    return launch_kernel<finalize_kernel<G, kernel_fault(F)>>(
        launch_of(context, (args.cols + kFinalizeColumns - 1) / kFinalizeColumns, kFinalizeThreads),
        limit, partials, static_cast<G*>(args.dgamma), plan.partial_rows, pitch, args.cols,
        pace_count);
  }
}

template <class T, class G, Fault F>
cudaError_t launch_split(const rmsnorm_backward_args& args, const BackwardPlan& plan,
                         const TunedContext& context, const BackwardParams<T>& p) {
  if (plan.blocks == 0) return cudaSuccess;
  const Launch launch = launch_of(context, plan.blocks, kSplitThreads);
  const std::size_t limit = context.device.shared_bytes;
  const G* gamma = static_cast<const G*>(args.gamma);
  G* dgamma = static_cast<G*>(args.dgamma);
  const int chunks = plan.partial_rows > 0 ? plan.partial_rows : 1;
  if constexpr (!std::is_same_v<T, double>) {
    if (context.aligned) {
      return launch_kernel<backward_split_kernel<T, G, kPack<T>, kernel_fault(F)>>(
          launch, limit, p, gamma, dgamma, plan.row_blocks, plan.column_threads, chunks);
    }
  }
  return launch_kernel<backward_split_kernel<T, G, 1, kernel_fault(F)>>(
      launch, limit, p, gamma, dgamma, plan.row_blocks, plan.column_threads, chunks);
}

template <class T, class G, Fault F>
cudaError_t launch_lanes(const rmsnorm_backward_args& args, const BackwardPlan& plan,
                         const TunedContext& context, const BackwardParams<T>& p) {
  constexpr Fault K = kernel_fault(F);
  const Launch launch = launch_of(context, plan.blocks, plan.group_threads);
  const std::size_t limit = context.device.shared_bytes;
  const G* gamma = static_cast<const G*>(args.gamma);
  if (context.aligned) {
    return launch_kernel<backward_lanes_kernel<T, G, kPack<T>, 1, 4, K>>(launch, limit, p, gamma,
                                                                         plan.lanes);
  }
  return with_share<K, 1, 2, 4, 8>(plan.vectors, [&](auto v) {
    return launch_kernel<backward_lanes_kernel<T, G, 1, v(), v() == 8 ? 2 : 4, K>>(
        launch, limit, p, gamma, plan.lanes);
  });
}

template <class T, class G, Fault F>
cudaError_t launch_backward(const rmsnorm_backward_args& args, const BackwardPlan& plan,
                            const Problem& problem, const TunedContext& context) {
  using A = accumulation_t<T>;
  A* partials = plan.partial_rows > 0 ? static_cast<A*>(args.workspace) : nullptr;
  const BackwardParams<T> p{
      RowAddress<T>(args.x, args.rows),
      RowAddress<T>(args.dy, args.rows),
      static_cast<const A*>(args.rstd),
      static_cast<T*>(args.dx),
      partials,
      args.rows,
      args.cols,
      partial_pitch(args.cols),
      static_cast<A>(1.0 / static_cast<double>(denominator_ux<F>(args.rows, args.cols)))};
  cudaError_t status = cudaErrorInvalidValue;
  if constexpr (std::is_same_v<T, double>) {
    status = launch_split<T, G, F>(args, plan, context, p);
  } else {
    switch (plan.path) {
      case BackwardPath::lanes:
        status = launch_lanes<T, G, F>(args, plan, context, p);
        break;
      case BackwardPath::ring:
        status = launch_ring<T, G, F>(args, plan, problem, context, p);
        break;
      case BackwardPath::split:
        status = launch_split<T, G, F>(args, plan, context, p);
        break;
    }
  }
  if (status != cudaSuccess || partials == nullptr) return status;
  return launch_finalize<T, G, F>(args, plan, context, partials);
}

}  // namespace rmsnorm::kernels::cuda
