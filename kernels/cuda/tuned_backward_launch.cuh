#pragma once

#include <algorithm>

#include "kernels/cuda/finalize.cuh"
#include "kernels/cuda/tuned_frame.cuh"
#include "kernels/cuda/tuned_long.cuh"
#include "kernels/cuda/tuned_ring_launch.cuh"
#include "kernels/cuda/tuned_thread_ring.cuh"
#include "kernels/cuda/tuned_tiny.cuh"

namespace rmsnorm::kernels::cuda {

template <class T, class G, Fault F>
cudaError_t launch_finalize(const rmsnorm_backward_args& args, const BackwardPlan& plan,
                            const Problem& problem, const TunedContext& context,
                            const accumulation_t<T>* partials) {
  const std::size_t limit = context.device.shared_bytes;
  const std::int64_t pitch = partial_pitch(args.cols);
  if constexpr (std::is_same_v<T, double>) {
    return launch_kernel<finalize_float64_kernel<kernel_fault(F)>>(
        launch_of(context, (args.cols + 127) / 128, 128), limit, partials,
        static_cast<double*>(args.dgamma), plan.partial_rows, pitch, args.cols);
  } else {
    const bool next_may_start = plan.path != BackwardPath::lanes || problem.aligned;
    const auto run = [&](auto lanes, auto at_once) {
      constexpr int kColumns = 4 * lanes();
      return launch_kernel<finalize_kernel<G, lanes(), at_once(), kernel_fault(F)>>(
          launch_of(context, (args.cols + kColumns - 1) / kColumns, kFinalizeThreads), limit,
          partials, static_cast<G*>(args.dgamma), plan.partial_rows, pitch, args.cols,
          next_may_start);
    };
    using std::integral_constant;
    if (plan.partial_rows <= 32)
      return run(integral_constant<int, 128>{}, integral_constant<int, 8>{});
    if (plan.partial_rows <= 192)
      return run(integral_constant<int, 8>{}, integral_constant<int, 3>{});
    return run(integral_constant<int, 8>{}, integral_constant<int, 9>{});
  }
}

template <class T, class G, Fault F>
cudaError_t launch_split(const rmsnorm_backward_args& args, const BackwardPlan& plan,
                         const Problem& problem, const TunedContext& context,
                         const BackwardParams<T>& p) {
  if (plan.blocks == 0) return cudaSuccess;
  const Launch launch = launch_of(context, plan.blocks, kSplitThreads);
  const std::size_t limit = context.device.shared_bytes;
  const G* gamma = static_cast<const G*>(args.gamma);
  G* dgamma = static_cast<G*>(args.dgamma);
  const int chunks = plan.partial_rows > 0 ? plan.partial_rows : 1;
  const std::int64_t chunk_rows = (args.rows + chunks - 1) / chunks;
  const LaneGroup columns = lane_group(plan.column_threads);
  if constexpr (!std::is_same_v<T, double>) {
    if (problem.aligned) {
      return launch_kernel<backward_split_kernel<T, G, kPack<T>, kernel_fault(F)>>(
          launch, limit, p, gamma, dgamma, plan.row_blocks, columns, chunks, chunk_rows);
    }
  }
  return launch_kernel<backward_split_kernel<T, G, 1, kernel_fault(F)>>(
      launch, limit, p, gamma, dgamma, plan.row_blocks, columns, chunks, chunk_rows);
}

template <class T, class G, Fault F>
cudaError_t launch_lanes(const rmsnorm_backward_args& args, const BackwardPlan& plan,
                         const Problem& problem, const TunedContext& context,
                         const BackwardParams<T>& p) {
  constexpr Fault K = kernel_fault(F);
  Launch launch = launch_of(context, plan.blocks, plan.group_threads);
  const std::size_t limit = context.device.shared_bytes;
  const G* gamma = static_cast<const G*>(args.gamma);
  const LaneGroup group = lane_group(plan.lanes);
  if (problem.aligned) {
    return with_share<K, 1, 2, 3>(plan.vectors, [&](auto v) {
      // More than half of an SM's, so that none takes two blocks: those that start while the kernel
      // before still holds some SMs would crowd the others.
      launch.shared_bytes =
          std::max(ThreadRing<v(), kLanesRingStages<v()>>::kBytes, limit / 2 + 1024);
      return launch_kernel<backward_lanes_ring_kernel<T, G, v(), K>>(launch, limit, p, gamma,
                                                                     group);
    });
  }
  return with_share<K, 1, 2, 4, 8>(plan.vectors, [&](auto v) {
    return launch_kernel<backward_lanes_kernel<T, G, v(), v() == 8 ? 2 : 4, K>>(launch, limit, p,
                                                                                gamma, group);
  });
}

template <class T, class G, Fault F>
cudaError_t launch_groups(const rmsnorm_backward_args& args, const BackwardPlan& plan,
                          const TunedContext& context, const BackwardParams<T>& p) {
  constexpr Fault K = kernel_fault(F);
  Launch launch = launch_of(context, plan.blocks, plan.groups * plan.group_threads);
  const std::size_t limit = context.device.shared_bytes;
  const G* gamma = static_cast<const G*>(args.gamma);
  return with_share<K, 2, 3>(plan.vectors, [&](auto v) {
    launch.shared_bytes = ThreadRing<v(), kGroupsStages>::kBytes;
    // Of three vectors the guards cost less than the registers that their absence frees elsewhere.
    if constexpr (has_all_kernels(K) && v() == 2) {
      if (args.cols == std::int64_t{plan.group_threads} * v() * kPack<T>) {
        return launch_kernel<backward_groups_kernel<T, G, v(), true, K>>(launch, limit, p, gamma,
                                                                         plan.group_threads);
      }
    }
    return launch_kernel<backward_groups_kernel<T, G, v(), false, K>>(launch, limit, p, gamma,
                                                                      plan.group_threads);
  });
}

template <class T, class G, Fault F>
cudaError_t launch_tiny(const rmsnorm_backward_args& args, const BackwardPlan& plan,
                        const TunedContext& context, const BackwardParams<T>& p) {
  constexpr Fault K = kernel_fault(F);
  Launch launch = launch_of(context, plan.blocks, plan.group_threads);
  const std::size_t limit = context.device.shared_bytes;
  const G* gamma = static_cast<const G*>(args.gamma);
  if constexpr (has_all_kernels(K)) {
    if (is_aligned_to_vector(p.rstd)) {
      launch.shared_bytes = share_of_sm(launch, context, tiny_shared_bytes(plan));
      return with_tiny_cols<T>(args.cols, [&](auto cols) {
        return launch_kernel<backward_tiny_kernel<T, G, cols(), K>>(launch, limit, p, gamma);
      });
    }
  }
  return launch_kernel<backward_tiny_rows_kernel<T, G, K>>(launch, limit, p, gamma);
}

template <class T, class G, Fault F>
cudaError_t launch_frame(const rmsnorm_backward_args& args, const BackwardPlan& plan,
                         const Problem& problem, const TunedContext& context,
                         const BackwardParams<T>& p) {
  constexpr Fault K = kernel_fault(F);
  Launch launch = launch_of(context, plan.blocks, plan.group_threads);
  const std::size_t limit = context.device.shared_bytes;
  launch.shared_bytes = share_of_sm(launch, context, frame_shared_bytes(problem, plan));
  const G* gamma = static_cast<const G*>(args.gamma);
  return with_share<K, 1, 2, kFrameMaxVectors>(plan.vectors, [&](auto v) {
    return launch_kernel<backward_frame_kernel<T, G, v(), K>>(
        launch, limit, p, gamma, plan.tile_rows, lane_group(plan.lanes));
  });
}

template <class T, class G, Fault F>
cudaError_t launch_long(const rmsnorm_backward_args& args, const BackwardPlan& plan,
                        const Problem& problem, const TunedContext& context,
                        const BackwardParams<T>& p) {
  constexpr Fault K = kernel_fault(F);
  const std::size_t limit = context.device.shared_bytes;
  const G* gamma = static_cast<const G*>(args.gamma);
  const auto period = static_cast<int>(shift_period(problem));
  float* const dots = static_cast<float*>(args.workspace);
  float* const projections = dots + plan.launch_rows * plan.dot_chunks;
  const auto run = [&](auto start, RowRange rows) {
    const std::int64_t count = rows.end - rows.begin;
    if (plan.dot_chunks > 0) {
      cudaError_t status = launch_kernel<backward_long_dots_kernel<T, G, start(), K>>(
          launch_of(context, count * plan.dot_chunks, kLongThreads), limit, p, gamma, rows, dots,
          plan.dot_chunks);
      if (status != cudaSuccess) return status;
      constexpr int kBlockRows = kLongColumnThreads / 32;
      status = launch_kernel<backward_long_projections_kernel<T, K>>(
          launch_of(context, (count + kBlockRows - 1) / kBlockRows, kLongColumnThreads), limit, p,
          rows, static_cast<const float*>(dots), projections, plan.dot_chunks);
      if (status != cudaSuccess) return status;
    }
    return launch_kernel<backward_long_columns_kernel<T, G, start(), K>>(
        launch_of(context, plan.blocks, kLongColumnThreads), limit, p, gamma,
        static_cast<G*>(args.dgamma), rows, static_cast<const float*>(projections), plan.row_chunks,
        (count + plan.row_chunks - 1) / plan.row_chunks, period);
  };
  for (std::int64_t row = 0; row < args.rows; row += plan.launch_rows) {
    const RowRange rows{row, std::min(row + plan.launch_rows, args.rows)};
    const cudaError_t status = with_start<K>(problem, [&](auto start) { return run(start, rows); });
    if (status != cudaSuccess) return status;
  }
  return cudaSuccess;
}

template <class T, class G, Fault F>
cudaError_t launch_backward(const rmsnorm_backward_args& args, const BackwardPlan& plan,
                            const Problem& problem, const TunedContext& context) {
  using A = accumulation_t<T>;
  A* partials =
      plan.partial_rows > 0 ? static_cast<A*>(args.workspace) + long_floats(plan) : nullptr;
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
    status = launch_split<T, G, F>(args, plan, problem, context, p);
  } else {
    switch (plan.path) {
      case BackwardPath::lanes:
        status = launch_lanes<T, G, F>(args, plan, problem, context, p);
        break;
      case BackwardPath::groups:
        status = launch_groups<T, G, F>(args, plan, context, p);
        break;
      case BackwardPath::ring:
        status = launch_ring<T, G, F>(args, plan, problem, context, p);
        break;
      case BackwardPath::frame:
        status = launch_frame<T, G, F>(args, plan, problem, context, p);
        break;
      case BackwardPath::tiny:
        status = launch_tiny<T, G, F>(args, plan, context, p);
        break;
      case BackwardPath::long_rows:
        status = launch_long<T, G, F>(args, plan, problem, context, p);
        break;
      case BackwardPath::split:
        status = launch_split<T, G, F>(args, plan, problem, context, p);
        break;
    }
  }
  if (status != cudaSuccess || partials == nullptr) return status;
  return launch_finalize<T, G, F>(args, plan, problem, context, partials);
}

}  // namespace rmsnorm::kernels::cuda
