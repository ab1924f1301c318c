#pragma once

#include "kernels/cuda/finalize.cuh"
#include "kernels/cuda/launch.cuh"
#include "kernels/cuda/policy.hpp"
#include "kernels/cuda/rowwise.cuh"
#include "kernels/cuda/tuned.hpp"
#include "kernels/cuda/tuned_backward.cuh"
#include "kernels/cuda/tuned_forward.cuh"
#include "kernels/cuda/tuned_ring_elements.cuh"
#include "kernels/cuda/tuned_ring_vectors.cuh"

// From a plan to a launch: one template per path, instantiated for a pair of dtypes by the
// tuned_*.cu files.

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

/// Calls run(std::integral_constant<int, V>) for the V that equals `value`.
template <int... kValues, class Run>
cudaError_t with_constant(int value, Run run) {
  cudaError_t status = cudaErrorInvalidValue;
  static_cast<void>(
      ((value == kValues && (status = run(std::integral_constant<int, kValues>{}), true)) || ...));
  return status;
}

/// Whether every kernel of the product is compiled with the fault. For the sake of compile time a
/// mutant has, of kernels that differ in the size of a thread's share alone, only the largest, and
/// of those that leave something out where they can, only the one that does not: these do for all
/// of the plan's launches.
constexpr bool has_all_kernels(Fault fault) {
  return fault == Fault::none || fault == Fault::control;
}

/// with_constant where there are all kernels; else the last value, the largest, for any.
template <Fault F, int... kValues, class Run>
cudaError_t with_share(int value, Run run) {
  if constexpr (has_all_kernels(F)) return with_constant<kValues...>(value, run);
  constexpr int values[] = {kValues...};
  return run(std::integral_constant<int, values[sizeof...(kValues) - 1]>{});
}

/// The fault that the kernels are compiled with: none of theirs where it is the host's.
constexpr Fault kernel_fault(Fault fault) {
  return is_on_the_host(fault) ? Fault::control : fault;
}

template <class T, class G, Fault F>
cudaError_t launch_forward(const rmsnorm_forward_args& args, const ForwardPlan& plan,
                           const TunedContext& context) {
  const std::size_t limit = context.device.shared_bytes;
  constexpr Fault K = kernel_fault(F);
  const G* gamma = static_cast<const G*>(args.gamma);
  if constexpr (std::is_same_v<T, double>) {
    return launch_rowwise_forward<T, G, F>(args);
  } else {
    const ForwardParams<T> p{RowAddress<T>(args.x, args.rows),
                             static_cast<T*>(args.y),
                             static_cast<float*>(args.rstd),
                             args.rows,
                             args.cols,
                             added_eps<F>(static_cast<float>(args.eps), SpacingAtOne<T>::value),
                             static_cast<float>(denominator<F>(args.rows, args.cols))};
    switch (plan.path) {
      case ForwardPath::lanes: {
        const int rows_at_once = has_all_kernels(K) ? plan.rows : 1;
        const std::int64_t rows_per_block = plan.threads / plan.lanes * rows_at_once;
        const Launch launch =
            launch_of(context, (args.rows + rows_per_block - 1) / rows_per_block, plan.threads);
        const auto run = [&](auto width, auto vectors) {
          return with_share<K, 2, 1>(rows_at_once, [&](auto rows) {
            return launch_kernel<forward_lanes_kernel<T, G, width(), vectors(), rows(), K>>(
                launch, limit, p, gamma, plan.lanes);
          });
        };
        if (context.aligned) {
          return with_share<K, 1, 2, 4>(plan.vectors, [&](auto v) {
            return run(std::integral_constant<int, kPack<T>>{}, v);
          });
        }
        return with_share<K, 1, 2, 4, 8>(
            plan.vectors, [&](auto v) { return run(std::integral_constant<int, 1>{}, v); });
      }
      case ForwardPath::block:
        return with_share<K, 2, 3, 4, 8>(plan.vectors, [&](auto v) {
          return launch_kernel<forward_block_kernel<T, G, v(), K>>(
              launch_of(context, args.rows, plan.threads), limit, p, gamma);
        });
      case ForwardPath::peel:
        return with_share<K, 2, 3, 4, 8>(plan.vectors, [&](auto v) {
          return launch_kernel<forward_peel_kernel<T, G, v(), K>>(
              launch_of(context, args.rows, plan.threads), limit, p, gamma);
        });
      case ForwardPath::cluster: {
        Launch launch = launch_of(context, args.rows * plan.cluster, plan.threads);
        launch.cluster = plan.cluster;
        launch.shared_bytes =
            static_cast<std::size_t>((args.cols / kPack<T> + plan.cluster - 1) / plan.cluster * 16);
        return launch_kernel<forward_cluster_kernel<T, G, K>>(launch, limit, p, gamma,
                                                              plan.cluster);
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

/// The count of this translation unit's ring_pace_count on a device. Static as that is: of an
/// inline function the linker keeps one copy, which would give every unit the count of one of them.
static cudaError_t pace_count_address(int device, unsigned*& address) {
  static std::array<std::atomic<unsigned*>, kMaxDevices> addresses{};
  address = addresses[device].load(std::memory_order_acquire);
  if (address != nullptr) return cudaSuccess;
  void* found = nullptr;
  const cudaError_t status = cudaGetSymbolAddress(&found, ring_pace_count);
  address = static_cast<unsigned*>(found);
  if (status == cudaSuccess) addresses[device].store(address, std::memory_order_release);
  return status;
}

template <class T>
ElementWindows<T> windows_of(const rmsnorm_backward_args& args) {
  const auto range = [&](const rmsnorm_rows& rows) {
    const auto* data = static_cast<const T*>(rows.data);
    const std::int64_t inner = rows.inner_rows < args.rows ? rows.inner_rows : args.rows;
    const std::int64_t last =
        (args.rows - 1) / inner * rows.outer_stride + (inner - 1) * rows.inner_stride;
    return std::pair(data, data + last + args.cols);
  };
  const auto [x_begin, x_end] = range(args.x);
  const auto [dy_begin, dy_end] = range(args.dy);
  return {x_begin, x_end, dy_begin, dy_end};
}

/// The ring as its kernels take it: a mutant has that for the longest of the rows that start
/// anywhere alone.
template <Fault K>
BackwardPlan ring_with_kernels(BackwardPlan plan, bool aligned) {
  if (!has_all_kernels(K) && !aligned) {
    plan.groups = 1;
    plan.group_threads = 480;
    plan.vectors = 32;
  }
  return plan;
}

template <class T, class G, Fault F>
cudaError_t launch_ring(const rmsnorm_backward_args& args, const BackwardPlan& planned,
                        const Problem& problem, const TunedContext& context,
                        const BackwardParams<T>& p) {
  constexpr Fault K = kernel_fault(F);
  const BackwardPlan plan = ring_with_kernels<K>(planned, context.aligned);
  const std::size_t limit = context.device.shared_bytes;
  const G* gamma = static_cast<const G*>(args.gamma);
  Launch launch = launch_of(context, plan.blocks, plan.groups * plan.group_threads + 32);
  launch.shared_bytes = ring_shared_bytes(problem, plan);
  launch.cluster = plan.cluster;
  RingParams ring{plan.groups, plan.group_threads, plan.stages, plan.cluster, 0, 0,
                  false,       plan.pace};
  if (!context.aligned) {
    ring.part_bytes = ring_part_bytes(problem, plan);
    const ElementWindows<T> windows = windows_of<T>(args);
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
          return run(integral_constant<int, 20>{}, integral_constant<int, 480>{});
        default:
          break;
      }
    }
    return run(integral_constant<int, 32>{}, integral_constant<int, 480>{});
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
  const bool exact = launch.threads <= 512 &&
                     args.cols == std::int64_t{plan.group_threads} * plan.vectors * kPack<T>;
  const auto dense = [&](const rmsnorm_rows& rows) {
    return rows.inner_stride == args.cols &&
           (rows.inner_rows >= args.rows || rows.outer_stride == rows.inner_rows * args.cols);
  };
  ring.together = plan.groups >= 3 && dense(args.x) && dense(args.dy);
  if (plan.vectors == 4) {
    return launch_kernel<backward_ring_kernel<T, G, 4, true, false, false, K>>(launch, limit, p,
                                                                               gamma, ring);
  }
  if constexpr (has_all_kernels(K)) {
    if (plan.group_threads == 32) {
      return launch_kernel<backward_ring_kernel<T, G, 2, false, false, true, K>>(launch, limit, p,
                                                                                 gamma, ring);
    }
    if (exact) {
      return launch_kernel<backward_ring_kernel<T, G, 2, false, true, false, K>>(launch, limit, p,
                                                                                 gamma, ring);
    }
  }
  return launch_kernel<backward_ring_kernel<T, G, 2, false, false, false, K>>(launch, limit, p,
                                                                              gamma, ring);
}

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
