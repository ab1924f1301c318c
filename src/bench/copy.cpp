#include <cstdint>
#include <cstring>

#include "bench/timer.hpp"
#include "core/dtype.hpp"
#include "rmsnorm/errors.hpp"

namespace rmsnorm::bench {
namespace {

/// Strips per thread would only cost launches: one strip each, in whole words.
template <class Body>
void over_threads(const rmsnorm_executor* executor, std::int64_t bytes, Body body) {
  constexpr std::int64_t kStripAlignment = 64;
  constexpr std::int64_t kWorthAThread = 1 << 15;
  const std::int64_t threads = executor == nullptr ? 1 : executor->threads;
  struct State {
    Body& body;
    std::int64_t bytes, strip;
  };
  std::int64_t strip = (bytes + threads - 1) / threads;
  strip = (strip + kStripAlignment - 1) / kStripAlignment * kStripAlignment;
  if (strip < kWorthAThread) strip = kWorthAThread;
  State state{body, bytes, strip};
  const auto task = [](void* opaque, std::int64_t index) {
    const State& s = *static_cast<State*>(opaque);
    const std::int64_t begin = index * s.strip;
    s.body(begin, s.bytes - begin < s.strip ? s.bytes - begin : s.strip);
  };
  const std::int64_t tasks = (bytes + strip - 1) / strip;
  if (tasks == 1 || executor == nullptr) {
    for (std::int64_t index = 0; index < tasks; ++index) task(&state, index);
  } else {
    executor->run(tasks, task, &state);
  }
}

template <class Args>
std::int64_t tensor_bytes(const Args& args) {
  return args.rows * args.cols * size_bytes(static_cast<Dtype>(args.x.dtype));
}

std::int32_t cpu_copy(const rmsnorm_forward_args* args) {
  auto* const y = static_cast<unsigned char*>(args->y);
  const auto* const x = static_cast<const unsigned char*>(args->x.data);
  over_threads(args->executor, tensor_bytes(*args), [&](std::int64_t begin, std::int64_t bytes) {
    std::memcpy(y + begin, x + begin, static_cast<std::size_t>(bytes));
  });
  return RMSNORM_OK;
}

std::int32_t cpu_combine(const rmsnorm_backward_args* args) {
  auto* const dx = static_cast<unsigned char*>(args->dx);
  const auto* const x = static_cast<const unsigned char*>(args->x.data);
  const auto* const dy = static_cast<const unsigned char*>(args->dy.data);
  over_threads(args->executor, tensor_bytes(*args), [&](std::int64_t begin, std::int64_t bytes) {
    unsigned char* __restrict__ out = dx + begin;
    const unsigned char *a = x + begin, *b = dy + begin;
    for (std::int64_t i = 0; i < bytes; ++i) out[i] = static_cast<unsigned char>(a[i] ^ b[i]);
  });
  return RMSNORM_OK;
}

const rmsnorm_implementation kCpuCopy = {
    .abi_version = RMSNORM_ABI_VERSION,
    .device_type = RMSNORM_CPU,
    .name = "copy",
    .summary = "memory copy of the same bytes by the same threads",
    .forward_refusal = nullptr,
    .backward_refusal = nullptr,
    .forward_workspace_bytes = nullptr,
    .backward_workspace_bytes = nullptr,
    .forward = cpu_copy,
    .backward = cpu_combine,
    .error_text = nullptr,
};

}  // namespace

const rmsnorm_implementation& copy_table(std::int32_t device_type) {
  if (device_type == RMSNORM_CPU) return kCpuCopy;
  if (const rmsnorm_implementation* table = cuda_copy_table()) return *table;
  throw UnavailableError("benchmark: CUDA needs a build with CUDA kernels (preset cuda)");
}

}  // namespace rmsnorm::bench
