#pragma once

#include <algorithm>

#include "kernels/cuda/rowwise.cuh"
#include "kernels/cuda/tuned_forward_cluster.cuh"
#include "kernels/cuda/tuned_forward_ring.cuh"
#include "kernels/cuda/tuned_frame_forward.cuh"
#include "kernels/cuda/tuned_launch.cuh"
#include "kernels/cuda/tuned_long.cuh"
#include "kernels/cuda/tuned_tiny.cuh"

namespace rmsnorm::kernels::cuda {

template <class T, class G, int V, bool kWarp, Fault K>
cudaError_t launch_peel(const Launch& launch, const Problem& problem, std::size_t limit,
                        const ForwardParams<T>& p, const G* gamma) {
  if constexpr (has_all_kernels(K) && std::is_same_v<T, G>) {
    if (problem.one_shift && gamma != nullptr) {
      return with_share<K, 1, 0>(p.keep_x, [&](auto keep) {
        return launch_kernel<forward_peel_kernel<T, G, V, kWarp, true, keep() == 1, K>>(
            launch, limit, p, gamma);
      });
    }
  }
  return launch_kernel<forward_peel_kernel<T, G, V, kWarp, false, false, K>>(launch, limit, p,
                                                                             gamma);
}

template <class T, class G, int kLanes, int V, Fault K>
cudaError_t launch_lanes(const TunedContext& context, const ForwardPlan& plan,
                         const ForwardParams<T>& p, const G* gamma) {
  return with_share<K, forward_rows_at_once(V), 1>(plan.rows, [&](auto rows) {
    return with_share<K, 1, 0>(plan.keep_x, [&](auto keep) {
      constexpr int kRows = kForwardLanesThreads / kLanes * rows();
      return launch_kernel<forward_lanes_kernel<T, G, kLanes, V, rows(), keep() == 1, K>>(
          launch_of(context, (p.rows + kRows - 1) / kRows, kForwardLanesThreads),
          context.device.shared_bytes, p, gamma);
    });
  });
}

template <class T, class G, Fault K>
cudaError_t launch_tiny(const rmsnorm_forward_args& args, const Problem& problem,
                        const TunedContext& context, const ForwardParams<T>& p) {
  const std::size_t limit = context.device.shared_bytes;
  const G* gamma = static_cast<const G*>(args.gamma);
  const auto blocks_of = [](std::int64_t rows) {
    return (rows + kTinyForwardThreads - 1) / kTinyForwardThreads;
  };
  if constexpr (has_all_kernels(K)) {
    if (problem.dense && is_aligned_to_vector(p.rstd)) {
      return with_tiny_cols<T>(args.cols, [&](auto cols) {
        constexpr int kRows = kTinyBlockRows<T, cols()>;
        const std::int64_t blocks = args.rows / kRows + blocks_of(args.rows % kRows);
        return launch_kernel<forward_tiny_kernel<T, G, cols(), K>>(
            launch_of(context, blocks, kTinyForwardThreads), limit, p, gamma);
      });
    }
  }
  return launch_kernel<forward_tiny_rows_kernel<T, G, K>>(
      launch_of(context, blocks_of(args.rows), kTinyForwardThreads), limit, p, gamma);
}

template <class T, class G, Fault K>
cudaError_t launch_forward_frame(const TunedContext& context, const ForwardPlan& plan,
                                 const Problem& problem, const ForwardParams<T>& p,
                                 const G* gamma) {
  const std::size_t limit = context.device.shared_bytes;
  const LaneGroup row_lanes = lane_group(plan.lanes);
  if (!problem.dense) {
    const LaneGroup piece_lanes = lane_group(frame_piece_lanes(problem));
    const std::int64_t block_rows = kFrameRowsThreads / piece_lanes.lanes();
    return launch_kernel<forward_frame_rows_kernel<T, G, K>>(
        launch_of(context, (p.rows + block_rows - 1) / block_rows, kFrameRowsThreads), limit, p,
        gamma, piece_lanes, row_lanes);
  }
  Launch launch = launch_of(context, plan.blocks, plan.threads);
  launch.shared_bytes = share_of_sm(launch, context, frame_shared_bytes(problem, plan));
  const auto whole = static_cast<int>(p.rows / plan.rows);
  const FrameTiles tiles{plan.rows / kForwardFrameVectors, whole,
                         p.rows % plan.rows == 0 ? whole : whole + 1};
  return launch_kernel<forward_frame_kernel<T, G, K>>(launch, limit, p, gamma, tiles, row_lanes);
}

template <class T, class G, Fault F>
cudaError_t launch_forward(const rmsnorm_forward_args& args, const ForwardPlan& plan,
                           const Problem& problem, const TunedContext& context) {
  const std::size_t limit = context.device.shared_bytes;
  constexpr Fault K = kernel_fault(F);
  const G* gamma = static_cast<const G*>(args.gamma);
  if constexpr (std::is_same_v<T, double>) {
    return launch_rowwise_forward<T, G, F>(args);
  } else {
    const ForwardParams<T> p{
        RowAddress<T>(args.x, args.rows),
        static_cast<T*>(args.y),
        static_cast<float*>(args.rstd),
        args.rows,
        args.cols,
        added_eps<F>(static_cast<float>(args.eps), SpacingAtOne<T>::value),
        static_cast<float>(1.0 / static_cast<double>(denominator<F>(args.rows, args.cols))),
        plan.keep_x};
    switch (plan.path) {
      case ForwardPath::lanes:
        if constexpr (has_all_kernels(K)) {
          if (plan.vectors == 1) {
            return with_constant<1, 2, 4, 8, 16, 32>(plan.lanes, [&](auto lanes) {
              return launch_lanes<T, G, lanes(), 1, K>(context, plan, p, gamma);
            });
          }
          if (plan.vectors == 2) return launch_lanes<T, G, 32, 2, K>(context, plan, p, gamma);
        }
        return launch_lanes<T, G, 32, 4, K>(context, plan, p, gamma);
      case ForwardPath::block:
        return with_share<K, 2, 3, 4>(plan.vectors, [&](auto v) {
          return with_share<K, 1, 0>(plan.keep_x, [&](auto keep) {
            return launch_kernel<forward_block_kernel<T, G, v(), keep() == 1, K>>(
                launch_of(context, args.rows, plan.threads), limit, p, gamma);
          });
        });
      case ForwardPath::tiny:
        return launch_tiny<T, G, K>(args, problem, context, p);
      case ForwardPath::frame:
        return launch_forward_frame<T, G, K>(context, plan, problem, p, gamma);
      case ForwardPath::peel_warp:
        return with_share<K, 1, 2, 4>(plan.vectors, [&](auto v) {
          return launch_peel<T, G, v(), true, K>(
              launch_of(context, (args.rows + kPeelWarps - 1) / kPeelWarps, 32 * kPeelWarps),
              problem, limit, p, gamma);
        });
      case ForwardPath::peel:
        return with_share<K, 2, 4>(plan.vectors, [&](auto v) {
          return launch_peel<T, G, v(), false, K>(launch_of(context, args.rows, plan.threads),
                                                  problem, limit, p, gamma);
        });
      case ForwardPath::ring: {
        Launch launch = launch_of(context, plan.blocks, plan.threads + 32);
        launch.cluster = plan.cluster;
        launch.shared_bytes = ring_shared_bytes(problem, plan);
        const std::uint32_t part = ring_part_bytes(problem, plan);
        const RingParams ring{1,         plan.threads, plan.stages, plan.cluster,
                              part / 16, part,         plan.pace};
        return with_share<K, 4, 8>(plan.vectors, [&](auto v) {
          return launch_kernel<forward_ring_kernel<T, G, v(), K>>(launch, limit, p, gamma, ring);
        });
      }
      case ForwardPath::cluster: {
        const std::int64_t slice = slice_vectors(problem, plan.cluster);
        const auto run = [&](auto threads, auto shifted, auto one_shift) {
          Launch launch = launch_of(context, args.rows * plan.cluster, threads());
          launch.cluster = plan.cluster;
          launch.shared_bytes = static_cast<std::size_t>(slice * 16);
          return launch_kernel<forward_cluster_kernel<T, G, threads(), shifted(), one_shift(), K>>(
              launch, limit, p, gamma, plan.cluster, slice);
        };
        using Small = std::integral_constant<int, 256>;
        using Large = std::integral_constant<int, 512>;
        using std::false_type, std::true_type;
        if constexpr (has_all_kernels(K)) {
          const auto run_sized = [&](auto shifted, auto one_shift) {
            return plan.cluster == 1 && plan.threads == Small{} ? run(Small{}, shifted, one_shift)
                                                                : run(Large{}, shifted, one_shift);
          };
          if (problem.aligned) return run_sized(false_type{}, true_type{});
          if (problem.one_shift) return run_sized(true_type{}, true_type{});
          return run_sized(true_type{}, false_type{});
        }
        return run(Large{}, true_type{}, false_type{});
      }
      case ForwardPath::long_rows: {
        const Launch launch = launch_of(context, args.rows * plan.chunks, kLongThreads);
        float* const squares = static_cast<float*>(args.workspace);
        const auto run = [&](auto start) {
          constexpr bool kAligned = start() == Start::aligned;
          const cudaError_t status = launch_kernel<forward_long_squares_kernel<T, kAligned, K>>(
              launch, limit, p, squares, plan.chunks);
          if (status != cudaSuccess) return status;
          return launch_kernel<forward_long_kernel<T, G, start(), K>>(
              launch, limit, p, gamma, static_cast<const float*>(squares), plan.chunks);
        };
        return with_start<K>(problem, run);
      }
      case ForwardPath::two_pass:
        return launch_kernel<forward_two_pass_kernel<T, G, K>>(
            launch_of(context, args.rows, plan.threads), limit, p, gamma);
      case ForwardPath::any:
        break;
    }
    return launch_rowwise_forward<T, G, F>(args);
  }
}

}  // namespace rmsnorm::kernels::cuda
