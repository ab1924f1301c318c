#pragma once

#include <c10/core/Device.h>

namespace rmsnorm {

/// The native handle (cudaStream_t) of the current stream of a CUDA device; nullptr for the CPU.
void* current_stream(const c10::Device& device);

/// Waits for the current stream of the current CUDA device; throws what the work on it threw.
void synchronize_current_stream();

}  // namespace rmsnorm
