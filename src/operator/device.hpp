#pragma once

#include <ATen/core/Tensor.h>
#include <c10/core/Device.h>

#include <cstdint>
#include <string>
#include <string_view>

#include "rmsnorm/implementation.h"

// The seam between builds with and without CUDA: cuda_device.cpp or no_cuda_device.cpp. No other
// file of the library or the program asks which it is.

namespace rmsnorm {

/// The built-in CUDA kernels of that name; nullptr if there are none.
const rmsnorm_implementation* find_cuda_kernels(std::string_view name);

/// An uninitialised dense tensor on a CUDA device, from libtorch's caching allocator: what
/// at::empty returns, without its way through the dispatcher, which costs as much as the
/// allocation.
at::Tensor empty_on_cuda(at::IntArrayRef sizes, at::ScalarType type, const c10::Device& device);

/// Why CUDA work cannot run here, as a sentence with what to do (no kernels in this build, no
/// driver, no device, a device that the kernels were not compiled for); empty when it can.
std::string cuda_problem(std::int32_t device_index);

struct CudaFacts {
  std::string device_name;
  int sm = 0;  ///< 90 for compute capability 9.0
  std::int64_t memory_bytes = 0;
  std::string runtime;  ///< of the CUDA runtime, 13.0
  std::string driver;   ///< of the kernel module, 580.159.04, or else the CUDA version it supports
};

/// Facts of a device for which cuda_problem is empty. Throws CudaError.
CudaFacts cuda_facts(std::int32_t device_index);

/// Version of the CUDA runtime that this build is linked with; empty without CUDA.
std::string cuda_runtime_version();

}  // namespace rmsnorm
