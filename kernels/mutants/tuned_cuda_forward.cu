#include "kernels/cuda/tuned_forward_launch.cuh"
#include "kernels/mutants/tuned_passes.hpp"

namespace rmsnorm::kernels::cuda {
namespace {

template <Fault Named>
struct Pass {
  static std::int32_t run(const rmsnorm_forward_args* args) {
    return dispatch_tuned_mutant<Types, Named>(*args, [&](auto x) {
      using T = decltype(x);
      constexpr Fault fault = tuned_forward_fault(Named);
      return run_forward(read_args<fault>(*args), launch_forward<T, T, fault>);
    });
  }
};

}  // namespace

ForwardPass tuned_mutant_forward(Fault fault) {
  static constexpr auto passes = passes_of_tuned_faults<Pass, has_all>();
  return passes[static_cast<std::size_t>(fault)];
}

}  // namespace rmsnorm::kernels::cuda
