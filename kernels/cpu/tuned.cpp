#include "kernels/cpu/tuned.hpp"

#include <algorithm>

#include "kernels/common/arguments.hpp"
#include "kernels/implementations.h"

namespace rmsnorm::kernels::cpu {
namespace {

constexpr std::int64_t kPieceCols = 8192;
constexpr std::int64_t kPieceMultiple = 1024;
constexpr std::int64_t kMaxStrips = 256;
constexpr std::int64_t kMinRowsPerStrip = 16;
constexpr std::int64_t kMaxPartialsBytes = std::int64_t(4) << 20;
constexpr std::int64_t kFewRows = 2 * kMinRowsPerStrip;
constexpr std::int64_t kLongRowCols = 8192;         // with few rows
constexpr std::int64_t kVeryLongRowCols = 1 << 18;  // with any number of rows
constexpr std::int64_t kGroupElements = 1 << 18;
// Of the caches near a few cores, whatever the last level is.
constexpr std::int64_t kCachedBytes = std::int64_t(16) << 20;
constexpr std::int64_t kElementsWorthThreads = 1 << 15;

std::int64_t divide_up(std::int64_t a, std::int64_t b) {
  return (a + b - 1) / b;
}
std::int64_t round_up(std::int64_t a, std::int64_t b) {
  return divide_up(a, b) * b;
}

bool processor_has(Isa isa) {
  switch (isa) {
    case Isa::generic:
      return true;
#if defined(__x86_64__)
    case Isa::avx2:
      return __builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma") &&
             __builtin_cpu_supports("f16c");
    case Isa::avx512:
      return __builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512bw") &&
             __builtin_cpu_supports("avx512dq") && __builtin_cpu_supports("avx512vl");
#else
    default:
      return false;
#endif
  }
  return false;
}

std::size_t backward_workspace_bytes(const rmsnorm_backward_args* args) {
  return plan_backward(*args).workspace_bytes;
}

rmsnorm_implementation make_table(const TunedFunctions& functions, const char* summary) {
  return {
      .abi_version = RMSNORM_ABI_VERSION,
      .device_type = RMSNORM_CPU,
      .name = "tuned",
      .summary = summary,
      .forward_refusal = dtype_refusal<rmsnorm_forward_args>,
      .backward_refusal = dtype_refusal<rmsnorm_backward_args>,
      .forward_workspace_bytes = nullptr,
      .backward_workspace_bytes = backward_workspace_bytes,
      .forward = functions.forward,
      .backward = functions.backward,
      .error_text = nullptr,
  };
}

}  // namespace

RowPieces row_pieces(std::int64_t cols) {
  const std::int64_t piece =
      std::max(kPieceCols, round_up(divide_up(cols, kMaxPieces), kPieceMultiple));
  return {.count = divide_up(cols, piece), .cols = piece};
}

BackwardPlan plan_backward(const rmsnorm_backward_args& args) {
  const std::int64_t number_bytes = accumulation_bytes(args.x.dtype);
  BackwardPlan plan{};
  plan.partial_stride = round_up(args.cols, 64);  // no cache line of two strips
  plan.by_columns =
      args.cols >= kVeryLongRowCols || (args.cols >= kLongRowCols && args.rows <= kFewRows);
  std::int64_t numbers = 0;
  if (plan.by_columns) {
    plan.group_rows = std::max<std::int64_t>(1, kGroupElements / args.cols);
    plan.dot_offset = args.dgamma == nullptr ? 0 : plan.partial_stride;
    numbers = plan.dot_offset;
    if (args.dx != nullptr) numbers += plan.group_rows * kMaxPieces;
  } else {
    const std::int64_t affordable = kMaxPartialsBytes / (plan.partial_stride * number_bytes);
    const std::int64_t wanted = std::min(divide_up(args.rows, kMinRowsPerStrip), kMaxStrips);
    plan.strips = std::max<std::int64_t>(1, std::min(wanted, affordable));
    plan.rows_per_strip = divide_up(args.rows, plan.strips);
    if (plan.rows_per_strip > 0) plan.strips = divide_up(args.rows, plan.rows_per_strip);
    if (args.dgamma != nullptr) numbers = plan.strips * plan.partial_stride;
  }
  plan.workspace_bytes = static_cast<std::size_t>(numbers * number_bytes);
  return plan;
}

const rmsnorm_executor* executor_for(const rmsnorm_executor* executor, std::int64_t elements) {
  const bool worth = executor != nullptr && executor->threads > 1;
  return worth && elements >= kElementsWorthThreads ? executor : nullptr;
}

bool stream_outputs(const void* output, std::int64_t rows, std::int64_t cols,
                    std::size_t number_bytes, std::int64_t tensors) {
  const std::int64_t row_bytes = cols * static_cast<std::int64_t>(number_bytes);
  const bool whole_lines =
      reinterpret_cast<std::uintptr_t>(output) % 64 == 0 && row_bytes % 64 == 0;
  return whole_lines && rows >= kCachedBytes / (tensors * row_bytes);
}

const rmsnorm_implementation* tuned_table(Isa isa) {
  static const rmsnorm_implementation generic_table =
      make_table(generic::kFunctions, "rows in vectors, dgamma in strips of rows; any processor");
  if (!processor_has(isa)) return nullptr;
  if (isa == Isa::generic) return &generic_table;
#if defined(__x86_64__)
  static const rmsnorm_implementation avx2_table =
      make_table(avx2::kFunctions, "rows in vectors, dgamma in strips of rows; AVX2");
  static const rmsnorm_implementation avx512_table =
      make_table(avx512::kFunctions, "rows in vectors, dgamma in strips of rows; AVX-512");
  return isa == Isa::avx2 ? &avx2_table : &avx512_table;
#else
  return nullptr;
#endif
}

}  // namespace rmsnorm::kernels::cpu

const rmsnorm_implementation* rmsnorm_tuned_cpu(void) {
  using namespace rmsnorm::kernels::cpu;
  static const rmsnorm_implementation* const table = [] {
    const rmsnorm_implementation* best = nullptr;
    for (const Isa isa : kIsas) {
      if (const auto* candidate = tuned_table(isa)) best = candidate;
    }
    return best;
  }();
  return table;
}
