#include "kernels/mutants/tuned_cuda_backward.cuh"

namespace rmsnorm::kernels::cuda {
namespace {

constexpr bool is_here(Fault named) {
  return is_in_dgamma_sum(named);
}

}  // namespace

BackwardPass tuned_mutant_dgamma(Fault fault) {
  static constexpr auto passes = passes_of_tuned_faults<TunedBackwardPass, is_here>();
  return passes[static_cast<std::size_t>(fault)];
}

}  // namespace rmsnorm::kernels::cuda
