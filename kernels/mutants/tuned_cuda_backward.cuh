#pragma once

#include "kernels/cuda/tuned_backward_launch.cuh"
#include "kernels/mutants/tuned_passes.hpp"

// The backward of tuned's mutants on CUDA, in two files that compile side by side.

namespace rmsnorm::kernels::cuda {

template <Fault Named>
struct TunedBackwardPass {
  static std::int32_t run(const rmsnorm_backward_args* args) {
    return dispatch_tuned_mutant<Types, Named>(*args, [&](auto x) {
      using T = decltype(x);
      constexpr Fault fault = tuned_backward_fault(Named);
      return run_backward(read_args<fault>(*args), launch_backward<T, T, fault>);
    });
  }
};

/// Those of is_in_dgamma_sum; tuned_mutant_backward has the others. No kernel may be in both files:
/// the count that paces a ring is the file's own, the kernel that the linker keeps is not.
BackwardPass tuned_mutant_dgamma(Fault fault);

}  // namespace rmsnorm::kernels::cuda
