#pragma once

#include <cuda_runtime.h>

#include "kernels/cuda/policy.hpp"
#include "rmsnorm/implementation.h"

// What tuned.cu (plans, table) and the tuned_*.cu files (one pair of dtypes each, to compile side
// by side) share.

namespace rmsnorm::kernels::cuda {

struct TunedContext {
  Device device;
  int device_index = 0;
  cudaStream_t stream = nullptr;
};

using ForwardLauncher = cudaError_t (*)(const rmsnorm_forward_args&, const ForwardPlan&,
                                        const Problem&, const TunedContext&);
using BackwardLauncher = cudaError_t (*)(const rmsnorm_backward_args&, const BackwardPlan&,
                                         const Problem&, const TunedContext&);

/// What the table's passes do with the launchers of their dtypes.
std::int32_t run_forward(const rmsnorm_forward_args& args, ForwardLauncher launch);
std::int32_t run_backward(const rmsnorm_backward_args& args, BackwardLauncher launch);

struct Launchers {
  ForwardLauncher forward;
  BackwardLauncher backward;
};

Launchers float64_launchers();
Launchers float32_launchers();
Launchers float16_launchers(bool float32_gamma);
Launchers bfloat16_launchers(bool float32_gamma);

}  // namespace rmsnorm::kernels::cuda
