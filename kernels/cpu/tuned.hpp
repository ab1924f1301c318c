#pragma once

#include <cstddef>
#include <cstdint>

#include "rmsnorm/implementation.h"

// `tuned` on the CPU: one set of loops (tuned_rows.hpp and what it includes) compiled once for each
// instruction set below and chosen when the program runs. What is compiled for an instruction set
// lives in a namespace of its own and uses no inline function from outside it: the linker keeps one
// copy of such a function, and it may keep the one that this machine cannot execute.

namespace rmsnorm::kernels::cpu {

enum class Isa { generic, avx2, avx512 };
constexpr Isa kIsas[] = {Isa::generic, Isa::avx2, Isa::avx512};

/// The table that uses `isa`; nullptr where this build or this processor has no such instructions.
/// rmsnorm_tuned_cpu() is the last of kIsas that is not nullptr.
const rmsnorm_implementation* tuned_table(Isa isa);

/// How a row is cut into pieces whose sums are added in order. From the columns alone, so that a
/// row has the same sum on one thread and on many, alone and among others.
struct RowPieces {
  std::int64_t count;  ///< at most kMaxPieces
  std::int64_t cols;   ///< of each but the last
};
constexpr std::int64_t kMaxPieces = 64;
RowPieces row_pieces(std::int64_t cols);

/// How backward's work is cut. From the sizes alone, so that dgamma has the same bits on any number
/// of threads.
struct BackwardPlan {
  /// Few or very long rows: the threads share each row, and no column has more than one
  /// accumulator. Otherwise each strip of rows is one thread's, with accumulators of its own.
  bool by_columns;
  std::int64_t strips, rows_per_strip;  ///< by rows
  std::int64_t group_rows;              ///< by columns: rows whose dot products are taken together
  std::int64_t partial_stride;          ///< elements between the accumulator rows of two strips
  std::int64_t dot_offset;              ///< by columns: where the dot products start, in elements
  std::size_t workspace_bytes;
};
BackwardPlan plan_backward(const rmsnorm_backward_args& args);

/// The executor where the work is worth waking its threads for, else nullptr.
const rmsnorm_executor* executor_for(const rmsnorm_executor* executor, std::int64_t elements);

/// Whether an output is written past the caches: where a pass over `tensors` of its size is more
/// than they hold, and its rows start at cache lines, so that every line is written whole. The bits
/// are the same.
bool stream_outputs(const void* output, std::int64_t rows, std::int64_t cols,
                    std::size_t number_bytes, std::int64_t tensors);

/// The entry points of one instruction set.
struct TunedFunctions {
  std::int32_t (*forward)(const rmsnorm_forward_args*);
  std::int32_t (*backward)(const rmsnorm_backward_args*);
};
namespace generic {
extern const TunedFunctions kFunctions;
}
namespace avx2 {
extern const TunedFunctions kFunctions;
}
namespace avx512 {
extern const TunedFunctions kFunctions;
}

}  // namespace rmsnorm::kernels::cpu
