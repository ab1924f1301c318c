#pragma once

#include <cstdint>

namespace rmsnorm {

/// How often this process went through the autograd wrapper. Counts passes, not kernel launches.
struct CallCounts {
  std::int64_t forward = 0;   ///< calls of the forward kernel path
  std::int64_t backward = 0;  ///< calls of the backward kernel path
  std::int64_t copies = 0;    ///< tensors that had to be copied into a layout the kernels read
};

/// The counts since the start or the last reset; safe from any thread.
CallCounts call_counts();
void reset_call_counts();

}  // namespace rmsnorm
