#include "kernels/cuda/tuned.hpp"

#include <algorithm>
#include <array>
#include <atomic>

#include "kernels/common/arguments.hpp"
#include "kernels/cuda/launch.cuh"
#include "kernels/implementations.h"

namespace rmsnorm::kernels::cuda {
namespace {

/// Facts of a device, asked for once: they cost as much as a launch.
struct CachedDevice {
  std::atomic<bool> known{false};
  Device facts;
};

cudaError_t read_facts(int index, Device& facts) {
  int major = 0, minor = 0, shared = 0, l2 = 0;
  const std::pair<int*, cudaDeviceAttr> wanted[] = {
      {&facts.sms, cudaDevAttrMultiProcessorCount},
      {&major, cudaDevAttrComputeCapabilityMajor},
      {&minor, cudaDevAttrComputeCapabilityMinor},
      {&shared, cudaDevAttrMaxSharedMemoryPerBlockOptin},
      {&l2, cudaDevAttrL2CacheSize}};
  for (const auto& [value, attribute] : wanted) {
    const cudaError_t status = cudaDeviceGetAttribute(value, attribute, index);
    if (status != cudaSuccess) return status;
  }
  facts.compute_capability = major * 10 + minor;
  facts.shared_bytes = static_cast<std::size_t>(shared);
  facts.l2_bytes = l2;
  facts.max_cluster = facts.compute_capability == 90 || facts.compute_capability == 100 ? 16 : 8;
  while (facts.max_cluster > facts.sms) facts.max_cluster /= 2;  // a slice of a device
  return cudaSuccess;
}

cudaError_t current_device(TunedContext& context) {
  static std::array<CachedDevice, kMaxDevices> devices;
  if (const cudaError_t status = cudaGetDevice(&context.device_index); status != cudaSuccess)
    return status;
  if (context.device_index >= kMaxDevices) return cudaErrorInvalidDevice;
  CachedDevice& cached = devices[context.device_index];
  if (!cached.known.load(std::memory_order_acquire)) {
    Device facts;
    if (const cudaError_t status = read_facts(context.device_index, facts); status != cudaSuccess)
      return status;
    // Two threads may write here at once, but the same values.
    cached.facts = facts;
    cached.known.store(true, std::memory_order_release);
  }
  context.device = cached.facts;
  return cudaSuccess;
}

bool is_aligned(const void* pointer) {
  return reinterpret_cast<std::uintptr_t>(pointer) % 16 == 0;
}

int element_bytes(std::int32_t dtype) {
  return dtype == RMSNORM_FLOAT64 ? 8 : dtype == RMSNORM_FLOAT32 ? 4 : 2;
}

bool rows_aligned(const rmsnorm_rows& rows) {
  const int bytes = element_bytes(rows.dtype);
  return is_aligned(rows.data) && rows.inner_stride * bytes % 16 == 0 &&
         rows.outer_stride * bytes % 16 == 0;
}

bool is_one_level(const rmsnorm_rows& rows, std::int64_t count) {
  return rows.inner_rows >= count || rows.outer_stride == rows.inner_rows * rows.inner_stride;
}

bool rows_dense(const rmsnorm_rows& rows, std::int64_t count, std::int64_t cols) {
  return is_aligned(rows.data) && rows.inner_stride == cols && is_one_level(rows, count);
}

template <class Args>
Problem problem_of(const Args& args) {
  Problem problem;
  problem.rows = args.rows;
  problem.cols = args.cols;
  problem.element_bytes = element_bytes(args.x.dtype);
  problem.gamma_bytes =
      args.gamma == nullptr ? problem.element_bytes : element_bytes(args.gamma_dtype);
  problem.float64 = args.x.dtype == RMSNORM_FLOAT64;
  problem.dense = rows_dense(args.x, args.rows, args.cols);
  problem.aligned =
      rows_aligned(args.x) && is_aligned(args.gamma) && args.cols * problem.element_bytes % 16 == 0;
  return problem;
}

/// Whether the rows of `rows` start as far past a 16-byte boundary as those of a dense tensor at
/// `dense`.
bool has_shift_of(const void* dense, const rmsnorm_rows& rows, std::int64_t count,
                  std::int64_t cols) {
  const auto shift = [](const void* pointer) {
    return reinterpret_cast<std::uintptr_t>(pointer) % 16;
  };
  return is_one_level(rows, count) &&
         (rows.inner_stride - cols) * element_bytes(rows.dtype) % 16 == 0 &&
         shift(rows.data) == shift(dense);
}

bool has_one_shift(const rmsnorm_backward_args& args) {
  const void* const dense = args.dx != nullptr ? args.dx : args.x.data;
  return has_shift_of(dense, args.x, args.rows, args.cols) &&
         has_shift_of(dense, args.dy, args.rows, args.cols);
}

Problem backward_problem(const rmsnorm_backward_args& args) {
  Problem problem = problem_of(args);
  problem.aligned = problem.aligned && rows_aligned(args.dy) && is_aligned(args.dx);
  problem.dense = problem.dense && rows_dense(args.dy, args.rows, args.cols) && is_aligned(args.dx);
  problem.one_shift = !problem.aligned && has_one_shift(args);
  problem.wants_dx = args.dx != nullptr;
  problem.wants_dgamma = args.dgamma != nullptr;
  return problem;
}

template <class Args>
Launchers launchers_of(const Args& args) {
  const bool float32_gamma = args.gamma != nullptr && args.gamma_dtype == RMSNORM_FLOAT32;
  switch (args.x.dtype) {
    case RMSNORM_FLOAT64:
      return float64_launchers();
    case RMSNORM_FLOAT32:
      return float32_launchers();
    case RMSNORM_FLOAT16:
      return float16_launchers(float32_gamma);
    default:
      return bfloat16_launchers(float32_gamma);
  }
}

Problem forward_problem(const rmsnorm_forward_args& args) {
  Problem problem = problem_of(args);
  problem.aligned = problem.aligned && is_aligned(args.y);
  problem.dense = problem.dense && is_aligned(args.y);
  problem.one_shift = !problem.aligned && is_aligned(args.gamma) &&
                      has_shift_of(args.y, args.x, args.rows, args.cols);
  return problem;
}

std::size_t workspace_bytes(const ForwardPlan& plan, const rmsnorm_forward_args& args) {
  return static_cast<std::size_t>(args.rows * plan.chunks) * sizeof(float);
}

/// Rows of up to 64 KB, which every device takes without, are not planned for.
std::size_t forward_workspace_bytes(const rmsnorm_forward_args* args) {
  constexpr std::int64_t kNeedsNone = std::int64_t{64} << 10;
  TunedContext context;
  if (args->cols * element_bytes(args->x.dtype) <= kNeedsNone || args->rows == 0 ||
      dtype_refusal(args) != nullptr || current_device(context) != cudaSuccess)
    return 0;
  return workspace_bytes(plan_forward(forward_problem(*args), context.device), *args);
}

std::int32_t forward(const rmsnorm_forward_args* args) {
  if (dtype_refusal(args) != nullptr) return RMSNORM_UNSUPPORTED;
  return run_forward(*args, launchers_of(*args).forward);
}

std::size_t workspace_bytes(const BackwardPlan& plan, const rmsnorm_backward_args& args) {
  const std::int64_t numbers = plan.partial_rows * partial_pitch(args.cols) + long_floats(plan);
  return static_cast<std::size_t>(numbers * accumulation_bytes(args.x.dtype));
}

/// Zero where the device cannot be asked: the call itself then says why.
std::size_t backward_workspace_bytes(const rmsnorm_backward_args* args) {
  TunedContext context;
  if (dtype_refusal(args) != nullptr || current_device(context) != cudaSuccess) return 0;
  return workspace_bytes(plan_backward(backward_problem(*args), context.device), *args);
}

std::int32_t backward(const rmsnorm_backward_args* args) {
  if (dtype_refusal(args) != nullptr) return RMSNORM_UNSUPPORTED;
  return run_backward(*args, launchers_of(*args).backward);
}

const char* error_text(std::int32_t status) {
  return cudaGetErrorString(static_cast<cudaError_t>(status));
}

const rmsnorm_implementation kTable = {
    RMSNORM_ABI_VERSION,
    RMSNORM_CUDA,
    "tuned",
    "vectors in registers, bulk-copy ring, float32 partial rows; one kernel per regime, see "
    "policy.hpp",
    dtype_refusal<rmsnorm_forward_args>,
    dtype_refusal<rmsnorm_backward_args>,
    forward_workspace_bytes,
    backward_workspace_bytes,
    forward,
    backward,
    error_text,
};

}  // namespace

std::int32_t run_forward(const rmsnorm_forward_args& args, ForwardLauncher launch) {
  if (args.rows == 0) return RMSNORM_OK;
  TunedContext context;
  if (const cudaError_t status = current_device(context); status != cudaSuccess) return status;
  const Problem problem = forward_problem(args);
  const ForwardPlan plan = plan_forward(problem, context.device);
  if (args.workspace_bytes < workspace_bytes(plan, args)) return RMSNORM_WORKSPACE;
  context.stream = static_cast<cudaStream_t>(args.stream);
  return launch(args, plan, problem, context);
}

std::int32_t run_backward(const rmsnorm_backward_args& args, BackwardLauncher launch) {
  TunedContext context;
  if (const cudaError_t status = current_device(context); status != cudaSuccess) return status;
  const Problem problem = backward_problem(args);
  const BackwardPlan plan = plan_backward(problem, context.device);
  if (args.workspace_bytes < workspace_bytes(plan, args)) return RMSNORM_WORKSPACE;
  context.stream = static_cast<cudaStream_t>(args.stream);
  return launch(args, plan, problem, context);
}

}  // namespace rmsnorm::kernels::cuda

const rmsnorm_implementation* rmsnorm_tuned_cuda(void) {
  return &rmsnorm::kernels::cuda::kTable;
}
